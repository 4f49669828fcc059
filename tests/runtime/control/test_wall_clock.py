"""Seconds of a cluster, by clocks that people may set."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from fairlead.core.errors import InputError
from fairlead.journal import control_files
from fairlead.journal.control_files import FolderFiles
from fairlead.runtime.control.wall_clock import AliveMark, WallClock, check_journal, origin_of


def test_a_clock_that_is_set_back_does_not_go_back():
    calendar, steady = [1000.0], [5.0]
    clock = WallClock(900.0, 0.0, lambda: calendar[0], lambda: steady[0])
    assert clock.now() == 100.0
    calendar[0], steady[0] = 0.0, 6.0
    assert clock.now() == 101.0
    assert WallClock(900.0, 101.0, lambda: 0.0, lambda: 0.0).now() == 101.0


def test_a_calendar_that_is_set_while_nobody_runs_takes_second_0_along(tmp_path, monkeypatch):
    calendar, boot = [1000.0], [7.0]
    monkeypatch.setattr(FolderFiles, "clock", lambda self: ("a-boot", boot[0]))
    assert origin_of(FolderFiles(tmp_path), 0.0, lambda: calendar[0]) == 1000.0
    calendar[0], boot[0] = 90_005.0, 12.0
    assert origin_of(FolderFiles(tmp_path), 0.0, lambda: calendar[0]) == 90_000.0
    (tmp_path / "origin").write_text("500.0 another-boot 7.0")  # the machine was started anew: only the calendar is left
    assert origin_of(FolderFiles(tmp_path), 0.0, lambda: calendar[0]) == 500.0


@pytest.mark.parametrize("journaled", [0.0, 1000.0])
def test_recorded_times_stay_the_same_at_every_restart(tmp_path, journaled):
    """NTP corrects the system time by milliseconds."""
    first = origin_of(FolderFiles(tmp_path), journaled, lambda: 1000.0)
    for system_time in (1000.25, 999.75):
        assert origin_of(FolderFiles(tmp_path), journaled or first, lambda at=system_time: at) == first
        assert origin_of(FolderFiles(tmp_path), 0.0, lambda at=system_time: at) == pytest.approx(first, abs=1e-3)


def test_without_its_file_second_0_is_that_of_the_journal(tmp_path):
    for _ in range(2):  # the second time from the file that the first wrote
        assert origin_of(FolderFiles(tmp_path), 600.0, lambda: 1000.0) == pytest.approx(600.0, abs=1.0)


@pytest.mark.parametrize("said", [b"", b"abc", b"nan", b"1e999 x 1", b"\xff\xfe"])
def test_an_origin_that_is_damaged_is_told_with_what_becomes_of_its_removal(tmp_path, said):
    (tmp_path / "origin").write_bytes(said)
    with pytest.raises(InputError, match=r"origin.*remove the file to use the time in the journal"):
        origin_of(FolderFiles(tmp_path))


def test_a_lost_journal_is_no_new_one(tmp_path):
    files = FolderFiles(tmp_path)
    check_journal(files, new=True)
    AliveMark(files).mark({})
    check_journal(files, new=False)
    with pytest.raises(InputError, match=r"alive: expected the journal of the control plane that ran here: restore a backup"):
        check_journal(files, new=True)


def test_an_origin_is_kept_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        origin_of(FolderFiles(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_mark_says_for_how_long_unreachable_nodes_have_been_silent(tmp_path):
    path = tmp_path / "alive"
    mark = AliveMark(FolderFiles(tmp_path))
    assert mark.silent_s() == {}

    mark.mark({"lost": 30.0})
    (name, silent_s), *more = mark.silent_s().items()
    assert (name, more) == ("lost", [])
    assert 29.9 < silent_s < 60.0
    path.write_text(path.read_text().replace('"boot": "', '"boot": "another'))
    assert mark.silent_s() == {}, "the clock of another boot means nothing"
    for damaged in ("", "{", "[]", '{"boot": null}', '{"heard": 3}'):
        path.write_text(damaged)
        assert mark.silent_s() == {}
    mark.mark({})
    assert mark.silent_s() == {}


def test_a_mark_on_a_slow_disk_does_not_keep_the_agents_waiting(tmp_path, monkeypatch):
    begun, over = threading.Event(), threading.Event()

    def slow(path, content, private):
        begun.set()
        assert over.wait(60.0)

    async def agents() -> None:
        keeping = asyncio.create_task(AliveMark(FolderFiles(tmp_path)).keep())
        while not begun.is_set():
            assert not keeping.done()
            await asyncio.sleep(0.01)
        over.set()  # reached only if this event loop runs meanwhile
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping

    monkeypatch.setattr(control_files, "atomic_write", slow)
    asyncio.run(agents())
