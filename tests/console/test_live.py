"""The stream of changes, over a real HTTP server."""

from __future__ import annotations

import httpx
import pytest
from reading import Page, fresh, live
from serving import Served, served

from fairlead.console.live_feed import JOB_COLUMNS, NODE_COLUMNS


@pytest.fixture(scope="module")
def control() -> Served:
    with served("v100:4", console=True) as one:
        yield one


def submit(control: Served, token: str, *names: str, **task: object) -> list[int]:
    jobs = [{"name": name, "run": "true", **task} for name in names]
    answer = httpx.post(f"{control.url}/v1/jobs", json={"jobs": jobs}, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 201, answer.text
    return [job["number"] for job in answer.json()["jobs"]]


def test_a_page_gets_everything_and_then_what_changes(control):
    (first,) = submit(control, control.token, "first", kind="bert", account="nlp", priority=3)
    page = Page()
    with live(control.url, control.token) as found:
        name, last_id, data = next(found)
        assert (name, last_id) == ("reset", f"{data['epoch']}:{data['revision']}")
        assert data.keys() == {
            *("epoch", "revision", "second", "origin", "scheduler", "types", "job_columns", "node_columns"),
            *("jobs", "nodes", "decisions"),
        }
        assert (data["job_columns"], data["node_columns"]) == (list(JOB_COLUMNS), list(NODE_COLUMNS))
        assert data["types"] == ["v100"]
        assert data["scheduler"]["parameters"]["policy"] == "las"
        page.take(name, last_id, data)
        job, node = page.jobs[first], page.nodes[0]
        assert (job["name"], job["user"], job["account"], job["job_type"], job["priority"]) == (
            "first",
            "root",
            "nlp",
            "bert",
            3,
        )
        assert (job["gpus"], job["gpu_type"], job["devices"], job["started"], job["ended"]) == (1, -1, [], None, None)
        assert (node["gpus"], node["first"], node["type"], node["state"], node["drain"]) == (4, 0, 0, "lost", "")
        (second,) = submit(control, control.token, "second")
        while second not in page.jobs or page.jobs[second]["state"] == "queued":
            name, last_id, data = next(found)
            assert name == "change"
            assert {"second", "jobs", "nodes", "decisions"} == data.keys()
            page.take(name, last_id, data)
        assert page.jobs[second]["reason"] in ("nodes-down", "next-decision")
    assert fresh(control.url, control.token, page.last_id).names == ["change"]
    assert fresh(control.url, control.token, "0:1").names == ["reset"]
