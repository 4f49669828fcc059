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
    with pytest.raises(
        InputError, match=r"^limits/moist: field 'limits.moist': expected a known field \(did you mean 'most'\?\)$"
    ):
        found(hint, {"most": 3, "moist": 4})
    with pytest.raises(InputError, match=r"^limits/most: field 'limits.most' is 'x': expected a valid integer"):
        found(hint, {"most": "x"})


@pytest.mark.parametrize("hint", [Mapping[str, Limits], Mapping[str, Limits | None], Mapping[str, Limits] | None])
def test_a_field_that_nobody_knows_is_told_with_the_near_ones_however_deep(hint):
    with pytest.raises(InputError, match=r"field 'limits.ann.per_our': expected a known field \(did you mean 'per_hour'\?\)"):
        found(hint, {"ann": {"most": 3, "per_our": 4}})


def test_a_seed_may_be_none_where_its_class_says_so():
    assert checked("seed", None, int | None, lambda *_: "part") is None
    with pytest.raises(InputError, match="whole number from 0"):
        checked("seed", -1, int | None, lambda *_: "part")


@pytest.mark.parametrize(
    ("hint", "value", "field"),
    [
        (float, True, "limits"),
        (int, False, "limits"),
        (float | None, True, "limits"),
        (tuple[float, ...], [1.0, True], "limits"),
        (Limits, {"most": 3, "per_hour": True}, "limits.per_hour"),
        (Mapping[str, Limits], {"ann": {"most": True}}, "limits.ann.most"),
        (tuple[Limits, ...], [{"most": True}], "limits"),
    ],
)
def test_true_is_no_number_however_deep(hint, value, field):
    with pytest.raises(InputError, match="a number, not true or false") as told:
        found(hint, value)
    assert told.value.field == field


@pytest.mark.parametrize(
    ("hint", "value"), [(bool, 1), (bool, 0), (bool | None, 1.0), (bool, "1"), (tuple[bool, ...], [True, 1])]
)
def test_a_number_is_neither_true_nor_false(hint, value):
    with pytest.raises(InputError, match="expected true or false"):
        found(hint, value)


def test_what_is_meant_is_taken():
    assert found(bool, True) is True
    assert found(float, 1) == 1.0
    assert found(float, "1e3") == 1000.0, "YAML takes this for a text"
    assert found(Mapping[str, float], {"a": 1}) == {"a": 1.0}
    assert found(bool | float, True) is True
