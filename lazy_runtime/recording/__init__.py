"""From a call of torch's to nodes of the pending graph: operators, and what torch makes of them first."""
