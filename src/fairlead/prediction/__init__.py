"""What a training will do to an accelerator, before it has run: utilization and memory from its graph, slowdown from who is
beside it. Predictions rest on measurements (`fairlead.profiling`); the scheduler may import `interference` and `profiles`,
which need numpy alone."""
