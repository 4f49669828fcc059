"""What agents send is checked where it enters: whatever is decoded can be journaled and read back."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import orjson
import pytest
from emulated_agents import begun
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core import events as ev
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import decode, encode
from fairlead.runtime.protocol.messages import BadMessage, Heartbeat, ReportBatch, decode_message, encode_message
from fairlead.runtime.protocol.orders import MAX_COUNT, MAX_TEXT, Ended, Metric, Progress, bounded_text

ENDED = {"is": "ended", "job": 0, "generation": 1, "code": 0, "yielded": False, "steps": 0, "saved": 0}
PROGRESS = {"is": "progress", "job": 0, "generation": 1, "steps": 1, "saved": 0, "rate": 1.0}


def batch(*reports: dict[str, Any]) -> bytes:
    return orjson.dumps({"is": "reportbatch", "sequence": 1, "reports": reports})


@pytest.mark.parametrize(
    "wrong",
    [
        {"code": 2**63},
        {"code": 256},
        {"code": -65},
        {"code": "x"},
        {"steps": -1},
        {"steps": MAX_COUNT + 1},
        {"saved": -1},
        {"rank": 1_000_000},
        {"rank": -1},
        {"why": "x" * (MAX_TEXT + 1)},
        {"ago_s": -1.0},
        {"ended_at": "nan"},
        {"ago_s": "inf"},
        {"job": -1},
        {"generation": 2**60},
    ],
)
def test_an_end_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    decode_message(batch(ENDED))
    with pytest.raises(BadMessage, match=next(iter(wrong))):
        decode_message(batch(ENDED | wrong))


@pytest.mark.parametrize("wrong", [{"rate": "nan"}, {"rate": -1.0}, {"rate": 1e31}, {"steps": 2**60}, {"batch_size": -1}])
def test_progress_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    decode_message(batch(PROGRESS))
    with pytest.raises(BadMessage, match=next(iter(wrong))):
        decode_message(batch(PROGRESS | wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"is": "heartbeat", "utilization": ["nan"]},
        {"is": "heartbeat", "memory_gb": [-1.0]},
        {"is": "heartbeat", "memory_gb": ["inf"]},
        {"is": "coderequest", "digest": "a" * 65},
        {"is": "coderequest", "digest": "a", "offset": -1},
        {"is": "logchunk", "number": -1},
        {"is": "reportbatch", "sequence": -1, "reports": []},
    ],
)
def test_other_messages_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        decode_message(orjson.dumps(wrong))


def test_a_text_that_is_sent_has_bounds_and_is_complete() -> None:
    text = bounded_text("/data/\udcff" + "x" * 2 * MAX_TEXT)
    assert len(text) == MAX_TEXT
    encode_message(ReportBatch(1, (Ended(0, 1, 126, True, 0, 0, text),)))


INTEGERS = st.one_of(st.integers(-3, 300), st.sampled_from([MAX_COUNT, MAX_COUNT + 1, 2**63, -(2**63)]), st.integers())
NUMBERS = st.one_of(st.floats(), st.sampled_from(["nan", "inf", "-inf"]), st.floats(0, 1e30), st.just(2**70))
KEY = st.fixed_dictionaries({"job": st.sampled_from([0, 0, 0, 1, -1]), "generation": st.sampled_from([1, 1, 1, 2])})


def report(name: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda key, rest: {"is": name, **key, **rest}, KEY, st.fixed_dictionaries(required, optional=optional or {})
    )


REPORTS = st.one_of(
    report("progress", {"steps": INTEGERS, "saved": INTEGERS, "rate": NUMBERS}, {"batch_size": INTEGERS}),
    report("metric", {"name": st.sampled_from(["loss", "batch_size", "", "a\0b", "x" * 300]), "value": NUMBERS}),
    report("renewalrequest", {"renewal": INTEGERS}),
    report(
        "ended",
        {"code": st.one_of(st.integers(-70, 260), INTEGERS), "yielded": st.booleans(), "steps": INTEGERS, "saved": INTEGERS},
        {"why": st.text(max_size=20), "rank": INTEGERS, "permanent": st.booleans(), "ended_at": NUMBERS, "ago_s": NUMBERS},
    ),
)


def _bytes(value: Any) -> bytes:
    """As a hostile agent may write it: numbers of any size, which the encoder of messages refuses."""
    return json.dumps(value, ensure_ascii=True).encode()


@settings(max_examples=150, deadline=None)
@given(st.lists(REPORTS, min_size=1, max_size=4), st.lists(NUMBERS, max_size=2))
def test_every_report_that_is_decoded_can_be_journaled_and_read_back(sent: list[dict[str, Any]], used: list[Any]) -> None:
    scene = begun("a", "v100:2", steps=1000.0)
    scene.second = 5.0
    for one in sent:
        try:
            message = decode_message(_bytes({"is": "reportbatch", "sequence": 1, "reports": [one]}))
        except BadMessage:
            continue
        assert isinstance(message, ReportBatch)
        assert decode_message(encode_message(message)) == message or "nan" in repr(message)
        scene.backend.report(0, message.reports)
    try:
        beat = decode_message(_bytes({"is": "heartbeat", "utilization": used, "memory_gb": used}))
        assert isinstance(beat, Heartbeat)
        scene.backend.heartbeat(0, beat)
    except BadMessage:
        pass
    scene.at(6.0)
    scene.at(20.0)
    lines = [encode(event) for event in scene.journal]
    assert [encode(decode(line)) for line in lines] == lines
    assert replay_events(decode(line) for line in lines).digest() == scene.loop.state.digest()


def test_a_job_that_reports_the_largest_numbers_can_be_journaled() -> None:
    scene = begun("a", "v100:2", steps=1000.0)
    scene.second = 5.0
    told = (
        Progress(0, 1, MAX_COUNT, MAX_COUNT, 1e30, 1),
        Progress(0, 1, MAX_COUNT, MAX_COUNT, 1e30, MAX_COUNT),
        Metric(0, 1, "loss", math.inf),
        Ended(0, 1, 255, False, MAX_COUNT, MAX_COUNT, "x" * MAX_TEXT, 999_999),
    )
    scene.backend.report(0, told)
    scene.at(6.0)
    for event in scene.journal:
        decode(encode(event))
    assert any(isinstance(event, ev.JobsInterrupted) and np.all(event.steps <= 2.0**53) for event in scene.journal)
