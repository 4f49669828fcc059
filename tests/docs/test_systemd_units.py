"""The unit files of `examples/systemd`: systemd accepts them, and so does the command line what they start."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from fairlead.cli.main import app

UNITS = sorted((Path(__file__).parents[2] / "examples" / "systemd").glob("*.service"))
PROGRAM = "/opt/fairlead/bin/fairlead"


def settings(unit: Path) -> dict[str, str]:
    lines = unit.read_text().replace("\\\n", "").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_there_is_a_unit_for_each_process() -> None:
    assert [unit.name for unit in UNITS] == ["fairlead-agent.service", "fairlead.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_command_line_knows_what_a_unit_starts(unit: Path) -> None:
    program, command, *words = shlex.split(settings(unit)["ExecStart"])
    assert program == PROGRAM
    group = get_command(app)
    found = group.get_command(group.make_context("fairlead", ["--help"], resilient_parsing=True), command)  # type: ignore[attr-defined]
    assert found is not None
    found.make_context(command, words)  # raises an error of usage at an option that is not there


def test_jobs_outlive_their_agent() -> None:
    assert (settings(UNITS[0])["KillMode"], settings(UNITS[0])["Restart"]) == ("process", "on-failure")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(PROGRAM, sys.executable))  # systemd looks for the program
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if unit.stem in line]
    if done.returncode and not complaints:
        pytest.skip(f"systemd-analyze cannot verify here: {done.stderr[:200]}")
    assert not complaints
