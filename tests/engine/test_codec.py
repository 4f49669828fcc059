"""Events as JSON and back: whatever an event can hold comes back as it was."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import JournalError
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.reasons import Reasons
from fairlead.engine.codec import VERSION, decode, encode
from fairlead.testing.contracts import every_event

moments = st.floats(0, 1e12)
numbers = st.integers(0, 2**40)
finite = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=12).filter(lambda text: text.isprintable() or text in ("\n", "\t", ""))
keys = words.filter(lambda word: not word.startswith("$"))  # those are the codec's own
amounts = st.floats(0, 1e9) | st.just(math.inf)
done = st.floats(0, 1e15)  # steps, steps per second, seconds


@st.composite
def columns(draw, *values):
    """Columns of one length, sometimes empty, sometimes all alike."""
    size = draw(st.integers(0, 6))
    made = []
    for value in values:
        if draw(st.booleans()):
            made.append([draw(value)] * size)
        else:
            made.append([draw(value) for _ in range(size)])
    return made


ints = st.integers(0, 2**40)
wholes = st.integers(-(2**31), 2**31)
hows = st.tuples(wholes, st.integers(-1, 2**31), st.integers(0, 10**6 - 1))  # code, node, rank


@st.composite
def jobs(draw, submitted_s):
    optional = {
        "steps": st.floats(1e-6, 1e15),
        "kind": words,
        "workers": st.integers(1, 10**6),
        "weight": st.floats(1e-3, 1e3),
        "priority": st.integers(-5, 5),
        "user": words,
        "account": words,
        "deadline_s": amounts,
        "allowed_types": st.lists(words, max_size=3).map(tuple),
        "memory_gb": st.floats(0, 1e4),
        "cpus": st.floats(0, 1e4),
        "host_memory_gb": st.floats(0, 1e4),
        "time_limit_s": amounts,
        "retry_limit": st.integers(0, 9),
        "min_run_s": st.floats(0, 1e6),
        "group": words,
        "group_order": st.integers(-9, 9),
        "mode": words,
        "command": words,
    }
    chosen = draw(st.sets(st.sampled_from(sorted(optional))))
    return Job(draw(words), submitted_s, **{name: draw(optional[name]) for name in sorted(chosen)})


changes = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("name", "account"), words),
        "priority": st.integers(-9, 9),
        "weight": st.floats(1e-3, 1e3),
        **dict.fromkeys(("time_limit_s", "deadline_s"), amounts),
        "retry_limit": st.integers(0, 9),
    },
)


@st.composite
def clusters(draw):
    types = [
        AcceleratorType(name, draw(amounts), draw(st.floats(0, 100)))
        for name in draw(st.lists(words, min_size=1, max_size=3, unique=True))
    ]
    nodes = []
    for index in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 3))
        links = tuple(tuple(draw(st.floats(0, 900)) for _ in range(size)) for _ in range(size)) if draw(st.booleans()) else ()
        kind = draw(st.sampled_from(types)).name
        nodes.append(Node(f"n{index}", kind, size, draw(amounts), draw(amounts), draw(st.floats(0, 400)), links))
    return Cluster(tuple(nodes), tuple(types))


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(keys, plain, max_size=4)
reasons = st.sampled_from(
    [
        Reasons.needs(8, "accelerators", of_at_most=2),
        Reasons.needs(80.5, "GB of accelerator memory", of_at_most=16),
        Reasons.unsuitable("it asks for h200; there are v100"),
    ]
)


@st.composite
def plans(draw):
    launches = Launches.none()
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
        count = len(sizes)
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        batch = draw(st.none() | st.lists(st.integers(0, 512), min_size=count, max_size=count))
        launches = Launches(
            np.array([draw(ints) for _ in sizes]),
            np.array([draw(st.integers(0, 2)) for _ in sizes]),
            offsets,
            np.array([draw(st.integers(0, 999)) for _ in range(int(offsets[-1]))]),
            None if batch is None else np.array(batch),
        )
    lists = st.lists(ints, max_size=4).map(lambda values: np.array(values, dtype=np.int64))
    refused = tuple((draw(ints), draw(reasons)) for _ in range(draw(st.integers(0, 2))))
    return RoundPlan(draw(moments), refused, draw(lists), draw(lists), draw(lists), launches)


def made(kind, *parts):
    """An event of a kind whose columns are drawn together."""
    return st.tuples(moments, columns(*parts)).map(lambda drawn: kind(drawn[0], *arrays(drawn[1])))


def arrays(drawn):
    return [np.array(column, dtype=np.int64 if index == 0 else np.float64) for index, column in enumerate(drawn)]


@st.composite
def ends(draw):
    """When it was told who ended, and when: not later."""
    told = draw(moments)
    return told, *arrays(draw(columns(ints, st.floats(0, told))))


events = st.one_of(
    st.builds(
        ev.JournalOpened,
        moments,
        clusters(),
        mappings,
        words,
        st.none() | st.dictionaries(words, st.lists(done, max_size=3).map(tuple), max_size=3),
        words,
        moments,
    ),
    moments.flatmap(lambda t: st.builds(ev.JobSubmitted, st.just(t), numbers, jobs(t))),
    st.builds(ev.JobCancelled, moments, numbers),
    st.builds(ev.JobHeld, moments, numbers, words),
    st.builds(ev.JobReleased, moments, numbers),
    st.builds(ev.JobRequeued, moments, numbers, st.booleans(), words),
    st.builds(ev.JobUpdated, moments, numbers, changes),
    st.builds(ev.NodeLost, moments, numbers),
    st.builds(ev.NodeRepaired, moments, numbers),
    st.builds(ev.NodeDrained, moments, numbers, st.booleans(), words, words, st.none() | moments),
    clusters().flatmap(
        lambda machines: st.builds(
            ev.NodeAdded, moments, numbers, st.sampled_from(machines.nodes), st.none() | st.sampled_from(machines.types)
        )
    ),
    st.builds(ev.NodeRemoved, moments, numbers),
    st.builds(ev.NodeBackedOff, moments, numbers, moments, words),
    moments.flatmap(lambda t: st.builds(ev.ControlPlaneRestarted, st.just(t), st.none() | st.floats(0, t))),
    st.builds(
        lambda t, w, c: ev.MetricsReported(t, w, np.array(c[0], np.int64), np.array(c[1])),
        moments,
        words,
        columns(ints, finite),
    ),
    st.builds(ev.SchedulerSwitched, moments, mappings, words),
    st.builds(ev.RoundPlanned, plans()),
    st.builds(ev.MemoChanged, moments, st.none() | mappings),
    st.builds(ev.ObservationsRecorded, moments, mappings),
    made(ev.ProgressReported, ints, done, done, done),
    made(ev.SlowdownExceeded, ints, done),
    made(ev.ForecastsRecorded, ints, *[done | st.just(math.inf)] * 6),
    ends().map(lambda drawn: ev.JobsFinished(*drawn)),
    st.builds(lambda drawn, why, how: ev.JobsFailed(*drawn, why, *how), ends(), words, hows),
    st.builds(
        lambda t, w, c, why, how, part: ev.JobsInterrupted(
            t, np.array(c[0], np.int64), np.array(c[1]), w, why, *how, stopped_s=None if part is None else part * t
        ),
        moments,
        st.booleans(),
        columns(ints, st.floats(0, 1e15)),
        words,
        hows,
        st.none() | st.floats(0, 1),
    ),
)


def same(one, other) -> bool:
    """Equal in every field; arrays by type and value, and a plan without what is not journaled."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        compared = [f.name for f in dataclasses.fields(one) if f.compare]
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in compared)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def without_idle_batch_sizes(event):
    """A plan that gives nobody a batch size says so in either of two ways; one of them is written."""
    if isinstance(event, ev.RoundPlanned) and event.plan.launches.batch_sizes is not None:
        launches = event.plan.launches
        if not launches.batch_sizes.any():
            plain_launches = dataclasses.replace(launches, batch_sizes=None)
            return ev.RoundPlanned(dataclasses.replace(event.plan, launches=plain_launches))
    return event


@given(events)
@settings(max_examples=500)
def test_an_event_comes_back_as_it_was_written(event):
    line = encode(event)
    assert b"\n" not in line
    again = decode(line)
    assert same(without_idle_batch_sizes(event), again), f"{event}\n became \n{again}"
    assert encode(again) == line


@pytest.mark.parametrize("event", every_event(), ids=lambda event: type(event).__name__)
def test_every_kind_of_event_can_be_read_from_text_as_from_bytes(event):
    line = encode(event)
    assert same(decode(line), decode(line.decode()))


def test_there_is_a_spelling_for_every_event_there_is():
    kinds = {type(event) for event in every_event()} | {ev.JobsFailed}
    assert kinds == set(ev.Event.__args__) | set(ev.Exogenous.__args__)


def test_an_array_in_a_memo_comes_back_as_an_array():
    memo = decode(encode(ev.MemoChanged(1.0, {"share": np.array([0.5, 1.0]), "by": {"3": np.int64(4)}, "pair": (1, 2)}))).memo
    assert isinstance(memo["share"], np.ndarray)
    assert memo["share"].tolist() == [0.5, 1.0]
    assert (memo["by"], memo["pair"]) == ({"3": 4}, [1, 2])


@pytest.mark.parametrize("values", [[], [1, -2], [True, False], [0.5, -0.0, 1e300], [0.5, math.nan, math.inf, -math.inf]])
def test_an_array_in_a_memo_keeps_every_value_and_its_type(values):
    array = np.array(values)
    again = decode(encode(ev.MemoChanged(1.0, {"values": array}))).memo["values"]
    assert again.dtype == array.dtype
    assert again.tobytes() == array.tobytes()


def test_a_column_of_equal_values_is_written_once():
    event = ev.ProgressReported(0.0, np.arange(1000), np.zeros(1000), np.ones(1000), np.zeros(1000))
    line = encode(event)
    assert orjson.loads(line)["rates"] == {"n": 1000, "all": 1.0}
    assert len(line) < 5000


def test_a_round_that_changes_little_is_written_in_few_words():
    line = encode(ev.RoundPlanned(RoundPlan(300.0, suspended=np.array([7]))))
    assert orjson.loads(line) == {"event": "round_planned", "time": 300.0, "suspended": [7]}


def test_a_journal_carries_its_version():
    assert orjson.loads(encode(every_event()[0]))["version"] == VERSION


def test_what_a_job_did_not_ask_for_is_not_written():
    line = encode(ev.JobSubmitted(5.0, 0, Job("a", 5.0, 2.0)))
    assert orjson.loads(line)["job"] == {"name": "a", "steps": 2.0}


@pytest.mark.parametrize(
    "line", [b"", b"{", b"null", b"[]", b"7", b'"e"', b"{}", b'{"event": "sang"}', b'{"e": []}', b"\xff\xfe", "{"]
)
def test_a_line_that_is_no_event_is_shown(line):
    with pytest.raises(JournalError, match="not an event"):
        decode(line)
