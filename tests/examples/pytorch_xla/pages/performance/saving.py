# Corrections: the undefined model, and a file in a temporary folder.
import os
import tempfile
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser

device = torch_xla.device()
t0 = torch.randn(2, 2, device=device)
t1 = torch.randn(2, 2, device=device)
tensors = (t0, t1)

with tempfile.TemporaryDirectory() as folder:
  path = os.path.join(folder, 'tensors.pt')
  torch.save(tensors, path)
  tensors = torch.load(path)
  t0 = tensors[0].to(device)
  assert torch.equal(t0, tensors[0])

  # the recommended way: through the CPU
  torch.save([t.cpu() for t in tensors], path)
  tensors = torch.load(path)
  assert tensors[0].device.type == 'cpu'

  model = torch.nn.Linear(2, 2).to(device)
  xm.save(model.state_dict(), path)
  model.load_state_dict(torch.load(path))
  xser.save(model.state_dict(), path)
  model.load_state_dict(xser.load(path))
