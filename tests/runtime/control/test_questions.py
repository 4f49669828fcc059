"""The control plane answers what-ifs, and which change would start a job, for every user: in processes beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from serving import PATIENCE_S, Served, served

from fairlead.core.events import ObservationsRecorded
from fairlead.runtime.http_client import ControlPlaneClient

FIFO = {"policy": "fifo", "estimator": "measured", "rounds": 0.2}


def until(found: Callable[[], Any], what: str = "it did not happen") -> Any:
    patience = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < patience, what
        time.sleep(0.05)
    return value


def filled(up: Served) -> None:
    """Four GPUs, held by an admin's gang for an hour; behind it another of theirs, and a user's job."""
    plane, user = ControlPlaneClient(up.url, up.token), ControlPlaneClient(up.url, up.user)
    up.plane.backend.agent_joined(0, ())
    plane.switch(FIFO)
    rates = {f"measured {workers} × time on v100": 1.0 for workers in (1, 4)}
    up.plane.backend.inbox.put(lambda now: [ObservationsRecorded(now, rates)])
    until(lambda: plane.rates()["rates"])
    plane.submit([{"name": "secret", "run": "sleep 99", "workers": 4, "kind": "time", "steps": 3600}])
    until(lambda: plane.job("secret")["phase"] == "running")
    plane.submit([{"name": "next", "run": "sleep 9", "workers": 4, "kind": "time", "steps": 3600}])
    user.submit([{"name": "mine", "run": "sleep 1", "kind": "time", "steps": 60}])


def ask(up: Served, token: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{up.url}/v1/whatif", json=body, headers=headers, timeout=PATIENCE_S)


def fix(up: Served, token: str, job: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{up.url}/v1/jobs/{job}/fix", headers=headers, timeout=PATIENCE_S)


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


def test_the_owner_of_a_waiting_job_sees_what_would_start_it(busy):
    until(lambda: fix(busy, busy.user, "mine").json()["unsearched"] == [])  # the first one also starts the process
    answer = fix(busy, busy.user, "mine")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert not found["starts"]
    changes = {one["kind"]: one for one in found["changes"]}
    assert changes["more GPUs"]["size"] == 5, "the head of the queue needs four"
    for word in ("secret", "next", "root"):
        assert word not in answer.text
    everything = fix(busy, busy.token, "mine")
    assert {one["kind"] for one in everything.json()["changes"]} == changes.keys()
    assert fix(busy, busy.user, "next").status_code == 404
    assert fix(busy, busy.token, "secret").status_code == 409
    assert "it is running" in fix(busy, busy.token, "secret").json()["detail"]


def test_a_dry_run_tells_when_the_job_would_start(busy):
    user = ControlPlaneClient(busy.url, busy.user)
    asked = [{"name": "wide", "run": "true", "workers": 4, "time_limit_s": 60}, {"name": "later", "run": "true"}]
    wide, later = user.submit(asked, dry_run=True)
    assert 7000 < wide["starts_s"] <= 7300, "an hour for each of the two before it, and a minute"
    assert wide["alternatives"] == []
    assert later["types"] == ["v100"]
    assert [job["name"] for job in user.jobs()] == ["mine"]
    (array,) = [user.submit([{"run": "true", "array": "0-1"}], dry_run=True)]
    assert all("starts_s" not in job for job in array)
