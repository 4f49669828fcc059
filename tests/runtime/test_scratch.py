"""Folders for a while: gone with their maker, at the latest when the next one is made."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from pathlib import Path

import pytest

from fairlead.runtime.embedded import scratch_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_there_for_a_while(place: Path):
    with scratch_folder("demo") as folder:
        (folder / "file").write_text("x")
        assert list(place.glob("fairlead-demo-*")) == [folder]
    assert not list(place.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(place: Path):
    told, tells = os.pipe()
    if (child := os.fork()) == 0:
        try:
            with scratch_folder("demo") as folder:
                (folder / "file").write_text("x")
                os.write(tells, b".")
                signal.pause()
        finally:
            os._exit(1)
    os.read(told, 1)
    (left,) = place.iterdir()
    with scratch_folder("study") as folder:
        assert sorted(place.iterdir()) == sorted([left, folder]), "its maker is at work"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with scratch_folder("study") as folder:
        assert list(place.iterdir()) == [folder]


def test_what_nobody_says_is_a_scratch_folder_stays(place: Path):
    (place / "fairlead-mine").mkdir()
    (place / "fairlead-demo-old").mkdir()
    (place / "fairlead-demo-old" / "file").write_text("x")
    with scratch_folder("demo"):
        pass
    assert sorted(path.name for path in place.iterdir()) == ["fairlead-demo-old", "fairlead-mine"]


def test_where_a_file_system_has_no_locks_folders_are_there_all_the_same_and_nobody_removes_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    def none(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(fcntl, "flock", none)
    with scratch_folder("demo") as folder:
        monkeypatch.undo()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        with scratch_folder("study"):
            assert folder.is_dir()
    assert not list(place.iterdir())
