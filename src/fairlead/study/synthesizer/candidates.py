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
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError("synthesize", "every candidate once", field="candidates", value=name)
    return tuple(found)


def _name(policy: Part, admission: Part, placement: Part, several_placements: bool) -> str:
    parts = [policy]
    if admission != Part("accept-all"):
        parts.append(admission)
    if several_placements:
        parts.append(placement)
    return " + ".join(map(str, parts))
