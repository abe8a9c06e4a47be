"""From the FX graph that AOTAutograd gives to an `ir.Graph`."""
