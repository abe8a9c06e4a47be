"""Every private name of torch, jax and jaxlib that the package uses: found, looked for and exchanged here alone.

| file | names of |
|---|---|
| `rows.py` | nothing: what a row says |
| `torch.py` | torch's core |
| `tracing.py` | fake tensors, decompositions, `make_fx`, AOTAutograd, higher-order operators |
| `dynamo.py` | Dynamo |
| `distributed.py` | `torch.distributed` |
| `jaxlib.py` | jax and jaxlib |

`python -m lazy_runtime.compat` prints `docs/versions.md`, which is made of the tables.
"""
