"""Measurements of training configurations on a GPU of this machine (extra `torch`): speed, utilization and memory, alone and in
pairs. The scheduler may import `results` only."""
