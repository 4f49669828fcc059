"""Co-located rates from the utilization of accelerators (Horus §3.2, §4.1), for estimators that know exclusive rates:

    rate of i co-located with k on t  =  rate of i alone on t / f(u_i, u_k),

u the utilization and f the slowdown: linear while both sum to at most 100 %, quadratic above (`models/interference.py`). Under
MPS, where the multiprocessors and kernel lengths of both jobs are known, f depends on what the other job occupies instead of
u_k (`models/interference.py`).

Predictions are plain numbers by kind, so that a journal shows them; where they come from does not matter here. A job that
carries a prediction for a type (`StepPrediction`) has its own instead, and it holds for this job only: jobs of one kind may be
different trainings, and what one user predicts must not decide about the jobs of others. The interval of its utilization widens
the uncertainty of the slowdown. Usage that agents measured of a job alone on an accelerator replaces both, for its kind and
type. It is kept as an observation, and replaced when a later one differs by more than a tenth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from fairlead.core.cluster import AcceleratorType, Floats
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.job import TIMED, model_of
from fairlead.core.plan import BUSY, TAKEN_GB, DeviceUsage
from fairlead.core.snapshot import Snapshot
from fairlead.models.interference import ABOVE, BELOW, Slowdown
from fairlead.models.learned_models import LARGEST, sane
from fairlead.prediction.measured_profiles import (
    UNKNOWN,
    InterferenceModel,
    MultiprocessorUse,
    devices,
    multiprocessor_use,
    usage_by_kind,
)
from fairlead.prediction.predictor import shipped_predictor
from fairlead.prediction.step_prediction import Z80, StepPrediction, job_prediction

T = TypeVar("T")
UNKNOWN_USAGE = (100.0, math.inf)
DEFAULT_SHARING = "time-slicing"
DEFAULT_DEVICE = "h200"
"""The device whose measured pairs are used where no set of profiles is named."""
_MAX_AMOUNT = 1e9
"""GB, or microseconds: no device comes near."""
_MAX_NAMED = 3
"""Names that a message lists."""
_PREFIX = "use of "
"""The prefix of the names of usage observations."""
MIN_CHANGE = 0.1
"""Relative change of usage that is recorded."""


@dataclass(frozen=True)
class ColocationModel:
    """Predicts co-located rates. It is a base of the estimators whose parameters these are."""

    where: ClassVar[str] = "co-location model"  # for errors
    usage: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Percent of utilization and GB of memory, by job type or model."""
    below: tuple[float, ...] = ()  # coefficients of the slowdown up to 100 % utilization; default: fitted to measurements
    above: tuple[float, ...] = ()  # coefficients of the slowdown above 100 % utilization
    profiles: str = ""  # a shipped set of measured profiles, such as `h200`
    types: tuple[str, ...] = ()  # GPU types to which the predictions apply; default: all
    sharing: str = DEFAULT_SHARING  # how GPUs are shared: `time-slicing` or `mps`
    sm_usage: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Percent of multiprocessors and µs per kernel, by job type or model; for MPS."""

    def __post_init__(self) -> None:
        for name, what in (("usage", "utilization"), ("sm_usage", "multiprocessors")):
            for kind, (percent, amount) in getattr(self, name).items():
                expected = ""
                if not 0 <= percent <= 100:
                    expected, amount = f"{what} from 0 to 100 percent for {kind}", percent
                elif name == "usage" and not 0 <= amount <= _MAX_AMOUNT:  # of several jobs they are added up
                    expected = f"GB of memory from 0 to {_MAX_AMOUNT:g} for {kind}"
                elif name == "sm_usage" and not 0 < amount <= _MAX_AMOUNT:
                    expected = f"microseconds of a kernel above 0, at most {_MAX_AMOUNT:g}, for {kind}"
                if expected:
                    raise InputError(self.where, expected, field=name, value=amount)
        if self.profiles and self.profiles not in devices():
            expected = f"a device whose profiles ship ({near_or_all(self.profiles, devices())})"
            raise InputError(self.where, expected, field="profiles", value=self.profiles)
        modes = shipped_predictor(self.profiles or DEFAULT_DEVICE).slowdown
        if self.sharing not in modes:
            expected = f"a sharing mode that was measured; {near_or_all(self.sharing, modes)}"
            raise InputError(self.where, expected, field="sharing", value=self.sharing)
        counts = {"below": len(BELOW), "above": len(ABOVE)}
        given = {name: getattr(self, name) for name in counts if self.below or self.above}
        wrong = {name: value for name, value in given.items() if len(value) != counts[name] or not sane(value)}
        for name, value in sorted(wrong.items(), key=lambda one: not one[1]):  # given ones before missing ones
            expected = f"{counts[name]} finite coefficients, none beyond {LARGEST:g}"
            raise InputError(self.where, expected, field=name, value=value)

    def colocated_rates(
        self, view: Snapshot, kinds: Sequence[str], alone: Floats, predictions: Sequence[str] | None = None
    ) -> tuple[Floats, Floats, DeviceUsage]:
        """Co-located rates of classes of these kinds and exclusive rates, their relative uncertainty, and device usage.
        `predictions` are those of the jobs of each class; default: of the most recent job of its kind."""
        types = view.cluster.type_names
        texts = [view.predictions.get(kind, "") for kind in kinds] if predictions is None else predictions
        own = {at: job_prediction(text) for at, text in enumerate(texts) if text}
        known = self._known_usage
        found = [
            [_usage(view.observations.get(_name(kind, name)), own.get(at), name, use) for name in types]
            for at, (kind, use) in enumerate((kind, _of_kind(known, kind, UNKNOWN_USAGE)) for kind in kinds)
        ]
        columns = np.array(found, dtype=float).reshape(len(kinds), len(types), 3)
        busy, memory, upper = np.moveaxis(columns, 2, 0)  # classes × types
        covered = np.array([not self.types or name in self.types for name in types], dtype=np.bool_)
        device = np.array([kind.memory_gb for kind in view.cluster.types])
        both = memory[:, None] + memory
        fits = covered & (both <= device) & np.isfinite(both)
        held = self._held(kinds, own)
        slowdown, off, _ = self._interference.slower(busy, *held)
        margin = None
        if own:
            above = [
                self._interference.slower(mine, *held, others=theirs)[0] for mine, theirs in ((upper, busy), (busy, upper))
            ]
            most = np.hypot(*(np.maximum(each - slowdown, 0.0) for each in above))  # each at the upper end of its interval
            margin, off = most / slowdown, np.hypot(off, most / Z80)
        paired = np.where(fits, alone[:, None, :] / slowdown, 0.0) * (alone > 0)[None, :, :]
        usage = DeviceUsage(np.where(covered, busy / 100, 1.0), np.where(covered, memory, math.inf), margin)
        return paired, off / slowdown, usage

    def coverage_gaps(self, kinds: Iterable[str], types: Sequence[AcceleratorType]) -> str:
        """Why some or all jobs of these kinds on these types are not co-located for want of predictions; empty: no gap."""
        present, known = sorted(set(kinds)), self._known_usage
        found = {kind: _of_kind(known, kind, UNKNOWN_USAGE) for kind in present if kind != TIMED}
        covered = [one for one in types if not self.types or one.name in self.types]
        room = max((one.memory_gb for one in covered), default=0.0)
        lacking = [kind for kind, usage in found.items() if usage == UNKNOWN_USAGE]
        large = [kind for kind, (_, memory) in found.items() if room < memory < math.inf]
        no_type = [name for name in self.types if all(name != one.name for one in types)]
        no_job = [name for name in self.usage if all(name not in (kind, model_of(kind)) for kind in present)]
        gaps = {
            "jobs with durations have no kind to predict for": TIMED in present,
            f"nothing is predicted for {_listed(lacking) if known else 'any job'}": lacking,
            f"no job is of {_listed(no_job)}, which 'usage' names": no_job,
            f"no GPU is of {_listed(no_type)}, which 'types' names": no_type,
            f"{_listed(large)} would need more memory than the {room:g} GB of a GPU": large if covered else [],
        }
        reasons = [text for text, holds_ in gaps.items() if holds_]
        alone = len(present) - len(found) + len(lacking) + len(large)
        if not covered or alone == len(present):
            result = ", so no job is co-located"
        else:
            result = ", so some jobs are not co-located" if alone else ""
        return f"{'; '.join(reasons)}{result}" if reasons else ""

    @property
    def _known_usage(self) -> Mapping[str, tuple[float, float]]:
        return {**usage_by_kind(self.profiles), **self.usage} if self.profiles else self.usage

    @property
    def _interference(self) -> InterferenceModel:
        if self.below:
            return InterferenceModel(Slowdown(self.below, self.above))
        return InterferenceModel.fitted(shipped_predictor(self.profiles or DEFAULT_DEVICE), self.sharing)

    def _held(self, kinds: Sequence[str], own: Mapping[int, StepPrediction]) -> tuple[Floats, Floats]:
        """Multiprocessors and kernel lengths by class; NaN where unknown. `own` are predictions of jobs, by class."""
        known = dict(multiprocessor_use(self.profiles)) if self.profiles and self._interference.finer is not None else {}
        known |= {kind: MultiprocessorUse(percent, kernel_us / 1e6) for kind, (percent, kernel_us) in self.sm_usage.items()}
        found = [_of_kind(known, kind, UNKNOWN) for kind in kinds]
        for at, mine in own.items():
            if mine.multiprocessors is not None and mine.kernel_s:
                found[at] = MultiprocessorUse(mine.multiprocessors, mine.kernel_s)
        return np.array([one.multiprocessors for one in found]), np.array([one.kernel_s for one in found])


def usage_observations(view: Snapshot) -> dict[str, object]:
    """New observations: the usage that agents measured, as the mean over the jobs of a kind on one type."""
    if BUSY not in view.jobs.metrics:
        return {}
    jobs, measured = view.jobs.runners, dict[str, list[tuple[float, float]]]()
    columns = (jobs.kind, jobs.type, jobs.metric(BUSY), jobs.metric(TAKEN_GB))
    for code, type_, busy, memory in zip(*(column.tolist() for column in columns)):
        kind = view.names.kinds[code]
        if kind != TIMED and math.isfinite(busy) and math.isfinite(memory):
            measured.setdefault(_name(kind, view.cluster.type_names[type_]), []).append((min(100 * busy, 100.0), memory))
    means = {name: np.mean(usage, axis=0).tolist() for name, usage in measured.items()}
    known = {name: view.observations.get(name) for name in means}
    return {
        name: usage
        for name, usage in means.items()
        if (old := known[name]) is None or any(abs(new - before) > MIN_CHANGE * before for new, before in zip(usage, old))
    }


def has_usage_observations(observations: Mapping[str, Any]) -> bool:
    """Whether agents have measured the usage of any kind."""
    return any(name.startswith(_PREFIX) for name in observations)


def _usage(
    seen: Sequence[float] | None, mine: StepPrediction | None, type_name: str, otherwise: tuple[float, float]
) -> tuple[float, float, float]:
    """Utilization, memory, and the upper end of the utilization: as measured, as predicted for the job, or else by kind."""
    if seen is None and mine is not None and mine.device == type_name:
        return mine.utilization or mine.utilization_high, mine.memory_gb, mine.utilization_high  # 0: it was not predicted
    busy, memory = otherwise if seen is None else seen
    return busy, memory, busy


def _of_kind(known: Mapping[str, T], kind: str, default: T) -> T:
    """The value of a kind, or else of its model."""
    return known.get(kind, known.get(model_of(kind), default))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(map(repr, names[:_MAX_NAMED]))}{more}"


def _name(kind: str, type_name: str) -> str:
    return f"{_PREFIX}{kind} on {type_name}"
