"""How a try of a job ended badly, as whoever ran it told. Words and numbers for people: no decision rests on them."""

from __future__ import annotations

import signal
from dataclasses import dataclass

NOT_BEGUN = 126
"""The exit status of a launch that was never begun."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`code` is an exit status, or below 0 the signal that ended it, 0 where there is neither; `node` is its number, or -1;
    `rank` is the worker's who failed first; `start` is which of the job's starts it was, from 1, or 0 where nobody knows. It is
    not the job's `own` where its node could not begin it."""

    why: str = ""
    code: int = 0
    node: int = -1
    rank: int = 0
    start: int = 0
    own: bool = True

    @property
    def facts(self) -> tuple[tuple[str, float | str], ...]:
        if self.code > 0:
            return (("status", self.code),)
        return (("signal", signal_name(-self.code)),) if self.code else ()


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
