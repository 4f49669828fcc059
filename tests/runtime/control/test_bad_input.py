"""Strangers and mistakes at a real server's door: each is refused with a sentence, and the journal is what it was."""

from __future__ import annotations

import asyncio
import http.client
from contextlib import suppress
from typing import Any

import grpc.aio
import orjson
import pytest
from serving import Served, served

from fairlead.engine.codec import encode as event_json
from fairlead.runtime.control.http_api import MAX_BODY
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest
from fairlead.runtime.protocol.messages import (
    METHOD,
    SERVICE,
    Hello,
    Refused,
    ReportBatch,
    Welcome,
    decode_message,
    encode_message,
)
from fairlead.runtime.protocol.orders import Ended, Progress, RenewalRequest

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def control() -> Served:
    """Four accelerators, and one job that waits, as no agent is there."""
    with served("v100:4") as one:
        status, said = ask(one, "POST", "/v1/jobs", orjson.dumps({"jobs": [{"name": "here", "run": "true"}]}))
        assert status == 201, said
        while ask(one, "GET", "/v1/jobs/here")[1]["phase"] == "queued":
            pass
        yield one


def ask(control: Served, method: str, path: str, body: bytes | None = None, token: str | None = None, **more: str) -> Any:
    headers = {"Authorization": f"Bearer {control.token if token is None else token}", **more}
    connection = http.client.HTTPConnection(control.url.removeprefix("http://"), timeout=PATIENCE_S)
    with suppress(ConnectionError):  # it may answer and close before it has the whole body
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    told = answer.status, orjson.loads(answer.read())
    connection.close()
    return told


def lines(control: Served) -> list[bytes]:
    return [event_json(event) for event in control.journal]


def task(**fields: Any) -> bytes:
    return orjson.dumps({"jobs": [{"run": "true", **fields}]})


def raw(fields: str) -> bytes:
    return f'{{"jobs": [{{{fields}}}]}}'.encode()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 422, "JSON"),
        (b"\x80", 400, "body"),
        (b"[" * 100_000, 400, "body"),
        (b"null", 422, "object"),
        (b"x" * (MAX_BODY + 1), 413, "8,388,608 bytes"),
        (task(colour="red"), 422, "jobs.0.colour"),
        (task(workers=9), 409, "needs 9 GPUs, and there are at most 4"),
        (task(types=["h900"]), 409, "h900"),
        (task(name="here"), 409, "taken"),
        (task(name="../../etc/passwd"), 422, "jobs.0.name"),
        (task(name="0"), 422, "jobs.0.name"),
        (task(directory="../.."), 422, "jobs.0.directory: an absolute path"),
        (task(directory="/a\0b"), 422, "jobs.0.directory"),
        (task(code="../../x"), 422, "jobs.0.code"),
        (task(kind="k" * 129), 422, "jobs.0.kind"),
        (task(account="two\nlines"), 422, "jobs.0.account"),
        (task(prefix=["a\0b"]), 422, "jobs.0.prefix.0"),
        (task(prefix=["x"] * 5000), 422, "jobs.0.prefix"),
        (task(env={"PATH": "x" * 40_000}), 422, "jobs.0.env"),
        (task(env={f"V{n}": "x" * 30_000 for n in range(40)}), 422, "1,048,576 bytes"),
        (task(workers=True), 422, "jobs.0.workers: a number, not true or false"),
        (task(max_slowdown=True), 422, "jobs.0.max_slowdown: a number, not true or false"),
        (task(lease={"max_steps": True}), 422, "jobs.0.lease.max_steps: a number, not true or false"),
        (task(cooperative=1), 422, "jobs.0.cooperative: true or false"),
        (task(after=True), 422, "jobs.0.after"),
        (task(lease={"renewal": "central"}), 422, "jobs.0.lease: central renewal needs a bound"),
        (task(lease={"max_steps": -1}), 422, "jobs.0.lease.max_steps"),
        (task(lease={"max_steps": 5}, cooperative=False), 422, "cooperative"),
        (task(container={"mounts": ["/data"]}), 422, "jobs.0.container: an image"),
        (task(container={"image": "--privileged"}), 422, "jobs.0.container.image: the name of an image"),
        (task(container={"image": "docker://--privileged"}), 422, "jobs.0.container.image: the name of an image"),
        (task(container={"image": "docker://"}), 422, "jobs.0.container.image: the name of an image"),
        (task(container={"image": "train", "mounts": ["/a:/."]}), 422, "a path in the container other than /"),
        (task(account="a//b"), 422, "jobs.0.account: an account such as research/vision"),
        (task(account="a/"), 422, "jobs.0.account: an account such as research/vision"),
        (task(account="/".join("a" * 17)), 422, "jobs.0.account: an account such as research/vision"),
        (task(container={"image": "train", "imge": "x"}), 422, "jobs.0.container.imge"),
        (task(container={"image": "train", "runtime": "runc"}), 422, "jobs.0.container.runtime"),
        (task(container={"image": "train.sif", "runtime": "docker"}), 422, "only apptainer runs train.sif"),
        (task(container={"image": "train", "mounts": ["data:/data"]}), 422, "jobs.0.container.mounts.0: HOST:CONTAINER"),
        (task(container={"image": "train", "mounts": ["/a:/b:/c"]}), 422, "jobs.0.container.mounts.0: HOST:CONTAINER"),
        (task(container={"image": "train", "mounts": ["/a/../etc:/b"]}), 422, "jobs.0.container.mounts.0: HOST:CONTAINER"),
        (task(container={"image": "train", "mounts": ["/a:/"]}), 422, "jobs.0.container.mounts.0: a path in the container"),
        (task(container={"image": "train", "workdir": "src"}), 422, "jobs.0.container.workdir: an absolute path"),
        (task(env={"MASTER_ADDR": "1.2.3.4"}), 422, "jobs.0.env: MASTER_ADDR is set by Fairlead"),
        (task(container={"image": "a;b"}), 422, "jobs.0.container.image: the name of an image"),
        (task(container={"image": "train", "mounts": ["/a:/x", "/b:/x/"]}), 422, "jobs.0.container: one mount at /x"),
        (task(container={"image": "train", "env": {"RANK": "1"}}), 422, "jobs.0.container.env: RANK is set by Fairlead"),
        (task(container=5), 422, "jobs.0.container: the name of an image, or a mapping"),
        (task(container="train", directory="/"), 422, "a directory other than /"),
        (raw(r'"run": "\ud800"'), 422, "jobs.0.run"),
        (raw(r'"run": "x", "kind": "\ud800"'), 422, "jobs.0.kind"),
        (raw(r'"run": "x", "env": {"A": "\udfff"}'), 422, "jobs.0.env.A"),
        (raw(r'"run": "x", "\ud800": 1'), 422, "jobs.0"),
        (raw('"run": "x", "steps": NaN'), 422, "jobs.0.steps"),
        (raw('"run": "x", "weight": 1e999'), 422, "jobs.0.weight"),
        (raw(f'"run": "x", "workers": {"9" * 5000}'), 400, "body"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence_and_leaves_no_trace(control, body, status, said):
    before = lines(control)
    assert (answer := ask(control, "POST", "/v1/jobs", body))[0] == status, answer
    assert said in answer[1]["detail"]
    assert len(answer[1]["detail"]) < 1100
    assert lines(control) == before


@pytest.mark.parametrize("token", ["", "guess", "fl_" + "x" * 43, "\xff", "x" * 10_000])
def test_without_a_right_token_nothing_is_told_or_done(control, token):
    before = lines(control)
    for method, path, body in (
        ("GET", "/v1/jobs", None),
        ("GET", "/v1/jobs/here", None),
        ("DELETE", "/v1/jobs/here", None),
        ("POST", "/v1/jobs", task(name="new")),
    ):
        status, said = ask(control, method, path, body, token)
        assert (status, "valid token" in said["detail"]) == (401, True)
    assert lines(control) == before


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/9",
        "/v1/jobs/..%2f..%2fetc",
        "/v1/jobs/%00",
        "/v1/jobs/%ff%fe",
        "/v1/jobs/%C2%B2",
        "/v1/jobs/" + 90 * "9",
        "/v2",
    ],
)
def test_what_is_not_there_is_not_found(control, path):
    before = lines(control)
    for method in ("GET", "DELETE"):
        assert ask(control, method, path)[0] == 404
    assert lines(control) == before


def test_an_agent_with_a_stale_incarnation_is_refused_and_stale_generations_are_dropped():
    async def join(control: Served, incarnation: int) -> Any:
        channel = grpc.aio.insecure_channel(control.agents)
        stream = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=(("authorization", f"Bearer {control.agent}"),))
        node = control.plane.cluster.nodes[0].name
        await stream.write(encode_message(Hello(node, "v100", 4, incarnation)))
        return channel, stream, decode_message(await asyncio.wait_for(stream.read(), PATIENCE_S))

    async def scene(control: Served) -> None:
        channel, stream, answer = await join(control, 5)
        assert isinstance(answer, Welcome)
        await asyncio.wait_for(stream.read(), PATIENCE_S)  # the launch of the job that waits
        before = lines(control)
        stale, _, answer = await join(control, 4)
        assert isinstance(answer, Refused)
        assert "more recent" in answer.why
        for sequence, generation in enumerate((0, 2, 7)):
            words = (
                Progress(0, generation, 500, 500, 9.0),
                RenewalRequest(0, generation, 1),
                Ended(0, generation, 0, False, 9, 9),
            )
            await stream.write(encode_message(ReportBatch(sequence, words)))
            assert decode_message(await asyncio.wait_for(stream.read(), PATIENCE_S)).sequence == sequence
        assert lines(control) == before
        await channel.close()
        await stale.close()

    with served("v100:4") as control:
        assert ask(control, "POST", "/v1/jobs", task(name="here"))[0] == 201
        asyncio.run(scene(control))


@pytest.mark.parametrize("name", ["../nodes", "..", ".", "", "a/logs", "#", "a?b=1", "a%2fb", "é"])
def test_a_name_leads_nowhere_else_than_to_a_job_or_a_node(control: Served, name: str) -> None:
    people = ControlPlaneClient(control.url, control.token)
    for verb in (people.job, people.cancel, people.log_chunk, people.drain):
        with pytest.raises(RefusedRequest, match="there is no") as refused:
            verb(name)
        assert refused.value.status == 404
