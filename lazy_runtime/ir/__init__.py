"""The graph that both producers build, the looks of its tensors, and their dtypes."""
