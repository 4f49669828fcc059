"""The estimation of real clusters keeps the contract of all, company that comes and goes included."""

from __future__ import annotations

import pytest

from fairlead.estimators.predicted import Monitored
from fairlead.testing import EstimatorContract

pytestmark = pytest.mark.long


class TestMonitored(EstimatorContract):
    make = staticmethod(lambda table: Monitored(usage={f"kind-{n}": (30.0, 1.0) for n in range(8)}))
