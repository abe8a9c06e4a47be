"""Fits a small model by `lightning.pytorch.Trainer`: validation, a checkpoint, early stopping, resuming.

    python lightning_fit.py tpu|auto|cpu DEVICES DIRECTORY [32-true|bf16-true]

The last line of the output is JSON.
"""

import json
import os
import sys

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint

BATCH = 8


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Dropout(0.0), torch.nn.Linear(32, 1)
        )

    def loss(self, batch):
        x, y = batch
        dtype = self.net[0].weight.dtype
        return torch.nn.functional.mse_loss(self.net(x.to(dtype)), y.to(dtype))

    def training_step(self, batch, _):
        return self.loss(batch)

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def train_dataloader(self):
        return torch.utils.data.DataLoader(data(8 * BATCH, 1), batch_size=BATCH // self.trainer.world_size)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(data(4 * BATCH, 2), batch_size=BATCH // self.trainer.world_size)


class Losses(Callback):
    """The validation's losses of all epochs, and what the parameters are."""

    def __init__(self):
        self.found, self.dtypes, self.device = [], [], ""

    def on_validation_epoch_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.found.append(trainer.callback_metrics["val_loss"].item())
        self.device = module.device.type
        self.dtypes = sorted({str(parameter.dtype) for parameter in module.parameters()})

    def state_dict(self):
        return {"found": self.found}

    def load_state_dict(self, state):
        self.found = list(state["found"])


def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x.square().sum(1, keepdim=True))


def fit(accelerator, devices, precision, directory, epochs, resume=None, stopping=None):
    seed_everything(0, verbose=False)
    model, losses = Regression(), Losses()
    saving = ModelCheckpoint(directory, filename="{epoch}", save_top_k=-1)
    trainer = Trainer(
        accelerator=accelerator,
        devices=devices,
        precision=precision,
        max_epochs=epochs,
        callbacks=[losses, saving, *([stopping] if stopping else [])],
        default_root_dir=directory,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, ckpt_path=resume)
    return trainer, model


def main(accelerator, devices, directory, precision="32-true"):
    devices = int(devices)
    first = os.path.join(directory, "first")
    trainer, model = fit(accelerator, devices, precision, first, 3)
    if trainer.strategy.launcher is not None and devices > 1:
        # what the ranks have counted stays with them, so the checkpoint tells
        saved = torch.load(os.path.join(first, "epoch=2.ckpt"), map_location="cpu", weights_only=False)
        if trainer.is_global_zero:
            print(json.dumps({"losses": saved["callbacks"]["Losses"]["found"]}))
        return
    losses = trainer.callbacks[0]
    _, resumed = fit(
        accelerator, devices, precision, os.path.join(directory, "second"), 3, os.path.join(first, "epoch=1.ckpt")
    )
    stopping = EarlyStopping("val_loss", patience=1, min_delta=1e9)
    stopped, _ = fit(accelerator, devices, precision, os.path.join(directory, "third"), 9, stopping=stopping)
    pairs = zip(model.parameters(), resumed.parameters(), strict=True)
    found = {
        "accelerator": type(trainer.accelerator).__name__,
        "device": losses.device,
        "dtypes": losses.dtypes,
        "losses": losses.found,
        "world": trainer.world_size,
        "resumed": all(torch.equal(a.detach().cpu(), b.detach().cpu()) for a, b in pairs),
        "epochs": stopped.current_epoch,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
