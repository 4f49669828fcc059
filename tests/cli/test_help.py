"""The help of `fairlead` in panels, without slow imports, and the values that the shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from email.message import Message
from pathlib import Path

import pytest
from cluster_up import cluster_up, until
from command import environment, fairlead
from typer.testing import CliRunner

from fairlead.cli.main import COMMANDS, PANELS, app


def completed(line: str, cwd: Path) -> list[str]:
    """What bash completes at the end of a line."""
    words = line.split(" ")
    asked = {"_FAIRLEAD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    program = "import sys; sys.argv[0] = 'fairlead'; from fairlead.cli.main import app; app(prog_name='fairlead')"
    env = {**environment(), **asked, "HOME": os.fspath(cwd)}
    done = subprocess.run([sys.executable, "-c", program], cwd=cwd, env=env, capture_output=True, encoding="utf-8", check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_help_has_examples_and_every_command_in_its_panel():
    text = fairlead("--help").stdout
    assert text.splitlines()[2].startswith("  Fairlead schedules GPU clusters.")
    assert text.count("\n    fairlead ") == 3
    places = [text.index(f"\n{panel}:\n") for panel in PANELS[:-1]]
    assert places == sorted(places)
    for name, entry in COMMANDS.items():
        line = text.index(f"\n  {name} ")
        assert max(place for place in places if place < line) == places[PANELS.index(entry.panel)], name
        assert entry.summary.endswith(".")


def test_help_names_no_file_of_a_clone_and_the_address_of_the_package(monkeypatch: pytest.MonkeyPatch):
    text = fairlead("--help").stdout
    assert "'fairlead COMMAND --help' shows the options of a command." in text
    assert "docs/" not in text
    about = Message()
    for url in ("Source, https://a.example", "Documentation, https://b.example"):
        about["Project-URL"] = url
    monkeypatch.setattr("importlib.metadata.metadata", lambda name: about)
    assert "Documentation: https://b.example" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_options_stand_in_groups_and_examples_are_not_wrapped(command: str):
    text = fairlead(command, "--help").stdout
    places = [text.index(f"\n{panel}:\n") for panel in ("Scheduler", "Workload", "Cluster", "Metrics", "Output", "Options")]
    assert places[-2:] == sorted(places)[-2:]
    assert "range>" not in text
    assert f"\n    fairlead {command} --trace philly.csv" in text or "--report out.html --json\n" in text


@pytest.mark.parametrize(
    ("command", "unwanted"),
    [("--help", {"rich", "numpy", "httpx", "fairlead.cli.cmd_jobs"}), ("queue", {"numpy", "fairlead.core.events"})],
)
def test_commands_do_not_import_what_they_do_not_need(command: str, unwanted: set[str], tmp_path: Path):
    program = (
        f"import sys\nfrom fairlead.cli.main import run\nsys.argv = ['fairlead', {command!r}]\n"
        f"try:\n    run()\nexcept SystemExit:\n    pass\nprint(sorted({unwanted!r} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_shell_completes_names_of_parts(tmp_path: Path):
    assert "las" in completed("fairlead simulate --policy la", tmp_path)
    assert "fifo,las" in completed("fairlead compare --policies fifo,la", tmp_path)
    assert "tiresias-plus" in completed("fairlead simulate --preset tire", tmp_path)
    assert "philly" in completed("fairlead trace check x.csv --format ph", tmp_path)
    assert completed("fairlead info t", tmp_path) == []  # without a control plane, silently


def test_the_shell_completes_names_of_jobs_and_nodes(tmp_path: Path):
    with cluster_up(tmp_path, cluster="1xv100:1"):
        assert fairlead("submit", "--name", "train-7", "--", "sleep", 1000, cwd=tmp_path).returncode == 0

        def offered(line: str) -> list[str]:
            """A control plane that does not answer within a second offers nothing."""
            return until(lambda: completed(line, tmp_path), tmp_path)

        for command in ("info", "logs", "why", "cancel", "wait"):
            assert offered(f"fairlead {command} tr") == ["train-7"], command
        assert offered("fairlead drain v1") == ["v100-0"]
