# Corrections: the undefined model, data and loss function.
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import runtime as xr
from torch_xla.amp import GradScaler, autocast, syncfree

data = [(torch.ones(2, 8, device='xla'), torch.zeros(2, dtype=torch.int64, device='xla'))] * 3
loss_fn = torch.nn.CrossEntropyLoss()

# Creates model and optimizer in default precision
model = torch.nn.Linear(8, 4).to('xla')
# Pytorch/XLA provides sync-free optimizers for improved performance
optimizer = syncfree.SGD(model.parameters(), lr=0.1)

for input, target in data:
  optimizer.zero_grad()

  # Enables autocasting for the forward pass
  with autocast(torch_xla.device()):
    output = model(input)
    loss = loss_fn(output, target)

  # Exits the context manager before backward pass
  loss.backward()
  xm.optimizer_step(optimizer)
assert output.dtype is torch.bfloat16

# Creates a GradScaler once at the beginning of training.
scaler = GradScaler(use_zero_grad=True)
for input, target in data:
  optimizer.zero_grad()
  with autocast(torch_xla.device()):
    output = model(input)
    loss = loss_fn(output, target)
  # Scales the loss, followed by a backward pass on scaled loss. Creates scaled gradients
  scaler.scale(loss).backward()
  # perform `all_reduce` on calculated gradients
  gradients = xm._fetch_gradients(optimizer)
  xm.all_reduce('sum', gradients, scale=1.0 / xr.world_size())
  # scaler.step() unscales the optimizer's gradients
  scaler.step(optimizer)
  # Updates the scale for next iteration.
  scaler.update()
torch_xla.sync()
assert loss.isfinite()
