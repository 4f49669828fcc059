"""Events that cannot have happened, as a damaged journal has them: called damaged where they are read, with what is wrong."""

from __future__ import annotations

import orjson
import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InvalidPlan, JournalError
from fairlead.core.job import Job
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import VERSION, decode, encode
from fairlead.engine.state import State
from fairlead.journal.jsonl import read_events


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"node_lost","time":1.0}',
        b'{"event":"node_lost","time":1.0,"node":"two"}',
        b'{"event":"node_lost","time":null,"node":2}',
        b'{"event":"job_submitted","time":1.0,"number":0,"job":{"name":"a","colour":"red"}}',
        b'{"event":"job_submitted","time":1.0,"number":0,"job":["a"]}',
        b'{"event":"job_submitted","time":1.0,"number":0,"job":{}}',
        b'{"event":"jobs_finished","time":1.0,"jobs":["x"],"at":[1.0]}',
        b'{"event":"jobs_finished","time":1.0,"jobs":{"n":-1,"all":0},"at":[1.0]}',
        b'{"event":"round_planned","time":1.0,"launches":{"jobs":[0],"types":[0],"workers":[2],"accelerators":[0]}}',
        b'{"event":"round_planned","time":1.0,"refused":[[0,"door","no-such-code",[]]]}',
        b'{"event":"journal_opened","version":2,"time":0.0,"cluster":{"types":[],"nodes":[{"name":"n"}]},"scheduler":{},"trace":"","rates":null}',
    ],
)
def test_an_event_with_a_part_missing_or_wrong_is_called_damaged(line):
    with pytest.raises(JournalError, match="a damaged '"):
        decode(line)


OPENED = {
    "cluster": {
        "types": [{"name": "v100", "memory_gb": "inf", "price_per_hour": 0.0}],
        "nodes": [
            {"name": "n", "type": "v100", "accelerators": 4, "cpus": 8.0, "memory_gb": 9.0, "network_gbps": 0.0, "links": []}
        ],
    },
    "scheduler": {"policy": "fifo"},
    "trace": "t",
    "rates": {"|1": [1.0]},
}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *[(("scheduler",), value) for value in (None, [], "fifo", 3)],
        *[(("trace",), value) for value in (None, [], 3)],
        *[(("journal",), []), (("rates",), []), (("cluster",), None), (("cluster",), []), (("time",), "nan")],
        *[(("cluster", "nodes", 0, "accelerators"), value) for value in (-1, 1e308, 10**18, 1.5, True, None, "4")],
        *[(("cluster", "nodes", 0, name), value) for name in ("name", "type") for value in ([], None, 3)],
        *[(("cluster", "nodes", 0, "cpus"), "nan"), (("cluster", "types", 0, "name"), ["v100"])],
        *[(("cluster", "types", 0, name), value) for name in ("memory_gb", "price_per_hour") for value in (-1, "nan")],
        *[(("cluster", "nodes", 0, "network_gbps"), "nan"), (("cluster", "nodes", 0, "links"), [["nan"]])],
        *[(("rates", "|1"), [value]) for value in (-1, "nan", "inf")],
    ],
)
def test_an_opening_of_the_wrong_kind_is_called_damaged(place, value):
    record = orjson.loads(orjson.dumps({"event": "journal_opened", "version": VERSION, "time": 0.0, **OPENED}))
    assert isinstance(decode(orjson.dumps(record)), ev.JournalOpened)
    within = record
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = value
    with pytest.raises(JournalError, match="a damaged 'journal_opened' event: "):
        decode(orjson.dumps(record))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("workers", value) for value in (-1, 0, 10**18, 1e308, 1.5, True, "1", None)],
        *[("name", []), ("name", None), ("kind", 3), ("mode", []), ("priority", 2**60), ("steps", "nan"), ("steps", [])],
        *[("allowed_types", [3]), ("allowed_types", 3), ("after", ["a"]), ("nosuch", 1)],
        *[("steps", value) for value in (-5, 0, "inf")],
        *[("weight", 0), ("weight", "inf"), ("cpus", -1), ("deadline_s", -1.0)],
    ],
)
def test_a_job_of_the_wrong_kind_is_called_damaged(field, value):
    record = {"event": "job_submitted", "time": 0.0, "number": 0, "job": {"name": "a", field: value}}
    with pytest.raises(JournalError, match="a damaged 'job_submitted' event: "):
        decode(orjson.dumps(record))


def test_a_column_without_end_is_called_damaged():
    with pytest.raises(JournalError, match="a damaged 'jobs_finished' event: ValueError n is 1"):
        decode(b'{"event":"jobs_finished","time":2.0,"jobs":[0],"at":{"n":1000000000000,"all":2.0}}')


PROGRESS = {
    "event": "progress_reported",
    "time": 5.0,
    "jobs": [0, 1],
    "steps": [1.0, 2.0],
    "rates": [1.0, 1.0],
    "since": [5.0, 6.0],
}
FINISHED = {"event": "jobs_finished", "time": 5.0, "jobs": [0, 1], "at": [4.0, 5.0]}
FAILED = {**FINISHED, "event": "jobs_failed", "why": "x"}
INTERRUPTED = {"event": "jobs_interrupted", "time": 5.0, "jobs": [0, 1], "steps": [1.0, 2.0], "own_fault": False}
METRICS = {"event": "metrics_reported", "time": 5.0, "name": "loss", "jobs": [0, 1], "values": [1.0, "nan"]}
LAUNCHES = {"jobs": [0], "types": [0], "workers": [1], "accelerators": [0], "cpus": [2.0]}
PLANNED = {"event": "round_planned", "time": 5.0, "launches": LAUNCHES}
SUBMITTED = {"event": "job_submitted", "time": 5.0, "number": 0, "job": {"name": "a"}}
LOST = {"event": "node_lost", "time": 5.0, "node": 0}


def changed(record, field, value):
    """The record with another value of a field, which of a plan is one of its launches."""
    return {**PLANNED, "launches": {**LAUNCHES, field: value}} if record is PLANNED else {**record, field: value}


NO_AMOUNTS = ("nan", "inf", "-inf", None, -1.0, -1e308, 1e308)


@pytest.mark.parametrize("value", NO_AMOUNTS)
@pytest.mark.parametrize(
    ("record", "field"),
    [
        *[(PROGRESS, "steps"), (PROGRESS, "rates"), (PROGRESS, "since"), (INTERRUPTED, "steps"), (PLANNED, "cpus")],
        *[(FINISHED, "at"), (FAILED, "at")],
    ],
    ids=lambda given: given if isinstance(given, str) else given["event"],
)
def test_a_column_with_a_number_that_cannot_be_is_called_damaged(record, field, value):
    assert decode(orjson.dumps(record))
    values = record.get(field) or record["launches"][field]
    for column in ([*values[:-1], value], {"n": len(values), "all": value}):
        with pytest.raises(JournalError, match=f"a damaged '{record['event']}' event: ValueError {field} is "):
            decode(orjson.dumps(changed(record, field, column)))


@pytest.mark.parametrize("value", [*NO_AMOUNTS, "noon", [], {}])
@pytest.mark.parametrize(
    "record", [PROGRESS, FINISHED, FAILED, INTERRUPTED, METRICS, PLANNED, SUBMITTED, LOST], ids=lambda record: record["event"]
)
def test_a_moment_that_cannot_be_is_called_damaged(record, value):
    with pytest.raises(JournalError, match=f"a damaged '{record['event']}' event: "):
        decode(orjson.dumps({**record, "time": value}))


@pytest.mark.parametrize("record", [FINISHED, FAILED], ids=lambda record: record["event"])
def test_nobody_ended_after_the_moment_at_which_it_was_told(record):
    with pytest.raises(JournalError, match=r"at is 5\.001: expected 0 to 5$"):
        decode(orjson.dumps({**record, "at": [4.0, 5.001]}))


@pytest.mark.parametrize(
    "record", [PROGRESS, FINISHED, FAILED, INTERRUPTED, METRICS, PLANNED], ids=lambda record: record["event"]
)
def test_jobs_are_numbers_from_0_on_and_as_many_as_a_column_is_long(record):
    given = (LAUNCHES if record is PLANNED else record)["jobs"]
    for jobs in ([-1, 0], [0], [0, 1, 2]):
        if len(jobs) != len(given) or min(jobs) < 0:
            with pytest.raises(JournalError, match=f"a damaged '{record['event']}' event: ValueError "):
                decode(orjson.dumps(changed(record, "jobs", jobs)))


@pytest.mark.parametrize("record", [SUBMITTED, LOST], ids=lambda record: record["event"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "0", None, 2**60])
def test_what_goes_by_a_number_has_a_whole_one(record, value):
    with pytest.raises(JournalError, match=f"a damaged '{record['event']}' event: "):
        decode(orjson.dumps({**record, "number" if record is SUBMITTED else "node": value}))


@pytest.mark.parametrize("value", [-1, 2**40, "v100"])
def test_a_type_that_no_cluster_can_have_is_called_damaged(value):
    with pytest.raises(JournalError, match="a damaged 'round_planned' event: "):
        decode(orjson.dumps(changed(PLANNED, "types", [value])))


def test_a_memo_as_deep_as_a_well_is_called_damaged():
    deep = b"[" * 1000 + b"]" * 1000
    with pytest.raises(JournalError, match="a damaged 'memo_changed' event: RecursionError"):
        decode(b'{"event":"memo_changed","time":1.0,"memo":' + deep + b"}")


@pytest.mark.parametrize("kind", ["jobs_interrupted", "jobs_failed"])
@pytest.mark.parametrize(
    ("field", "value"), [("node", -2), ("node", 1.5), ("rank", -1), ("rank", 10**6), ("code", "3"), ("why", 3)]
)
def test_an_end_that_cannot_have_been_is_called_damaged(kind, field, value):
    rest = {"steps": [1.0], "own_fault": True} if kind == "jobs_interrupted" else {"at": [1.0]}
    record = {"event": kind, "time": 1.0, "jobs": [0], "why": "x", "node": 0, "rank": 0, **rest}
    assert decode(orjson.dumps(record)).why == "x"
    with pytest.raises(JournalError, match=f"a damaged '{kind}' event: .* {field} is "):
        decode(orjson.dumps({**record, field: value}))


@pytest.mark.parametrize(
    ("field", "value"), [("own_fault", "no"), ("own_fault", 0), ("own_fault", None), ("steps", [-1.0]), ("steps", ["nan"])]
)
def test_an_interruption_says_whose_fault_it_was_and_how_far_a_job_fell_back(field, value, tmp_path):
    record = {"event": "jobs_interrupted", "time": 1.0, "jobs": [0], "steps": [1.0], "own_fault": False}
    path = tmp_path / "events.jsonl"
    opened = encode(ev.JournalOpened(0.0, Cluster.parse("1xv100:1"), {}))
    path.write_bytes(opened + b"\n" + orjson.dumps({**record, field: value}) + b"\n")
    with pytest.raises(JournalError, match=f"events.jsonl:2: a damaged 'jobs_interrupted' event: .* {field} "):
        list(read_events(path))


def test_a_number_far_behind_all_others_is_not_given_a_row():
    state = State(Cluster.parse("1xv100:1"))
    apply_event(state, ev.JobSubmitted(1.0, 0, Job("a", 1.0)))
    with pytest.raises(InvalidPlan, match="job number 1000000000000000 is too large; the next number is 1"):
        apply_event(state, ev.JobSubmitted(1.0, 10**15, Job("b", 1.0)))
    assert state.next_number == 1
