"""What several tests of commands share."""

from __future__ import annotations

from pathlib import Path

import command
import pytest


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The events of a simulation, for commands that read a journal."""
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    given = ("--policy", "las", "--jobs", "40", "--load", "20", "--cluster", "8xv100:4,8xp100:4", "--events", path)
    done = command.fairlead("simulate", *given, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return path
