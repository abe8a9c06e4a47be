"""What a backward graph reads of an input that the forward graph overwrites."""

from __future__ import annotations

import torch

aten = torch.ops.aten


def save_as_read(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, count: int) -> None:
    """Lets a forward graph save the value that it has read of an input that it overwrites.

    A buffer that a module updates in its forward pass is such an input: `self.steps += 1; return x * self.steps`. The
    partition of torch (2.13, whatever the backend) saves the input itself; by then it holds what has been written, from
    which the backward graph computed wrong gradients without a word.

    Args:
        forward: a partition's forward graph, whose writes to inputs are its last operators.
        backward: its backward graph. An input that it takes over is an argument of the same name there.
        count: how many outputs of the forward graph are none that it saves.
    """
    writes = forward.graph.find_nodes(op="call_function", target=aten.copy_.default)
    overwritten = {write.args[0] for write in writes}
    output = next(iter(forward.graph.find_nodes(op="output")))
    outputs = list(output.args[0])
    saved = [node for node in dict.fromkeys(outputs[count:]) if node in overwritten]
    for node in saved:
        with forward.graph.inserting_before(writes[0]):
            read = forward.graph.call_function(aten.clone.default, (node,))
        read.meta = {key: value for key, value in node.meta.items() if key in ("val", "tensor_meta")}
        outputs[count:] = [read if each is node else each for each in outputs[count:]]
        for argument in backward.graph.find_nodes(op="placeholder"):
            if argument.target == node.target:  # no longer the parameter or buffer of that number
                argument.name = argument.target = f"read_of_{node.target}"
    if saved:
        output.args = (tuple(outputs),)
        forward.recompile()
        backward.recompile()
