"""Throughput estimators: steps per second of a job on each GPU type.

- `oracle`: exact rates from a table. `prior`: a new job is like the mean reference job; a base of others.
- `online`: the prior, replaced by rates observed while jobs run; for simulations.
- `measured`: rates that real jobs report, without a table; for clusters.
- `profiled`: a new job type is measured briefly and matched with the most similar reference job (Gavel).
- `fitted`: models of elastic jobs at any number of workers, fitted to their reports.
- `predicted`: co-located rates from utilization and memory; on a cluster, `monitored`."""
