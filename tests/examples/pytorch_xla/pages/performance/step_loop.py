# Corrections: the undefined model, loss function, optimizer and data.
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl

device = torch_xla.device()
model = torch.nn.Linear(8, 4).to(device).train()
loss_fn = torch.nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = torch.utils.data.DataLoader(
    [(torch.ones(8) * n, n % 4) for n in range(12)], batch_size=4)

for data, target in train_loader:
  optimizer.zero_grad()
  data = data.to(device)
  target = target.to(device)
  with torch_xla.step():
    output = model(data)
    loss = loss_fn(torch.log_softmax(output, -1), target)
    loss.backward()
    optimizer.step()

def train_loop_fn(loader):
  for data, target in loader:
    optimizer.zero_grad()
    output = model(data)
    loss = loss_fn(torch.log_softmax(output, -1), target)
    loss.backward()
    xm.optimizer_step(optimizer)
    xm.add_step_closure(print, args=(loss,))

mp_device_loader = pl.MpDeviceLoader(train_loader, device)
train_loop_fn(mp_device_loader)
