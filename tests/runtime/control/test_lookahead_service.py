"""Whoever may not see everybody's jobs is told when theirs will run: the control plane looks ahead, in a process beside it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import PATIENCE_S, served, until
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.errors import FairleadError
from fairlead.core.events import FORECAST_COLUMNS, ForecastsRecorded
from fairlead.core.job import Job
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.engine.state_codec import freeze
from fairlead.experiments.forecast_json import forecast_from_json, forecast_to_json
from fairlead.experiments.live_inputs import RateGuesses
from fairlead.experiments.lookahead import (
    ClusterForecast,
    ForecastOptions,
    JobForecast,
    JobTimes,
)
from fairlead.experiments.lookahead_process import STARTUP_S, WarmLookahead, forecast_in_process
from fairlead.runtime.control.lookahead_service import (
    RECORD_AGAIN_S,
    VALID_S,
    LookaheadResult,
    LookaheadService,
    sampled_forecasts,
)
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest
from fairlead.runtime.protocol.whatif_request import NoAnswerInTime
from fairlead.testing import Harness, cluster

pytestmark = pytest.mark.long

NOTHING: dict[str, Any] = forecast_to_json(ClusterForecast((), 1, ForecastOptions(), 0.0))


def filled(plane: ControlPlaneClient, user: ControlPlaneClient, joined: Any) -> None:
    """Four accelerators, held by an admin's gang; behind it another of theirs, and a user's."""
    joined(0, ())
    plane.switch({"policy": "fifo", "estimator": "measured", "rounds": 0.2})
    plane.submit([{"name": "secret", "run": "sleep 99", "workers": 4, "kind": "hidden", "time_limit_s": 3600}])
    plane.submit([{"name": "next", "run": "sleep 9", "workers": 4, "kind": "unknown", "time_limit_s": 3600}])
    user.submit([{"name": "mine", "run": "sleep 1", "kind": "slow", "steps": 10}, {"name": "open", "run": "sleep 1"}])


def test_a_user_is_told_of_their_jobs_and_of_nobody_elses(monkeypatch):
    with served() as up:
        plane, user = ControlPlaneClient(up.url, up.token), ControlPlaneClient(up.url, up.user)
        filled(plane, user, up.plane.backend.agent_joined)
        monkeypatch.setenv("FAIRLEAD_URL", up.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", up.user)
        answer = httpx.get(f"{up.url}/v1/when", headers={"Authorization": f"Bearer {up.user}"}, timeout=60)
        assert [one["name"] for one in answer.json()["jobs"]] == ["mine", "open"]
        for word in ("secret", "hidden", "next", "unknown"):
            assert word not in answer.text
        assert len(answer.json()["open_ended"]) == 1
        done = CliRunner().invoke(app, ["when", "mine"])
        assert done.exit_code == 0, (done.output, done.exception)
        assert " ".join(done.stdout.split()).startswith("mine should start in 2.0 h"), "an hour for each of the two before it"
        assert " ".join(done.stderr.split()) == (
            "the start may depend on assumptions about 1 other job of yours; `fairlead when` names them"
        )
        every = CliRunner().invoke(app, ["when", "--simulations", "9"])
        assert "mine" in every.stdout
        assert "secret" not in every.stdout
        assert "need an admin token" in " ".join(every.stderr.split())
        told = json.loads(CliRunner().invoke(app, ["when", "--json"]).stdout)
        assert {one["name"] for one in told["jobs"]} == {"mine", "open"}
        assert told["complete"]
        user.cancel("open")
        gone = CliRunner().invoke(app, ["when", "open"])
        assert "open is cancelled" in gone.stdout
        assert [one["name"] for one in user.when()["jobs"]] == ["mine"], "though what was seen is some seconds old"
        everybody = httpx.get(f"{up.url}/v1/when", headers={"Authorization": f"Bearer {up.token}"}, timeout=60).json()
        assert {one["name"] for one in everybody["jobs"]} >= {"secret", "next", "mine"}
        for token in ("nobody", up.agent):
            assert httpx.get(f"{up.url}/v1/when", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_what_began_or_came_since_a_look_is_looked_at_again_for_who_asks():
    with served() as up:
        plane, user = ControlPlaneClient(up.url, up.token), ControlPlaneClient(up.url, up.user)
        filled(plane, user, up.plane.backend.agent_joined)
        assert [one["name"] for one in user.when()["jobs"]] == ["mine", "open"]
        user.submit([{"name": "later", "run": "sleep 1", "kind": "slow", "steps": 10}])
        assert [one["name"] for one in user.when()["jobs"]] == ["mine", "open", "later"], (
            "though a look is kept for some seconds"
        )
        for name in ("secret", "next"):
            plane.cancel(name)
        until(lambda: user.job("mine")["phase"] == "running")
        told = {one["name"]: one for one in user.when()["jobs"]}
        assert told["mine"]["running"]
        assert told["mine"]["without_arrivals"][0] == 0.0


def test_a_user_is_not_told_the_name_of_anothers_job_at_the_head_of_the_line():
    with served() as up:
        plane, user = ControlPlaneClient(up.url, up.token), ControlPlaneClient(up.url, up.user)
        up.plane.backend.agent_joined(0, ())
        plane.switch({"policy": "fifo", "estimator": "measured", "rounds": 0.2})
        plane.submit([{"name": name, "run": "sleep 99", "workers": 4, "steps": 9} for name in ("holds", "secret")])
        user.submit([{"name": "mine", "run": "sleep 1", "steps": 9}])
        behind = "behind the head of the queue, job "  # where a decision is late, another reason is told until the next one
        until(lambda: f"{behind}secret," in (plane.job("mine").get("reason") or {}).get("text", ""))
        told = [
            user.job("mine"),
            user.jobs(),
            httpx.get(f"{up.url}/v1/overview", headers={"Authorization": f"Bearer {up.user}"}).json(),
        ]
        assert "secret" not in json.dumps(told)
        until(lambda: f"Waiting {behind}of another user, which needs 4 GPUs" in user.job("mine")["reason"]["text"])


def test_a_look_serves_all_who_ask_meanwhile_and_for_some_seconds(monkeypatch):
    monkeypatch.setattr("fairlead.runtime.control.lookahead_service.VALID_S", PATIENCE_S)
    made: list[float] = []
    going = threading.Event()

    async def slowly(now: float, saved: bytes, rates: Any) -> dict[str, Any]:
        made.append(now)
        assert saved
        assert rates["rates"] == []
        await asyncio.to_thread(going.wait, PATIENCE_S)
        return NOTHING

    with served(lookahead=slowly) as up, ThreadPoolExecutor(4) as many:
        asked = [many.submit(ControlPlaneClient(up.url, token).when) for token in (up.token, up.user, up.user)]
        while not made:
            time.sleep(0.01)
        assert not any(one.done() for one in asked)
        going.set()
        assert all(one.result()["jobs"] == [] for one in asked)
        assert ControlPlaneClient(up.url, up.user).when()["completed"] == 1
        assert len(made) == 1


def seeing(made: int, **seen: bool) -> Any:
    """Looks in which jobs of these names, in order of their numbers, run or wait for a while, and that see 600 s ahead."""
    turns = {True: JobTimes(0.0, 300.0), False: JobTimes(100.0, 400.0)}
    jobs = (JobForecast(n, name, runs, turns[runs], (turns[runs],), 600.0) for n, (name, runs) in enumerate(seen.items()))
    told = forecast_to_json(ClusterForecast(tuple(jobs), made, ForecastOptions(), 0.0))

    async def look(now: float, saved: bytes, rates: Any) -> dict[str, Any]:
        await asyncio.sleep(0.05)
        return told

    return look


def test_of_what_changed_while_it_was_looked_ahead_only_what_is_still_so_is_told(monkeypatch):
    """In place of a cluster that is too large to be seen before it has changed: looks that see what is not so any more."""
    with served(lookahead=seeing(2, began=False, stopped=True, waits=False)) as up:
        user = ControlPlaneClient(up.url, up.user)
        monkeypatch.setenv("FAIRLEAD_URL", up.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", up.user)
        up.plane.backend.agent_joined(0, ())
        ControlPlaneClient(up.url, up.token).switch({"policy": "fifo", "estimator": "measured", "rounds": 0.2})
        user.submit([{"name": "began", "run": "sleep 99", "workers": 4}])
        user.submit([{"name": name, "run": "sleep 1", "workers": 4} for name in ("stopped", "waits", "came")])
        until(lambda: user.job("began")["phase"] == "running")
        told = user.when()
        began, waits = told["jobs"]
        assert (began["name"], waits["name"]) == ("began", "waits")
        assert began["running"]
        assert [turn[0] for turn in (began["without_arrivals"], *began["with_arrivals"])] == [0.0, 0.0], "it has begun"
        assert 0 < began["without_arrivals"][1] < 400, "and ends when it was seen to"
        assert not waits["running"]
        assert 0 < waits["without_arrivals"][0] < 100
        assert told["missed"] == 2
        done = CliRunner().invoke(app, ["when"])
        assert "2 jobs arrived or stopped during the simulations" in " ".join(done.stderr.split())
        one = CliRunner().invoke(app, ["when", "came"])
        assert one.stdout.startswith("came is ")
        assert "arrived or stopped during the simulations" in " ".join(one.stderr.split())


def test_how_far_was_seen_is_told_from_now_on_where_a_look_was_broken_off():
    for made, far in ((0, 599.99), (2, 600.0)):
        with served(lookahead=seeing(made, mine=False)) as up:
            user = ControlPlaneClient(up.url, up.user)
            user.submit([{"name": "mine", "run": "sleep 1"}])
            assert user.when()["jobs"][0]["horizon_s"] <= far
            assert made == 0 or user.when()["jobs"][0]["horizon_s"] == far


def test_who_asks_waits_for_a_look_longer_than_for_other_answers():
    async def slowly(now: float, saved: bytes, rates: Any) -> dict[str, Any]:
        await asyncio.sleep(1.5)
        return NOTHING

    with served(lookahead=slowly) as up:
        assert ControlPlaneClient(up.url, up.user, timeout_s=1.0).when()["completed"] == 1


@pytest.mark.parametrize("how", ["it is to leave", "its loop has ended"])
def test_a_control_plane_that_leaves_waits_for_no_look(how):
    begun, stopped = threading.Event(), threading.Event()

    async def forever(now: float, saved: bytes, rates: Any) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()
        return NOTHING

    with served(lookahead=forever) as up, ThreadPoolExecutor(1) as one:
        asked = one.submit(ControlPlaneClient(up.url, up.user).when)
        assert begun.wait(PATIENCE_S)
        if how == "it is to leave":
            up.plane.stopping = True
        else:
            up.plane.backend.stop()
        with pytest.raises(RefusedRequest, match="stopping"):
            asked.result(PATIENCE_S)
        assert stopped.wait(PATIENCE_S)


def test_a_look_ends_when_who_asked_for_it_hangs_up():
    begun, stopped = threading.Event(), threading.Event()

    async def forever(now: float, saved: bytes, rates: Any) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()
        return NOTHING

    with served(lookahead=forever) as up:
        place = httpx.URL(up.url)
        with socket.create_connection((place.host, place.port)) as line:
            line.sendall(f"GET /v1/when HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {up.user}\r\n\r\n".encode())
            assert begun.wait(PATIENCE_S)
            assert not stopped.is_set()
        assert stopped.wait(PATIENCE_S)


def test_what_goes_wrong_is_told_to_admins_and_the_log_and_asked_for_again(caplog):
    answers = [FairleadError("cannot simulate ahead from this state: secret is odd"), None]

    async def fails(now: float, saved: bytes, rates: Any) -> dict[str, Any]:
        if problem := answers.pop():
            raise problem
        return NOTHING

    with served(lookahead=fails) as up:
        answers.append(answers[0])
        with pytest.raises(RefusedRequest, match="an admin sees the reason") as refused:
            ControlPlaneClient(up.url, up.user).when()
        assert "secret" not in str(refused.value)
        assert [(one.message, one.why) for one in caplog.records if one.name.endswith("lookahead_service")] == [
            ("forecast failed", "cannot simulate ahead from this state: secret is odd")
        ]
        answers[:] = [answers[0]]
        with pytest.raises(RefusedRequest, match="secret is odd"):
            ControlPlaneClient(up.url, up.token).when()
        answers[:] = [None]
        assert ControlPlaneClient(up.url, up.user).when() == NOTHING


def test_a_look_is_kept_for_some_seconds_and_an_old_one_is_made_again():
    now = 100.0

    async def looks(at: float, saved: bytes, rates: Any) -> dict[str, Any]:
        return {"at": at}

    async def story() -> None:
        nonlocal now
        service = LookaheadService(looks, lambda: (now, b"", {}), lambda: now)
        first = await service.result()
        assert first == (100.0, 100.0, {"at": 100.0})
        now = 100.0 + VALID_S
        assert await service.result() is first
        now += 1.0
        second = await service.result()
        assert second.from_s == now
        assert await service.result(other_than=second) is not second, "another is wanted"

    asyncio.run(story())


def test_who_all_leave_break_a_look_off():
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def forever(at: float, saved: bytes, rates: Any) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()
        return {}

    async def story() -> None:
        service = LookaheadService(forever, lambda: (0.0, b"", {}), lambda: 0.0)
        both = [asyncio.create_task(service.result()) for _ in range(2)]
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        both[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await both[0]
        assert not stopped.is_set()
        both[1].cancel()
        await asyncio.wait_for(stopped.wait(), PATIENCE_S)

    asyncio.run(story())


def test_what_was_seen_is_read_as_it_was_spelled():
    turns = (JobTimes(1.0, 2.5), JobTimes(math.inf, math.inf))
    ahead = ClusterForecast(
        (JobForecast(3, "j", False, turns[0], turns, 77.0),),
        3,
        ForecastOptions(simulations=4, budget_s=9.0),
        60.0,
        RateGuesses({3: "a"}, {4: "b"}),
        (3, 5, 6),
        limited=frozenset({5}),
        overdue={6: 90.0},
    )
    assert forecast_from_json(json.loads(json.dumps(forecast_to_json(ahead)))) == ahead


def test_a_forecast_of_an_older_control_plane_is_read():
    old = {
        "jobs": [
            {
                "number": 3,
                "name": "j",
                "runs": False,
                "by_itself": [1.0, None],
                "with_others": [[2.0, 3.0]],
                "within_s": 9.0,
            }
        ],
        "made": 2,
        "looks": 4,
        "budget_s": 9.0,
        "lately_s": 60.0,
        "window_s": 70.0,
        "in_proportion": [[3, "a"]],
        "unmeasured": [],
        "endless": [3],
    }
    forecast = JobForecast(3, "j", False, JobTimes(1.0, math.inf), (JobTimes(2.0, 3.0),), 9.0)
    options = ForecastOptions(simulations=4, window_s=70.0, budget_s=9.0)
    assert forecast_from_json(old) == ClusterForecast((forecast,), 2, options, 60.0, RateGuesses({3: "a"}), (3,))


def test_what_a_policy_prints_is_no_answer_and_what_it_leaves_behind_is_ended(tmp_path, monkeypatch):
    """By way of a module that every process of Python imports, in place of a policy."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sitecustomize.py").write_text(
        "import os, subprocess, threading, time\n"
        "def noisy(by):\n"
        "    print('noise', flush=True)\n"
        "    threading.Thread(target=time.sleep, args=(90,)).start()\n"
        f"    open({str(tmp_path / 'left')!r}, 'w').write(str(subprocess.Popen(['sleep', '90']).pid))\n"
        "os.nice = noisy\n"
    )
    (tmp_path / "orjson.py").write_text("raise SystemExit('imported from where the control plane stands')\n")
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    monkeypatch.chdir(tmp_path)
    state = State(cluster("v100:4"))
    with pytest.raises(FairleadError, match="the name of a policy"):  # nor is anybody waited for where it fails
        asyncio.run(forecast_in_process(0.0, freeze(state)(), {"rates": []}))
    state.scheduler = {"policy": "fifo", "rounds": 5.0}
    assert asyncio.run(forecast_in_process(0.0, freeze(state)(), {"rates": []}))["jobs"] == []
    left = Path("/proc") / (tmp_path / "left").read_text() / "stat"
    until(lambda: not _lives(left))  # it was killed, and dies when it is its turn


def _lives(stat: Path) -> bool:
    try:
        return stat.read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_that_cannot_look_ahead_says_why():
    with pytest.raises(FairleadError, match=r"^not a saved state$"):
        asyncio.run(forecast_in_process(0.0, b"no state", {"rates": []}))
    with pytest.raises(FairleadError, match="KeyError"):
        asyncio.run(forecast_in_process(0.0, freeze(State(cluster("v100:4")))(), {}))


def test_a_process_that_looks_ahead_begins_with_everybody_as_they_are_and_ends_by_itself(tmp_path):
    """So that there is something to tell where a decision does not end, and nothing is left where nobody is there to end it.
    Here no look ends."""
    (tmp_path / "sitecustomize.py").write_text(
        "import fairlead.experiments.lookahead as w, signal, time\n"
        "def forever(*_, **__):\n"
        "    if 0 < signal.alarm(0) <= 60:\n"  # what is left of its time is over soon
        "        signal.alarm(1)\n"
        "    time.sleep(90)\n"
        "w.simulate_forward = forever\n"
    )
    harness = (
        Harness(SchedulerConfig(Part("fifo")))
        .cluster("v100:4")
        .submit(Job("runs", steps=900.0, workers=4), Job("waits", steps=900.0))
    )
    harness.round()
    saved = freeze(harness.state)()
    about = json.dumps({"now": 61.0, "rates": {"rates": []}, "budget_s": 60.0 - STARTUP_S, "bytes": len(saved)}).encode()
    looking = subprocess.Popen(
        [sys.executable, "-m", "fairlead.experiments.lookahead_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    with looking:
        looking.stdin.write(about + b"\n" + saved)
        looking.stdin.close()
        told = forecast_from_json(json.loads(looking.stdout.readline()))
        assert json.loads(looking.stdout.readline()) == {"ended": -signal.SIGALRM}
        assert looking.wait(60) == 0, "it reads no further request"
    assert told.completed == 0
    assert [(one.name, one.running, one.without_arrivals.starts_s, one.horizon_s) for one in told.jobs] == [
        ("runs", True, 0.0, 0.0),
        ("waits", False, math.inf, 0.0),
    ]


def test_of_a_process_that_does_not_end_counts_what_it_has_said_last(tmp_path, monkeypatch):
    monkeypatch.setattr("fairlead.experiments.lookahead_process.BUDGET_S", 0.0)
    looks = tmp_path / "looks"

    def forecast(within_s: float = 2.0) -> dict[str, Any]:
        """A process that has said nothing by then may have begun late: it has longer."""
        monkeypatch.setattr("fairlead.experiments.lookahead_process.STARTUP_S", within_s)
        try:
            return asyncio.run(forecast_in_process(0.0, b"", {}))
        except NoAnswerInTime:
            if told is None or within_s > PATIENCE_S:
                raise
            return forecast(4 * within_s)

    monkeypatch.setattr(sys, "executable", str(looks))
    for said, told in (("""{"made": 0}\\n{"made": 1}\\n{"ma""", {"made": 1}), ('{"ma', None)):
        looks.write_text(f"#!/bin/sh\nprintf '{said}'\ncat > /dev/null\nsleep 90\n")
        looks.chmod(0o700)
        if told is not None:
            assert forecast() == told
        else:
            with pytest.raises(FairleadError, match="printed nothing"):
                forecast()


def answered(from_s: float, completed: int, jobs: dict[int, list[list[float | None]]]) -> LookaheadResult:
    found = [{"number": number, "with_arrivals": times} for number, times in jobs.items()]
    return LookaheadResult(from_s, from_s, {"jobs": found, "completed": completed, "widened": [1.0, 1.5]})


def test_a_sample_of_forecasts_is_recorded_once_and_again_after_hours():
    harness = Harness(SchedulerConfig(Part("fifo"))).cluster("v100:4").submit(Job("a", steps=900.0), Job("b", steps=900.0))
    harness.round()
    times: list[list[float | None]] = [[1.0, 10.0], [2.04, 20.0], [3.0, None]]
    result = answered(100.0, 20, {0: times, 1: times[:1], 77: times})
    (event,) = sampled_forecasts(result, 105.0, harness.state)
    assert isinstance(event, ForecastsRecorded)
    assert event.jobs.tolist() == [0], "the second has no interval, and the third is not there"
    columns = [getattr(event, name).tolist() for name in FORECAST_COLUMNS]
    assert columns == [[101.0], [102.0], [103.0], [110.0], [120.0], [math.inf]]
    assert (event.widened_starts, event.widened_ends) == (1.0, 1.5)
    assert sampled_forecasts(answered(100.0, 2, {0: times}), 105.0, harness.state) == [], "too few simulations"
    apply_event(harness.state, event)
    assert sampled_forecasts(result, 106.0, harness.state) == []
    assert len(sampled_forecasts(result, 106.0 + RECORD_AGAIN_S, harness.state)) == 1


def test_a_warm_process_answers_again_and_starts_again_after_a_failure():
    state = State(cluster("v100:4"))
    state.scheduler = {"policy": "fifo", "rounds": 5.0}
    saved = freeze(state)()

    async def story() -> None:
        warm = WarmLookahead()
        try:
            assert (await warm.forecast(0.0, saved, {"rates": []}))["jobs"] == []
            first = warm._process
            assert (await warm.forecast(1.0, saved, {"rates": []}))["jobs"] == []
            assert warm._process is first
            with pytest.raises(FairleadError, match="not a saved state"):
                await warm.forecast(2.0, b"no state", {"rates": []})
            assert (await warm.forecast(3.0, saved, {"rates": []}))["jobs"] == []
        finally:
            await warm.close()

    asyncio.run(story())
