# From the documentation of torch_xla.compile. Corrections: the undefined x.
import torch
import torch_xla

x = torch.ones(3, device=torch_xla.device())

# usage 1
@torch_xla.compile()
def foo(x):
  return torch.sin(x) + torch.cos(x)

def foo2(x):
  return torch.sin(x) + torch.cos(x)
# usage 2
compiled_foo2 = torch_xla.compile(foo2)

# usage 3
with torch_xla.compile():
  res = foo2(x)

assert torch.equal(foo(x), res) and torch.equal(compiled_foo2(x), res)
