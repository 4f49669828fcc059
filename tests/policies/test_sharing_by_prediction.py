"""Predictions at work elsewhere than in Horus: the example of the documentation, and Gavel's shares of pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.engine.apply import apply_event
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.state import State
from fairlead.experiments.inputs import TraceFile
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.catalogue import catalogue

DOCS = Path(__file__).parents[2] / "docs"
USES = {"A3C": (25.0, 2.0), "ResNet-50": (95.0, 6.4)}


def shared_s(config: SchedulerConfig) -> float:
    """Accelerator time with two jobs, of the ten jobs of the documentation on four V100s."""
    trace = TraceFile(DOCS.parent / "examples" / "ten_jobs.csv", None).read(catalogue())
    journal = MemoryJournal()
    run_simulation(Simulation(trace, Cluster.parse("4xv100:4"), config, catalogue()), journal=journal)
    events = list(journal)
    state, now, shared = State(events[0].cluster), 0.0, 0.0
    for event in events:
        shared += (event.time - now) * int((state.device_map.occupancy > 1).sum())
        now = event.time
        apply_event(state, event)
    return shared


def test_the_example_of_the_documentation_shares():
    blocks = (DOCS / "guides" / "gpu-sharing.md").read_text().split("```yaml\n")[1:]
    example = next(found for block in blocks if "estimator" in (found := yaml.safe_load(block.split("```")[0])))
    example["estimator"]["name"] = "predicted"  # the guide is about a real cluster, where agents measure too
    assert shared_s(SchedulerConfig.from_data(example, "gpu-sharing.md")) > 3600


@pytest.mark.parametrize(("uses", "share"), [(USES, True), ({"A3C": USES["A3C"]}, True), ({}, False)])
def test_gavel_has_predicted_pairs_as_its_throughputs(uses, share):
    """Where nothing is predicted, nobody shares; predictions are all that it knows of pairs."""
    policy = Part("max-min-fairness-perf", {"space_sharing": True})
    found = shared_s(SchedulerConfig(policy, estimator=Part("predicted", {"usage": uses}), round_s=360.0))
    assert (found > 0) == share
    assert np.isfinite(found)
