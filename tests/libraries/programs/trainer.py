"""Trains a small model of random weights by `transformers.Trainer`, and goes on from a checkpoint of it.

    python trainer.py bert|gpt2|llama DIRECTORY [name=value ...]

The pairs are arguments of `TrainingArguments`, and `dropout` (a rate), `mask` (whether batches have an attention mask),
`attention` (`eager` or `sdpa`), `backend` (of `torch.compile`), `evaluate`, and `spmd` (one process for all devices).
The last line of the output is JSON.
"""

import ast
import json
import os
import sys

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


class Tokens(torch.utils.data.Dataset):
    """Sequences of equal steps from a random start; the class of a sequence is its step."""

    def __init__(self, count, classify, mask, seed):
        self.mask = mask
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(64, (count, 1), generator=generator)
        step = torch.randint(1, 4, (count, 1), generator=generator)
        self.tokens = (start + step * torch.arange(16)) % 64
        self.labels = step[:, 0] - 1 if classify else self.tokens

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        masks = {"attention_mask": torch.ones_like(tokens)} if self.mask else {}
        return {"input_ids": tokens, "labels": self.labels[index], **masks}


class ShardedTrainer(Trainer):
    """Makes the optimizer once the model is sharded: transformers 5.23 leaves that out with FSDP for XLA."""

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.optimizer is None:
            self.optimizer = self.accelerator.prepare(self.create_optimizer(self.model_wrapped))
        return super().create_scheduler(num_training_steps, optimizer)


def make(name, dropout, attention):
    set_seed(0)
    if name == "bert":
        rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        return BertForSequenceClassification(BertConfig(**SIZES, **rates, num_labels=3, attn_implementation=attention))
    if name == "gpt2":
        sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        return GPT2LMHeadModel(
            GPT2Config(**sizes, **rates, bos_token_id=0, eos_token_id=0, attn_implementation=attention)
        )
    return LlamaForCausalLM(
        LlamaConfig(**SIZES, num_key_value_heads=2, attention_dropout=dropout, attn_implementation=attention)
    )


def trainer(name, directory, dropout=0.0, mask=True, attention="sdpa", backend=None, **options):
    model = make(name, dropout, attention)
    if backend is not None:
        model.compile(backend=backend)
    defaults = {"logging_steps": 1, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    arguments = TrainingArguments(
        output_dir=directory,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"learning_rate": 1e-3, **defaults, **options},
    )
    return (ShardedTrainer if "fsdp" in options else Trainer)(
        model=model,
        args=arguments,
        train_dataset=Tokens(64, name == "bert", mask, 1),
        eval_dataset=Tokens(16, name == "bert", mask, 2),
    )


def history(of, name):
    return [entry[name] for entry in of.state.log_history if name in entry]


def main(name, directory, *pairs):
    options = {key: ast.literal_eval(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    evaluate = options.pop("evaluate", True)
    if options.pop("spmd", False):
        import torch_xla.runtime as xr

        xr.use_spmd()
    first = trainer(name, directory, **options)
    first.train()
    found = {
        "device": first.args.device.type,
        "world": first.args.world_size,
        "losses": history(first, "loss"),
        "norms": history(first, "grad_norm"),
        "rates": history(first, "learning_rate"),
        "dtypes": sorted({str(parameter.dtype) for parameter in first.model.parameters()}),
    }
    if evaluate:
        found["eval_loss"] = first.evaluate()["eval_loss"]
    checkpoint = os.path.join(directory, "checkpoint-3")
    if os.path.exists(checkpoint):
        second = trainer(name, directory, **options)
        second.train(resume_from_checkpoint=checkpoint)
        ours, theirs = (each.accelerator.unwrap_model(each.model).state_dict() for each in (first, second))
        found["resumed"] = history(second, "loss")[-1]
        found["different"] = [key for key in ours if not torch.equal(ours[key].cpu(), theirs[key].cpu())]
    if first.is_world_process_zero():
        print(json.dumps(found))


def rank(index, *arguments):
    main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
