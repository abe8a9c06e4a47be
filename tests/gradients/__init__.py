"""Gradients of real models in float64, by every road, against eager PyTorch on the CPU."""
