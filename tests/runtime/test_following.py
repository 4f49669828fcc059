"""Following a log over whatever happens to the control plane and to the job's name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead.runtime import http_client as people
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest, Unreachable
from fairlead.runtime.protocol.code_archive import CHUNK_BYTES


def piece(text: str, at: int, *, over: bool = False) -> dict[str, Any]:
    return {"launch": 1, "launches": 1, "over": over, "ended": over, "text": text, "next": at + len(text)}


@dataclass(frozen=True)
class Played(ControlPlaneClient):
    """It answers as the test says, and notes what it was asked."""

    url: str = "http://nowhere"
    answers: list[dict[str, Any] | Exception] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def _ask(self, method: str, path: str, body: Any = None, *, content: bytes | None = None) -> dict[str, Any]:
        self.asked.append(path)
        if "/logs" not in path:
            return {"number": 7, "ended_s": None, "starts": 1}
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.runtime.log_chunks.POLL_S", 0.0)


def test_a_control_plane_that_is_away_for_a_moment_is_waited_for() -> None:
    away = [Unreachable("gone"), RefusedRequest(503, "its journal is away"), RefusedRequest(409, "its node is away")]
    plane = Played(answers=[piece("one\n", 0), *away, piece("two\n", 4), piece("", 8, over=True)])
    assert "".join(found["text"] for found in plane.logs("x", follow=True)) == "one\ntwo\n"


@pytest.mark.parametrize("problem", [Unreachable("gone"), RefusedRequest(503, "later"), RefusedRequest(409, "away")])
def test_who_does_not_follow_is_told_at_once(problem: Exception) -> None:
    with pytest.raises(type(problem)):
        list(Played(answers=[problem]).logs("x"))


def test_one_that_stays_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "FOLLOW_WITHOUT_ANSWER_S", -1.0)
    with pytest.raises(Unreachable):
        list(Played(answers=[piece("one\n", 0), Unreachable("gone")]).logs("x", follow=True))


def test_it_is_the_same_job_all_the_while_whoever_has_its_name_later() -> None:
    plane = Played(answers=[piece("one\n", 0), piece("", 4, over=True)])
    list(plane.logs("x", follow=True))
    assert plane.asked[0] == "/v1/jobs/x"
    assert all(path.startswith("/v1/jobs/7/logs") for path in plane.asked[1:])


def test_a_log_that_grows_all_the_time_is_read_to_where_it_ended_at_the_request() -> None:
    full = {**piece("a" * CHUNK_BYTES, 0), "offset": 0}
    last = {**piece("b\n", CHUNK_BYTES), "offset": CHUNK_BYTES}
    plane = Played(answers=[full, last, piece("more\n", CHUNK_BYTES + 2)])
    assert "".join(found["text"] for found in plane.logs("x")).endswith("ab\n")
    plane = Played(answers=[piece("a\nb\n", 0), piece("more\n", 4)])
    assert "".join(found["text"] for found in plane.logs("x", tail=1)) == "b\n"
