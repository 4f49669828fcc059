"""A deterministic simulation of the runtime: the real control plane, hub, agents, supervisors and shims, in one thread, on a
virtual clock, with a simulated network, disk and process table, and faults that a seed chooses."""
