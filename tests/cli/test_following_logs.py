"""`fairlead logs`: which launch it begins at, and that it says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli import cmd_wait
from fairlead.cli.main import app
from fairlead.runtime.http_client import MISSING, RefusedRequest
from fairlead.runtime.log_chunks import read_logs


class Told:
    """A control plane that has these pieces of a job's log."""

    def __init__(self, *launches: int, phase: str = "finished") -> None:
        self.phase = phase
        self.pieces = [{"launch": launch, "text": f"of {launch}\n"} for launch in launches]

    def job(self, name: str) -> dict[str, object]:
        return {"number": 7}

    def find_jobs(self, words: list[str], **_: object) -> list[dict[str, object]]:
        return [{"number": 7, "name": "a", "phase": self.phase, "reason": {"text": "it failed"}}]

    def logs(self, *_: object, **__: object) -> list[dict[str, object]]:
        return self.pieces


class Sweep:
    """A control plane with an array, of which the last job has not started."""

    phase, size = "running", 3

    def find_jobs(self, words: list[str], **_: object) -> list[dict[str, object]]:
        return [{"number": n, "name": f"sweep-{n}", "phase": self.phase} for n in range(self.size)]

    def logs(self, number: str, **_: object) -> list[dict[str, object]]:
        if number == "2":
            raise RefusedRequest(MISSING, "it has not started")
        return [{"launch": 1, "text": text} for text in (f"{number}: on", f"e\n{number}: two\n", "end")]


def test_each_line_of_the_logs_of_an_array_has_the_name_of_its_job(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.cli.cmd_jobs.control_plane", Sweep)
    done = CliRunner().invoke(app, ["logs", "sweep"])
    lines = [f"[sweep-{n}] {line}" for n in range(2) for line in (f"{n}: one", f"{n}: two", "end")]
    assert (done.exit_code, done.stdout.splitlines(), done.stderr) == (0, lines, "[sweep-2] it has not started\n")
    pieces = [json.loads(line) for line in CliRunner().invoke(app, ["logs", "sweep", "--json"]).stdout.splitlines()]
    assert [piece["name"] for piece in pieces] == ["sweep-0"] * 3 + ["sweep-1"] * 3
    monkeypatch.setattr(Sweep, "phase", "finished")
    followed = CliRunner().invoke(app, ["logs", "-f", "sweep"])
    assert (followed.exit_code, sorted(followed.stdout.splitlines())) == (0, sorted(lines))


@pytest.mark.parametrize(
    ("words", "launches", "said"),
    [
        (("-f",), (1, 1), ""),
        (("-f",), (3, 3, 4), "launch 3, the last; --launch N shows earlier ones\nlaunch 4\n"),
        ((), (3, 3), "launch 3, the last; --launch N shows earlier ones\n"),
        (("-f", "--launch", "1"), (1, 2), "launch 2\n"),
        (("--launch", "2"), (2,), ""),
    ],
)
def test_a_log_that_does_not_begin_at_the_first_launch_says_so(words, launches, said, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.cli.cmd_jobs.control_plane", lambda: Told(*launches))
    done = CliRunner().invoke(app, ["logs", *words, "a"])
    assert (done.stdout, done.stderr) == ("".join(f"of {launch}\n" for launch in launches), said)


@pytest.mark.parametrize(("phase", "code"), [("finished", 0), ("failed", 1), ("cancelled", 1)])
def test_following_a_log_ends_with_the_result_of_the_job(phase, code, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.cli.cmd_jobs.control_plane", lambda: Told(1, phase=phase))
    done = CliRunner().invoke(app, ["logs", "-f", "a"])
    assert (done.exit_code, done.stderr) == (code, f"a is {phase}: it failed\n" if code else "")
    assert CliRunner().invoke(app, ["logs", "a"]).exit_code == 0


def test_of_a_large_array_it_says_how_many_logs_are_followed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.cli.cmd_jobs.control_plane", Sweep)
    monkeypatch.setattr(Sweep, "phase", "finished")
    monkeypatch.setattr(Sweep, "size", 52)
    done = CliRunner().invoke(app, ["logs", "-f", "sweep"])
    assert "following the logs of the first 50 of 52 jobs; name others to follow them\n" in done.stderr
    assert ("[sweep-49]" in done.stdout, "[sweep-50]" in done.stdout) == (True, False)


@pytest.mark.parametrize(("size", "poll_s"), [(1, 0.5), (4, 0.5), (40, 2.0), (52, 2.5)])
def test_many_logs_are_asked_for_no_more_often_than_a_user_may(size, poll_s, monkeypatch: pytest.MonkeyPatch):
    asked: list[float] = []

    class Growing(Sweep):
        def logs(self, number: str, **options: Any) -> Iterator[dict[str, object]]:
            def chunk(launch: int, offset: int) -> dict[str, Any]:
                empty = {"launch": 1, "launches": 1, "text": "", "next": 0}
                return {**empty, "over": len(asked) >= min(size, 50), "ended": True}

            return read_logs(chunk, 0, follow=True, poll_s=options.get("poll_s", 0.0))

    monkeypatch.setattr("fairlead.cli.cmd_jobs.control_plane", Growing)
    monkeypatch.setattr(Sweep, "phase", "finished")
    monkeypatch.setattr(Sweep, "size", size)
    monkeypatch.setattr("fairlead.runtime.http_client.time.sleep", asked.append)
    assert CliRunner().invoke(app, ["logs", "-f", "sweep"]).exit_code == 0
    assert set(asked) == {poll_s}


class Waiting:
    """A control plane with a job that waits for these reasons, one after the other, and then has finished."""

    def __init__(self, *texts: str, others: int = 0) -> None:
        self.texts, self.others = list(texts), others

    def find_jobs(self, words: list[str], **_: object) -> list[dict[str, object]]:
        text = self.texts.pop(0) if self.texts else ""
        about = {"phase": "waiting", "reason": {"code": text[:3], "text": text}} if text else {"phase": "finished"}
        return [{"number": n, "name": f"j{n}", **about} for n in range(1 + self.others)]


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (0, ["j0 waits: busy: 0 free", "j0 waits: busy: 1 free", "j0 waits: soon"]),
        (1, ["j0 waits: busy: 0 free (2 jobs wait)", "j0 waits: soon (2 jobs wait)"]),
    ],
)
def test_the_reason_of_a_waiting_job_is_told_when_it_changes(others, told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cmd_wait.time, "sleep", lambda seconds: None)
    reasons = ("busy: 0 free; position 2 of 3", "busy: 0 free; position 1 of 3", "busy: 1 free", "soon, in 9 s", "soon, in 8 s")
    heard: list[str] = []
    jobs = cmd_wait.ended_jobs(Waiting(*reasons, others=others), range(1 + others), told=heard.append)
    assert (heard, {job["phase"] for job in jobs}) == (told, {"finished"})
