"""Names of environment variables, as `torch_xla.core.xla_env_vars` has them: those that mean something here."""

PJRT_DEVICE = "PJRT_DEVICE"
CPU_NUM_DEVICES = "CPU_NUM_DEVICES"
