"""A task whose owner knows how its batch size will change."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.errors import InputError
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS, parse_task

TASK = {"run": "python train.py", "mode": "expert", "steps": 1000, "schedule": "32@0.3|256@0.7"}


def test_a_schedule_goes_with_the_job() -> None:
    assert parse_task(TASK, "task").job("a", "ann").schedule == ((32, 0.3), (256, 0.7))
    assert parse_task({"run": "true", "mode": "expert"}, "task").job("a", "ann").schedule == ()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"schedule": "32@0.3|256"}, "batch sizes and shares of the steps, as in 32@0.3|256@0.7"),
        ({"schedule": "32@0.3|256@0.6"}, "shares that add up to 1; these make 0.9"),
        ({"schedule": "0@0.3|256@0.7"}, "batch sizes of at least 1"),
        ({"mode": "gns"}, "nothing, for a job of mode gns: a schedule is for mode expert"),
        ({"mode": "static"}, "a schedule is for mode expert"),
        ({"steps": None}, "no schedule without `steps`"),
        ({"schedule": "|".join(["32@0.001|64@0.001"] * 500)}, "at most 256 batch sizes"),
    ],
)
def test_a_wrong_schedule_is_told_with_what_was_expected(wrong: dict[str, Any], expected: str) -> None:
    task = {name: value for name, value in (TASK | wrong).items() if value is not None}
    with pytest.raises(InputError) as told:
        parse_task(task, "task.yaml")
    assert str(told.value).startswith("task.yaml: field 'schedule' is ")
    assert expected in str(told.value)


def test_a_million_steps_can_be_said() -> None:
    assert parse_task(TASK | {"steps": 1_000_000}, "task").job("a", "ann").schedule
    assert parse_task({"run": "true", "steps": 1e6}, "task").steps != UNKNOWN_STEPS
    assert parse_task({"run": "true"}, "task").steps == UNKNOWN_STEPS
