"""Tasks that nobody means."""

from __future__ import annotations

import pytest

from fairlead.core.errors import InputError
from fairlead.runtime.protocol.task_file import parse_task


def test_a_line_too_long_to_be_split_at_once_is_told_and_words_are_not():
    with pytest.raises(InputError, match=r"field 'run' is .*a line of at most 32768 characters, or a list of words"):
        parse_task({"run": "x" * 200_000}, "task")
    assert parse_task({"run": ["echo", *["x" * 30_000] * 10]}, "task").run[0] == "echo"
