"""The contracts as plain functions: each runs a whole contract on a factory, in any test of any framework."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fairlead.core.stages import Admission, Backend, Estimator, Placement, Policy, Termination
from fairlead.engine.journal import Journal
from fairlead.testing.contracts import (
    AdmissionContract,
    BackendContract,
    EstimatorContract,
    JournalContract,
    PlacementContract,
    PolicyContract,
    TerminationContract,
)

T = TypeVar("T", contravariant=True)


class ContractFunction(Protocol[T]):
    """Runs a contract on a factory; options are the contract's class attributes, such as `residents=2`."""

    def __call__(self, make: Callable[..., T], **options: Any) -> None: ...


def _runs(contract: type, factory: str = "make") -> ContractFunction[Any]:
    def run(make: Callable[..., Any], **options: Any) -> None:
        suite = type(contract.__name__, (contract,), {factory: staticmethod(make), **options})
        for name in sorted(name for name in dir(suite) if name.startswith("test_")):
            test = getattr(suite(), name)
            if "tmp_path" in inspect.signature(test).parameters:
                with tempfile.TemporaryDirectory() as folder:
                    test(Path(folder))
            else:
                test()

    return run


policy_contract: ContractFunction[Policy] = _runs(PolicyContract)
admission_contract: ContractFunction[Admission] = _runs(AdmissionContract)
placement_contract: ContractFunction[Placement] = _runs(PlacementContract)
termination_contract: ContractFunction[Termination] = _runs(TerminationContract)
estimator_contract: ContractFunction[Estimator] = _runs(EstimatorContract)
"""Its factory gets the throughput table."""
journal_contract: ContractFunction[Journal] = _runs(JournalContract, "open")
"""Its factory gets a directory that is empty at first."""
backend_contract: ContractFunction[Backend] = _runs(BackendContract, "open")
"""Its factory gets the cluster, the throughput table and the jobs."""
