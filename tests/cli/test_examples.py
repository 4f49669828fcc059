"""The examples that are shipped do what they say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import answer, environment
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.runtime.protocol.task_file import parse_task

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
INFERENCE = EXAMPLES.parent / "docs" / "inference.md"


def test_the_example_scheduler_runs_on_the_example_cluster():
    how = ("--config", EXAMPLES / "scheduler.yaml", "--cluster", EXAMPLES / "cluster.yaml", "--jobs", "20")
    found = answer("simulate", *how)
    assert found["finished"] == 20
    assert found["cluster"] == "16 × v100, 16 × p100, 16 × k80"


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_script_runs(script, tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("file", sorted(path.name for path in (EXAMPLES / "jobs").glob("*.yaml")))
def test_an_example_task_is_one_and_runs_the_script_beside_it(file):
    written = yaml.safe_load((EXAMPLES / "jobs" / file).read_text())
    assert written.pop("code") == "."  # a digest once it is sent
    task = parse_task(written, file)
    assert task.run[1] == file.replace(".yaml", ".py")
    assert (EXAMPLES / "jobs" / task.run[1]).is_file()


def test_the_commands_of_the_page_about_inference_run_as_they_stand(tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^fairlead (.*)$", INFERENCE.read_text(), flags=re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["inference", "simulate", "inference"]
    printed = [CliRunner().invoke(app, shlex.split(line)) for line in lines]
    assert [(done.exit_code, done.exception) for done in printed] == [(0, None)] * 3
    assert "requests within their SLO: " in printed[1].stdout
    assert "photos" in printed[2].stdout
