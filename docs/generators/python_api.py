"""The Python API: directives of Sphinx' autodoc for every public name, in groups."""

from __future__ import annotations

import inspect
from importlib import import_module

from generators.markdown import code, table

RUN_JOBS = {
    "name": "name of the job",
    "kind": "job type; empty: it declares its duration",
    "user": "user",
    "account": "account",
    "phase": "`finished`, `failed`, `refused`, `cancelled`, `queued`, `waiting` or `running`",
    "workers": "GPUs that it requests",
    "weight": "weight in fair shares",
    "submitted_s": "submission",
    "first_started_s": "first start",
    "ended_s": "end",
    "run_s": "how long it held GPUs",
    "accelerator_s": "GPU time: the same, times the GPUs held",
    "exclusive_s": "run time alone on its fastest GPU type",
    "deadline_s": "deadline, counted from the submission; infinite: none",
    "preemptions": "how often a decision suspended it to wait",
    "moves": "how often a decision moved it or changed its size",
    "restarts": "starts after the first, for any reason",
    "jct_s": "completion time from the submission, of a finished job",
    "wait_s": "wait for the first start",
    "rho": "finish-time fairness ρ",
}
RUN_ROUNDS = {
    "time_s": "time of the decision",
    "running": "jobs that run after it",
    "waiting": "jobs that wait after it",
    "gpus_in_use": "GPUs that are held after it",
    "launched": "jobs that it launched",
    "suspended": "jobs that it suspended",
}
"""What each column of a run's tables means."""

FAIRLEAD = {
    "Simulate": ["simulate", "compare", "resimulate", "read_trace"],
    "Results": ["Run", "ComparisonResult"],
    "Inputs": ["Scheduler", "Job", "Trace", "Generator", "ThroughputTable", "Cluster", "Costs", "Faults", "Outage"],
    "Predictions": ["predict", "Training", "StepPrediction"],
    "A running cluster": ["connect", "ClusterConnection", "JobHandle"],
    "Errors": ["FairleadError"],
}
"""The names of `fairlead` in groups; names of `fairlead.client` are in their own part."""


def fairlead_api() -> str:
    """`import fairlead`."""
    module = import_module("fairlead")
    listed = [name for names in FAIRLEAD.values() for name in names]
    client = set(import_module("fairlead.client").__all__)
    missing = {name for name in module.__all__ if not name.startswith("_")} - set(listed) - client
    groups = {**FAIRLEAD, **({"Others": sorted(missing)} if missing else {})}
    return "".join(f"\n### {title}\n\n{_directives('fairlead', names)}" for title, names in groups.items())


def run_tables() -> str:
    """The columns of `run.jobs` and `run.rounds`, from a run of one job; a column without a meaning here is an error."""
    run = import_module("fairlead").simulate([import_module("fairlead").Job("one", steps=60.0)], "1xv100:1")
    parts = [("run.jobs", run.jobs, RUN_JOBS), ("run.rounds", run.rounds, RUN_ROUNDS)]
    return "\n".join(
        f"`{name}`:\n\n"
        + table(["column", "type", "meaning"], [[code(f.name), str(f.type), said[f.name]] for f in found.schema])
        for name, found, said in parts
    )


def client_api() -> str:
    """`fairlead.client`: what training scripts import."""
    return _directives("fairlead.client", import_module("fairlead.client").__all__)


def plugin_api() -> str:
    """`fairlead.plugin`: what plug-ins import."""
    names = import_module("fairlead.plugin").__all__
    module = import_module("fairlead.plugin")
    stages = [name for name in names if getattr(getattr(module, name), "_is_protocol", False)]
    rest = [name for name in names if name not in stages]
    first = f"### Stages\n\n{_directives('fairlead.plugin', stages)}"
    return f"{first}\n### Values and functions\n\n{_directives('fairlead.plugin', rest)}"


def testing_api() -> str:
    """`fairlead.testing`: contracts, builders and the harness."""
    module = import_module("fairlead.testing")
    names = [name for name, found in vars(module).items() if not name.startswith("_") and not inspect.ismodule(found)]
    contracts = [name for name in names if name.endswith("_contract")]
    return _directives("fairlead.testing", [*contracts, *(name for name in names if name not in contracts)])


def _directives(module: str, names: list[str]) -> str:
    """What `fairlead` has too is not indexed twice."""
    again = set(import_module("fairlead").__all__) if module != "fairlead" else set()
    text = "".join(_directive(module, name, "   :no-index:\n" if name in again else "") for name in names)
    return f"```{{eval-rst}}\n.. currentmodule:: {module}\n\n{text}```\n"


def _directive(module: str, name: str, options: str) -> str:
    found = getattr(import_module(module), name)
    if inspect.isfunction(found):
        return f".. autofunction:: {module}.{name}\n{options}\n"
    if inspect.isclass(found):
        kind = "autoexception" if issubclass(found, BaseException) else "autoclass"
        return f".. {kind}:: {module}.{name}\n   :members:\n{options}\n"
    return f".. autodata:: {module}.{name}\n   :no-value:\n\n"
