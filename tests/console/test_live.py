"""The stream of changes, over a real HTTP server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from reading import Page, fresh, live
from serving import Served, served

from fairlead.console import live_stream
from fairlead.console.live_feed import JOB_COLUMNS, NODE_COLUMNS
from fairlead.runtime.control.http_server import ConnectionLimits, LimitedConnection
from fairlead.runtime.control.tokens import Role


@pytest.fixture(scope="module")
def control() -> Iterator[Served]:
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


def read_until(found: Iterator[Any], page: Page, reached: Callable[[], bool]) -> None:
    while not reached():
        page.take(*next(found))


def test_two_users_see_the_same_jobs_and_only_their_own_names(control):
    (hers,) = submit(control, control.user, "annabel", kind="hush")
    (his,) = submit(control, control.token, "rooted", kind="quiet")
    admin, user = Page(), Page()
    with live(control.url, control.token) as first, live(control.url, control.user) as second:
        read_until(first, admin, lambda: his in admin.jobs)
        read_until(second, user, lambda: his in user.jobs)
        httpx.delete(f"{control.url}/v1/jobs/{his}", headers={"Authorization": f"Bearer {control.token}"})
        read_until(first, admin, lambda: admin.jobs[his]["state"] == "cancelled")
        read_until(second, user, lambda: user.jobs[his]["state"] == "cancelled")
    assert admin.jobs[hers]["name"] == user.jobs[hers]["name"] == "annabel"
    assert (admin.jobs[his]["name"], admin.jobs[his]["job_type"]) == ("rooted", "quiet")
    assert (user.jobs[his]["name"], user.jobs[his]["user"], user.jobs[his]["job_type"]) == ("", "", "")
    assert user.jobs[his]["ended"] is None


def test_a_page_resumes_by_its_last_event_and_has_what_a_new_page_has(control):
    page = fresh(control.url, control.user)
    submit(control, control.token, "while-away-1", "while-away-2")
    (mine,) = submit(control, control.user, "mine-while-away")
    with live(control.url, control.user, last_id=page.last_id) as found:
        read_until(found, page, lambda: mine in page.jobs and page.jobs[mine]["state"] == "waiting")
    assert page.names[:2] == ["reset", "change"]
    with live(control.url, control.user, since=page.last_id) as found:  # for clients without headers
        page.take(*next(found))
    assert page.names[-1] == "change"
    new = fresh(control.url, control.user)
    assert (page.jobs, page.nodes) == (new.jobs, new.nodes)


def test_a_page_that_comes_between_two_events_takes_nothing_from_others(control, monkeypatch):
    monkeypatch.setattr(live_stream, "SEND_S", 2.0)
    page = Page()
    with live(control.url, control.token) as found:
        page.take(*next(found))
        for name in ("between-1", "between-2", "between-3"):
            (number,) = submit(control, control.token, name)
            fresh(control.url, control.token)
            read_until(found, page, lambda number=number: number in page.jobs)


@pytest.mark.parametrize("odd", ["x", ":", "1:2:3", "0:-1", "0:99999999999999999999", ":" * 64])
def test_an_odd_event_id_gives_everything(control, odd):
    assert fresh(control.url, control.token, odd).names == ["reset"]


def test_a_stream_ends_when_its_session_or_token_does(control):
    token = control.tokens.issue(Role.USER, "tim")
    with live(control.url, token) as found:
        next(found)
        control.tokens.revoke("tim")
        for _ in found:  # changes may still come
            pass
    with httpx.Client(base_url=control.url) as browser:
        session = browser.post("/console/sign-in", json={"token": control.user}).cookies["fairlead_session"]
        with live(control.url, cookie=f"fairlead_session={session}") as found:
            next(found)
            browser.post("/console/sign-out", headers={"X-Fairlead-Console": "1"})
            for _ in found:  # changes may still come
                pass


def until(reached: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_user_has_a_limited_number_of_pages_and_those_that_leave_make_room(control, monkeypatch):
    until(lambda: len(control.console.pages) == 0)
    monkeypatch.setattr(live_stream, "MAX_OF_USER", 2)
    monkeypatch.setattr(live_stream, "MAX_PAGES", 3)
    headers = {"Authorization": f"Bearer {control.user}"}
    with live(control.url, control.user) as one, live(control.url, control.user) as two:
        assert [next(found)[0] for found in (one, two)] == ["reset", "reset"]
        assert httpx.get(f"{control.url}/v1/live", headers=headers).status_code == 429
        with live(control.url, control.token) as other:
            next(other)
            other_user = control.tokens.issue(Role.USER, "kim")
            refused = httpx.get(f"{control.url}/v1/live", headers={"Authorization": f"Bearer {other_user}"})
            assert refused.status_code == 503
        assert httpx.get(f"{control.url}/v1/jobs", headers=headers).status_code == 200
    until(lambda: len(control.console.pages) == 0)
    fresh(control.url, control.user)


def test_the_feed_sleeps_when_no_page_was_open_for_a_while(monkeypatch):
    monkeypatch.setattr(live_stream, "RESUME_S", 1.0)
    with served("v100:1", console=True) as control:
        feed = control.console.pages._feed
        assert feed.epoch == ""
        page = fresh(control.url, control.token)
        until(lambda: feed.epoch == "" and not feed._jobs.rows)
        assert fresh(control.url, control.token, page.last_id).names == ["reset"]


def test_a_quiet_stream_is_not_cut_as_an_idle_connection(monkeypatch):
    monkeypatch.setattr(live_stream, "COMMENT_S", 1.0)
    limits = ConnectionLimits(request_s=0.5, read_s=1.0)
    with served("v100:1", console=True, limits=limits) as control:
        headers = {"Authorization": f"Bearer {control.token}"}
        with httpx.stream("GET", f"{control.url}/v1/live", headers=headers, timeout=60) as answer:
            comments = 0
            for line in answer.iter_lines():
                comments += line.startswith(":")
                if comments == 3:
                    break


def stuck(control: Served) -> socket.socket:
    """A client that asks for a stream and never reads."""
    host, _, port = control.url.removeprefix("http://").rpartition(":")
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.connect((host, int(port)))
    wire.sendall(f"GET /v1/live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {control.token}\r\n\r\n".encode())
    return wire


def many(control: Served, count: int = 3000) -> None:
    """Jobs for megabytes of events."""
    names = [f"{'x' * 60}-{number}" for number in range(count)]
    for begin in range(0, count, 1000):
        submit(control, control.token, *names[begin : begin + 1000])


@pytest.fixture
def small_buffers(monkeypatch):
    """The system takes only some kilobytes for a client that does not read."""
    made = LimitedConnection.connection_made

    def made_small(self: LimitedConnection, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(LimitedConnection, "connection_made", made_small)


class Reader:
    """A page that is read in a thread, until the stream ends."""

    def __init__(self, control: Served) -> None:
        self.page, self.problem = Page(), ""
        self.thread = threading.Thread(target=self._read, args=(control,), daemon=True)
        self.thread.start()

    def _read(self, control: Served) -> None:
        try:
            with live(control.url, control.token) as found:
                for event in found:
                    self.page.take(*event)
        except Exception as problem:
            self.problem = repr(problem)


def test_a_page_that_does_not_read_is_dropped_and_others_are_not(monkeypatch, small_buffers):
    monkeypatch.setattr(live_stream, "MAX_BUFFER", 1_000_000)  # more than what a page that reads has not read yet
    with served("v100:1", console=True, limits=ConnectionLimits(read_s=600.0)) as control:
        many(control)
        reader, pages = Reader(control), control.console.pages
        until(lambda: len(reader.page.jobs) == 3000)
        (known,) = pages._pages
        with closing(stuck(control)):
            until(lambda: len(pages) == 2)
            (slow,) = pages._pages - {known}
            jobs = 3000
            while not slow.ended:
                jobs += 1000
                assert jobs <= 30_000, "megabytes were not read"
                submit(control, control.token, *(f"{'y' * 60}-{jobs - number}" for number in range(1000)))
                until(lambda jobs=jobs: len(reader.page.jobs) == jobs)
            until(lambda: not slow._events)
        assert reader.thread.is_alive()
    reader.thread.join(60)
    assert (reader.thread.is_alive(), reader.problem) == (False, "")


def test_nothing_is_added_to_a_page_that_has_ended():
    page = live_stream.LivePage("ann", None, lambda: True)
    page.begin(1, b"first")
    page.end()
    page.add(2, b"second")
    page.comment()
    assert (page.revision, len(page._events)) == (1, 0)


def test_a_stop_ends_all_streams_soon_also_those_that_are_not_read(small_buffers):
    forever = ConnectionLimits(stop_s=86_400.0)  # for open requests: a stream that does not end would hold up the stop
    with served("v100:1", console=True, limits=forever) as control:
        many(control)
        reader = Reader(control)
        until(lambda: len(reader.page.jobs) == 3000)
        wire = stuck(control)
        until(lambda: len(control.console.pages) == 2)
    reader.thread.join(60)
    assert (reader.thread.is_alive(), reader.problem) == (False, "")  # the end of the stream, and no error
    wire.close()
