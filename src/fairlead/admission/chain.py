"""Several admissions one behind the other, such as a quota for each user and then a limit for all. It knows its links by their
contract only."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairlead.core.held_back import HeldBack
from fairlead.core.plan import Admitted
from fairlead.core.reasons import Reason
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Admission


@dataclass(frozen=True)
class Chain:
    """A job enters when every link lets it in. A link sees those whom the links before it let through: who waits for one link
    stands in nobody's way at a later one, and keeps its room in the earlier ones."""

    links: tuple[Admission, ...]

    def admit(self, view: Snapshot) -> Admitted:
        told: list[Mapping[int, Reason]] = []
        for link in self.links:
            if not len(view.queued):
                break
            through = link.admit(view)
            passes = np.isin(view.queued.number, through.jobs)
            if through.reasons:
                told.append(through.reasons)
            if through.others is not None and not passes.all():
                told.append(_all_told(view, passes, through.others))
            view = view.but(queued=view.queued.only(passes))
        return Admitted(view.queued.number, ChainMap(*told) if told else {})  # type: ignore[arg-type]


def _all_told(view: Snapshot, passes: np.typing.NDArray[np.bool_], reason: Reason) -> HeldBack:
    numbers = view.queued.number[~passes]
    return HeldBack(numbers, np.zeros_like(numbers), lambda _: reason)
