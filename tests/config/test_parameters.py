"""Parameters of parts by their declared types, as deep as they are nested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.config.parameters import checked
from fairlead.core.errors import InputError


@dataclass(frozen=True)
class Limits:
    most: int
    per_hour: float = 1.0


def found(hint: Any, value: Any) -> Any:
    return checked("limits", value, hint, lambda *path: "/".join(path))


@pytest.mark.parametrize("hint", [Limits, Limits | None])
def test_a_parameter_may_be_a_dataclass(hint):
    assert found(hint, {"most": 3}) == Limits(3)
    with pytest.raises(InputError, match=r"^limits/moist: field 'limits.moist': expected a known field \(near: 'most'\)$"):
        found(hint, {"most": 3, "moist": 4})
    with pytest.raises(InputError, match=r"^limits/most: field 'limits.most' is 'x': expected a valid integer"):
        found(hint, {"most": "x"})


@pytest.mark.parametrize("hint", [Mapping[str, Limits], Mapping[str, Limits | None], Mapping[str, Limits] | None])
def test_a_field_that_nobody_knows_is_told_with_the_near_ones_however_deep(hint):
    with pytest.raises(InputError, match=r"field 'limits.ann.per_our': expected a known field \(near: 'per_hour'\)"):
        found(hint, {"ann": {"most": 3, "per_our": 4}})


def test_a_seed_may_be_none_where_its_class_says_so():
    assert checked("seed", None, int | None, lambda *_: "part") is None
    with pytest.raises(InputError, match="whole number from 0"):
        checked("seed", -1, int | None, lambda *_: "part")
