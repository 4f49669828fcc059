"""The control plane answers what-ifs, and which change would start a job, for every user: in processes beside it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import PATIENCE_S, Served, filled, served, until
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.errors import FairleadError
from fairlead.core.job import Job
from fairlead.engine.state_codec import freeze
from fairlead.experiments.lookahead_process import WarmLookahead
from fairlead.runtime.control.question_routes import MAX_OPEN, MAX_PER_USER
from fairlead.runtime.http_client import ControlPlaneClient
from fairlead.runtime.protocol.whatif_request import NoAnswerInTime, RefusedQuestion
from fairlead.testing import Harness


def ask(up: Served, token: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{up.url}/v1/whatif", json=body, headers=headers, timeout=PATIENCE_S)


def fix(up: Served, token: str, job: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{up.url}/v1/jobs/{job}/fix", headers=headers, timeout=PATIENCE_S)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


@pytest.fixture(scope="module")
def busy():
    with served() as up:
        filled(up)
        yield up


def test_an_admin_sees_the_differences_of_all_jobs(busy):
    answer = ask(busy, busy.token, {"add": "4xv100:4", "timelines": True})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    control, changed = found["starts_s"]["next"]
    assert changed < 60 < control
    assert found["scenarios"] >= 1
    assert found["metrics"]["average_jct_s"]["difference"] < 0
    jobs = {row["name"]: row for row in found["jobs"]}
    assert {"secret", "next", "mine"} <= jobs.keys()
    assert (jobs["next"]["user"], jobs["next"]["number"]) == ("root", 1)
    assert {row["name"] for row in found["users"]} == {"root", "ann"}
    as_it_is, with_more = found["timelines"]
    assert [as_it_is["label"], with_more["label"]] == ["as it is", "changed"]
    shown = {job["name"]: job for job in with_more["jobs"] if job["number"] is not None}
    (run,) = shown["next"]["runs"]
    assert (run["gpus"], run["nodes"]) == (4, ["new-v100-0"])
    assert 0 <= run["start_s"] < 60
    assert run["more_nodes"] == 0
    assert shown["secret"]["runs"][0]["start_s"] <= 0, "it runs already"
    assert as_it_is["left_out"] == {"jobs": 0, "runs": 0}


def test_a_user_may_ask_and_sees_no_names_of_other_users(busy):
    answer = ask(busy, busy.user, {"scheduler": {"policy": "las"}, "round_s": 600, "without": ["0"], "timelines": True})
    assert answer.status_code == 200, answer.text
    for word in ("secret", "next", "root"):
        assert f'"{word}' not in answer.text
    found = answer.json()
    assert {row["name"] for row in found["users"]} == {"ann", "other users"}
    assert {(row["name"], row["user"]) for row in found["jobs"]} == {("mine", "ann"), ("", "")}
    assert {row["number"] for row in found["jobs"]} == {1, 2}
    assert [*found["starts_s"]] == ["mine"]
    assert {(job["name"], job["user"]) for job in found["timelines"][0]["jobs"] if job["number"] is not None} == {
        ("", ""),
        ("mine", "ann"),
    }


def test_new_jobs_are_those_of_the_asking_user(busy):
    task = {"name": "new", "run": "true", "time_limit_s": 60}
    found = ask(busy, busy.user, {"submit": [task, {"run": "true", "array": "0-1"}], "add": "8xh200:8"}).json()
    assert found["starts_s"]["new"][0] is None
    assert found["starts_s"]["new"][1] < 60
    assert len(found["starts_s"]) == 4
    assert any("h200" in guess for guess in found["guesses"])


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 422, "at least one change"),
        ({"polcy": "las"}, 422, "polcy"),
        ({"scheduler": {}}, 422, "one of policy, preset and config"),
        ({"scheduler": {"policy": "las", "preset": "tiresias"}}, 422, "one of policy, preset and config"),
        ({"scheduler": {"policy": "lass"}}, 422, "unknown policy 'lass'"),
        ({"scheduler": {"policy": "mine.py:Mine"}}, 422, "mine.py"),
        ({"scheduler": {"policy": "/etc/passwd"}}, 422, "unknown policy"),
        ({"scheduler": {"policy": "las:by=colour"}}, 422, "by"),
        ({"scheduler": {"preset": "nothing"}}, 422, "nothing"),
        ({"scheduler": {"config": {"policy": "las", "colour": 1}}}, 422, "colour"),
        ({"scheduler": {"config": {}}}, 422, "the name of a policy"),
        ({"scheduler": {"config": {"policy": "las", "about": 10**30}}}, 422, "64-bit"),
        ({"scheduler": {"config": {"policy": "las", "about": nested(251)}}}, 422, "Recursion limit"),
        ({"scheduler": {"config": {"policy": "las", "about": nested(400)}}}, 422, "depth"),
        ({"submit": [{"run": "true", "kubernetes": {"image": nested(250)}}]}, 422, "Recursion limit"),
        ({"round_s": 0}, 422, "round_s"),
        ({"round_s": 1e300}, 422, "round_s"),
        ({"add": "cluster.yaml"}, 422, "GPUs×type:per-node"),
        ({"add": "999999999xh200:8"}, 422, "at most 20,000 GPUs"),
        ({"add": "9" * 400 + "xh200:8"}, 422, "at most 20,000 GPUs"),
        ({"remove": ["nowhere"]}, 422, "unknown node 'nowhere'"),
        ({"remove": ["v100-0"] * 1001}, 422, "remove"),
        ({"faults": [{"node": "nowhere", "in_s": 1, "for_s": 1}]}, 422, "unknown node 'nowhere'"),
        ({"faults": [{"node": "v100-0", "in_s": -1, "for_s": 1}]}, 422, "in_s"),
        ({"quotas": {"ann": 0}}, 422, "quotas"),
        ({"quotas": {"ann": 10**30}}, 422, "quotas"),
        ({"quotas": {"root": 1}}, 403, "admin token"),
        ({"weights": {"ann": -1}}, 422, "weights"),
        ({"weights": {"root": 2}}, 403, "admin token"),
        ({"without": ["nothing"]}, 404, "nothing"),
        ({"without": ["secret"]}, 404, "secret"),
        ({"without": ["77"]}, 422, "has not ended"),
        ({"without": ["9" * 200]}, 404, "no job"),
        ({"submit": [{"run": "true", "after": ["mine"]}]}, 422, "after"),
        ({"submit": [{"run": "true", "account": "others"}]}, 422, "account"),
        ({"submit": [{"run": "true", "array": "0-999"}]}, 422, "at most 200 new jobs"),
        ({"submit": [{"run": "true"}] * 201}, 422, "submit"),
        ({"arrivals": -1}, 422, "arrivals"),
        ({"scenarios": 10**9, "add": "8xh200:8"}, 422, "scenarios"),
        ({"window_s": 0, "add": "8xh200:8"}, 422, "window_s"),
    ],
)
def test_a_wrong_question_is_refused_with_what_is_wrong(busy, body, status, said):
    answer = ask(busy, busy.user, body)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["detail"]


def test_an_unknown_user_is_named_to_an_admin(busy):
    answer = ask(busy, busy.token, {"quotas": {"rot": 1}})
    assert answer.status_code == 422
    assert "unknown user 'rot'; did you mean" in answer.json()["detail"]


def searched(up: Served, token: str) -> httpx.Response | None:
    """What would start `mine`, if there was time to search for all of it."""
    answer = fix(up, token, "mine")
    assert answer.status_code in (200, 409), answer.text
    return answer if answer.json().get("unsearched") == [] else None


def test_the_owner_of_a_waiting_job_sees_what_would_start_it(busy):
    answer = until(lambda: searched(busy, busy.user))  # the first one also starts the process
    found = answer.json()
    assert not found["starts"]
    changes = {one["kind"]: one for one in found["changes"]}
    assert changes["more GPUs"]["size"] == 5, "the head of the queue needs four"
    for word in ("secret", "next", "root"):
        assert word not in answer.text
    everything = until(lambda: searched(busy, busy.token))
    assert {one["kind"] for one in everything.json()["changes"]} == changes.keys()
    assert fix(busy, busy.user, "next").status_code == 404
    assert fix(busy, busy.token, "secret").status_code == 409
    assert "it is running" in fix(busy, busy.token, "secret").json()["detail"]


def test_a_dry_run_tells_when_the_job_would_start(busy):
    user = ControlPlaneClient(busy.url, busy.user)
    asked = [{"name": "wide", "run": "true", "workers": 4, "time_limit_s": 60}, {"name": "later", "run": "true"}]
    wide, later = until(lambda: found if (found := user.submit(asked, dry_run=True))[0].get("starts_s") else None)
    assert 7000 < wide["starts_s"] <= 7300, "an hour for each of the two before it, and a minute"
    assert wide["alternatives"] == []
    assert later["types"] == ["v100"]
    assert [job["name"] for job in user.jobs()] == ["mine"]
    (array,) = [user.submit([{"run": "true", "array": "0-1"}], dry_run=True)]
    assert all("starts_s" not in job for job in array)


def test_the_commands_of_a_user_ask_the_control_plane(busy, monkeypatch, tmp_path):
    monkeypatch.setenv("FAIRLEAD_URL", busy.url)
    monkeypatch.setenv("FAIRLEAD_TOKEN", busy.user)
    monkeypatch.chdir(tmp_path)
    Path("task.yaml").write_text("run: python train.py\ncode: .\ntime_limit: 2h\n")

    def told(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words])
        assert done.exit_code == code, (done.output, done.exception)
        return " ".join(done.output.split())

    text = told("whatif", "--add", "8xv100:8", "--submit", "task.yaml", "--simulations", "1")
    assert "average JCT" in text
    assert "other users" in text
    assert "secret" not in text
    found = json.loads(CliRunner().invoke(app, ["whatif", "--add", "8xv100:8", "--round", "1", "--json"]).stdout)
    assert found["starts_s"].keys() == {"mine"}
    why = lambda: " ".join(CliRunner().invoke(app, ["why", "mine", "--fix"]).output.split())  # noqa: E731
    assert "secret" not in until(lambda: text if "add a node with 5 × v100" in (text := why()) else "")
    dry = ("submit", "--dry-run", "--name", "wide", "--gpus", "4", "--time", "1m", "--", "true")
    text = until(lambda: text if "wide should start in " in (text := told(*dry)) else "")  # there may be no time to find it
    assert "wide should start in 2.0 h" in text
    for words in (("--quota", "root=1"), ("--add", "8xv100:8", "--report", "page.html")):
        assert "admin token" in str(CliRunner().invoke(app, ["whatif", *words]).exception)


def saved_state() -> bytes:
    jobs = (Job("runs", steps=900.0, workers=4, user="ann"), Job("waits", steps=900.0, user="bob"))
    harness = Harness(SchedulerConfig(Part("fifo"))).cluster("v100:4").submit(*jobs)
    harness.round()
    return freeze(harness.state)()


def whatif(**changes: Any) -> dict[str, Any]:
    return {"kind": "whatif", "user": "ann", "all_users": True, "request": changes}


OTHER = whatif(scheduler={"policy": "largest-first"})
ADDED = whatif(add="4xv100:4")


def in_every_process(folder: Path, monkeypatch: Any, policy: str) -> None:
    """Processes import this module; it replaces a policy."""
    (folder / "sitecustomize.py").write_text(
        "import os, time\nfrom fairlead.policies.ranking.job_size import LargestFirst\n"
        f"def select(self, view, memo):\n    {policy}\nLargestFirst.select = select\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_policy_that_never_ends_or_fails_is_no_harm(tmp_path, monkeypatch):
    saved = saved_state()

    async def story(outcome: type[Exception], said: str, budget_s: float) -> None:
        warm = WarmLookahead(60.0)
        try:
            assert (await warm.ask(61.0, saved, {"rates": []}, ADDED, 60.0))["starts_s"]["waits"][1] < 300
            process = warm._process
            with pytest.raises(outcome, match=said):
                await warm.ask(61.0, saved, {"rates": []}, OTHER, budget_s)
            assert (warm._process is process) == (outcome is NoAnswerInTime)
            with pytest.raises(RefusedQuestion, match="unknown node"):
                await warm.ask(61.0, saved, {"rates": []}, whatif(remove=["nowhere"]), 60.0)
            assert await warm.ask(61.0, saved, {"rates": []}, ADDED, 60.0)
        finally:
            await warm.close()

    in_every_process(tmp_path, monkeypatch, "time.sleep(600)")
    asyncio.run(story(NoAnswerInTime, "printed nothing in 2 s", 2.0))
    in_every_process(tmp_path, monkeypatch, "raise ValueError('it is odd')")
    asyncio.run(story(FairleadError, "ValueError: it is odd", 60.0))
    in_every_process(tmp_path, monkeypatch, "return bytearray(3 << 30)")
    asyncio.run(story(FairleadError, "MemoryError", 60.0))


def test_a_cancelled_question_ends_at_once_and_an_idle_process_too(tmp_path, monkeypatch):
    place, saved = tmp_path / "process", saved_state()
    in_every_process(tmp_path, monkeypatch, f"open({str(place)!r}, 'w').write(str(os.getpid())); time.sleep(600)")

    async def story() -> None:
        warm = WarmLookahead(0.2)
        asked = asyncio.create_task(warm.ask(61.0, saved, {"rates": []}, OTHER, 600.0))
        while not (place.exists() and place.read_text()):
            await asyncio.sleep(0.05)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.to_thread(until, lambda: not lives(int(place.read_text())), "the process goes on")
        assert await warm.ask(61.0, saved, {"rates": []}, ADDED, 60.0)
        process = warm._process
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        assert process.returncode == 0
        assert warm._process is None
        assert await warm.ask(61.0, saved, {"rates": []}, ADDED, 60.0)
        await warm.close()

    asyncio.run(story())


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("printed", "answer"), [(r'{"jobs"\n{"jobs":1}\n{"ended":0}\n', {"jobs": 1}), (r'{"jobs":1}\n{"jo', None)]
)
def test_only_the_last_answer_is_parsed_and_only_if_the_process_lives(monkeypatch, printed, answer):
    async def started() -> asyncio.subprocess.Process:
        words = ("sh", "-c", f"read line; printf '{printed}'")
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, start_new_session=True)

    monkeypatch.setattr("fairlead.experiments.lookahead_process._started", started)
    if answer is None:
        with pytest.raises(FairleadError, match="ended with 0"):
            asyncio.run(WarmLookahead().forecast(0.0, b"", {}))
    else:
        assert asyncio.run(WarmLookahead().forecast(0.0, b"", {})) == answer


def test_of_an_answer_that_was_cut_off_the_one_before_counts(tmp_path, monkeypatch):
    program = tmp_path / "program"
    program.write_text("""#!/bin/sh\nprintf '{"found": 1}\\n{"found": {"ended":-14}\\n'\ncat > /dev/null\n""")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))

    async def story() -> None:
        warm = WarmLookahead()
        assert await warm.ask(0.0, b"", {}, ADDED, 60.0) == {"found": 1}
        await warm.close()

    asyncio.run(story())


class SlowAnswers:
    """In place of a process: answers what-ifs when it is told to, and counts them."""

    def __init__(self) -> None:
        self.go, self.begun, self.cancelled = threading.Event(), threading.Event(), threading.Event()
        self.at_once = self.most = 0

    async def __call__(self, now: float, saved: bytes, rates: Any, question: Any, budget_s: float) -> dict[str, Any]:
        if question["kind"] != "whatif":
            return {"starts": True, "changes": [], "unsearched": []}
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.begun.set()
        try:
            while not self.go.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.at_once -= 1
        return {"metrics": {}}


def test_of_many_questions_at_once_few_wait_and_short_ones_wait_for_none():
    slow = SlowAnswers()
    with served(ask=slow) as up, ThreadPoolExecutor(40) as many:
        ControlPlaneClient(up.url, up.user).submit([{"name": "mine", "run": "sleep 1"}])
        mine = [many.submit(ask, up, up.user, {"add": "8xh200:8"}) for _ in range(20)]
        until(lambda: sum(one.done() for one in mine) == 20 - MAX_PER_USER)
        refused = [one.result() for one in mine if one.done()]
        assert {one.status_code for one in refused} == {429}
        assert all(one.headers["Retry-After"] for one in refused)
        assert f"ann has {MAX_PER_USER} open questions" in refused[0].json()["detail"]
        for number in range(MAX_OPEN):
            token = up.tokens.issue(up.tokens.bearer(up.user).role, f"user-{number}")
            mine.append(many.submit(ask, up, token, {"add": "8xh200:8"}))
        until(lambda: sum(one.done() for one in mine) == 20 - MAX_PER_USER + MAX_PER_USER)
        assert fix(up, up.user, "mine").json()["starts"]
        assert ControlPlaneClient(up.url, up.user).when()["jobs"]
        slow.go.set()
        answered = [one.result() for one in mine]
        assert sum(one.status_code == 200 for one in answered) == MAX_OPEN
        assert slow.most == 1


def test_a_page_may_show_what_the_control_plane_answers():
    with served(ask=SlowAnswers(), console=True) as up:
        headers = {"Authorization": f"Bearer {up.user}"}
        assert {"whatif", "fix"} <= {*httpx.get(f"{up.url}/console/session", headers=headers).json()["features"]}


def test_a_question_ends_when_its_client_closes_the_connection():
    slow = SlowAnswers()
    with served(ask=slow) as up:
        place, body = httpx.URL(up.url), json.dumps({"add": "8xh200:8"})
        with socket.create_connection((place.host, place.port)) as line:
            head = f"POST /v1/whatif HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {up.user}\r\n"
            line.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            assert slow.begun.wait(PATIENCE_S)
            assert not slow.cancelled.is_set()
        assert slow.cancelled.wait(PATIENCE_S)
        slow.go.set()
        assert ask(up, up.user, {"add": "8xh200:8"}).status_code == 200


def test_why_a_simulation_failed_is_told_to_admins_and_the_log(caplog):
    async def fails(now: float, saved: bytes, rates: Any, question: Any, budget_s: float) -> dict[str, Any]:
        raise (
            NoAnswerInTime("nothing")
            if question.get("request", {}).get("add") == "4xh200:4"
            else FairleadError("secret is odd")
        )

    with served(ask=fails) as up:
        told = ask(up, up.user, {"add": "8xh200:8"})
        assert (told.status_code, told.json()["detail"]) == (409, "the simulation failed; an admin sees the reason")
        assert "secret is odd" in ask(up, up.token, {"add": "8xh200:8"}).json()["detail"]
        assert [one.why for one in caplog.records if one.message == "question failed"] == ["secret is odd"] * 2
        late = ask(up, up.user, {"add": "4xh200:4"})
        assert (late.status_code, late.json()["detail"]) == (409, "the simulation took longer than 60 s, so it was stopped")
        dry = ControlPlaneClient(up.url, up.user).submit([{"run": "true"}], dry_run=True)
        assert "starts_s" not in dry[0], "the job is checked all the same"
