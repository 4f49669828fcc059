"""What people write in YAML: schedulers and clusters. Here, and in the registry and the command line, names become objects."""

from fairlead.config.cluster import read_cluster
from fairlead.config.costs import read_costs
from fairlead.config.scheduler import Part, SchedulerConfig

__all__ = ["Part", "SchedulerConfig", "read_cluster", "read_costs"]
