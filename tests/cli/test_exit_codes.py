"""Exit codes of commands, as scripts see them, and pipes whose reader ends early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_up import LOG, cluster_up, until
from command import Done, environment, fairlead

from foundry import foundry

FAIRLEAD = f"{sys.executable} -m fairlead.cli.main"


def shell(script: str, cwd: Path, **more: str) -> Done:
    """Run a script in bash, with the command `fairlead`, where a pipe fails if any of its commands does."""
    env = {**environment(), **more}
    env["PATH"] = f"{foundry().program.parent}{os.pathsep}{env['PATH']}"
    command = ["bash", "-c", f"set -o pipefail; {script}"]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=300, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def code(*words: object, cwd: Path) -> int:
    return fairlead(*words, cwd=cwd).returncode


@pytest.mark.parametrize(
    "words",
    [
        ("nothing",),
        ("queue", "--nothing"),
        ("simulate", "--policy"),
        ("simulate", "--policy", "las", "--jobs", "0"),
        ("simulate", "--policy", "nothing"),
        ("simulate", "--policy", "las", "--trace", "nothing.csv"),
        ("presets", "show", "nothing"),
        ("trace", "check", "nothing.csv"),
        ("reproduce", "nothing"),
    ],
    ids=" ".join,
)
def test_wrong_usage_and_input_end_with_2(words: tuple[str, ...], tmp_path: Path):
    done = fairlead(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("fairlead: error: ")


def test_a_failed_check_ends_with_1(tmp_path: Path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s\na,0,x\n")
    assert code("trace", "check", "jobs.csv", cwd=tmp_path) == 1


@pytest.mark.parametrize("words", [("queue",), ("info", "a"), ("nodes",), ("usage",), ("top",), ("cancel", "a")], ids=" ".join)
def test_without_a_control_plane_commands_end_with_5(words: tuple[str, ...], tmp_path: Path):
    assert code(*words, cwd=tmp_path) == 5


def test_a_cluster_s_answers_have_their_codes_and_its_output_can_be_cut(tmp_path: Path):
    with cluster_up(tmp_path, cluster="1xv100:1"):
        for words in (("info", "a"), ("why", "a"), ("logs", "a"), ("cancel", "a"), ("drain", "a"), ("token", "revoke", "a")):
            assert code(*words, cwd=tmp_path) == 3, words
        assert code("up", "--http", "127.0.0.1:0", "--agents", "127.0.0.1:0", cwd=tmp_path) == 4  # the journal is in use
        user = fairlead("token", "add", "ann", cwd=tmp_path).stdout.strip()
        assert shell("fairlead drain v100-0", tmp_path, FAIRLEAD_TOKEN=user).returncode == 4
        assert shell("fairlead queue", tmp_path, FAIRLEAD_TOKEN="wrong").returncode == 4
        script = "i=0; while sleep 0.3; do i=$((i+1)); echo line $i; done"
        assert code("submit", "--name", "talks", "--", "bash", "-c", script, cwd=tmp_path) == 0
        until(lambda: "line 3" in fairlead("logs", "talks", cwd=tmp_path).stdout, tmp_path)
        for command in ("logs -f talks", "logs -f talks --json", "queue", "nodes", "top", "info talks"):
            cut = shell(f"fairlead {command} | head -n 1", tmp_path)
            assert (cut.returncode, cut.stderr) == (0, ""), command
        (tmp_path / "followed").touch()
        process = foundry().make(["logs", "-f", "talks"], tmp_path / "followed", cwd=str(tmp_path))
        until(lambda: "line" in (tmp_path / "followed").read_text(), tmp_path)
        os.kill(process, signal.SIGINT)
        assert foundry().status(process) == 130
        assert (tmp_path / "followed").read_text().endswith("fairlead: interrupted\n")
        assert code("cancel", "talks", cwd=tmp_path) == 0
        assert code("cancel", "talks", cwd=tmp_path) == 4


def test_sigterm_ends_a_simulation_without_a_word_and_leaves_no_partial_file(tmp_path: Path) -> None:
    words = [*FAIRLEAD.split(), *["simulate", "--policy", "las", "--jobs", "60000", "--events", "e.jsonl"]]
    part = tmp_path / "e.jsonl.part"
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        while not part.exists() or not part.stat().st_size:  # the simulation runs
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read()) == (143, "")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    ["--help", "simulate --help", "policies all", "policies all --json", "presets", "presets show tiresias", "predict show"],
)
@pytest.mark.parametrize("reader", ["head -n 1", "true"])
def test_output_that_is_cut_is_no_error(command: str, reader: str, tmp_path: Path):
    program = FAIRLEAD if reader == "true" else "fairlead"  # what Python does at its end matters once
    done = shell(f"{program} {command} | {reader}", tmp_path)
    assert done.returncode == 0
    note = "print one as a scheduler file: fairlead presets show NAME\n"
    assert done.stderr in ("", note), "the note follows if all was written before the reader ended"


def test_a_cluster_whose_log_is_cut_goes_on_and_ends_well(tmp_path: Path):
    """`fairlead up 2>&1 | head -1` keeps its jobs; Ctrl-C ends it."""
    reader, writer = os.pipe()
    words = [
        *FAIRLEAD.split(),
        "up",
        "--cluster",
        "1xv100:1",
        "--http",
        "127.0.0.1:0",
        "--agents",
        "127.0.0.1:0",
        "--round",
        "1",
    ]
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=writer, stderr=writer) as process:
        os.close(writer)
        with open(reader, encoding="utf-8") as first:
            while not (line := first.readline()).startswith("console: "):
                assert "slow decision" in line  # on a busy machine the first one may be
        (tmp_path / LOG).touch()
        assert code("submit", "--name", "a", "--", "true", cwd=tmp_path) == 0
        until(lambda: "finished" in fairlead("info", "a", cwd=tmp_path).stdout, tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
