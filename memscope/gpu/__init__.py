"""GPUs that need not be here: what they are, and XLA's own GPU compiler in a process beside this one."""
