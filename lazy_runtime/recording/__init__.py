"""From a call of torch's to nodes of the pending graph: operators, and what torch makes of them first."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
