"""Admission by quotas: how many jobs, or how many accelerators for them, may be inside at a time, by user, by model, or by the
size of a single job (Blox §6.1, Table 5). Inside is who was admitted and has not ended, whether it runs or waits.

In a quota jobs enter in the order of their submission. Who asks for more than its whole quota enters when nobody else of that
quota is inside, as with accept-up-to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fairlead.admission.base import admit_by_quota
from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.core.job import model_of
from fairlead.core.plan import Admitted
from fairlead.core.reasons import Unplaced
from fairlead.core.snapshot import Snapshot

MOST = 10**9
_WHOLE = f"a whole number from 1 to {MOST:,}"


@dataclass(frozen=True)
class _LimitsByName:
    """Limits for some by name, and one for each of the others; without `default` these have none."""

    limits: Mapping[str, int] = field(default_factory=dict)
    default: int | None = None

    part: ClassVar[str]

    def __post_init__(self) -> None:
        if not self.limits and self.default is None:
            wanted = "limits by name, or a default for everybody"
            raise InputError(f"admission {self.part}", wanted, field="default", value=None)
        for name, limit in self.limits.items():
            if not 1 <= limit <= MOST:
                raise InputError(f"admission {self.part}", _WHOLE, field=f"limits.{name}", value=limit)
        if self.default is not None and not 1 <= self.default <= MOST:
            raise InputError(f"admission {self.part}", _WHOLE, field="default", value=self.default)

    def of(self, names: list[str]) -> Floats:
        otherwise = math.inf if self.default is None else self.default
        return np.array([self.limits.get(name, otherwise) for name in names], dtype=np.float64)


@dataclass(frozen=True)
class UserJobQuota(_LimitsByName):
    """At most so many jobs of a user are inside; each user's next ones wait in line (Blox §6.1)."""

    part: ClassVar[str] = "user-job-quota"

    def admit(self, view: Snapshot) -> Admitted:
        return _by_user(self, view, accelerators=False)


@dataclass(frozen=True)
class UserResourceQuota(_LimitsByName):
    """The jobs of a user that are inside ask for at most so many accelerators together (Blox §6.1)."""

    part: ClassVar[str] = "user-resource-quota"

    def admit(self, view: Snapshot) -> Admitted:
        return _by_user(self, view, accelerators=True)


@dataclass(frozen=True)
class JobTypeQuota(_LimitsByName):
    """At most so many jobs of a model, at any batch size, are inside (Blox §6.1)."""

    part: ClassVar[str] = "job-type-quota"

    def admit(self, view: Snapshot) -> Admitted:
        queued = view.queued
        if not len(queued):
            return Admitted(queued.number)
        names = [model_of(kind) for kind in view.names.kinds]
        models = list(dict.fromkeys(names))
        place = {model: at for at, model in enumerate(models)}
        model_of_kind = np.array([place[name] for name in names], dtype=np.int64)
        inside = np.bincount(model_of_kind[view.jobs.kind], minlength=len(models))
        lines = model_of_kind[queued.kind]
        return admit_by_quota(
            queued.number, lines, np.ones_like(lines), inside, self.of(models), lambda line: f"jobs {_of_model(models[line])}"
        )


@dataclass(frozen=True)
class JobResourceQuota:
    """At most `limit` jobs that ask for `at_least` accelerators or more are inside; smaller ones pass by (Blox §6.1)."""

    at_least: int = 8
    limit: int = 1

    def __post_init__(self) -> None:
        for name in ("at_least", "limit"):
            if not 1 <= getattr(self, name) <= MOST:
                raise InputError("admission job-resource-quota", _WHOLE, field=name, value=getattr(self, name))

    def admit(self, view: Snapshot) -> Admitted:
        large = view.queued.workers >= self.at_least
        inside = int(np.count_nonzero(view.jobs.workers >= self.at_least))
        in_line = inside + large.cumsum()
        enters = ~large | (in_line <= self.limit)
        what = f"jobs that ask for {self.at_least} accelerators or more"
        then = inside + int(np.count_nonzero(large & enters))
        return Admitted(view.queued.number[enters], others=Unplaced.not_admitted(what, demand=then, limit=self.limit))


def _by_user(quota: _LimitsByName, view: Snapshot, *, accelerators: bool) -> Admitted:
    queued = view.queued
    if not len(queued):
        return Admitted(queued.number)
    known = len(view.names.users)
    users = np.bincount(queued.user, minlength=known).nonzero()[0]  # those who have somebody at the door
    names = [view.names.users[user] for user in users.tolist()]
    line_of = np.zeros(known, dtype=np.int64)
    line_of[users] = np.arange(len(users))
    lines = line_of[queued.user]
    inside = np.bincount(view.jobs.user, view.jobs.workers if accelerators else None, minlength=known)[users]
    asks = queued.workers if accelerators else np.ones_like(lines)
    what = "accelerators for jobs" if accelerators else "jobs"
    return admit_by_quota(queued.number, lines, asks, inside, quota.of(names), lambda line: f"{what} {_of_user(names[line])}")


def _of_user(name: str) -> str:
    return f"of user {name!r}" if name else "without a user"


def _of_model(name: str) -> str:
    return f"of model {name!r}" if name else "without a model"
