"""How many requests a second sessions get, and from when on, as a small YAML file.

photos: [[0, 700], [3600, 2100], [7200, 900]]     # from this second on, so many a second
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from fairlead.config.source import Value, read_yaml
from fairlead.core.inference import MOST_REQUESTS_PER_S

_SECOND, _RATE = "a second from 0 on", f"requests per second above 0, at most {MOST_REQUESTS_PER_S:,.0f}"


def read_request_rates(path: Path | str) -> dict[str, tuple[tuple[float, float], ...]]:
    """By session: from which second on, how many a second."""
    return {name: _rates(entry) for name, entry in read_yaml(path).mapping().items()}


def _rates(value: Value) -> tuple[tuple[float, float], ...]:
    rates = tuple(_rate(entry) for entry in value.items())
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
