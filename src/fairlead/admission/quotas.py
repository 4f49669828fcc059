"""Admission by quotas: the number of admitted jobs, or of their accelerators, by user, by model or by the size of a job (Blox
§6.1, Table 5). An admitted job counts until it ends.

Jobs of a quota are admitted in the order of their submission. A job that demands more than its whole quota is admitted when no
other job of that quota is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from fairlead.admission.base import admit_by_quota
from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError, require
from fairlead.core.job import model_of
from fairlead.core.plan import Admitted
from fairlead.core.reasons import Reasons
from fairlead.core.snapshot import Snapshot

MAX_LIMIT = 10**9
_WHOLE = f"a whole number from 1 to {MAX_LIMIT:,}"


@dataclass(frozen=True)
class _LimitsByName:
    """Limits by name, and a default for each other name; without `default` these have no limit."""

    limits: Mapping[str, int] = field(default_factory=dict)  # limit of each name: a user or a model
    default: int | None = None  # limit of names that are not listed; without it they have none

    part: ClassVar[str]

    def __post_init__(self) -> None:
        if not self.limits and self.default is None:
            wanted = "limits by name, or a default for all"
            raise InputError(f"admission {self.part}", wanted, field="default", value=None)
        for name, limit in self.limits.items():
            require(1 <= limit <= MAX_LIMIT, f"admission {self.part}", _WHOLE, f"limits.{name}", limit)
        if self.default is not None and not 1 <= self.default <= MAX_LIMIT:
            raise InputError(f"admission {self.part}", _WHOLE, field="default", value=self.default)

    def of(self, names: list[str]) -> Floats:
        """The limits of these names."""
        otherwise = math.inf if self.default is None else self.default
        return np.array([self.limits.get(name, otherwise) for name in names], dtype=np.float64)


@dataclass(frozen=True)
class UserJobQuota(_LimitsByName):
    """Limit the admitted jobs of each user (Blox §6.1)."""

    part: ClassVar[str] = "user-job-quota"

    def admit(self, view: Snapshot) -> Admitted:
        return _by_user(self, view, accelerators=False)


@dataclass(frozen=True)
class UserResourceQuota(_LimitsByName):
    """Limit the GPUs that the admitted jobs of each user request in sum (Blox §6.1)."""

    part: ClassVar[str] = "user-resource-quota"

    def admit(self, view: Snapshot) -> Admitted:
        return _by_user(self, view, accelerators=True)


@dataclass(frozen=True)
class JobTypeQuota(_LimitsByName):
    """Limit the admitted jobs of each model, at any batch size (Blox §6.1)."""

    part: ClassVar[str] = "job-type-quota"

    def admit(self, view: Snapshot) -> Admitted:
        queued = view.queued
        if not len(queued):
            return Admitted(queued.number)
        names = [model_of(kind) for kind in view.names.kinds]
        models = list(dict.fromkeys(names))
        place = {model: at for at, model in enumerate(models)}
        model_of_kind = np.array([place[name] for name in names], dtype=np.int64)
        used = np.bincount(model_of_kind[view.jobs.kind], minlength=len(models))
        queues = model_of_kind[queued.kind]
        what = partial(_named, "jobs", "model", models)
        return admit_by_quota(queued.number, queues, np.ones_like(queues), used, self.of(models), what)


@dataclass(frozen=True)
class JobResourceQuota:
    """Limit the admitted jobs that request `at_least` GPUs or more; smaller jobs are not limited (Blox §6.1)."""

    at_least: int = 8  # GPUs from which on a job counts
    limit: int = 1  # jobs of that size that may be admitted at the same time

    def __post_init__(self) -> None:
        for name in ("at_least", "limit"):
            if not 1 <= getattr(self, name) <= MAX_LIMIT:
                raise InputError("admission job-resource-quota", _WHOLE, field=name, value=getattr(self, name))

    def admit(self, view: Snapshot) -> Admitted:
        large = view.queued.workers >= self.at_least
        used = int(np.count_nonzero(view.jobs.workers >= self.at_least))
        enters = ~large | (used + large.cumsum() <= self.limit)
        what = f"jobs that request {self.at_least} GPUs or more"
        then = used + int(np.count_nonzero(large & enters))
        return Admitted(view.queued.number[enters], others=Reasons.not_admitted(what, demand=then, limit=self.limit))


def _by_user(quota: _LimitsByName, view: Snapshot, *, accelerators: bool) -> Admitted:
    queued = view.queued
    if not len(queued):
        return Admitted(queued.number)
    count = len(view.names.users)
    users = np.bincount(queued.user, minlength=count).nonzero()[0]  # those with queued jobs
    names = [view.names.users[user] for user in users.tolist()]
    queue_of = np.zeros(count, dtype=np.int64)
    queue_of[users] = np.arange(len(users))
    queues = queue_of[queued.user]
    used = np.bincount(view.jobs.user, view.jobs.workers if accelerators else None, minlength=count)[users]
    demands = queued.workers if accelerators else np.ones_like(queues)
    what = partial(_named, "GPUs for jobs" if accelerators else "jobs", "user", names)
    return admit_by_quota(queued.number, queues, demands, used, quota.of(names), what)


def _named(what: str, role: str, names: Sequence[str], queue: int) -> str:
    return f"{what} of {role} {names[queue]!r}" if names[queue] else f"{what} without a {role}"
