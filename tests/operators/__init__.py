"""Every operator of torch's own databases of samples (OpInfo), on xla and on the CPU.

    python -m tests.operators run                              everything (hours)
    python -m tests.operators run --direction forward --dtype float32 --road lazy
    python -m tests.operators run --only 'linalg.*'            entries by a regular expression over the whole name
    python -m tests.operators run --only add --samples 0 -v    all samples of an entry, each row as it is judged
    python -m tests.operators run --new                        rows that are not recorded as passing
    python -m tests.operators failures --only 'linalg.*'       failing rows, grouped by the first line of the error
    python -m tests.operators failures --entries               the same, entry by entry with the sample that failed
    python -m tests.operators report                           writes docs/operators.md from the results
    python -m tests.operators pass                             writes tests/operators/passing.txt from the results

A row is (database, entry, direction, dtype, road). Databases: `op_db`, `foreach`, `module_db`, `optim_db`. Directions:
`forward`, `backward`, `inplace`, `out`, `strided_out`, `errors` (torch's samples of wrong calls), `wrong` (samples with
one random change: 20 that the CPU refuses, and some that it takes), `limits` (integers at both ends of their types),
`layouts` (each operand in several orders of memory, from operators of the same program). Roads: `lazy`, `eager` (mode),
`compile` (`torch.compile`), `host` (`torch.compile` of plain CPU tensors), `function` (`lazy_runtime.jax.function`, of
`op_db` in float32). The same filters go with every command, each
may be given several times. Results are added to `results/rows.jsonl`; the last one of a row counts, so a run of a part
updates that part.

The files in the order in which data flows: `rows` (which rows exist), `cases` (the calls that a row stands for),
`roads` (how a call runs), `compare` and `tolerances` (what equal means), `judge` (a row's outcome), `run` (workers),
`refusals` and `excused` (the same for wrong calls), `expected` (failures with reasons), `share` (what CI runs),
`report`.
"""
