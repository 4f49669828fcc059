"""What a running control plane tells of itself and what can be changed in it: metrics, log lines, another scheduler."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.datastructures import URL
from starlette.requests import HTTPConnection

from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.journal import MemoryJournal
from fairlead.journal.control_files import FolderFiles
from fairlead.runtime.control import prometheus
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.http_api import create_app
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.runtime.control.wall_clock import AliveMark
from fairlead.runtime.log_format import JsonLines, TextLines
from fairlead.runtime.protocol.orders import Ended
from fairlead.testing.builders import cluster

PATIENCE_S = 120.0
SCHEDULER = {"policy": "las", "rounds": 0.2}


class Scene:
    """A plane whose agents the test plays, and people who ask it."""

    def __init__(self, journal: MemoryJournal | None = None, *, metrics_open: bool = False) -> None:
        self.journal = journal or MemoryJournal()
        state = replay_events(self.journal) if journal is not None else None
        self.plane = ControlPlane(cluster("v100:2,v100:2"), SCHEDULER, compose, self.journal, state, lease_s=1000.0)
        self.tokens = Tokens()
        self.words = {role.value: self.tokens.issue(role, role.value) for role in Role}
        self.app = create_app(self.plane, self.tokens, metrics_open=metrics_open)

    def who(self, name: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.words[name]}"} if name else {}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://here", headers=headers)

    def play(self, scene: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await self.plane.start()
            try:
                await asyncio.wait_for(scene(), PATIENCE_S)
            finally:
                await self.plane.stop()

        asyncio.run(run())
        assert self.plane.failure is None
        assert replay_events(self.journal).digest() == self.plane.loop.state.digest()

    async def until(self, path: str, reached: Callable[[Any], bool]) -> None:
        admin = self.who("admin")
        while not reached((await admin.get(path)).json()):
            assert self.plane.failure is None
            await asyncio.sleep(0.02)

    async def story(self) -> None:
        """Two nodes come; one job finishes, one fails, one is cancelled, and one node goes."""
        for node in (0, 1):
            self.plane.backend.agent_joined(node, ())
        jobs = [{"name": name, "run": ["true", "--secret"], "retries": 0} for name in ("good", "bad", "gone", "waits")]
        assert (await self.who("admin").post("/v1/jobs", json={"jobs": jobs})).status_code == 201
        for name in ("good", "bad", "gone", "waits"):
            await self.until(f"/v1/jobs/{name}", lambda job: job["phase"] == "running")
        for node in (0, 1):
            self.plane.backend.report(node, [Ended(0, 1, 0, False, 0, 0), Ended(1, 1, 3, False, 0, 0)])
        await self.until("/v1/jobs/bad", lambda job: job["phase"] == "failed")
        assert (await self.who("admin").delete("/v1/jobs/gone")).status_code == 200
        self.plane.backend.agent_lost(1)
        await self.until("/v1/nodes", lambda told: [node["up"] for node in told["nodes"]] == [True, False])


def families(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """By name and labels' values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_metrics_say_what_happened_and_how_things_stand():
    scene, told = Scene(), {}

    async def story() -> None:
        await scene.story()
        await scene.who("admin").get("/v1/jobs/nobody")
        await scene.who("").get("/a/path/of/nobody")
        answer = await scene.who("admin").get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        told.update(families(answer.text))

    scene.play(story)
    assert told["fairlead_jobs_submitted_total"] == {(): 4}
    assert told["fairlead_jobs"][("finished",)] == 1
    assert told["fairlead_jobs"][("cancelled",)] == 1
    assert sum(told["fairlead_jobs"].values()) == 4
    assert told["fairlead_jobs_ended_total"][("finished",)] == 1
    assert told["fairlead_jobs_ended_total"][("cancelled",)] == 1
    assert told["fairlead_jobs_ended_total"][("failed",)] == 1
    assert told["fairlead_jobs_interrupted_total"][("true",)] == 0
    assert told["fairlead_accelerators_up"] == {("v100",): 2}
    assert told["fairlead_accelerators_allocated"][("v100",)] <= 2
    assert told["fairlead_agents_connected"] == {(): 0}
    assert told["fairlead_jobs_started_total"][()] >= 4
    assert told["fairlead_decision_seconds_count"][()] >= 1
    assert told["fairlead_journal_commit_seconds_count"][()] >= 3
    assert told["fairlead_journal_events_total"][("JobSubmitted",)] == 4
    assert told["fairlead_job_wait_seconds_count"] == {("",): 4}, "of the account, once for each job"
    assert told["fairlead_job_rho_count"] == {("admin",): 1}, "of finished jobs"
    assert told["fairlead_job_rho_sum"][("admin",)] > 0
    assert told["fairlead_longest_wait_seconds"][()] >= 0
    assert told["fairlead_nodes"] == {("up",): 1, ("lost",): 1, ("unreachable",): 0, ("drained",): 0, ("backed-off",): 0}
    assert told["fairlead_rounds_missed_total"][()] >= 0
    assert told["fairlead_jobs_preempted_total"][()] >= 0
    requests = told["fairlead_http_requests_total"]
    assert requests[("POST", "/v1/jobs", "201")] == 1
    assert requests[("GET", "/v1/jobs/{name}", "404")] == 1
    assert requests[("GET", "", "404")] == 1, "a path that nobody answers to is no label"


def test_rho_is_the_time_in_the_cluster_by_run_time_and_demand():
    scene = Scene()
    state, metrics = scene.plane.loop.state, scene.plane.metrics

    def happens(*events: ev.Event) -> None:
        for event in events:
            apply_event(state, event)
        metrics.observe_commit(events, 0.001)

    def starts(number: int, second: float) -> ev.RoundPlanned:
        launches = Launches(np.array([number]), np.array([0]), np.array([0, 4]), np.arange(4))
        return ev.RoundPlanned(RoundPlan(second, admitted=np.array([number]), launches=launches))

    happens(ev.JournalOpened(0.0, state.cluster, SCHEDULER))
    jobs = [Job(name, 0.0, 100.0, workers=4, user=name, account="lab") for name in ("ann", "bob")]
    happens(*(ev.JobSubmitted(0.0, number, job) for number, job in enumerate(jobs)))
    happens(starts(0, 0.0))
    happens(ev.JobsFinished(100.0, np.array([0]), np.array([100.0])))
    happens(starts(1, 100.0))
    happens(ev.JobsFinished(200.0, np.array([1]), np.array([200.0])))
    told = families(metrics.text().decode())
    assert told["fairlead_job_wait_seconds_sum"] == {("lab",): 100.0}
    assert told["fairlead_job_rho_sum"][("ann",)] == pytest.approx(100 / (100 * 2.0)), "8 GPUs were requested of 4"
    assert told["fairlead_job_rho_sum"][("bob",)] == pytest.approx(200 / (100 * 1.5))


def test_series_by_user_and_account_are_bounded(monkeypatch):
    monkeypatch.setattr(prometheus, "MAX_NAMES", 2)
    metrics = prometheus.ControlPlaneMetrics()
    assert [metrics._label("user", name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", "(others)", "a", "(others)"]


def test_who_leaves_because_another_did_and_drains_are_told_as_what_they_are(caplog):
    caplog.set_level(logging.INFO)
    scene, told = Scene(), {}

    async def story() -> None:
        admin = scene.who("admin")
        jobs = [{"name": "first", "run": "x"}, {"name": "then", "run": "x", "after": ["first"]}]
        assert (await admin.post("/v1/jobs", json={"jobs": jobs})).status_code == 201
        first = scene.plane.cluster.nodes[0].name
        assert (await admin.put(f"/v1/nodes/{first}/drain", content=b"")).status_code == 200
        assert (await admin.delete(f"/v1/nodes/{first}/drain")).status_code == 200
        assert (await admin.delete("/v1/jobs/first")).status_code == 200
        await scene.until("/v1/jobs/then", lambda job: job["phase"] == "cancelled")
        told.update(families((await admin.get("/metrics")).text))

    scene.play(story)
    ended = told["fairlead_jobs_ended_total"]
    assert (
        (ended[("cancelled",)], ended[("refused",)])
        == (2, 0)
        == tuple(told["fairlead_jobs"][(phase,)] for phase in ("cancelled", "refused"))
    )
    seen = [(record.getMessage(), record.__dict__.get("job")) for record in caplog.records]
    assert ("job cancelled", "then") in seen
    assert ("job refused", "then") not in seen
    assert [what for what, _ in seen if what.startswith("node")] == ["node drained", "node undrained"]


def test_a_probe_needs_no_token_and_is_told_nothing_but_whether_decisions_are_made():
    scene = Scene()
    stages = scene.plane.loop.stages
    scene.plane.loop.stages = replace(stages, round_s=1e6)  # no decision meanwhile, which may be late, or end a problem

    async def asked() -> tuple[int, Any]:
        answer = await scene.who("").get("/healthz")
        return answer.status_code, answer.json()

    async def story() -> None:
        assert await asked() == (200, {"status": "ok"})
        scene.plane.progress_until_s = 5.0  # as after a restart
        assert await asked() == (200, {"status": "starting"})
        scene.plane.decision_health.failed("policy", KeyError("secret"))
        assert await asked() == (503, {"status": "unhealthy"})

    scene.play(story)
    assert not scene.plane.healthy


def test_a_metrics_token_reads_nothing_else_whatever_its_host_header_makes_of_the_url(monkeypatch):
    """Some versions of Starlette read the path of a URL out of the Host header."""
    monkeypatch.setattr(HTTPConnection, "url", URL("http://x/metrics?/v1/digest"))
    scene = Scene()

    async def story() -> None:
        answers = {
            path: (await scene.who(Role.METRICS).get(path)).status_code for path in ("/metrics", "/v1/digest", "/v1/jobs")
        }
        assert answers == {"/metrics": 200, "/v1/digest": 403, "/v1/jobs": 403}

    scene.play(story)


def test_metrics_are_for_admins_unless_they_are_open():
    scene, open_scene = Scene(), Scene(metrics_open=True)

    async def closed() -> None:
        answers = {name: (await scene.who(name).get("/metrics")).status_code for name in ("", *Role)}
        assert answers == {"": 401, "agent": 401, "node": 401, "launch": 401, "user": 403, "admin": 200, "metrics": 200}
        for path in ("/v1/jobs", "/v1/nodes", "/v1/digest", "/v1/usage"):
            assert (await scene.who("metrics").get(path)).status_code == 403

    async def open_() -> None:
        assert (await open_scene.who("").get("/metrics")).status_code == 200

    scene.play(closed)
    open_scene.play(open_)


def test_what_happens_is_logged_with_its_fields_and_without_secrets(caplog):
    caplog.set_level(logging.INFO)
    scene = Scene()
    scene.play(scene.story)
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert all({"time", "level", "event"} <= set(line) for line in lines)
    seen = {(line["event"], line.get("job") or line.get("node")) for line in lines}
    first, second = (node.name for node in scene.plane.cluster.nodes)
    assert seen >= {
        ("node joined", first),
        ("job submitted", "good"),
        ("job started", "good"),
        ("job finished", "good"),
        ("job failed", "bad"),
        ("job cancelled", "gone"),
        ("node lost", second),
    }
    started, failed = (next(line for line in lines if line["event"] == f"job {what}") for what in ("started", "failed"))
    assert failed["node"] == started["node"] == first
    assert {"job", "number", "generation", "node", "accelerators"} <= set(started)
    assert (started["number"], started["generation"]) == (0, 1)
    text = "\n".join(map(json.dumps, lines))
    assert "--secret" not in text
    assert not any(word in text for word in scene.words.values())


def test_lines_are_one_line_each_and_tokens_are_blotted_out():
    token = Tokens().issue(Role.ADMIN, "root")
    record = logging.makeLogRecord({"msg": f"two\nlines {token}", "levelname": "INFO", "job": "a b", "why": f"x={token}"})
    text, line = TextLines().format(record), JsonLines().format(record)
    assert "\n" not in text
    assert 'job="a b"' in text
    assert json.loads(line)["why"] == "x=fl_…"
    assert token not in text + line


def test_another_scheduler_decides_without_a_restart_and_after_one():
    scene = Scene()

    async def story() -> None:
        admin = scene.who("admin")
        assert (await scene.who("user").get("/v1/scheduler")).json()["scheduler"] == SCHEDULER
        wanted = {"policy": "max-min-fairness", "rounds": 0.1}
        answer = await admin.post("/v1/scheduler", json={"scheduler": wanted, "why": "a test"})
        assert (answer.status_code, answer.json()["scheduler"]) == (200, wanted)
        assert (await admin.get("/v1/scheduler")).json()["scheduler"] == wanted
        assert scene.plane.loop.stages.round_s == 0.1

    scene.play(story)
    switched = [event for event in scene.journal if isinstance(event, ev.SchedulerSwitched)]
    assert [(event.scheduler["policy"], event.why) for event in switched] == [("max-min-fairness", "a test")]
    again = Scene(scene.journal)
    assert again.plane.loop.stages.round_s == 0.1

    async def goes_on() -> None:
        assert (await again.who("user").get("/v1/scheduler")).json()["scheduler"]["policy"] == "max-min-fairness"

    again.play(goes_on)


def test_people_are_answered_while_a_node_is_awaited_after_a_restart():
    scene = Scene()

    async def before() -> None:
        scene.plane.backend.agent_joined(0, ())
        assert (await scene.who("admin").post("/v1/jobs", json={"jobs": [{"name": "old", "run": "x"}]})).status_code == 201
        await scene.until("/v1/jobs/old", lambda job: job["phase"] == "running")

    scene.play(before)
    again = Scene(scene.journal)

    async def interim_selection() -> None:
        admin = again.who("admin")
        answer = await admin.post("/v1/jobs", json={"jobs": [{"name": "new", "run": "x"}]})
        assert answer.status_code == 201
        assert (await admin.get("/v1/jobs/new")).json()["phase"] == "queued", "nothing is decided before the node is heard"
        assert (await admin.delete("/v1/jobs/new")).status_code == 200

    again.play(interim_selection)


def test_a_restart_does_not_restart_the_wait_for_a_node_that_was_unreachable(tmp_path):
    scene = Scene()

    async def before() -> None:
        scene.plane.backend.agent_joined(0, ())
        await scene.until("/v1/nodes", lambda told: told["nodes"][0]["up"])

    scene.play(before)
    alive = AliveMark(FolderFiles(tmp_path))
    alive.mark({scene.plane.cluster.nodes[0].name: 20.0})
    again = Scene(scene.journal)
    again.plane.alive = alive

    async def waits() -> None:
        silent_s = again.plane.hub.silent_nodes()[scene.plane.cluster.nodes[0].name]
        assert silent_s >= 19.9

    again.play(waits)


def test_of_too_many_jobs_those_that_run_and_the_youngest_are_told():
    scene = Scene()

    async def story() -> None:
        scene.plane.backend.agent_joined(0, ())
        jobs = [{"name": f"n-{n}", "run": "x"} for n in range(6)]
        assert (await scene.who("admin").post("/v1/jobs", json={"jobs": jobs})).status_code == 201
        await scene.until("/v1/jobs/n-0", lambda job: job["phase"] == "running")
        await scene.until("/v1/jobs/n-1", lambda job: job["phase"] == "running")
        told = (await scene.who("admin").get("/v1/jobs?limit=3")).json()["jobs"]
        assert [job["name"] for job in told] == ["n-0", "n-1", "n-5"]

    scene.play(story)


def test_a_name_is_taken_while_its_job_is_on_its_way_though_nobody_waits_for_it(monkeypatch):
    monkeypatch.setattr("fairlead.runtime.control.http_api.ANSWER_WITHIN_S", 0.1)
    monkeypatch.setattr("fairlead.runtime.control.http_api.MIN_READ_S", PATIENCE_S)  # the state may be busy, as at the start
    scene, held = Scene(), []
    backend = scene.plane.backend
    deliver = backend.inbox.put

    async def story() -> None:
        backend.inbox.put = lambda *request: held.append(request)  # the loop is busy, such as waiting for its journal
        admin, body = scene.who("admin"), {"jobs": [{"name": "one", "run": "x"}]}
        assert (await admin.post("/v1/jobs", json=body)).status_code == 503
        monkeypatch.undo()
        assert (await admin.post("/v1/jobs", json=body)).status_code == 409
        backend.inbox.put = deliver
        for request in held:
            deliver(*request)
        await scene.until("/v1/jobs", lambda told: len(told["jobs"]) == 1)
        assert (await admin.delete("/v1/jobs/one")).status_code == 200
        assert (await admin.post("/v1/jobs", json=body)).status_code == 201

    scene.play(story)


def test_while_nobody_can_look_into_the_state_people_are_told_so(monkeypatch):
    monkeypatch.setattr("fairlead.runtime.control.http_api.ANSWER_WITHIN_S", 0.1)
    scene = Scene()

    async def story() -> None:
        taken, over = threading.Event(), threading.Event()

        def hold() -> None:
            with scene.plane.backend.lock:
                taken.set()
                over.wait(PATIENCE_S)

        threading.Thread(target=hold).start()
        await asyncio.to_thread(taken.wait)
        answer = await scene.who("admin").get("/v1/jobs")
        over.set()
        assert (answer.status_code, "try again later" in answer.text) == (503, True)

    scene.play(story)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ({"policy": "lass"}, "did you mean 'las'"),
        ({"rounds": 5}, "policy"),
        ({"policy": "las", "colour": 1}, "colour"),
        ({"policy": {"name": "tiresias", "thresholds": "high"}}, "thresholds"),
        ({"policy": "las", "estimator": "oracle"}, "throughput table"),
        ({"policy": "las", "rounds": -1}, "seconds"),
        ({"policy": {"name": "las", "x": 2**80}}, "journal"),
        ({"policy": "x" * 70_000}, "bytes"),
        ({}, "policy"),
    ],
)
def test_a_scheduler_that_cannot_be_is_refused_and_the_old_one_stays(scheduler, said):
    scene = Scene()

    async def story() -> None:
        answer = await scene.who("admin").post("/v1/scheduler", json={"scheduler": scheduler})
        assert (answer.status_code, said in answer.text) == (422, True), answer.text
        assert (await scene.who("user").post("/v1/scheduler", json={"scheduler": SCHEDULER})).status_code == 403
        assert (await scene.who("admin").post("/v1/scheduler", json={"scheduler": "las"})).status_code == 422
        assert (await scene.who("admin").get("/v1/scheduler")).json()["scheduler"] == SCHEDULER

    scene.play(story)
    assert not any(isinstance(event, ev.SchedulerSwitched) for event in scene.journal)
