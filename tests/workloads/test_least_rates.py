"""Rates so small that a job would end after more rounds than can be counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.core.errors import InputError
from fairlead.workloads.table_files import read_throughputs


@pytest.mark.parametrize("rate", ["1e-300", "1e-10", "5e-324"])
def test_a_rate_is_nothing_or_something(tmp_path: Path, rate: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"kind,workers,type,steps_per_s\nX,1,v100,{rate}\n")
    with pytest.raises(InputError, match=r"table.csv:2: field 'steps_per_s'.*at least 1e-09"):
        read_throughputs(path)


def test_slow_is_not_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("kind,workers,type,steps_per_s\nX,1,v100,1e-9\nX,1,k80,0\n")
    assert sorted(read_throughputs(path).alone[1]) == [0.0, 1e-9]
