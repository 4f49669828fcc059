"""Drivers make launches true on an engine: Slurm, Kubernetes, or another one that starts processes on machines with GPUs."""
