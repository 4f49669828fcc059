"""Limits on what users may set for their jobs, in a scheduler file next to its quotas. Admins have none.

limits:
  default: {weight: 1, priority: 0}        # of each user
  accounts: {vision: {weight: 4}}          # of jobs of an account
  users: {ann: {priority: 10, min_run_s: 7200}}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.config.yaml_source import Value
from fairlead.core.job import Job, with_parents

DEFAULT_LIMITS: Mapping[str, float] = {
    "weight": 1.0,
    "priority": 0.0,
    "min_run_s": 3600.0,
    "max_slowdown": 1.0,  # the least that a job may ask for
    "time_limit_s": math.inf,
}
"""Limits of users for whom a scheduler file has none, by the field of a job."""

_KEYS = ("default", "accounts", "users")


@dataclass(frozen=True)
class UserLimits:
    """Limits by user and account: those of the user, then of the account, then of those above it, then the default."""

    default: Mapping[str, float] = field(default_factory=dict)
    accounts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def from_value(cls, value: Value) -> UserLimits:
        """Return the limits that a scheduler file has under `limits`."""
        fields = value.mapping(_KEYS)
        default = _limits(fields["default"]) if "default" in fields else {}
        named = {key: {name: _limits(one) for name, one in fields[key].mapping().items()} for key in _KEYS[1:] if key in fields}
        return cls(default, **named)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> UserLimits:
        """Return the same from plain data, such as a journal's."""
        return cls.from_value(Value(dict(data), "limits", "limits", None, {}))

    def to_data(self) -> dict[str, Any]:
        """Return what `from_data` reads."""
        plain: dict[str, Any] = {"default": dict(self.default)}
        plain |= {key: {name: dict(one) for name, one in getattr(self, key).items()} for key in _KEYS[1:]}
        return {key: value for key, value in plain.items() if value}

    def refusal(self, job: Job, fields: tuple[str, ...] = tuple(DEFAULT_LIMITS)) -> str:
        """Return why a user may not set these fields of a job as they are, with the limit; empty if they may."""
        return next(self._refusals(job, fields), "")

    def _refusals(self, job: Job, fields: tuple[str, ...]) -> Iterator[str]:
        mine, of_account, holders = self.users.get(job.user, {}), dict[str, float](), dict[str, str]()
        for account in reversed(with_parents(job.account)):
            own = self.accounts.get(account, {})
            of_account |= own
            holders |= dict.fromkeys(own, f"account {account!r}")
        for name in fields:
            holder = f"user {job.user!r}" if name in mine or name not in of_account else holders[name]
            limit = {**DEFAULT_LIMITS, **self.default, **of_account, **mine}[name]
            value, least = getattr(job, name), name == "max_slowdown"
            if value < limit if least else value > limit:
                what = f"{name} of at {'least' if least else 'most'} {limit:g}"
                found = "none" if math.isinf(value) else f"{value:g}"
                yield f"jobs of {holder} have a {what}, not {found}; an operator can allow it (limits in the scheduler file)"


def _limits(value: Value) -> dict[str, float]:
    return {name: one.number("a number", least=-1000.0) for name, one in value.mapping(tuple(DEFAULT_LIMITS)).items()}
