"""Every built-in admission passes the contract that is shipped for plug-ins."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.admission.accept import AcceptAll, AcceptUpTo
from fairlead.admission.base import AdmissionChain
from fairlead.admission.quotas import JobResourceQuota, JobTypeQuota, UserJobQuota, UserResourceQuota
from fairlead.core.plan import Admitted
from fairlead.core.snapshot import Snapshot
from fairlead.testing import AdmissionContract


class TestAcceptAll(AdmissionContract):
    make = AcceptAll


class TestAcceptUpTo(AdmissionContract):
    make = staticmethod(lambda: AcceptUpTo(1.2))


class TestUserJobQuota(AdmissionContract):
    make = staticmethod(lambda: UserJobQuota({"user-0": 1}, 2))


class TestUserResourceQuota(AdmissionContract):
    make = staticmethod(lambda: UserResourceQuota({"user-0": 2}, 5))


class TestJobTypeQuota(AdmissionContract):
    make = staticmethod(lambda: JobTypeQuota({"kind-1": 1}))


class TestJobResourceQuota(AdmissionContract):
    make = staticmethod(lambda: JobResourceQuota(2, 1))


class TestChain(AdmissionContract):
    make = staticmethod(lambda: AdmissionChain((UserJobQuota(default=2), JobResourceQuota(4, 1), AcceptUpTo(1.0))))


class LastFirst:
    """Who came last enters first, one at a time."""

    def admit(self, view: Snapshot) -> Admitted:
        return Admitted(view.queued.number[-1:] if not len(view.jobs) else np.zeros(0, dtype=np.int64))


def test_an_admission_that_lets_the_late_overtake_is_found_out() -> None:
    class Tried(AdmissionContract):
        make = LastFirst

    with pytest.raises(AssertionError, match="depends on later jobs"):
        Tried().test_it_lets_in_who_is_there_once_whatever_comes_later_and_is_a_function_of_the_snapshot()
