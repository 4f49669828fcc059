"""The estimation of real clusters keeps the contract of all, company that comes and goes included."""

from __future__ import annotations

from fairlead.estimators.predicted import Watched
from fairlead.testing import EstimationContract


class TestWatched(EstimationContract):
    make = staticmethod(lambda table: Watched(uses={f"kind-{n}": (30.0, 1.0) for n in range(8)}))
