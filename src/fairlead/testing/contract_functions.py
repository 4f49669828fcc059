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


_TEXT = """Check the contract of every {what}, on random workloads and small clusters:

{promises}

Args:
    make: The class of the {what}, or a function that makes one. {gets}
    options: Attributes of the contract's class in `fairlead.testing`, such as `jobs=12` of a policy for a shorter check.

Raises:
    AssertionError: A promise is broken; `InvariantBroken` where an event log is impossible.

Example:
    def test_mine(): {what}_contract(My{title})
"""


def _runs(contract: type, factory: str = "make", gets: str = "It is called without arguments.") -> ContractFunction[Any]:
    what = contract.__name__.removesuffix("Contract").lower()

    def run(make: Callable[..., Any], **options: Any) -> None:
        suite = type(contract.__name__, (contract,), {factory: staticmethod(make), **options})
        for name in sorted(name for name in dir(suite) if name.startswith("test_")):
            test = getattr(suite(), name)
            if "tmp_path" in inspect.signature(test).parameters:
                with tempfile.TemporaryDirectory() as folder:
                    test(Path(folder))
            else:
                test()

    promises = [name.removeprefix("test_").replace("_", " ") for name in dir(contract) if name.startswith("test_")]
    run.__name__ = run.__qualname__ = f"{what}_contract"
    run.__doc__ = _TEXT.format(what=what, title=what.title(), promises="\n".join(f"    - {one}" for one in promises), gets=gets)
    return run


policy_contract: ContractFunction[Policy] = _runs(PolicyContract)
admission_contract: ContractFunction[Admission] = _runs(AdmissionContract)
placement_contract: ContractFunction[Placement] = _runs(PlacementContract)
termination_contract: ContractFunction[Termination] = _runs(TerminationContract)
estimator_contract: ContractFunction[Estimator] = _runs(EstimatorContract, gets="It gets the throughput table.")
journal_contract: ContractFunction[Journal] = _runs(JournalContract, "open", "It gets a directory, empty at first.")
backend_contract: ContractFunction[Backend] = _runs(BackendContract, "open", "It gets cluster, throughput table and jobs.")
