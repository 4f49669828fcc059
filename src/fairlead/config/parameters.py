"""Validates the parameters of a part: plain data in, values of the types that its class declares out. An error names the wrong
field, however deeply nested. This module knows no part and no file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from types import GenericAlias, NoneType
from typing import Any, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fairlead.core.errors import InputError, near_or_all

LARGEST_SEED = 2**63 - 1

FORMER_PARAMETERS = {
    "among": "optimum",
    "company": "colocated",
    "deepest": "max_depth",
    "entity_weights": "account_weights",
    "everybody": "resizes_all",  # former
    "guests": "backfill",
    "holds": "sm_usage",
    "least_gain": "min_gain",
    "least_history": "min_history",
    "least_interval_s": "min_interval_s",
    "leftovers": "work_conserving",
    "most_jobs": "max_jobs",
    "most_memory": "max_memory",
    "most_slowdown": "max_slowdown",
    "most_utilization": "max_utilization",
    "sticky": "greedy",
    "uses": "usage",
}
"""Former names of parameters, which scheduler files and journals may still use, and the present names."""

_CONFIG = ConfigDict(arbitrary_types_allowed=True, extra="forbid")  # of a tuple: a dataclass itself takes no config
_MISSING, _UNKNOWN = "missing", "unexpected_keyword_argument"  # as pydantic calls them


def with_present_names(parameters: Mapping[str, Any], known: Collection[str], source: Callable[..., str]) -> dict[str, Any]:
    """The parameters by their present names. A former name counts only where a part has the present one alone."""
    present: dict[str, Any] = {}
    for name, value in parameters.items():
        new = name if name in known else FORMER_PARAMETERS.get(name, name)
        name = new if new in known else name
        if name in present:
            raise InputError(source(name), "one value, under either the old or the new name", field=name)
        present[name] = "throughput" if (name, value) == ("optimum", "most") else value  # the value's former name
    return present


def checked(name: str, value: Any, hint: Any, source: Callable[..., str]) -> Any:
    """The validated value of a parameter. `source` returns the location of a field from its path of names."""
    alone: Any = GenericAlias(tuple, (hint,))
    try:
        (found,) = TypeAdapter(alone, config=_CONFIG).validate_python((value,))
    except ValidationError as error:
        first = error.errors()[0]
        inside, there = _inside(value, first["loc"][1:], first["type"])
        wanted = str(first["msg"]).removeprefix("Input should be ")
        if first["type"] == _MISSING:
            wanted = "a value; the field is required"
        elif first["type"] == _UNKNOWN and inside:
            wanted, there = f"a known field ({near_or_all(inside[-1], _fields(hint, len(inside) - 1))})", None
        path = (name, *inside)
        raise InputError(source(*path), wanted, field=".".join(path), value=there) from error
    if (strange := _bool_mismatch(value, found)) is not None:
        inside, there, wanted = strange
        path = (name, *inside)
        raise InputError(source(*path), wanted, field=".".join(path), value=there)
    if name == "seed" and found is not None and not 0 <= found <= LARGEST_SEED:
        raise InputError(source(name), f"a whole number from 0 to {LARGEST_SEED}", field=name, value=value)
    return found


def _bool_mismatch(value: Any, found: Any) -> tuple[list[str], Any, str] | None:
    """The first place where a boolean was converted to a number, or the other way round, which is a mistake in the file: the
    path, the value found, and the expected value."""
    if isinstance(value, bool) is not isinstance(found, bool):
        return [], value, "true or false" if isinstance(found, bool) else "a number, not true or false"
    if isinstance(value, Mapping):
        fields = (
            found.values() if isinstance(found, Mapping) else [getattr(found, str(name), one) for name, one in value.items()]
        )
        for (name, one), other in zip(value.items(), fields):
            if (strange := _bool_mismatch(one, other)) is not None:
                inside, there, wanted = strange
                return [str(name), *inside], there, wanted
    elif isinstance(value, list | tuple) and isinstance(found, list | tuple):
        each = (_bool_mismatch(one, other) for one, other in zip(value, found))
        if (strange := next(filter(None, each), None)) is not None:
            return [], value, strange[2]
    return None


def _inside(value: Any, loc: tuple[int | str, ...], error_type: str) -> tuple[list[str], Any]:
    """The nested field that an error is about, and its value. An error in a list gives the whole list."""
    path: list[str] = []
    for step in loc:
        if not isinstance(value, Mapping) or (step not in value and error_type != _MISSING):
            break
        path.append(str(step))
        value = value.get(step)
    return path, value


def _fields(hint: Any, deep: int) -> list[str]:
    """The fields of the dataclass at this depth of nested mappings."""
    for _ in range(deep):
        hint = (get_args(_without_none(hint)) or (None,))[-1]
    found = _without_none(hint)
    return [one.name for one in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []


def _without_none(hint: Any) -> Any:
    """The type without None, if it is optional."""
    others = [one for one in get_args(hint) if one is not NoneType]
    return others[0] if len(others) == 1 and NoneType in get_args(hint) else hint
