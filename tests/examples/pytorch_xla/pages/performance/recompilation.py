# Corrections: the undefined tensors.
import torch
import torch_xla
import torch_xla.debug.metrics as met

device = torch_xla.device()

# The number of nonzero elements is only known when it was computed: the graph is cut there.
x = torch.tensor([[1, 0], [0, 3]], device=device)
indices = torch.nonzero(x)
assert indices.tolist() == [[0, 0], [1, 1]]

# Control flow on a value cuts the graph too ...
y = torch.randn(4, device=device)
if y.sum() > 0:
  z = y + 1
else:
  z = y - 1

# ... which torch.where does not.
torch_xla.sync()
met.clear_all()
w = torch.where(y.sum() > 0, y + 1, y - 1)
torch_xla.sync()
assert met.counter_value('ExecuteComputation') == 1
assert torch.equal(w, z)

# Padding to few sizes keeps the number of graphs small.
def bucket(length):
  return 4 if length <= 4 else 8

met.clear_all()
for length in (1, 3, 4, 5, 8, 2):
  data = torch.nn.functional.pad(torch.ones(length), (0, bucket(length) - length)).to(device)
  data = data * 2 + 1
  torch_xla.sync()
assert met.counter_value('UncachedCompile') == 2, met.metrics_report()
