# Corrections: a generated data set, `.to(device)` on its data, and the undefined optimizer.
import torch
import torchvision
import torch_xla.core.xla_model as xm

def train_model(model, data, target, optimizer):
  loss_fn = torch.nn.CrossEntropyLoss()
  pred = model(data)
  loss = loss_fn(pred, target)
  loss.backward()
  optimizer.step()
  return pred

def train_model_main(loader):
  device = xm.xla_device()
  xla_resnet18 = torchvision.models.resnet18().to(device)
  xla_resnet18.train()
  optimizer = torch.optim.SGD(xla_resnet18.parameters(), lr=0.01)
  dynamo_train_model = torch.compile(
        train_model, backend='openxla')
  for data, target in loader:
    output = dynamo_train_model(xla_resnet18, data.to(device), target.to(device), optimizer)
  return output

output = train_model_main([(torch.randn(2, 3, 64, 64), torch.tensor([1, 2]))] * 2)
assert output.shape == (2, 1000) and output.isfinite().all()
