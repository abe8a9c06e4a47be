"""Trains diffusers' UNet2DModel to tell the noise in images, with an exponential average of its weights.

    python ddpm_training.py cpu|xla

The last line of the output is JSON.
"""

import json
import sys

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel


def main(device):
    torch.manual_seed(0)
    model = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).to(device)
    average = EMAModel(model.parameters(), decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 8)
    noising = DDPMScheduler(num_train_timesteps=100)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(8):
        images, noise = (torch.randn(4, 1, 16, 16, generator=generator).to(device) for _ in range(2))
        steps = torch.randint(100, (4,), generator=generator).to(device)
        predicted = model(noising.add_noise(images, noise, steps), steps, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(predicted, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        losses.append(loss.detach())
        if device == "xla":
            import torch_xla

            torch_xla.sync()
    average.copy_to(model.parameters())
    weights = sum(parameter.detach().double().abs().sum() for parameter in model.parameters()).item()
    print(json.dumps({"losses": torch.stack(losses).tolist(), "weights": weights}))


if __name__ == "__main__":
    main(*sys.argv[1:])
