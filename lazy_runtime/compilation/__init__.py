"""From recorded nodes to an executable, which is made once per graph."""
