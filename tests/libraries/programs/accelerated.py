"""A training loop of `accelerate.Accelerator`: accumulation, clipping, a schedule, metrics, and saving.

    python accelerated.py here|spawn|notebook DIRECTORY [no|bf16]

The last line of the output is JSON.
"""

import json
import os
import sys

import torch
from accelerate import Accelerator, notebook_launcher
from accelerate.utils import DataLoaderConfiguration, set_seed
from safetensors.torch import load_file

BATCH = 16


def model_of():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 1))


def data_of(count):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x.square().sum(1, keepdim=True))


def train(directory, precision, epochs=2):
    set_seed(0)
    split = DataLoaderConfiguration(split_batches=True)
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision=precision, dataloader_config=split)
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=8)
    loader = torch.utils.data.DataLoader(data_of(8 * BATCH), batch_size=BATCH)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses, rates = [], []

    def run_epoch():
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            rates.append(schedule.get_last_lr()[0])

    for _ in range(epochs):
        run_epoch()
    accelerator.save_state(os.path.join(directory, "state"))
    accelerator.save_model(model, os.path.join(directory, "model"))
    accelerator.wait_for_everyone()
    run_epoch()
    last = [parameter.detach().cpu() for parameter in model.parameters()]
    accelerator.load_state(os.path.join(directory, "state"))
    saved = load_file(os.path.join(directory, "model", "model.safetensors"))
    state = accelerator.unwrap_model(model).state_dict()
    same = {name: torch.equal(tensor, state[name].cpu()) for name, tensor in saved.items()}
    del (
        state
    )  # held, it keeps buffers from donation: a program of its own, whose sums XLA rounds otherwise on some CPUs
    run_epoch()
    again = [parameter.detach().cpu() for parameter in model.parameters()]

    count = 6 * BATCH
    held_out = accelerator.prepare(torch.utils.data.DataLoader(data_of(count), batch_size=BATCH))
    seen = []
    model.eval()
    for x, y in held_out:
        with torch.no_grad():
            error = (model(x) - y).square()
        seen.append(accelerator.gather_for_metrics(error))
    means = accelerator.gather(torch.stack(losses)[None]).mean(0)
    if accelerator.is_main_process:
        found = {
            "device": accelerator.device.type,
            "processes": accelerator.num_processes,
            "losses": means.tolist(),
            "rates": rates,
            "metric": torch.cat(seen).mean().item(),
            "samples": sum(map(len, seen)),
            "saved": same,
            "resumed": all(map(torch.equal, last, again)),
        }
        print(json.dumps(found), flush=True)


def rank(index, directory, precision):
    train(directory, precision)


def main(how, directory, precision="no"):
    if how == "here":
        train(directory, precision)
    elif how == "spawn":
        import torch_xla.distributed.xla_multiprocessing as xmp

        xmp.spawn(rank, args=(directory, precision))
    else:
        notebook_launcher(train, args=(directory, precision), num_processes=2, mixed_precision=precision)


if __name__ == "__main__":
    main(*sys.argv[1:])
