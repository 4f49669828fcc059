"""What training configurations do to an accelerator, measured on the one at hand (extra `torch`): speed, utilization and
memory, alone and in pairs. What it writes is data; of all this the scheduler may read `results` alone."""
