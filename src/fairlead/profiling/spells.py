"""When each of two trainings is at work and when it pauses, and how fast they were. Where others share the host, it is half as
fast from one second to the next, and trainings that wait for it are slower then; so each is seen alone and in company within
one second, by turns, and what slows both does not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Stretch: TypeAlias = tuple[float, float]
"""From one moment to another."""
IN_COMPANY = 2  # times what a step takes alone it takes beside another, by turns of equal length, whatever the other's take
LAST = 2 * IN_COMPANY  # times what a step takes alone: two may be left when it pauses


@dataclass(frozen=True)
class Look:
    """How long to look at a pair, in seconds: both begin, then `looks` times the one alone, both, and the other alone. It is
    longer where that would not be as many `steps`."""

    warm_s: float = 0.1
    alone_s: float = 0.2
    window_s: float = 0.3
    looks: int = 2
    steps: int = 5


class Spell(NamedTuple):
    """A stretch of work: when it really began, the moments at which steps were seen to be done, as many steps late as the host
    may be `ahead`, and the moment at which the device had done all that it was asked."""

    began: float
    done: list[float]
    ahead: int
    over: float


class Seen(NamedTuple):
    """Steps per second of both together, and of each alone just before or after."""

    together: tuple[float, float]
    alone: tuple[float, float]


class Turns(NamedTuple):
    """When each of two is at work; the other has a spell more, at first."""

    one: list[Stretch]
    other: list[Stretch]


def turns(look: Look, step_s: tuple[float, float], moment: float, longer: int = 1) -> Turns:
    """From a moment on, by how long a step of each takes alone. Before one is alone, the other has to have done its last. All
    of it some times `longer`, where they get slower than one would think."""
    first, second = (
        longer * (max(look.alone_s, look.steps * mine) + LAST * theirs) for mine, theirs in (step_s, reversed(step_s))
    )
    both = longer * max(look.window_s, look.steps * IN_COMPANY * max(step_s))
    began, now = moment, moment + look.warm_s
    one, other = list[Stretch](), [(began, now)]
    for _ in range(look.looks):
        met, parted = now + first, now + first + both
        one.append((began, parted))
        other.append((met, parted + second))
        began = now = parted + second
    return Turns(one, other)


def seen(planned: Turns, one: Sequence[Spell], other: Sequence[Spell]) -> list[Seen]:
    """What was done, look by look, of those with enough steps to tell. Who pauses still works for a moment, and until then
    nobody is alone; who wakes up late is no company until then."""
    found = list[Seen]()
    for number, mine in enumerate(one):
        before, theirs = other[number], other[number + 1]
        (began, parted), (met, ended) = planned.one[number], planned.other[number + 1]
        both = max(met, theirs.began), parted
        found.append(
            Seen(
                (rate(mine, both), rate(theirs, both)),
                (rate(mine, (max(began, before.over), met)), rate(theirs, (mine.over, ended))),
            )
        )
    return [look for look in found if min(look.together + look.alone) > 0]


def rate(spell: Spell, within: Stretch) -> float:
    """Steps per second, without those that were begun before; 0 where there were too few to tell."""
    start, end = within
    whole = [moment for moment in spell.done if start <= moment <= end][spell.ahead :]
    return (len(whole) - 1) / (whole[-1] - whole[0]) if len(whole) > 1 else 0.0
