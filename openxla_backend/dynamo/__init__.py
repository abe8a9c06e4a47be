"""What Dynamo is told: of xla tensors, of layers and attention, and to capture a training step as one graph."""
