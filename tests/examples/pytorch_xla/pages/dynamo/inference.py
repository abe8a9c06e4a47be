# Corrections: a generated data set, and `.to(device)` on its data.
import torch
import torchvision
import torch_xla.core.xla_model as xm

def eval_model(loader):
  device = xm.xla_device()
  xla_resnet18 = torchvision.models.resnet18().to(device)
  xla_resnet18.eval()
  dynamo_resnet18 = torch.compile(
    xla_resnet18, backend='openxla')
  for data, _ in loader:
    with torch.no_grad():
      output = dynamo_resnet18(data.to(device))
  return output

output = eval_model([(torch.randn(2, 3, 64, 64), None)] * 2)
assert output.shape == (2, 1000) and output.isfinite().all()
