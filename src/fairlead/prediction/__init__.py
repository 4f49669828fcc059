"""Predictions of a training before it runs: utilization and memory from its graph, slowdown from the jobs co-located with it.
Predictions are fitted to measurements (`fairlead.profiling`)."""
