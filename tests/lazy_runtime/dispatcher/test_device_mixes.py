"""CPU tensors among the arguments of operators on xla: taken where torch takes them on any device, else refused."""

import pytest
import torch
import torch.nn.functional as F

from lazy_runtime.common import metrics

INDEX = torch.tensor([0, 2])
MASK = torch.tensor([True, False, True])
NUMBER = torch.tensor(2.0)
NUMBERS = torch.tensor([1.0, 2.0])


def matrix(device):
    return torch.arange(12.0, device=device).reshape(3, 4)


def _assigned(x, index, value):
    x[index] = value
    return x


def _foreach(name, x, values):
    tensors, others = [x.clone(), x.clone()], [x + 1, x + 2]
    getattr(torch, f"_foreach_{name}")(tensors, others, others, values)
    return torch.stack(tensors)


TAKEN = {
    "index": lambda x: x[INDEX],
    "index of a later dimension": lambda x: x[:, INDEX],
    "mask": lambda x: x[MASK],
    "assignment at an index": lambda x: _assigned(x, INDEX, 1.0),
    "assignment of a number at an index": lambda x: _assigned(x, INDEX, NUMBER),
    "assignment of a number at a mask": lambda x: _assigned(x, MASK, NUMBER),
    "accumulation": lambda x: x.index_put_((INDEX,), torch.tensor(1.0), accumulate=True),
    "tensor_split": lambda x: torch.cat(torch.tensor_split(x, torch.tensor([1, 2]))[1:]),
    "where": lambda x: torch.where(x > 3, NUMBER, x),
    "where of numbers": lambda x: torch.where(x > 3, NUMBER, torch.tensor(3.0)),
    "masked_fill": lambda x: x.masked_fill(x > 3, NUMBER),
    "index_fill": lambda x: x.index_fill(0, INDEX.to(x.device), NUMBER),
    "clamp": lambda x: x.clamp(min=NUMBER, max=torch.tensor(5.0)),
    "lerp": lambda x: torch.lerp(x, x + 1, NUMBER),
    "linspace": lambda x: torch.linspace(NUMBER, torch.tensor(5.0), 3, device=x.device),
    "fill_": lambda x: x.fill_(NUMBER),
    "_foreach_mul": lambda x: torch.stack(torch._foreach_mul([x, x], NUMBER)),
    "_foreach_addcmul_": lambda x: _foreach("addcmul_", x, NUMBERS),
    "_foreach_addcdiv_": lambda x: _foreach("addcdiv_", x, NUMBERS),
}

REFUSED = {
    "assignment of values": lambda x: _assigned(x, INDEX, torch.ones(2, 4)),
    "assignment of values at a mask": lambda x: _assigned(x, MASK, torch.ones(2, 4)),
    "index on xla of a tensor on the CPU": lambda x: torch.ones(3)[INDEX.to(x.device)],
    "gather": lambda x: torch.gather(x, 0, torch.tensor([[0]])),
    "index_select": lambda x: torch.index_select(x, 0, INDEX),
    "masked_select": lambda x: torch.masked_select(x, torch.ones(3, 4, dtype=torch.bool)),
    "masked_fill": lambda x: x.masked_fill(torch.ones(3, 4, dtype=torch.bool), 0),
    "embedding": lambda x: F.embedding(INDEX, x),
    "allclose": lambda x: torch.allclose(x, torch.ones(3, 4)),
    "bincount": lambda x: torch.bincount(INDEX.to(x.device), torch.ones(2)),
    "nll_loss": lambda x: F.nll_loss(x, torch.tensor([0, 1, 2])),
    "_foreach_addcdiv_ with numbers on xla": lambda x: _foreach("addcdiv_", x, NUMBERS.to(x.device)),
}


@pytest.mark.parametrize("call", TAKEN.values(), ids=TAKEN.keys())
def test_taken(call):
    assert torch.equal(call(matrix("xla")).cpu(), call(matrix("cpu")))


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_refused(call):
    with pytest.raises(RuntimeError, match=r"same device|on CPU"):
        call(matrix("xla"))


@pytest.mark.parametrize("inference", [False, True])
def test_lengths_of_ctc_loss(inference):
    def loss(device):
        generator = torch.Generator().manual_seed(0)
        log_probs = torch.randn(6, 2, 4, generator=generator).log_softmax(2).to(device).requires_grad_(not inference)
        targets = torch.tensor([[1, 2], [2, 3]])  # torch moves these too
        with torch.inference_mode(inference):
            found = F.ctc_loss(log_probs, targets, torch.tensor([6, 5]), torch.tensor([2, 1]))
        if not inference:
            found.backward()
            return log_probs.grad.cpu()
        return found.cpu()

    torch.testing.assert_close(loss("xla"), loss("cpu"))


def test_other_lengths_are_the_same_program():
    log_probs = torch.zeros(6, 2, 4, device="xla").log_softmax(2)
    targets = torch.tensor([[1, 2], [2, 3]], device="xla")
    F.ctc_loss(log_probs, targets, torch.tensor([6, 5]), torch.tensor([2, 1])).item()
    before = metrics.counters["UncachedSyncTensors"]
    F.ctc_loss(log_probs, targets, torch.tensor([4, 6]), torch.tensor([1, 2])).item()
    assert metrics.counters["UncachedSyncTensors"] == before


@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences(batch_first):
    def outputs(device):
        torch.manual_seed(0)
        x = torch.randn(4, 4, 2).to(device).requires_grad_()
        lengths = torch.tensor([2, 4, 1, 3])
        model = torch.nn.LSTM(2, 3, batch_first=batch_first).to(device)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        assert packed.batch_sizes.device.type == "cpu"
        found, (last, _) = model(packed)
        padded, sizes = torch.nn.utils.rnn.pad_packed_sequence(found, batch_first)
        assert torch.equal(sizes, lengths)
        (padded.square().sum() + last.sum()).backward()
        return padded.detach().cpu(), last.detach().cpu(), x.grad.cpu()

    torch.testing.assert_close(outputs("xla"), outputs("cpu"))
