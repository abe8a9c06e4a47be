"""Two commits against each other: whether a speed fell by more than noise."""
