"""Random programs of views, writes and reads, run on the CPU and on xla: whatever differs is shrunk and shown."""
