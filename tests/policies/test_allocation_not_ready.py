"""The round mechanism while an allocation is being computed, and with one that was computed for an earlier moment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fairlead.core.allocation import Allocation, AllocationPending
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing.builders import job, random_table
from fairlead.testing.harness import Harness


@dataclass(frozen=True)
class Later:
    """The whole of the first type for everybody, `rounds` questions after it was first asked for."""

    rounds: int
    _asked: list[Snapshot] = field(default_factory=list)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        self._asked.append(view.detached())
        if len(self._asked) <= self.rounds:
            raise AllocationPending("soon")
        moment = self._asked[0]
        self._asked.clear()
        shares = np.zeros((len(moment.jobs), len(moment.capacity)))
        shares[:, 0] = 1.0
        late = moment if self.rounds else None
        return replace(Allocation.alone(moment.jobs.number, shares), moment=late), memo


def scene(rounds: int, machines: str = "v100:2,k80:2", turns: RoundMechanism | None = None) -> Harness:
    harness = Harness(table=random_table(0, ("v100", "k80"))).cluster(machines)
    return harness.policy(Allocated(Later(rounds), turns or RoundMechanism()))


def kinds(*names: str) -> list:
    return [job(name).of_kind("kind-0", 1e9) for name in names]


def test_before_the_first_allocation_everybody_has_an_agnostic_share() -> None:
    harness = scene(2).submit(*kinds("a", "b", "c", "d"))
    assert harness.round().running == {"a", "b", "c", "d"}
    assert harness.state.memo["known"].tolist() == []
    assert harness.state.memo["share"].tolist() == [0.5] * 8
    harness.round()
    harness.round()
    assert (harness.state.memo["known"].tolist(), harness.state.memo["joined"].tolist()) == ([0, 1, 2, 3], [])
    harness.check()


def test_a_late_allocation_is_for_whom_it_was_computed_and_others_join() -> None:
    harness = scene(2).submit(*kinds("a", "b"))
    assert harness.round().running == {"a", "b"}
    harness.submit(*kinds("c"))
    assert harness.round().running == {"a", "b", "c"}
    assert harness.round().running == {"a", "b", "c"}
    memo = harness.state.memo
    assert (memo["known"].tolist(), memo["joined"].tolist()) == ([0, 1], [2])
    for _ in range(3):
        assert harness.round().running == {"a", "b", "c"}
    assert harness.state.memo["known"].tolist() == [0, 1, 2]
    harness.check()


def test_who_has_gone_since_an_allocation_was_asked_for_has_no_part_in_it() -> None:
    harness = scene(2).submit(job("short").of_kind("kind-0", 1.0), *kinds("long"))
    assert harness.round().running == {"short", "long"}
    for _ in range(6):
        assert harness.round().running == {"long"}
    assert harness.state.memo["known"].tolist() == [1]
    harness.check()


@pytest.mark.parametrize("newcomers", ["leftovers", "wait"])
def test_newcomers_wait_for_it_where_the_mechanism_says_so(newcomers: str) -> None:
    harness = scene(1, turns=RoundMechanism(newcomers=newcomers)).submit(*kinds("a"))
    assert harness.round().running == ({"a"} if newcomers == "leftovers" else frozenset())
    assert harness.round().running == {"a"}
    harness.check()


def test_the_first_allocation_is_not_held_up_by_the_interval() -> None:
    harness = scene(1, turns=RoundMechanism(min_interval_s=1e6)).submit(*kinds("a"))
    harness.round()
    harness.round()
    assert harness.state.memo["known"].tolist() == [0]


def test_what_is_being_computed_is_looked_for_again_soon() -> None:
    harness = scene(1).submit(*kinds("a"))
    plan = harness.round().plan
    assert (plan.valid_until, plan.revisit) == (None, plan.time)
    assert harness.round().plan.valid_until == math.inf
