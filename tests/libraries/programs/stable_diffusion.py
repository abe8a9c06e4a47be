"""A pipeline of the shape of Stable Diffusion, small and of random weights, with two numbers of denoising steps.

    python stable_diffusion.py cpu|xla

The last line of the output is JSON.
"""

import json
import sys

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel


class Tokenizer:
    """Numbers of characters, in place of a vocabulary that would have to be downloaded."""

    model_max_length = 16
    added_tokens_encoder = {}  # noqa: RUF012

    def tokenize(self, text):
        return list(text)

    def __call__(self, text, padding=None, max_length=16, truncation=None, return_tensors=None, **_):
        texts = [text] if isinstance(text, str) else text
        rows = [[1 + ord(letter) % 60 for letter in each][:16] for each in texts]
        ids = torch.tensor([row + [0] * (16 - len(row)) for row in rows])
        return type("Encoding", (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})()

    def batch_decode(self, ids):
        return [""] * len(ids)


def pipeline():
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        attention_head_dim=8,
        cross_attention_dim=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 16),
        norm_num_groups=8,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=16,
    )
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = CLIPTextModel(CLIPTextConfig(vocab_size=64, max_position_embeddings=16, **sizes))
    scheduler = DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, clip_sample=False)
    made = StableDiffusionPipeline(
        vae.eval(), text.eval(), Tokenizer(), unet.eval(), scheduler, None, None, None, False
    )
    made.set_progress_bar_config(disable=True)
    return made


def main(device):
    pipe = pipeline().to(device)
    images = []
    for steps in (6, 12):
        latents = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
        image = pipe("a cat", num_inference_steps=steps, latents=latents, output_type="np").images
        images.append(image.flatten()[::7].tolist())
    print(json.dumps({"device": pipe.device.type, "images": images}))


if __name__ == "__main__":
    main(*sys.argv[1:])
