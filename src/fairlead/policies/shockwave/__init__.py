"""What decides in Shockwave (Zheng et al., NSDI'23): a market over time, a forecast of what jobs will be, and a planner that
fixes a window of rounds. Pure functions on arrays: nothing here knows of snapshots, clocks or the simulator."""
