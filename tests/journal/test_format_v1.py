"""Journals of format version 1 are read, give the same state as before, and can be continued."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import orjson
import pytest

from fairlead.config.schedulers import scheduler_of
from fairlead.core import events as ev
from fairlead.core.errors import JournalError
from fairlead.core.job import Phase
from fairlead.core.reasons import Code
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import VERSION, decode, encode
from fairlead.engine.codec_v1 import EVENTS, migrate_event
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.journal.jsonl import JsonlJournal, read_events
from fairlead.journal.recovery import recover
from fairlead.journal.sqlite import SqliteJournal
from fairlead.testing import check_state

V1 = Path(__file__).parent / "v1"
GOLDEN = Path(__file__).parents[1] / "engine" / "golden"
NAMES = ("rounds", "event-driven", "drained", "learning")


def canonical(event: ev.Event) -> bytes:
    """As the present version writes it, with a scheduler as the present version configures it."""
    if isinstance(event, (ev.JournalOpened, ev.SchedulerSwitched)):
        return orjson.dumps({**orjson.loads(encode(event)), "scheduler": scheduler_of(event.scheduler).to_data()})
    return encode(event)


@pytest.mark.parametrize("name", NAMES)
def test_a_migrated_log_is_the_log_of_the_same_run_in_the_present_version(name):
    old, new = read_events(V1 / f"golden-{name}.jsonl"), read_events(GOLDEN / f"{name}.jsonl")
    for number, (before, now) in enumerate(zip(old, new, strict=True), 1):
        assert canonical(before) == canonical(now), f"line {number}"


@pytest.mark.parametrize("name", NAMES)
def test_every_migrated_record_is_one_of_the_present_version(name):
    for line in (V1 / f"golden-{name}.jsonl").read_bytes().splitlines():
        migrated = migrate_event(orjson.loads(line))
        again = orjson.loads(encode(decode(line)))
        assert migrated.keys() == again.keys()
        assert "e" not in again


def test_the_old_journals_have_an_event_of_every_type():
    lines = [line for path in V1.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert {orjson.loads(line)["e"] for line in lines} == set(EVENTS)


def test_a_cluster_is_recovered_from_either_kind_of_journal(tmp_path):
    """The database has a saved state of its time, and no event from before it."""
    replayed = replay_events(read_events(V1 / "cluster.jsonl"))
    check_state(replayed)
    path = shutil.copy(V1 / "cluster.sqlite", tmp_path / "cluster.sqlite")
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT min(seq) FROM events").fetchone() > (1,)
    recovered, last = recover(SqliteJournal(path, write=False))
    assert last == 96
    assert recovered.digest() == replayed.digest()
    jobs = recovered.all_jobs()
    assert [recovered.job_of[number].name for number in jobs.number.tolist()] == ["a", "b", "c", "d", "bad"]
    assert recovered.job_of[0].account == "lab"
    assert recovered.job_of[0].max_slowdown == 1.5
    assert jobs.phase[3] == Phase.CANCELLED
    assert recovered.observations["measured 1 × toy (batch size 32) on v100"] == pytest.approx(19.8, abs=0.1)
    assert scheduler_of(recovered.scheduler).policy.name == "srtf"
    assert recovered.scheduler["estimator"] == "measured"
    assert load(save(recovered)).digest() == recovered.digest()


def _more(state: State) -> list[ev.Event]:
    return [ev.NodeDrained(state.time + 1.0, 0), ev.MetricsReported(state.time + 2.0, "loss", np.array([2]), np.array([0.5]))]


def test_an_old_database_can_be_continued(tmp_path):
    path = shutil.copy(V1 / "cluster.sqlite", tmp_path / "cluster.sqlite")
    journal = SqliteJournal(path)
    state, last = recover(journal)
    for event in _more(state):
        journal.append(event)
        apply_event(state, event)
    journal.commit()
    journal.close()
    again = SqliteJournal(path)
    recovered, seen = recover(again)
    assert (seen, recovered.digest()) == (last + 2, state.digest())
    again.snapshot(recovered)
    again.close()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT value FROM meta WHERE name = 'events'").fetchone() == (str(VERSION),)
        bodies = [body for (body,) in database.execute("SELECT body FROM events ORDER BY seq")]
    assert '"e":' in bodies[0]
    assert '"event":' in bodies[-1]
    assert recover(SqliteJournal(path, write=False))[0].digest() == state.digest()


def test_reading_an_old_database_changes_nothing(tmp_path):
    path = shutil.copy(V1 / "cluster.sqlite", tmp_path / "cluster.sqlite")
    before = Path(path).read_bytes()
    recover(SqliteJournal(path, write=False))
    assert Path(path).read_bytes() == before


def test_an_old_file_can_be_continued(tmp_path):
    path = shutil.copy(V1 / "cluster.jsonl", tmp_path / "cluster.jsonl")
    state = replay_events(read_events(path))
    journal = JsonlJournal(path)
    for event in _more(state):
        journal.append(event)
        apply_event(state, event)
    journal.close()
    assert replay_events(read_events(path)).digest() == state.digest()


def test_a_former_reason_is_read():
    line = b'{"e":"planned","t":1.0,"refused":[[3,"door","after-nobody",[["whom","a"],["how","was cancelled"]]]]}'
    ((number, reason),) = decode(line).plan.refused
    assert (number, reason.by, reason.code, dict(reason.facts)["job"]) == (3, "feasibility", Code.DEPENDENCY_FAILED, "a")
    assert "a" in reason.text


@pytest.mark.parametrize(
    "line", [b'{"e":"nonsense","t":1.0}', b'{"e":"planned","t":1.0,"refused":[[0]]}', b'{"e":["lost"],"t":1.0,"node":0}']
)
def test_a_damaged_old_record_is_refused(line):
    with pytest.raises(JournalError):
        decode(line)


def test_a_later_version_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"event":"journal_opened","version":3}\n')
    with pytest.raises(JournalError, match="of version 3"):
        next(read_events(tmp_path / "x.jsonl"))
