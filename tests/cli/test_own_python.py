"""Which Python jobs of `fairlead up` find: the one that has Fairlead, unless another environment is active."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fairlead.runtime.bootstrap import with_own_python


@pytest.fixture
def in_an_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    return str(tmp_path / "bin")


def test_the_environment_that_up_runs_in_comes_first_where_none_is_active(in_an_environment: str) -> None:
    given = with_own_python({"PATH": "/usr/bin", "HOME": "/home/ann"})
    assert given == {"PATH": f"{in_an_environment}:/usr/bin", "HOME": "/home/ann"}
    assert with_own_python({})["PATH"] == f"{in_an_environment}:{os.defpath}"


@pytest.mark.parametrize("active", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_environment_that_is_active_stays_first(in_an_environment: str, active: str) -> None:
    around = {"PATH": "/mine/bin:/usr/bin", active: "/mine"}
    assert with_own_python(around) == around


def test_the_machines_own_python_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert with_own_python({"PATH": "/usr/local/bin:/usr/bin"}) == {"PATH": "/usr/local/bin:/usr/bin"}
