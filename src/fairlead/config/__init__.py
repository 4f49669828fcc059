"""YAML files of users: schedulers and clusters. Here, in the registry and in the command line, names become objects."""

from fairlead.config.clusters import read_cluster
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.config.workload_files import read_costs

__all__ = ["Part", "SchedulerConfig", "read_cluster", "read_costs"]
