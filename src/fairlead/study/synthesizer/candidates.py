"""What the synthesizer may choose from: every admission with every policy, and every placement where several are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from fairlead.config import Part, SchedulerConfig
from fairlead.core.errors import InputError


def combinations(
    base: SchedulerConfig,
    policies: Sequence[Part],
    admissions: Sequence[Part] = (),
    placements: Sequence[Part] = (),
) -> tuple[SchedulerConfig, ...]:
    """`base` with each policy, admission and placement; where none are given, its own. Rounds and all else stay as they are."""
    if not policies:
        raise InputError("synthesize", "at least one policy", field="policies")
    several = len(placements) > 1
    choices = product(policies, admissions or (base.admission,), placements or (base.placement,))
    found = [
        replace(base, policy=policy, admission=admission, placement=where, name=_name(policy, admission, where, several))
        for policy, admission, where in choices
    ]
    return apart(found)


def apart(candidates: Sequence[SchedulerConfig]) -> tuple[SchedulerConfig, ...]:
    """The same, each by a name of its own: what two of them differ in may be more than a name has room for."""
    told: list[SchedulerConfig] = []
    for one in candidates:
        if any(replace(other, name="") == replace(one, name="") for other in told):
            raise InputError("synthesize", "every candidate once", field="candidates", value=one.label)
        taken, label = {other.label for other in told}, one.label
        names = (label, *(f"{label} ({count})" for count in range(2, len(told) + 2)))
        name = next(name for name in names if name not in taken)
        told.append(one if name == label else replace(one, name=name))
    return tuple(told)


def _name(policy: Part, admission: Part, placement: Part, several_placements: bool) -> str:
    parts = [policy]
    if admission != Part("accept-all"):
        parts.append(admission)
    if several_placements:
        parts.append(placement)
    return " + ".join(map(str, parts))
