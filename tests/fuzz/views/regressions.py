"""Programs that once failed, each with what was wrong. What `python -m tests.fuzz` prints goes in here."""

from __future__ import annotations

REGRESSIONS: dict[str, str] = {
    "lazy, a loop overwrote what it had yet to read (XLA's analysis of regions)": """
t1 = strided((6,), (1,), complex64)
t2 = t1[None, :]
---
t2[None, :, 1::2].zero_()
read(t2.tolist())
---

""",
    "compiled, a constant that an operator uploads is no argument of the graph": """
t0 = values((), float32)
---
t0.copy_(-1)
---
""",
    "compiled, the whole of an argument as one of several views shares its memory": """
t1 = values((3, 2), float32).requires_grad_()
---
t2 = t1.split(3, 0)[0]
---
""",
    "compiled, a detached argument shares its memory": """
t1 = values((4, 1, 3), float32)
t2 = t1[1:]
---
t4 = t2.detach()[1:]
---
""",
    "compiled, one buffer behind two values was donated twice": """
t0 = values((0, 1, 3), float32)
t1, = t0.chunk(2, 1)
---
t2 = t0.select(2, 0)
t1.mul_(t1.sum())
t2.square_()
t2.set_(t2)
t3 = t2.split(3, 0)[0]
---
""",
    "compiled, after a graph break Dynamo compiled our own functions": """
t0 = values((2, 0), float32).requires_grad_()
t1 = torch.stack([t0, t0])
---
t1[torch.tensor([False, False], device=device)] = t0
---
""",
    "compiled, a view whose strides change": """
t0 = values((2, 1, 3), float32)
---
t1 = t0.split(1, -3)[0]
t4 = t1.flip(0)
t4.swapaxes_(2, 0)
---
""",
    "a write through a view left its strides to the memory behind it": """
t0 = values((2, 3), float32)
t2 = t0.t()
t2[None, :, None, :].masked_fill_(t2[None, :, None, :] < 0, 4)
t0.transpose_(1, 0)
t4 = t0.contiguous()
""",
    "cumsum_ of bools": """
t0 = values((2, 3, 2), bool)
t0.cumsum_(0)
""",
    "index_put_ of another dtype": """
t1 = values((2, 0), uint8)
t1.index_put_((torch.tensor([0, 1], device=device),), values((2, 0)), accumulate=True)
""",
    "sizes that do not fit are refused before dtypes": """
t0 = values((2, 3), float32)
t1 = values((2, 0), complex64)
t2, = t1.split(3, -2)
t0[1:4:2, :] += t2
""",
    "a list of bools multiplied in place": """
t0 = values((2, 0), bool)
torch._foreach_mul_([t0], 2)
""",
    "as_strided_ of a leaf is refused before its sizes are": """
t0 = values((0, 1, 3), float32).requires_grad_()
t0.as_strided_((3, 2), (3, 1), 2)
""",
    "as_strided_ of one of several views is refused before its sizes are": """
t0 = values((1,), float32).requires_grad_()
t2 = t0.unsqueeze(0)
t3, = t0.split(3, 0)
t3.as_strided_((3,), (1,), 3)
""",
    "compiled, an argument becomes an alias of another": """
t0 = values((), float32)
t1 = values((2, 1, 3), float32)
---
t2 = t1.unflatten(-1, (-1, 1))
t0.data = t2
---
""",
    "a mask and too many values of another dtype": """
t0 = values((6,), float32)
t1 = values((4,), bool)
t1.index_put_((torch.tensor([False, True, True, True], device=device),), t0, accumulate=True)
""",
    "a mask and one value of another dtype": """
t0 = values((), float32)
t1 = values((4,), bool)
t1[torch.tensor([False, True, True, True], device=device)] = t0
""",
    "index_add_ of another dtype": """
t1 = values((3, 3), bool)
t1.index_add_(1, torch.tensor([0], device=device), t1.narrow(1, 0, 1) * 3)
""",
    "neighbours were taken to overlap, since a view left the wrapper's offset at 0": """
t0 = values((1, 3), float32)
t1, t2, t3 = t0.unbind(-1)
t2[None, :].add_(t1)
""",
    "an error about strides told of those of a stand-in": """
t0 = values((1,), uint8)
t0.unsqueeze_(0)
t1 = t0[0, 2:2]
t2 = t1.view(int32)
""",
    "compiled, an argument becomes an alias of what an output is a view of": """
t0 = values((1,), float32)
---
with torch.no_grad(): t0.addcmul_(t0, values((1,)))
t1 = t0.squeeze()
t0.data = t0
---
""",
    "index_copy_ of another dtype": """
t0 = values((6,), bool)
t3 = t0.detach()
t3.index_copy_(-1, torch.tensor([2], device=device), t3.narrow(-1, 0, 1) * 3)
""",
    "compiled, a view of a detached argument has no gradient": """
t0 = values((1, 3), float32).requires_grad_()
---
t1 = t0.data
t2 = t0.data
t1.data = t1
t4 = t1.expand_as(t2)
---
""",
    "compiled, arguments that share memory without being views of one tensor": """
t0 = values((2, 1, 3), float32)
t3 = t0.detach()
---
t3.copy_(t3)
t0.square_()
---
""",
    "compiled, as_strided beyond the view that it is called on": """
t0 = values((0,), uint8)
---
t0.resize_((7,)).fill_(1)
t2 = t0.select(-1, 3)
t4 = t2.as_strided((1,), (2,), 2)
---
""",
    "compiled, a result seen as another dtype was a view in the books of its own": """
t0 = values((6,), float32)
---
t6 = t0 * 2
t7 = t6.view(uint8)
---
""",
    "compiled, a view of an argument that became an alias of itself": """
t0 = values((2, 3), float32).requires_grad_()
---
t0.data = t0
t2 = t0.expand([2, 2, -1])
---
""",
    "compiled, a view of a view that became an alias of itself": """
t0 = values((2, 3), float32).requires_grad_()
t3 = t0.t()
---
t3.data = t3
t4 = t3[0, :]
---
""",
    "compiled, a write to a window over bools": """
t0 = values((1, 3), bool)
---
t2 = t0.unfold(-2, 1, 1)
t3 = t2.narrow(2, 0, 1)
t3[t3 > 1] = 2.5
---
""",
    "out= of an operand with a gradient is refused before its dtype is": """
t0 = values((1,), bool)
t1 = values((1,), float32).requires_grad_()
---
t2 = t0.detach()
t3 = t1.flip(0)
torch.add(t3, 1, out=t2[...])
---
""",
    "bools to subtract are refused before memory that overlaps": """
t0 = values((4,), bool)
t0[None, :].sub_(t0)
""",
    "a result with other strides than the transposed view that it was written to": """
t0 = values((4,), float32)
t1 = t0.reshape((1, 2, 2))
---
t1.transpose_(-1, 0)
t1.cumsum_(0)
---
""",
    "compiled, a view of a detached result needs no gradient": """
t0 = values((2, 3), float32).requires_grad_()
---
t1 = t0 + t0
t4 = t1.data
t5 = t4.unsqueeze(1)
---
""",
    "compiled, parts of a reshaped copy that was written to share its memory": """
t0 = values((2, 3, 2), float32)
t1 = t0.unfold(-2, 1, 2)
---
t2 = t1.reshape((8,))
t3, t4, t5 = t2.chunk(3, -1)
t4.masked_fill_(t4[2:3:2] < 0, 4)
---
""",
    "a write through a part of a view whose elements share a place": """
t0 = values((2, 3, 2), float32)
t2 = t0.as_strided((2,), (0,), 2)
t2[:1:2] = 3
""",
    "an expanded tensor is copied to itself": """
t0 = values((1,), float32)
t1 = t0.expand([2, 2])
t2 = t1.view(float32)
t2.copy_(t2)
t1.copy_(t2)
t0 += 1
""",
    "tensors of one memory whose one row lies differently": """
t0 = strided((1, 3), (1, 1), bool)
t0[0, None, :] = t0
""",
    "a view that was written to has other strides of its one row": """
t0 = strided((1, 3), (1, 1), float32)
t0[...] *= 2
""",
    "compiled, views of a copy that has the value of an argument": """
t0 = values((2, 3), float32)
t2 = t0.flip(0)
---
t3 = t2.flip(0)
t3.copy_(t0)
t4 = t3[:, :]
---
""",
    "compiled, views of what has a constant value": """
t0 = values((1,), float32)
---
t2 = t0.sum(-1)
t3 = t2.view(1)
t4 = t2.view(())
t2.copy_(True)
---
""",
    "_foreach of a view of a leaf": """
t0 = values((3, 2), float32).requires_grad_()
t2 = t0.expand([2, 3, -1])
---
torch._foreach_mul_([t2[:, :, :]], 2)
---
""",
    "out= of what requires a gradient, to where elements share memory": """
t1 = values((1,), float32).requires_grad_()
---
t3 = t1.expand([2, 1])
torch.add(t3, 1, out=t3)
---
""",
    "view(dtype) from a place that is none for it": """
t0 = values((2, 3), float32)
t1, t2, t3 = t0.unbind(-1)
t5 = t2.view(complex64)
""",
    "view(dtype) of neighbours, from a place that is none for it": """
t0 = values((5,), float32)
t5 = t0[1:].view(complex64)
""",
    "_foreach of a conjugate": """
t0 = values((2, 3, 2), complex64)
t1 = t0.mH
---
torch._foreach_mul_([t1[1:3, ...]], 2)
---
""",
    "the negative of bools, in places that they share": """
t0 = values((2, 3), bool)
---
t1 = t0.expand([2, -1, -1])
t1.neg_()
---
""",
    "what complex numbers do not have, in places that they share": """
t0 = values((2, 3), complex64)
---
t1 = t0.expand([2, 2, -1])
t1.clamp_(0, 2)
---
""",
    "as_strided of a view, from where that begins": """
t0 = values((3, 2), float32)
t2 = t0.movedim(0, -2)
---
t4 = t2.diagonal(-1, 0, -1)
t5 = t4.as_strided((1,), (2,))
t6 = torch.stack([t5, t5])
---
""",
    "what overlaps and is too large": """
t0 = values((2, 1, 1), float32)
---
t1 = t0[0]
t1.mul_(t0)
---
""",
    "views of detached memory, one written to after a graph has given them out": """
t0 = values((2, 3, 2), float32)
t1 = values((3, 3), float32)
---
t2 = torch.where(t0 > 1, t0, t0)
t3 = t2.data
t4 = t3[:, :2, :]
t5 = t4.reshape((2, 4))
read(t1.tolist())
t6 = t4.data
t5[:, 1:3:2] = 2
---
""",
}
