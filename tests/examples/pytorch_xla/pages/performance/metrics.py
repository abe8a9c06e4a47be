# Corrections: the undefined work.
import torch
import torch_xla
import torch_xla.debug.metrics as met

x = torch.randn(3, device=torch_xla.device()) + 1
torch_xla.sync()

# For short report that only contains a few key metrics.
print(met.short_metrics_report())
# For full report that includes all metrics.
print(met.metrics_report())

import torch_xla
print(torch_xla._XLAC._xla_metrics_report())
