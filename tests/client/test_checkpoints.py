"""Checkpoints: the last whole one is found, whatever moment the process is killed in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.client.checkpoints import Checkpoints
from fairlead.client.lease_holder import LeaseHolder, SaveOptions

KILLED_AT_EACH_EFFECT = """
import json, os, signal, sys
from pathlib import Path
from fairlead.client.checkpoints import Checkpoints

EFFECTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "fsync"}

def save_and_die_at(number, directory):
    left = number
    def effect(event, *_):
        nonlocal left
        if event in EFFECTS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    fsync = os.fsync
    os.fsync = lambda descriptor: (effect("fsync"), fsync(descriptor))
    sys.addaudithook(effect)
    checkpoints = Checkpoints(directory)
    draft = checkpoints.draft(2)
    (draft / "part").mkdir()
    (draft / "part" / "weights").write_text("two")
    checkpoints.complete(draft, 2, {"epoch": 1})

ends = []
for number, directory in enumerate(sys.argv[1:], 1):
    child = os.fork()
    if not child:
        save_and_die_at(number, Path(directory))
        os._exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""


def write(checkpoints: Checkpoints, steps: int, text: str) -> None:
    draft = checkpoints.draft(steps)
    (draft / "part").mkdir()
    (draft / "part" / "weights").write_text(text)
    checkpoints.complete(draft, steps, {"epoch": 0})


def test_there_is_a_whole_checkpoint_after_a_kill_at_any_effect(tmp_path: Path) -> None:
    directories = [tmp_path / str(number) for number in range(100)]
    for directory in directories:
        write(Checkpoints(directory), 1, "one")
    command = [sys.executable, "-c", KILLED_AT_EACH_EFFECT, *map(str, directories)]
    ends = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = []
    for directory in directories:
        checkpoints = Checkpoints(directory)
        latest = checkpoints.latest()
        assert latest is not None
        assert (latest.folder / "part" / "weights").read_text() == {1: "one", 2: "two"}[latest.steps]
        found.append(latest.steps)
        # The next launch finds no trace of it, and saves as if nothing had been.
        checkpoints.clear_drafts()
        write(checkpoints, 3, "three")
        assert [folder.name for folder in directory.iterdir()] == ["step-3"]
    killed = ends.count(-signal.SIGKILL)
    assert ends == [-signal.SIGKILL] * killed + [0] * (len(directories) - killed)
    assert 15 < killed < len(directories)
    assert found == sorted(found)
    assert {1, 2} == set(found[:killed])


def test_as_many_are_kept_as_wanted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for steps in (9, 10, 11):
        write(checkpoints, steps, str(steps))
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-10", "step-11"]


def test_a_folder_without_its_state_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 4, "four")
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-6").mkdir()
    (tmp_path / "step-6" / "fairlead.json").write_text("{")
    (tmp_path / "step-notes").write_text("mine")
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest.steps, latest.notes) == (4, {"epoch": 0})


def test_a_save_that_fails_leaves_the_last_one(tmp_path: Path) -> None:
    def save(folder: Path) -> None:
        (folder / "half").write_text("…")
        if holder.steps == 2:
            raise OSError("the disk is full")

    holder = LeaseHolder(SaveOptions(save, every_steps=1, directory=tmp_path))
    holder.begin()
    holder.ready()
    holder.step()
    with pytest.raises(OSError, match="the disk is full"):
        holder.step()
    again = LeaseHolder(SaveOptions(save, directory=tmp_path))
    checkpoint = again.begin()
    assert checkpoint is not None
    assert checkpoint.steps == 1
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-1"]


def test_time_makes_a_save_due_too(tmp_path: Path) -> None:
    saved = []
    holder = LeaseHolder(SaveOptions(lambda folder: saved.append(holder.steps), every_s=1e-9, directory=tmp_path))
    holder.begin()
    holder.ready()
    for _ in range(3):
        holder.step()
    assert saved == [1, 2, 3]


def test_at_least_one_must_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep=0: expected 1 or more"):
        Checkpoints(tmp_path, keep=0)
