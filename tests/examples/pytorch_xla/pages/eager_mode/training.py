# Corrections: the undefined model, data, loss function and optimizer.
import torch
import torch_xla

torch_xla.experimental.eager_mode(True)

def step_fn(model, data, target, loss_fn, optimizer):
  optimizer.zero_grad()
  logits = model(data)
  loss = loss_fn(logits, target)
  loss.backward()
  optimizer.step()
  return loss

device = torch_xla.device()
model = torch.nn.Linear(8, 4).to(device)
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step_fn = torch_xla.compile(step_fn)

losses = []
for _ in range(5):
  data = torch.ones(2, 8, device=device)
  target = torch.zeros(2, dtype=torch.int64, device=device)
  losses.append(step_fn(model, data, target, loss_fn, optimizer).item())
assert losses == sorted(losses, reverse=True), losses
