"""What a lowering works with: layouts, checks that run on the device, torch's kernels as custom calls, precision."""
