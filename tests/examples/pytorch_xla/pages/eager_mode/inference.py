# Corrections: 2 images of 64 x 64 for 64 of 224 x 224.
import torch
import torch_xla
import torchvision

# Run ops eagerly by default
torch_xla.experimental.eager_mode(True)

device = torch_xla.device()
model = torchvision.models.resnet18().to(device)

# Mark the function to be compiled
compiled_model = torch_xla.compile(model)
input = torch.randn(2, 3, 64, 64).to(device)

# Compilation and execution happens right away.
res = compiled_model(input)
