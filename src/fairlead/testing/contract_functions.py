"""The contracts as plain functions: each runs a whole contract on a factory, in any test of any framework.

from fairlead.testing import policy_contract

def test_my_policy():
    policy_contract(MyPolicy)
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.core.stages import Admission, Backend, Estimator, Placement, Policy, Termination
from fairlead.testing.contracts import (
    AdmissionContract,
    BackendContract,
    EstimatorContract,
    JournalContract,
    PlacementContract,
    PolicyContract,
    TerminationContract,
)


def policy_contract(make: Callable[[], Policy], **options: Any) -> None:
    """Run `PolicyContract` on a factory; options are its class attributes, such as `residents=2`."""
    _run(PolicyContract, make, options)


def admission_contract(make: Callable[[], Admission], **options: Any) -> None:
    """Run `AdmissionContract` on a factory."""
    _run(AdmissionContract, make, options)


def placement_contract(make: Callable[[], Placement], **options: Any) -> None:
    """Run `PlacementContract` on a factory; options are its class attributes, such as `counts_hosts=True`."""
    _run(PlacementContract, make, options)


def estimator_contract(make: Callable[..., Estimator], **options: Any) -> None:
    """Run `EstimatorContract` on a factory, which gets the throughput table."""
    _run(EstimatorContract, make, options)


def termination_contract(make: Callable[[], Termination], **options: Any) -> None:
    """Run `TerminationContract` on a factory."""
    _run(TerminationContract, make, options)


def journal_contract(make: Callable[..., Any], **options: Any) -> None:
    """Run `JournalContract` on a factory, which gets a directory that is empty at first."""
    _run(JournalContract, make, options, "open")


def backend_contract(make: Callable[..., Backend], **options: Any) -> None:
    """Run `BackendContract` on a factory, which gets the cluster, the throughput table and the jobs."""
    _run(BackendContract, make, options, "open")


def _run(contract: type, make: Callable[..., Any], options: dict[str, Any], factory: str = "make") -> None:
    suite = type(contract.__name__, (contract,), {factory: staticmethod(make), **options})
    for name in sorted(name for name in dir(suite) if name.startswith("test_")):
        test = getattr(suite(), name)
        if "tmp_path" in inspect.signature(test).parameters:
            with tempfile.TemporaryDirectory() as folder:
                test(Path(folder))
        else:
            test()
