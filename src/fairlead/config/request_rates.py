"""How many requests a second sessions get, and from when on, as a small YAML file.

photos: [[0, 700], [3600, 2100], [7200, 900]]     # from this second on, so many a second
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

from fairlead.config.source import Value, read_yaml
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.inference import MOST_REQUESTS_PER_S

_SECOND, _RATE = "a second from 0 on", f"requests per second above 0, at most {MOST_REQUESTS_PER_S:,.0f}"


def read_request_rates(path: Path | str, sessions: Collection[str]) -> dict[str, tuple[tuple[float, float], ...]]:
    """By session, of those that there are: from which second on, how many a second."""
    fields = read_yaml(path).mapping()
    for name, entry in fields.items():
        if name not in sessions:
            wanted = f"the name of a job of the trace that is a session ({near_or_all(name, sessions)})"
            raise InputError(entry.source, wanted, line=entry.line, field=name)
    return {name: _rates(entry) for name, entry in fields.items()}


def _rates(value: Value) -> tuple[tuple[float, float], ...]:
    rates = tuple(_rate(entry) for entry in value.items())
    if not rates:
        raise value.error("at least one second and rate, as in [[0, 700]]")
    if any(one >= other for (one, _), (other, _) in pairwise(rates)):
        raise value.error("seconds in ascending order")
    return rates


def _rate(value: Value) -> tuple[float, float]:
    parts = list(value.items())
    if len(parts) != 2:
        raise value.error("a second and a rate, as in [3600, 700]")
    rate = parts[1].number(_RATE, above=True)
    if rate > MOST_REQUESTS_PER_S:
        raise parts[1].error(_RATE)
    return parts[0].number(_SECOND, least=0.0), rate
