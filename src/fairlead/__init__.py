"""Fairlead: a scheduler for GPU clusters that train deep-learning models, with one deterministic, event-sourced core.

    import fairlead

    run = fairlead.simulate("jobs.csv", cluster="64xv100:8", policy="las", round_s=300)
    run.summary["average_jct_s"]

Names in `__all__` are the public API and stay stable; everything else may change. Plug-in authors import `fairlead.plugin`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fairlead.core import VERSION

if TYPE_CHECKING:
    from fairlead.api.connection import ClusterConnection as ClusterConnection
    from fairlead.api.connection import JobHandle as JobHandle
    from fairlead.api.connection import connect as connect
    from fairlead.api.functions import compare as compare
    from fairlead.api.functions import resimulate as resimulate
    from fairlead.api.functions import simulate as simulate
    from fairlead.api.run_results import ComparisonResult as ComparisonResult
    from fairlead.api.run_results import Run as Run
    from fairlead.api.scheduler import Scheduler as Scheduler
    from fairlead.api.scheduler import read_trace as read_trace
    from fairlead.client import Elastic as Elastic
    from fairlead.client import elastic as elastic
    from fairlead.client import lease as lease
    from fairlead.client import report as report
    from fairlead.client import route as route
    from fairlead.core.cluster import Cluster as Cluster
    from fairlead.core.errors import FairleadError as FairleadError
    from fairlead.core.job import Job as Job
    from fairlead.experiments.simulate import Faults as Faults
    from fairlead.prediction.predict_step import predict as predict
    from fairlead.prediction.step_prediction import StepPrediction as StepPrediction
    from fairlead.prediction.training_step import Training as Training
    from fairlead.simulator.costs import Costs as Costs
    from fairlead.simulator.faults import Outage as Outage
    from fairlead.workloads.generate import Generator as Generator
    from fairlead.workloads.throughput_tables import ThroughputTable as ThroughputTable
    from fairlead.workloads.trace import Trace as Trace

__version__ = VERSION

_PUBLIC = {
    "Cluster": "fairlead.core.cluster",
    "ClusterConnection": "fairlead.api.connection",
    "ComparisonResult": "fairlead.api.run_results",
    "Costs": "fairlead.simulator.costs",
    "Elastic": "fairlead.client",
    "FairleadError": "fairlead.core.errors",
    "Faults": "fairlead.experiments.simulate",
    "Generator": "fairlead.workloads.generate",
    "Job": "fairlead.core.job",
    "JobHandle": "fairlead.api.connection",
    "Outage": "fairlead.simulator.faults",
    "Run": "fairlead.api.run_results",
    "Scheduler": "fairlead.api.scheduler",
    "StepPrediction": "fairlead.prediction.step_prediction",
    "ThroughputTable": "fairlead.workloads.throughput_tables",
    "Trace": "fairlead.workloads.trace",
    "Training": "fairlead.prediction.training_step",
    "compare": "fairlead.api.functions",
    "connect": "fairlead.api.connection",
    "elastic": "fairlead.client",
    "lease": "fairlead.client",
    "predict": "fairlead.prediction.predict_step",
    "read_trace": "fairlead.api.scheduler",
    "report": "fairlead.client",
    "resimulate": "fairlead.api.functions",
    "route": "fairlead.client",
    "simulate": "fairlead.api.functions",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import fairlead` stays light."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
    found = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
