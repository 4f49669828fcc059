"""The examples that are shipped do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import answer, environment

from fairlead.runtime.protocol.task_file import parse_task

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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
