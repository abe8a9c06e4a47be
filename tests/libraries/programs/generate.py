"""Text generation by `generate()` of transformers, greedy, with a small Llama of random weights.

    python generate.py cpu|xla dynamic|static|padded|compiled

The last line of the output is JSON: the tokens of two calls.
"""

import json
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


def main(device, cache):
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    model = LlamaForCausalLM(config).eval().to(device)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    if cache != "dynamic":
        options["cache_implementation"] = "static"
    if cache == "compiled":
        model.forward = torch.compile(model.forward, backend="openxla", dynamic=False)
    tokens = []
    for seed in (1, 2):
        prompt = torch.randint(1, 64, (2, 7), generator=torch.Generator().manual_seed(seed))
        if cache == "padded":
            mask = torch.ones_like(prompt)
            mask[0, :3] = 0
            options |= {"attention_mask": mask.to(device), "eos_token_id": 5}
        tokens.append(model.generate(prompt.to(device), **options).tolist())
        if device == "xla":
            import torch_xla

            torch_xla.sync()
    print(json.dumps({"tokens": tokens}))


if __name__ == "__main__":
    main(*sys.argv[1:])
