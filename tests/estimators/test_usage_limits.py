"""Uses of accelerators that no device has."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fairlead.core.errors import InputError
from fairlead.engine.state import State
from fairlead.estimators.measured import Measured
from fairlead.estimators.predicted import Monitored, Predicted
from fairlead.testing.builders import cluster
from fairlead.workloads.throughput_tables import ThroughputTable

TABLE = ThroughputTable.timed(("v100",))


@pytest.mark.parametrize("amount", [-1.0, 1e308, math.inf, math.nan])
def test_memory_and_kernels_beyond_all_devices_are_told(amount: float):
    with pytest.raises(InputError, match=r"field 'usage' is .*GB of memory from 0 to 1e\+09 for Net"):
        Predicted(TABLE, usage={"Net": (50.0, amount)})
    with pytest.raises(InputError, match=r"field 'sm_usage' is .*above 0, at most 1e\+09, for Net"):
        Predicted(TABLE, sm_usage={"Net": (50.0, amount)})


@pytest.mark.parametrize("speed", [-1.0, 0.0, 1e-320, 1e308, math.inf, math.nan])
@pytest.mark.parametrize("estimator", [Measured, Monitored])
def test_speeds_of_types_beyond_all_are_told(estimator: type[Measured], speed: float):
    with pytest.raises(InputError, match=rf"estimator {estimator.__name__.lower()}: .* from 1e-09 to 1e\+09 for v100"):
        estimator(speeds={"v100": speed})


def test_files_are_read_once_and_not_at_every_decision(monkeypatch: pytest.MonkeyPatch):
    watched, view = Monitored(profiles="h200"), State(cluster("v100:4")).snapshot(0.0)
    watched.rates(view)

    def read(*_: object) -> None:
        raise AssertionError("a folder is read")

    monkeypatch.setattr(Path, "glob", read)
    monkeypatch.setattr(Path, "read_bytes", read)
    assert watched.rates(view).usage is not None
