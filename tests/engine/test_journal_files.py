"""Journals in files: what a crash, a full disk, a stranger's file or another version do to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.core.errors import JournalError
from fairlead.core.events import JournalOpened
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal, NoJournal
from fairlead.journal.jsonl import JsonlJournal, read_events
from fairlead.testing.contracts import every_event

EVENTS = every_event()
LINES = [encode(event) + b"\n" for event in EVENTS]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "events.jsonl"


def read(path: Path) -> list[bytes]:
    return [encode(event) + b"\n" for event in read_events(path)]


def test_a_last_line_that_was_cut_off_was_never_written(path):
    for cut in range(1, len(LINES[-1])):
        path.write_bytes(b"".join(LINES)[: -len(LINES[-1]) + cut])
        assert read(path) == LINES[:-1]


def test_a_damaged_line_in_the_middle_is_an_error_with_file_and_line(path):
    path.write_bytes(b"".join([*LINES[:4], LINES[4][:-9] + b"\n", *LINES[5:]]))
    events = read_events(path)
    for expected in LINES[:4]:
        assert encode(next(events)) + b"\n" == expected
    with pytest.raises(JournalError, match=r"events\.jsonl:5: "):
        next(events)


def test_a_line_of_nothing_is_damage_too(path):
    path.write_bytes(b"".join([*LINES[:2], b"\n", *LINES[2:]]))
    with pytest.raises(JournalError, match=r"events\.jsonl:3: not an event"):
        read(path)


@pytest.mark.parametrize("version", [b"3", b"0", b"null", b'"1"'])
def test_a_journal_of_another_version_is_refused_with_the_way_out(path, version):
    path.write_bytes(LINES[0].replace(b'"version":2', b'"version":' + version))
    with pytest.raises(
        JournalError, match=r"events\.jsonl:1: the journal is of version .*; this Fairlead reads versions up to 2: use"
    ):
        read(path)


def test_a_journal_without_a_version_is_refused(path):
    path.write_bytes(LINES[0].replace(b'"version":2,', b""))
    with pytest.raises(JournalError, match="of version None"):
        read(path)


@pytest.mark.parametrize(
    "content",
    [LINES[1], b"[1, 2]\n", b"name,submitted_s,steps\n", b"\x00\x01\x02\n", b"{}\n", b"\n"],
    ids=["no opening", "a list", "a trace", "bytes", "an empty object", "a blank line"],
)
def test_a_file_that_does_not_begin_with_an_opening_is_no_journal(path, content):
    path.write_bytes(content)
    with pytest.raises(
        JournalError, match=r"events\.jsonl:1: not a journal: expected a 'journal_opened' event in the first line"
    ):
        read(path)


def test_a_file_whose_first_line_has_no_end_is_no_journal(path):
    path.write_bytes(LINES[0][:-1])
    with pytest.raises(JournalError, match=r"events\.jsonl:1: not a journal: no complete line"):
        read(path)


def test_an_empty_file_has_no_events(path):
    path.touch()
    assert read(path) == []


def test_the_opening_is_read_without_the_rest(path):
    path.write_bytes(LINES[0] + b"damage\n")
    assert isinstance(next(read_events(path)), JournalOpened)


def test_a_journal_that_cannot_be_read_or_written_says_why(tmp_path):
    with pytest.raises(JournalError, match=r"missing\.jsonl: cannot read the journal: No such file or directory"):
        list(read_events(tmp_path / "missing.jsonl"))
    with pytest.raises(JournalError, match="cannot read the journal: Is a directory"):
        list(read_events(tmp_path))
    for fresh in (True, False):
        with pytest.raises(JournalError, match="cannot write the journal: Is a directory"):
            JsonlJournal(tmp_path, fresh=fresh)
        with pytest.raises(JournalError, match=r"x\.jsonl: cannot write the journal: No such file or directory"):
            JsonlJournal(tmp_path / "no" / "x.jsonl", fresh=fresh)


def test_who_begins_a_journal_anew_takes_nothing_from_one_that_is_being_written(path):
    writer = JsonlJournal(path, durable=True)
    for event in EVENTS:
        writer.append(event)
    writer.commit()
    with pytest.raises(JournalError, match="another process writes this journal"):
        JsonlJournal(path, fresh=True, durable=True)
    assert path.read_bytes() == b"".join(LINES)
    writer.close()
    JsonlJournal(path, fresh=True, durable=True).close()
    assert path.read_bytes() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here to be a full disk")
def test_a_full_disk_is_told_at_the_latest_when_the_journal_is_closed():
    journal = JsonlJournal("/dev/full", fresh=True)
    journal.append(EVENTS[0])
    with pytest.raises(JournalError, match="/dev/full: cannot write the journal: No space left on device"):
        journal.flush()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here to be a full disk")
def test_a_full_disk_stops_a_long_journal_while_it_is_written():
    journal = JsonlJournal("/dev/full", fresh=True)

    def write_on_and_on() -> None:
        for _ in range(100_000):
            journal.append(EVENTS[0])

    with pytest.raises(JournalError, match="No space left on device"):
        write_on_and_on()


def test_what_is_appended_after_a_crash_is_not_glued_to_the_torn_line(path):
    for cut in (1, 10, len(LINES[3]) - 1):
        path.write_bytes(b"".join(LINES[:3]) + LINES[3][:cut])
        journal = JsonlJournal(path)
        for event in EVENTS[3:]:
            journal.append(event)
        journal.close()
        assert path.read_bytes() == b"".join(LINES)


def test_a_torn_line_longer_than_a_block_is_cut_whole(path):
    path.write_bytes(b"".join(LINES[:2]) + b"x" * 200_000)
    JsonlJournal(path).close()
    assert path.read_bytes() == b"".join(LINES[:2])


def test_a_first_line_that_was_torn_is_cut_whole_wherever_it_was(path):
    for cut in (0, 1, 8, 100, len(LINES[0]) - 1):
        path.write_bytes(LINES[0][:cut])
        JsonlJournal(path).close()
        assert path.read_bytes() == b""


@pytest.mark.parametrize("content", [b"x" * 200_000, b"mine", b'{"event":"mine"}', b"mine\nand mine"])
def test_what_is_no_journal_stays_as_it_is_and_is_let_go(path, content):
    path.write_bytes(content)
    kept = []
    for _ in range(2):
        with pytest.raises(JournalError, match=r"events\.jsonl:1: not a journal") as told:
            JsonlJournal(path, durable=True)
        kept.append(told)  # its traceback must not keep the lock
    assert path.read_bytes() == content


def test_a_fresh_journal_forgets_what_was_there(path):
    path.write_bytes(b"".join(LINES))
    journal = JsonlJournal(path, fresh=True)
    journal.append(EVENTS[0])
    journal.close()
    assert path.read_bytes() == LINES[0]


def test_a_journal_can_be_read_while_it_is_written(path):
    journal = JsonlJournal(path, fresh=True)
    for count, event in enumerate(EVENTS, 1):
        journal.append(event)
        assert len(list(journal)) == count
    journal.close()


def test_nothing_is_appended_to_a_closed_journal(path):
    journal = JsonlJournal(path, fresh=True)
    journal.append(EVENTS[0])
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="the journal is closed"):
        journal.append(EVENTS[1])


def test_a_memory_journal_gives_out_a_list_of_its_own():
    journal = MemoryJournal()
    journal.append(EVENTS[0])
    for _ in journal:
        journal.append(EVENTS[1])
    assert len(list(journal)) == 2


def test_no_journal_keeps_nothing():
    journal = NoJournal()
    journal.append(EVENTS[0])
    journal.close()
    assert list(journal) == []


def test_a_state_is_replayed_up_to_the_torn_line(path):
    path.write_bytes(b"".join(LINES)[:-5])
    expected = replay_events(EVENTS[:-1])
    assert replay_events(read_events(path)).digest() == expected.digest()
