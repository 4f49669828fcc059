"""People's requests over HTTP, against a control plane with its loop, its journal and a played agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.engine.apply import replay_events
from fairlead.engine.journal import MemoryJournal
from fairlead.journal.control_files import FolderFiles
from fairlead.runtime.control import submissions
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.http_api import MAX_BODY, create_app
from fairlead.runtime.control.tokens import Bearer, Role, Tokens
from fairlead.testing.builders import cluster

SCHEDULER = {"policy": "las", "estimator": "measured", "rounds": 1.0}


def compose(data: Any) -> Any:
    return SchedulerConfig.from_data(dict(data)).build(None, Registry.installed())


def with_plane(scene: Callable[..., Any], **about: Any) -> MemoryJournal:
    journal = MemoryJournal()

    async def run() -> None:
        plane = ControlPlane(cluster("v100:2,v100:2"), SCHEDULER, compose, journal, **about)
        tokens = Tokens()
        people = {name: tokens.issue(Role.USER, name) for name in ("ann", "bob")}
        people["root"], people["eve"] = tokens.issue(Role.ADMIN, "root"), tokens.issue(Role.USER, "eve", "vision")
        people["agent"] = tokens.issue(Role.AGENT, "agent")
        await plane.start()
        try:
            transport = httpx.ASGITransport(create_app(plane, tokens))

            def who(name: str) -> httpx.AsyncClient:
                headers = {"Authorization": f"Bearer {people.get(name, name)}"}
                return httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers)

            await asyncio.wait_for(scene(plane, who), 120)
        finally:
            await plane.stop()

    asyncio.run(run())
    return journal


def test_a_job_is_submitted_seen_explained_and_cancelled():
    async def scene(plane, who):
        ann = who("ann")
        answer = await ann.post("/v1/jobs", json={"jobs": [{"name": "a", "run": "python train.py --lr 1"}, {"run": ["true"]}]})
        assert answer.status_code == 201, answer.text
        assert answer.json() == {"jobs": [{"number": 0, "name": "a"}, {"number": 1, "name": "job-1"}]}
        seen = (await ann.get("/v1/jobs/a")).json()
        assert (seen["user"], seen["kind"], seen["workers"]) == ("ann", "train.py", 1)
        assert [job["name"] for job in (await ann.get("/v1/jobs")).json()["jobs"]] == ["a", "job-1"]
        while (seen := (await ann.get("/v1/jobs/a")).json())["phase"] == "queued":
            await asyncio.sleep(0.05)
        assert seen["reason"]["code"] == "nodes-down", seen
        assert (await ann.delete("/v1/jobs/a")).json()["cancelled"]
        assert (await ann.get("/v1/jobs/0")).json()["phase"] == "cancelled"
        assert (await ann.delete("/v1/jobs/a")).status_code == 409

    journal = with_plane(scene)
    assert replay_events(journal).next_number == 2


def test_others_jobs_are_not_there():
    async def scene(plane, who):
        await who("ann").post("/v1/jobs", json={"jobs": [{"name": "mine", "run": "true"}]})
        bob = who("bob")
        assert (await bob.get("/v1/jobs/mine")).status_code == 404
        assert (await bob.delete("/v1/jobs/0")).status_code == 404
        assert (await bob.get("/v1/jobs?all_users=true")).json() == {"jobs": []}
        for key in ("all_users", "everybody"):  # the former name is still read
            assert len((await who("root").get(f"/v1/jobs?{key}=true")).json()["jobs"]) == 1
        assert (await who("root").delete("/v1/jobs/mine")).status_code == 200
        assert (await bob.post("/v1/jobs", json={"jobs": [{"name": "mine", "run": "true"}]})).status_code == 201
        assert (await who("ann").get("/v1/jobs/mine")).json()["number"] == 0, "hers, though a younger one has that name"
        assert (await who("root").get("/v1/jobs/mine")).json()["number"] == 1
        assert (await bob.get("/v1/digest")).status_code == 403
        plane.backend.stop()
        await plane.wait_ended()  # or a round could change the state between the two digests
        assert (await who("root").get("/v1/digest")).json() == {
            "digest": plane.loop.state.digest(),
            "second": plane.loop.state.time,
        }

    with_plane(scene)


@pytest.mark.parametrize("slash", ["%2F", "%2f"])
def test_a_path_names_a_job_of_another_user_with_an_encoded_slash(slash):
    async def scene(plane, who):
        for name in ("ann", "bob"):
            await who(name).post("/v1/jobs", json={"jobs": [{"name": "train", "run": "true"}, {"name": "logs", "run": "true"}]})
        root = who("root")
        assert (await root.get("/v1/jobs/train")).status_code == 409
        for user, number in (("ann", 0), ("bob", 2)):
            assert (await root.get(f"/v1/jobs/{user}{slash}train")).json()["number"] == number
            assert (await root.get(f"/v1/jobs/{user}{slash}logs")).json()["number"] == number + 1
            assert (await root.put(f"/v1/jobs/{user}{slash}train/hold", content=b"")).json()["number"] == number
            assert (await root.patch(f"/v1/jobs/{user}{slash}train", json={"weight": 2})).json()["number"] == number
            assert (await root.delete(f"/v1/jobs/{user}{slash}logs")).json()["number"] == number + 1
        assert (await who("bob").get(f"/v1/jobs/ann{slash}train")).status_code == 404
        assert (await root.get(f"/v1{slash}jobs")).status_code == 404

    with_plane(scene)


def test_the_loop_does_not_wait_for_a_checkpoint_folder(tmp_path, monkeypatch):
    """It may be on another machine. Work of a script that has files there is not lost: it may have saved them."""
    requests = [("/v1/jobs", "jobs"), ("/v1/jobs/a", ""), ("/v1/overview", "jobs"), ("/v1/history", "jobs")]
    seen: list[bool] = []

    async def scene(plane, who):
        def glob(folder, pattern, glob=Path.glob):
            if folder.is_relative_to(tmp_path):
                with ThreadPoolExecutor(1) as other:  # the lock may be taken twice by one thread
                    seen.append(other.submit(plane.backend.lock.acquire, timeout=20).result())
                    if seen[-1]:
                        other.submit(plane.backend.lock.release)
            return glob(folder, pattern)

        async def lost(path, key):
            found = (await ann.get(path)).json()
            (job,) = found[key] if key else [found]
            return job.get("lost_work") or job.get("lost_work_s")

        ann = who("ann")
        await ann.post("/v1/jobs", json={"jobs": [{"name": "a", "run": "true"}]})
        plane.loop.state.lost_work[0] = (20.0, 1)
        monkeypatch.setattr(Path, "glob", glob)
        for path, key in requests[:3]:
            assert await lost(path, key) == {"seconds": 20.0, "preemptions": 1}
        saved = Path(plane.backend.checkpoints, "0", "model.pt")
        saved.parent.mkdir(parents=True)
        saved.write_text("by the script itself")
        assert not any([await lost(*request) for request in requests[:3]])
        await ann.delete("/v1/jobs/a")
        assert not await lost(*requests[3])
        saved.unlink()
        assert await lost(*requests[3]) == 20.0
        assert len(seen) == 8
        assert all(seen)

    with_plane(scene, checkpoints=str(tmp_path))


@pytest.mark.parametrize("token", ["", "wrong", "agent"])
def test_without_a_token_nothing_is_told(token):
    async def scene(plane, who):
        nobody = who("x")
        nobody.headers["authorization"] = f"Bearer {token}" if token != "agent" else who("agent").headers["authorization"]
        for path in ("/v1/jobs", "/v1/nodes", "/v1/usage", "/v1/jobs/a"):
            assert (await nobody.get(path)).status_code == 401
        assert (await nobody.post("/v1/jobs", json={"jobs": [{"run": "true"}]})).status_code == 401
        assert plane.loop.state.next_number == 0

    with_plane(scene)


@pytest.mark.parametrize(
    ("jobs", "status", "said"),
    [
        ([], 422, "at least 1"),
        ([{"run": ""}], 422, "program"),
        ([{"run": "x", "colour": "red"}], 422, "colour"),
        ([{"run": "x", "workers": 9}], 409, "9"),
        ([{"run": "x", "workers": 0}], 422, "workers"),
        ([{"run": "x", "types": ["h900"]}], 409, "h900"),
        ([{"run": "x", "steps": "many"}], 422, "steps"),
        ([{"run": "x", "name": "../x"}], 422, "letters"),
        ([{"run": "x", "name": "17"}], 422, "letter"),
        ([{"run": "x", "name": "a"}, {"run": "x", "name": "a"}], 409, "taken"),
        ([{"run": "x\u0000y"}], 422, "NUL"),
        ([{"run": "it's"}], 422, "quotation"),
        ([{"run": "x", "env": {"A-B": "1"}}], 422, "variables"),
        ([{"run": "x", "env": {"RANK": "1"}}], 422, "RANK"),
        ([{"run": "x", "code": "../etc"}], 422, "code"),
        ([{"run": "x", "directory": "here"}], 422, "absolute"),
        ([{"run": "x", "prefix": ["a\u0000b"]}], 422, "NUL"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_trace(jobs, status, said):
    async def scene(plane, who):
        answer = await who("ann").post("/v1/jobs", json={"jobs": jobs})
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
        assert plane.loop.state.next_number == 0

    with_plane(scene)


def test_bodies_that_are_too_large_or_no_json():
    async def scene(plane, who):
        ann = who("ann")
        assert (await ann.post("/v1/jobs", content=b"x" * (MAX_BODY + 1))).status_code == 413
        assert (await ann.post("/v1/jobs", content=b"{")).status_code == 422

        async def drip():
            yield b"{}"

        assert (await ann.post("/v1/jobs", content=drip())).status_code == 411

    with_plane(scene)


def test_a_dry_run_says_where_it_could_run_and_does_nothing():
    async def scene(plane, who):
        ann = who("ann")
        for _ in range(2):
            answer = await ann.post("/v1/jobs", json={"jobs": [{"name": "a", "run": "x", "workers": 4}], "dry_run": True})
            assert answer.json() == {"jobs": [{"name": "a", "user": "ann", "types": ["v100"]}]}
        assert plane.loop.state.next_number == 0

    with_plane(scene)


def test_a_name_is_free_again_when_its_job_has_ended():
    async def scene(plane, who):
        ann, one = who("ann"), {"jobs": [{"name": "a", "run": "x"}]}
        assert (await ann.post("/v1/jobs", json=one)).status_code == 201
        assert (await ann.post("/v1/jobs", json=one)).status_code == 409
        await ann.delete("/v1/jobs/a")
        assert (await ann.post("/v1/jobs", json=one)).status_code == 201
        assert (await ann.get("/v1/jobs/a")).json()["number"] == 1

    with_plane(scene)


def test_tokens_are_kept_as_digests_and_only_for_their_owner(tmp_path):
    path = tmp_path / "tokens.json"
    token = Tokens(FolderFiles(tmp_path)).issue(Role.USER, "ann")
    assert token.encode() not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    again = Tokens(FolderFiles(tmp_path))
    assert again.bearer(token).user == "ann"
    assert again.bearer(token[:-1]) is None
    assert again.revoke("ann") == 1
    assert Tokens(FolderFiles(tmp_path)).bearer(token) is None


def test_a_job_without_a_name_gets_one_that_nobody_has():
    async def scene(plane, who):
        ann = who("ann")
        answer = await ann.post("/v1/jobs", json={"jobs": [{"run": "x", "name": "job-1"}, {"run": "x"}, {"run": "x"}]})
        assert [job["name"] for job in answer.json()["jobs"]] == ["job-1", "job-1-again", "job-2"]
        assert (await ann.get("/v1/jobs/1")).json()["name"] == "job-1-again"
        assert (await ann.get("/v1/jobs/job-1")).json()["number"] == 0
        for nobody in ("9", "²", "٣", "9" * 100):
            assert (await ann.get(f"/v1/jobs/{nobody}")).status_code == 404

    with_plane(scene)


def test_of_many_who_claim_a_name_at_once_one_gets_it():
    async def scene(plane, who):
        ann, one = who("ann"), {"jobs": [{"name": "a", "run": "x"}]}
        answers = await asyncio.gather(*(ann.post("/v1/jobs", json=one) for _ in range(12)))
        assert sorted(answer.status_code for answer in answers) == [201] + 11 * [409]
        assert plane.loop.state.next_number == 1

    with_plane(scene)


def test_of_many_jobs_that_are_renamed_at_once_one_gets_the_name():
    async def scene(plane, who):
        ann = who("ann")
        await ann.post("/v1/jobs", json={"jobs": [{"name": f"a{n}", "run": "x"} for n in range(8)]})
        renamed = [ann.patch(f"/v1/jobs/{n}", json={"name": "b"}) for n in range(8)]
        answers = await asyncio.gather(*renamed, ann.post("/v1/jobs", json={"jobs": [{"name": "b", "run": "x"}]}))
        assert sorted(answer.status_code for answer in answers)[1:] == 8 * [409]
        assert len((await ann.get("/v1/jobs", params={"select": "b"})).json()["jobs"]) == 1

    with_plane(scene)


def test_the_jobs_of_an_array_are_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(submissions, "feasible_types", lambda job, cluster: checked.append(job) or 1)

    async def scene(plane, who):
        tasks = [{"run": "x", "array": 50}, {"run": "x", "cpus": 2, "array": 50}]
        assert (await who("ann").post("/v1/jobs", json={"jobs": tasks})).status_code == 201
        assert [job.cpus for job in checked] == [0, 2]

    with_plane(scene)


def test_a_job_whose_code_is_gone_is_not_requeued():
    async def scene(plane, who):
        ann = who("ann")
        await ann.post("/v1/jobs", json={"jobs": [{"name": "a", "run": "x"}]})
        await ann.delete("/v1/jobs/a")
        job = plane.loop.state.job_of[0]
        plane.loop.state.job_of[0] = replace(job, command=job.command.replace("{", '{"code":"' + 64 * "0" + '",', 1))
        refused = await ann.post("/v1/jobs/a/requeue", json={})
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            "the job's code is not stored any more; submit the job again",
        )

    with_plane(scene)


def test_nobody_is_of_anothers_entity_by_saying_so():
    async def scene(plane, who):
        ann, root = who("ann"), who("root")

        async def submitted(by, **about):
            answer = await by.post("/v1/jobs", json={"jobs": [{"run": ["true"], **about}]})
            return answer.status_code, answer.json()

        status, told = await submitted(ann, account="vision")
        assert (status, told["detail"]) == (422, "jobs of this token belong to account 'ann', not 'vision'")
        assert [(await submitted(ann, account="ann"))[0], (await submitted(ann))[0]] == [201, 201]
        assert (await submitted(root, account="vision"))[0] == 201
        assert [job.account for job in plane.loop.state.job_of.values()] == ["ann", "", "vision"]

    with_plane(scene)


def test_a_job_does_not_leave_its_account_by_an_update():
    async def scene(plane, who):
        eve = who("eve")
        await eve.post("/v1/jobs", json={"jobs": [{"name": "a", "run": ["true"]}]})
        assert (await eve.patch("/v1/jobs/a", json={"account": "speech"})).status_code == 422
        assert (await eve.patch("/v1/jobs/a", json={"account": "a\n"})).status_code == 422
        assert (await eve.patch("/v1/jobs/a", json={"account": ""})).json() == {"number": 0, "account": "vision"}
        assert plane.loop.state.job_of[0].account == "vision"

    with_plane(scene)


@pytest.mark.parametrize(
    ("account", "asked", "given"),
    [
        ("lab", "", "lab"),
        ("lab", "lab", "lab"),
        ("lab", "shop", None),
        ("*", "shop", "shop"),
        ("*", "", ""),
        ("", "shop", None),
    ],
)
def test_a_token_says_whose_its_jobs_may_be(account, asked, given):
    assert Bearer(Role.USER, "ann", account).account_of(asked) == given


def test_what_a_failing_stage_said_is_told_to_admins_only():
    async def scene(plane, who):
        plane.backend.stop()
        await plane.wait_ended()  # or the next good decision would say that it is over
        plane.decision_health.failed("policy", KeyError("bob's job"))
        told = {name: (await who(name).get("/v1/scheduler")).json()["decision_error"] for name in ("root", "ann")}
        assert told == {"root": 'the policy failed: KeyError: "bob\'s job"', "ann": "the policy failed: KeyError"}

    with_plane(scene)


def test_the_scheduler_is_shown_without_composing_it_again():
    async def scene(plane, who):
        plane.compose = None  # such as one whose files are gone since
        told = (await who("ann").get("/v1/scheduler")).json()
        assert (told["scheduler"], told["preempting_policy"]) == (SCHEDULER, "las")

    with_plane(scene)


def test_the_loop_does_not_wait_for_the_files_of_a_checkpoint(monkeypatch, tmp_path):
    async def scene(plane, who):
        free = list[bool]()

        def newest(folder: str) -> str:
            free.append(not plane.backend.lock._is_owned())
            return "step-1.pt"

        monkeypatch.setattr("fairlead.runtime.control.views.newest_checkpoint", newest)
        await who("ann").post("/v1/jobs", json={"jobs": [{"name": "a", "run": "true"}]})
        assert (await who("ann").get("/v1/jobs/a")).json()["checkpoint_file"] == "step-1.pt"
        assert free == [True]

    with_plane(scene, checkpoints=str(tmp_path))


def test_an_answer_after_the_end_of_the_http_server_does_no_harm(monkeypatch):
    monkeypatch.setattr("fairlead.runtime.control.http_api.ANSWER_WITHIN_S", 0.5)

    async def scene(plane, who):
        answers = list[Any]()
        monkeypatch.setattr(plane.backend, "submit_jobs", lambda jobs, answer: answers.append(answer))

        async def submit() -> int:
            return (await who("ann").post("/v1/jobs", json={"jobs": [{"name": "a", "run": "true"}]})).status_code

        assert await asyncio.to_thread(lambda: asyncio.run(submit())) == 503  # the server's event loop has ended
        answers[0]([])  # by the scheduling loop, which must not fail

    with_plane(scene)
