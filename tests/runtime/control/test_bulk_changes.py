"""One request that changes many jobs: each is changed, or refused, as by a request of its own."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from serving import served
from test_api import with_plane
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core import events as ev
from fairlead.engine.apply import replay_events
from fairlead.runtime.control.job_routes import AT_ONCE, MAX_HINTS
from fairlead.runtime.control.submissions import MAX_JOBS_PER_REQUEST
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest

ROUTE = "/v1/jobs/changes"


async def submit(client, *names, **about):
    answer = await client.post("/v1/jobs", json={"jobs": [{"name": name, "run": "true", **about} for name in names]})
    assert answer.status_code == 201, answer.text


async def changed(client, change, jobs, **more):
    answer = await client.post(ROUTE, json={"change": change, "jobs": jobs, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def error(answer):
    return {"error": {"status": answer.status_code, **answer.json()}}


def test_each_job_has_the_answer_or_the_error_of_a_request_of_its_own():
    async def scene(plane, who):
        ann = who("ann")
        await submit(who("bob"), "theirs")
        await submit(ann, "a", "b", "ended", "c")
        await ann.delete("/v1/jobs/ended")
        jobs = ["a", "ended", "theirs", "nothing", 0, 2, "ann/c", "../nodes", ""]
        found = await changed(ann, "cancel", jobs)
        assert [found[place] for place in (0, 5, 6)] == [{"number": number, "cancelled": True} for number in (1, 2, 4)]
        for place in (1, 2, 3, 4):
            assert found[place] == error(await ann.delete(f"/v1/jobs/{jobs[place]}"))
        for place in (7, 8):
            assert found[place]["error"]["status"] == 404
        assert (await who("bob").get("/v1/jobs/theirs")).json()["phase"] in ("queued", "waiting")

    journal = with_plane(scene)
    assert sorted(event.number for event in journal if isinstance(event, ev.JobCancelled)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "method", "path", "body", "more"),
    [
        ("cancel", "DELETE", "", None, {}),
        ("hold", "PUT", "/hold", None, {}),
        ("release", "DELETE", "/hold", None, {}),
        ("requeue", "POST", "/requeue", {"hold": True}, {"hold": True}),
        ("requeue", "POST", "/requeue", {}, {}),  # it waits already
        ("update", "PATCH", "", {"priority": -3, "account": ""}, {"fields": {"priority": -3, "account": ""}}),
        ("update", "PATCH", "", {"time_limit_s": None}, {"fields": {"time_limit_s": None}}),
        ("update", "PATCH", "", {"priority": 3}, {"fields": {"priority": 3}}),  # more than a user may have
        ("update", "PATCH", "", {"account": "speech"}, {"fields": {"account": "speech"}}),
    ],
)
def test_every_change_is_that_of_a_single_request(change, method, path, body, more):
    async def scene(plane, who):
        eve = who("eve")
        await submit(eve, "alone", "one", "two")
        if change == "release":
            await changed(eve, "hold", ["alone", "one", "two"])
        sent = {"content": b""} if body is None else {"json": body}
        single = await eve.request(method, f"/v1/jobs/alone{path}", **sent)
        for job, found in zip(("one", "two"), await changed(eve, change, ["one", "two"], **more)):
            if single.status_code == 200:
                assert found == {**single.json(), "number": ("alone", "one", "two").index(job)}
            else:
                assert found["error"]["status"] == single.status_code
                assert found["error"]["detail"] == single.json()["detail"].replace("alone", job)
        assert (await changed(who("ann"), change, [1], **more)) == [error(await who("ann").get("/v1/jobs/1"))]

    made: dict[int, list[ev.Event]] = {0: [], 1: [], 2: []}
    for event in with_plane(scene):
        if isinstance(event, (ev.JobCancelled, ev.JobHeld, ev.JobReleased, ev.JobRequeued, ev.JobUpdated)):
            made[event.number].append(replace(event, time=0, number=0))
    assert made[0] == made[1] == made[2]


def test_the_hold_of_an_operator_is_lifted_by_no_user_and_the_other_jobs_are_changed():
    async def scene(plane, who):
        ann, root = who("ann"), who("root")
        await submit(ann, "a", "b")
        await changed(root, "hold", ["a"])
        await changed(ann, "hold", ["b"])
        for change in ("release", "hold"):
            found = await changed(ann, change, ["a", "b"])
            why = "the job is held by root; ask root to release it"
            assert found[0] == {"error": {"status": 403, "detail": why}}
            assert found[1]["held_by"] == (None if change == "release" else "ann")
        assert (await changed(root, "release", ["a"])) == [{"number": 0, "held_by": None}]

    with_plane(scene)


def test_a_job_that_is_named_twice_is_changed_once():
    async def scene(plane, who):
        ann = who("ann")
        await submit(ann, "a", "b")
        await changed(ann, "hold", ["a", 0, "b", "a", "ann/a"])
        found = await changed(ann, "release", ["a", 0, "b", "a", "ann/a"])
        assert [one["number"] for one in found] == [0, 0, 1, 0, 0]
        assert all(one["held_by"] is None for one in found)

    journal = with_plane(scene)
    for event_type in (ev.JobHeld, ev.JobReleased):
        assert [event.number for event in journal if isinstance(event, event_type)] == [0, 1]


@pytest.mark.parametrize(
    "body",
    [
        {"change": "cancel", "jobs": ["a"] * (MAX_JOBS_PER_REQUEST + 1)},
        {"change": "cancel", "jobs": ["a"], "hold": True},
        {"change": "cancel", "jobs": ["a"], "fields": {"priority": 1}},
        {"change": "cancel", "jobs": []},
        {"change": "cancel", "jobs": ["a", "b" * 300]},
        {"change": "cancel", "jobs": ["a", "\ud800"]},
        {"change": "cancel", "jobs": ["a", True]},
        {"change": "cancel", "jobs": "a"},
        {"change": "remove", "jobs": ["a"]},
        {"change": "cancel", "jobs": ["a"], "user": "bob"},
        {"change": "update", "jobs": ["a"]},
        {"change": "update", "jobs": ["a"], "fields": {"prio": 1}},
        ["a"],
    ],
    ids=lambda body: str(body)[:60],
)
def test_a_request_that_is_wrong_changes_no_job(body):
    async def scene(plane, who):
        ann = who("ann")
        await submit(ann, "a")
        content = json.dumps(body)  # with `json=`, httpx sends no surrogates
        answer = await ann.post(ROUTE, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
        assert (await ann.get("/v1/jobs/a")).json()["phase"] in ("queued", "waiting")
        assert (await who("none").post(ROUTE, content=content)).status_code == 401

    with_plane(scene)


def test_of_many_jobs_one_gets_a_name():
    async def scene(plane, who):
        ann = who("ann")
        await submit(ann, "a", "b", "c")
        found = await changed(ann, "update", ["a", "b", "c"], fields={"name": "best"})
        taken = {"error": {"status": 409, "detail": "a job of ann named 'best' has not ended"}}
        assert found == [{"number": 0, "name": "best"}, taken, taken]
        assert (await ann.get("/v1/jobs/best")).json()["number"] == 0
        await changed(ann, "cancel", ["best", "b"])
        await changed(ann, "update", ["b"], fields={"name": "best"})
        first, second = await changed(ann, "requeue", [0, 1])  # both are called best, and have ended
        assert first == {"number": 0, "phase": "queued", "held_by": None}
        assert second["error"]["detail"].startswith("another job named 'best' has not ended")
        await changed(ann, "cancel", [0])
        assert "number" in (await changed(ann, "requeue", [1]))[0], "the name is not reserved any more"

    with_plane(scene)


def test_a_job_that_ends_before_it_is_requeued_does_not_run_again(monkeypatch):
    async def scene(plane, who):
        ann = who("ann")
        await submit(ann, "a", "b")

        async def meanwhile(work, *, to_thread=asyncio.to_thread):  # after the checks of the request
            monkeypatch.undo()
            await ann.delete("/v1/jobs/a")
            return await to_thread(work)

        monkeypatch.setattr(asyncio, "to_thread", meanwhile)
        first, second = await changed(ann, "requeue", ["a", "b"], hold=True)
        assert first == {"error": {"status": 409, "detail": "the job has just stopped or ended; try again"}}
        assert second["held_by"] == "ann"
        assert (await ann.get("/v1/jobs/a")).json()["phase"] == "cancelled"

    with_plane(scene)


def test_only_the_first_unknown_jobs_of_a_request_have_similar_names():
    async def scene(plane, who):
        ann = who("ann")
        await submit(ann, "train")
        found = await changed(ann, "hold", [f"train{n}" for n in range(MAX_HINTS + 5)])
        details = [one["error"]["detail"] for one in found]
        assert details[:MAX_HINTS] == [f"there is no job 'train{n}'; did you mean 'train'?" for n in range(MAX_HINTS)]
        assert details[MAX_HINTS:] == [f"there is no job 'train{n}'" for n in range(MAX_HINTS, MAX_HINTS + 5)]

    with_plane(scene)


def test_many_changes_are_journalled_together_and_replay_to_the_same_state():
    taken = []

    async def scene(plane, who):
        ann, inbox = who("ann"), plane.backend.inbox
        await submit(ann, "sweep", array=500)

        def take(*about, take=inbox.take):
            taken.append(take(*about))
            return taken[-1]

        inbox.take = take
        await changed(ann, "hold", [0])  # the loop's call from before has returned
        found = await changed(ann, "cancel", list(range(499, -1, -1)))
        assert [one["number"] for one in found] == list(range(499, -1, -1))
        assert {job["phase"] for job in (await ann.get("/v1/jobs?select=sweep")).json()["jobs"]} == {"cancelled"}
        plane.backend.stop()
        await plane.wait_ended()
        digests.append(plane.loop.state.digest())

    digests = []
    journal = with_plane(scene)
    assert sum(len(requests) >= AT_ONCE for requests in taken) == 500 // AT_ONCE, "few waits for the journal"
    assert [replay_events(journal).digest()] == digests


def test_requests_at_the_same_time_cancel_each_job_once():
    async def scene(plane, who):
        ann = who("ann")
        await submit(ann, "sweep", array=50)
        answers = await asyncio.gather(*(changed(ann, "cancel", list(range(50))) for _ in range(4)))
        for results in zip(*answers):
            assert sorted("error" in one for one in results) == [False, True, True, True]

    journal = with_plane(scene)
    assert len([event for event in journal if isinstance(event, ev.JobCancelled)]) == 50


def test_commands_change_an_array_by_few_requests(monkeypatch):
    sent = []

    def ask(plane, method, path, *more, ask=ControlPlaneClient._ask, **about):
        if method != "GET":
            sent.append(path)
        return ask(plane, method, path, *more, **about)

    with served("v100:4") as cluster:
        plane = ControlPlaneClient(cluster.url, cluster.user)
        plane.submit([{"name": "sweep", "run": "true", "array": MAX_JOBS_PER_REQUEST + 200}])
        monkeypatch.setenv("FAIRLEAD_URL", cluster.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", cluster.user)
        monkeypatch.setattr(ControlPlaneClient, "_ask", ask)
        for command, last in (
            ("hold", "sweep-1199 (number 1199) is held"),
            ("release", "sweep-1199 (number 1199) is released"),
            ("update --priority -3", "sweep-1199 (number 1199) is updated"),
            ("requeue --hold", "sweep-1199 (number 1199) is requeued and held"),
            ("cancel", "sweep: 1,200 jobs are cancelled"),
        ):
            sent.clear()
            done = CliRunner().invoke(app, [*command.split(), "sweep"], standalone_mode=False)
            assert done.exception is None
            assert done.stdout.splitlines()[-1] == last
            assert sent == [ROUTE, ROUTE]
        assert {(job["phase"], job["priority"]) for job in plane.find_jobs(["sweep"])} == {("cancelled", -3)}
        ended = CliRunner().invoke(app, ["cancel", "sweep"], standalone_mode=False).exception
        assert (str(ended), ended.exit_code) == ("the job has already ended", 4)
        found = plane.change_jobs("cancel", ["sweep-0", "other"])
        assert all(isinstance(one, RefusedRequest) for one in found)
        assert [one.status for one in found] == [409, 404]
        assert plane.change_jobs("cancel", []) == []
