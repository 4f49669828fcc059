"""What training configurations do to an accelerator, measured on the one at hand (extra `torch`): speed, utilization and
memory. Nothing here is imported by the scheduler; what it writes is data."""
