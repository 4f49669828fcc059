"""Every error Fairlead raises on purpose. Each names the thing, the value and the mend; the command line prints one line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any

NOT_FOUND, REFUSED, UNREACHABLE = 3, 4, 5
"""Exit codes of the command line besides 0 (done), 1 (the job or the check failed), 2 (usage) and 130 (interrupted)."""


class FairleadError(Exception):
    """The root of all errors that Fairlead raises on purpose; `exit_code` is that of a command that ends with it."""

    exit_code = 2


class InputError(FairleadError):
    """An error in a user's input: where it is (a file, or an option such as `--load`), the value found, the value expected."""

    def __init__(
        self, source: object, expected: str, *, line: int | None = None, field: str | None = None, value: object = None
    ) -> None:
        self.source, self.line, self.field, self.value, self.expected = str(source), line, field, value, expected
        place = self.source if line is None else f"{self.source}:{line}"
        parts = [place]
        if self.source.startswith("--"):
            typed = int(value) if isinstance(value, float) and value.is_integer() else value  # 1000000, not 1000000.0
            parts = [place if value is None else f"{place} {_shorten(typed)!r}"]
        elif field is not None:
            shown = "" if value is None else f" is {_shorten(value)!r}"
            parts.append(f"field '{field}'{shown}")
        parts.append(f"expected {expected}")
        super().__init__(": ".join(parts))

    def __reduce__(self) -> tuple[object, ...]:
        return (_input_error, (self.source, self.expected, self.line, self.field, self.value))


class UnknownName(FairleadError):
    """A name that nothing answers to; the near ones are part of the message, or what has this very name `instead`."""

    def __init__(self, what: str, name: str, known: Iterable[str], place: str = "", instead: str = "") -> None:
        self.what, self.name, self.known, self.place, self.instead = what, name, tuple(sorted(known)), place, instead
        super().__init__(f"{place}unknown {what} '{name}'; {instead or near_or_all(name, self.known)}")

    def __reduce__(self) -> tuple[object, ...]:
        return (UnknownName, (self.what, self.name, self.known, self.place, self.instead))


class NotFound(FairleadError):
    """What a command names does not exist."""

    exit_code = NOT_FOUND


class DuplicateName(FairleadError):
    """Two plug-ins claim one name."""


class IllegalTransition(FairleadError):
    """An event asks a job to go where the table of phases has no way."""


class InvalidPlan(FairleadError):
    """A stage answered with something that cannot be: an accelerator twice, half a gang, a job that is not there."""


class StaleSnapshot(FairleadError):
    """A column of a snapshot was first read after the state had moved on; read it earlier or `detach()` the snapshot."""


class SolverError(FairleadError):
    """A program was not solved to an optimum; the status says why. Nothing of it was used."""

    def __init__(self, what: str, status: str) -> None:
        self.what, self.status = what, status
        super().__init__(f"{what}: the solver ended with {status!r}, not with an optimum")

    def __reduce__(self) -> tuple[object, ...]:
        return (SolverError, (self.what, self.status))


class JournalError(FairleadError):
    """A journal is damaged, of another version, or not a journal."""


class JournalInUse(JournalError):
    """Another process writes this journal."""

    exit_code = REFUSED


class JournalUnreachable(JournalError):
    """A journal's server does not answer. It may come back; nothing is known to be lost."""

    exit_code = UNREACHABLE


MAX_LISTED = 24
"""Names that are listed where none is near."""


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """At most three, the nearest first."""
    names = list(known)
    alike = {other.lower(): other for other in reversed(names)}
    near = [alike[one] for one in get_close_matches(name.lower(), alike, n=3, cutoff=0.5)]
    return near or [other for other in names if len(name) > 1 and name.lower() in other.lower()][:3]


def near_or_all(name: str, known: Iterable[str]) -> str:
    """The mend of an unknown name: the near ones, or, where none is near, all there are, as far as one reads them."""
    names = list(known)
    if near := near_names(name, names):
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known: {listed(names) or 'none'}"


def listed(names: Sequence[str]) -> str:
    """All of them, as far as one reads them."""
    more = f", … and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{', '.join(names[:MAX_LISTED])}{more}"


def require(good: object, source: object, expected: str, field: str | None = None, value: object = None) -> None:
    """Raise InputError unless `good` is true."""
    if not good:
        raise InputError(source, expected, field=field, value=value)


def check_number(source: object, field: str, value: Any, expected: str, low: float = 0.0, high: float = math.inf) -> None:
    """Raise InputError unless a value is a number from `low` to `high`."""
    require(isinstance(value, Real) and low <= float(value) <= high, source, expected, field, value)


def _input_error(source: str, expected: str, line: int | None, field: str | None, value: object) -> InputError:
    return InputError(source, expected, line=line, field=field, value=value)


def _shorten(value: object) -> object:
    if isinstance(value, str):
        text = value
    else:
        try:
            text = repr(value)
        except (ValueError, RecursionError):  # a number of thousands of digits, or what has one in it, or is too deep
            return f"{type(value).__name__} too large to show"
    return value if len(text) <= 60 else text[:59] + "…"


class NotInstalled(FairleadError):
    """A command needs an extra or a package that is not installed."""


def install(extra: str) -> str:
    """Return how to install an extra, as the end of a sentence."""
    return f"run pip install 'fairlead[{extra}]'"
