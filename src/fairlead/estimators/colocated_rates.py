"""What jobs take of an accelerator, and what company does to them by that (Horus §3.2, §4.1): who estimates rates alone in
whatever way has rates of pairs and the use of accelerators from here.

    rate of i beside k on t  =  rate of i alone on t / f(u_i, u_k),

u the utilization and f the slowdown: linear while both come to at most 100 % together, quadratic above
(`prediction/interference.py`). Through MPS, where it is known what both hold of the multiprocessors and for how long at a time,
f goes by what the other holds in the place of u_k (`prediction/holding.py`).

Predictions are plain numbers by kind, so that a journal says what was believed; who made them is not its business. Where agents
see what jobs take that have an accelerator to themselves, that takes the place of what was predicted for their kind on that
type: it is remembered as a fact, and replaced when a later one differs by more than a tenth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from fairlead.core.cluster import AcceleratorType, Floats
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.job import TIMED, model_of
from fairlead.core.plan import BUSY, TAKEN_GB, DeviceUsage
from fairlead.core.snapshot import Snapshot
from fairlead.models.interference import ABOVE, BELOW, Slowdown
from fairlead.models.learned_models import LARGEST, sane
from fairlead.prediction.measured_profiles import devices, shipped_profiles
from fairlead.prediction.multiprocessors import UNKNOWN, InterferenceModel, MultiprocessorUse, multiprocessor_use
from fairlead.prediction.predictor import shipped_predictor

T = TypeVar("T")
NOT_KNOWN = (100.0, math.inf)
TURNS = "time-slicing"
DEVICE = "h200"
"""Whose pairs tell what company costs where no set of measurements is named."""
_MOST = 1e9
"""GB, or microseconds: no device comes near."""
MOST_NAMED = 3
"""Of those that nothing is said of."""
_USE = "use of "
"""How the names of facts about uses begin."""
TELLS = 0.1
"""A difference of uses that is worth remembering."""


@dataclass(frozen=True)
class ColocationModel:
    """`where` is who is told of in errors; the rest are parameters of estimations, which say what they are."""

    where: str
    usage: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()
    profiles: str = ""
    types: tuple[str, ...] = ()
    sharing: str = TURNS
    sm_usage: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, what in (("usage", "utilization"), ("sm_usage", "multiprocessors")):
            for kind, (percent, amount) in getattr(self, name).items():
                if not 0 <= percent <= 100:
                    raise InputError(self.where, f"{what} from 0 to 100 percent for {kind}", field=name, value=percent)
                if name == "usage" and not 0 <= amount <= _MOST:  # of several they are added up
                    raise InputError(self.where, f"GB of memory from 0 to {_MOST:g} for {kind}", field=name, value=amount)
                if name == "sm_usage" and not 0 < amount <= _MOST:
                    raise InputError(
                        self.where, f"microseconds of a kernel above 0, at most {_MOST:g}, for {kind}", field=name, value=amount
                    )
        if self.profiles and self.profiles not in devices():
            expected = f"a device whose profiles ship ({near_or_all(self.profiles, devices())})"
            raise InputError(self.where, expected, field="profiles", value=self.profiles)
        modes = shipped_predictor(self.profiles or DEVICE).slowdown
        if self.sharing not in modes:
            expected = f"a way of sharing that was measured; {near_or_all(self.sharing, modes)}"
            raise InputError(self.where, expected, field="sharing", value=self.sharing)
        counts = {"below": len(BELOW), "above": len(ABOVE)}
        asked = {name: getattr(self, name) for name in counts if self.below or self.above}
        wrong = {name: given for name, given in asked.items() if len(given) != counts[name] or not sane(given)}
        for name, given in sorted(wrong.items(), key=lambda one: not one[1]):  # what was said before what was not
            expected = f"{counts[name]} finite coefficients, none beyond {LARGEST:g}"
            raise InputError(self.where, expected, field=name, value=given)

    def rates_of(self, view: Snapshot, kinds: Sequence[str], alone: Floats) -> tuple[Floats, Floats, DeviceUsage]:
        """Of classes of these kinds and rates: rates in pairs, their relative uncertainty, and what each takes."""
        types = view.cluster.type_names
        usage = {**_measured(self.profiles), **self.usage}
        predicted = [_of_kind(usage, kind, NOT_KNOWN) for kind in kinds]
        found = [[view.observations.get(_fact(kind, name), use) for name in types] for kind, use in zip(kinds, predicted)]
        busy, memory = np.moveaxis(np.array(found, dtype=float).reshape(len(kinds), len(types), 2), 2, 0)  # classes × types
        about = np.array([not self.types or name in self.types for name in types])
        there = np.array([kind.memory_gb for kind in view.cluster.types])
        both = memory[:, None] + memory
        fits = about & (both <= there) & np.isfinite(both)
        slower, off, _ = self._interference.slower(busy, *self._held(kinds))
        paired = np.where(fits, alone[:, None, :] / slower, 0.0) * (alone > 0)[None, :, :]
        return paired, off / slower, DeviceUsage(np.where(about, busy / 100, 1.0), np.where(about, memory, math.inf))

    def coverage_gaps(self, kinds: Iterable[str], types: Sequence[AcceleratorType]) -> str:
        """What of it says nothing about jobs of these kinds on accelerators of these types, so that some, or all, have no
        company whom it was perhaps meant for; empty where there is nothing to say."""
        there, known = sorted(set(kinds)), {**_measured(self.profiles), **self.usage}
        found = {kind: _of_kind(known, kind, NOT_KNOWN) for kind in there if kind != TIMED}
        about = [one for one in types if not self.types or one.name in self.types]
        room = max((one.memory_gb for one in about), default=0.0)
        lacking = [kind for kind, use in found.items() if use == NOT_KNOWN]
        large = [kind for kind, (_, memory) in found.items() if room < memory < math.inf]
        strange = [name for name in self.types if all(name != one.name for one in types)]
        unasked = [name for name in self.usage if all(name not in (kind, model_of(kind)) for kind in there)]
        told = {
            "jobs that carry durations have no kind of which something could be predicted": TIMED in there,
            f"nothing is predicted of {_some(lacking) if known else 'any job'}": lacking,
            f"no job is of {_some(unasked)}, which 'usage' names": unasked,
            f"no accelerator is of {_some(strange)}, which 'types' names": strange,
            f"{_some(large)} would take more memory than the {room:g} GB of an accelerator": large if about else [],
        }
        reasons = [text for text, so in told.items() if so]
        alone = len(there) - len(found) + len(lacking) + len(large)
        nobody = not about or alone == len(there)
        follows = ", so nobody has company" if nobody else ", so some have no company" if alone else ""
        return f"{'; '.join(reasons)}{follows}" if reasons else ""

    @property
    def _interference(self) -> InterferenceModel:
        if self.below:
            return InterferenceModel(Slowdown(self.below, self.above))
        return InterferenceModel.fitted(shipped_predictor(self.profiles or DEVICE), self.sharing)

    def _held(self, kinds: Sequence[str]) -> tuple[Floats, Floats]:
        """Multiprocessors and the length of kernels by class; NaN where nobody knows."""
        known = dict(multiprocessor_use(self.profiles)) if self.profiles and self._interference.finer is not None else {}
        known |= {kind: MultiprocessorUse(percent, kernel_us / 1e6) for kind, (percent, kernel_us) in self.sm_usage.items()}
        found = [_of_kind(known, kind, UNKNOWN) for kind in kinds]
        return np.array([one.multiprocessors for one in found]), np.array([one.kernel_s for one in found])


@runtime_checkable
class ColocationEstimator(Protocol):
    """An estimation that believes something of company."""

    def colocation_model(self) -> ColocationModel: ...


def usage_observations(view: Snapshot) -> dict[str, object]:
    """Facts that are new: what agents saw of those that run, of all of a kind on one type the mean. Who has no kind says
    nothing of others."""
    if BUSY not in view.jobs.metrics:
        return {}
    jobs, seen = view.jobs.runners, dict[str, list[tuple[float, float]]]()
    columns = (jobs.kind, jobs.type, jobs.metric(BUSY), jobs.metric(TAKEN_GB))
    for code, type_, busy, memory in zip(*(column.tolist() for column in columns)):
        kind = view.names.kinds[code]
        if kind != TIMED and math.isfinite(busy) and math.isfinite(memory):
            seen.setdefault(_fact(kind, view.cluster.type_names[type_]), []).append((min(100 * busy, 100.0), memory))
    means = {name: np.mean(usage, axis=0).tolist() for name, usage in seen.items()}
    return {name: use for name, use in means.items() if _tells(view.observations.get(name), use)}


def has_usage_observations(learned: Mapping[str, Any]) -> bool:
    """Whether agents have seen what any kind takes."""
    return any(name.startswith(_USE) for name in learned)


@cache
def _measured(device: str) -> Mapping[str, tuple[float, float]]:
    """Utilization and memory, by kind, of a measured set."""
    known = shipped_profiles(device).alone if device else {}
    return {name: (one.utilization, one.memory_mb / 1024) for name, one in known.items()}


def _of_kind(known: Mapping[str, T], kind: str, otherwise: T) -> T:
    """What is known of a kind, or else of its model."""
    return known.get(kind, known.get(model_of(kind), otherwise))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(map(repr, names[:MOST_NAMED]))}{more}"


def _fact(kind: str, type_name: str) -> str:
    return f"{_USE}{kind} on {type_name}"


def _tells(known: Any, use: list[float]) -> bool:
    return known is None or any(abs(now - before) > TELLS * before for now, before in zip(use, known))
