"""Routes of sessions on a node: in the lease pages of their workers, where scripts read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_node import Node, order

from fairlead.client.launch_context import PAGE, RouteReader, WorkerRoute, route
from fairlead.client.lease_page import Field, Page
from fairlead.runtime.agent.lease_file import LeaseFile
from fairlead.runtime.protocol.orders import LaunchParameters, Reroute
from fairlead.runtime.protocol.orders import RequestRouting as Dealt

SERVES = """
import time, fairlead
before = None
while (now := fairlead.route()).rate < 900:
    if now != before:
        print(now.batch, now.rate, now.part, flush=True)
    before = now
    time.sleep(0.001)
print(now.batch, now.rate, now.part)
"""


@pytest.fixture
def node(tmp_path: Path):
    made = Node(tmp_path / "node")
    yield made
    made.supervisor.close()


def test_workers_see_their_part_and_every_change(node: Node) -> None:
    launch = node.starts(
        order(SERVES, ranks=2, parameters=LaunchParameters(batch_size=8, routing=Dealt(8, 120.5, (0.75, 0.25))))
    )
    assert [node.printed(launch, rank) for rank in range(2)] == ["8 120.5 0.75\n", "8 120.5 0.25\n"]
    node.restarts()
    node.supervisor.carry_out(Reroute(1, 1, Dealt(16, 1000.0, (0.5, 0.5))))
    node.supervisor.carry_out(Reroute(1, 7, Dealt(1, 1.0, (1.0, 1.0))))  # of a launch that is not here
    assert node.ended(launch).code == 0
    assert [node.printed(launch, rank).splitlines()[1] for rank in range(2)] == ["16 1000.0 0.5"] * 2


def test_a_page_that_was_written_over_does_not_end_the_agent(tmp_path: Path) -> None:
    lease = LeaseFile.create(tmp_path / "page", 0, 0.0)
    page = Page(tmp_path / "page")
    assert RouteReader(page).now() is None
    page[Field.ROUTES] = 2**64 - 1
    again = LeaseFile(tmp_path / "page")
    again.route(4, 2.5, 1.0)
    assert RouteReader(page).now() == WorkerRoute(4, 2.5, 1.0)
    for one in (lease, again):
        one.close()


def test_no_worker_sees_half_of_a_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, seen = LeaseFile.create(tmp_path / "page", 0, 0.0), list[WorkerRoute | None]()
    reader, write = RouteReader(Page(tmp_path / "page")), lease._write

    def read_meanwhile(field: Field, value: int) -> None:
        write(field, value)
        seen.append(reader.now())

    lease.route(4, 2.5, 1.0)
    assert reader.now() == WorkerRoute(4, 2.5, 1.0)
    monkeypatch.setattr(lease, "_write", read_meanwhile)
    lease.route(8, 7.5, 0.5)
    assert set(seen[:-1]) == {WorkerRoute(4, 2.5, 1.0)}
    assert seen[-1] == WorkerRoute(8, 7.5, 0.5)
    lease.close()


def test_what_an_agent_left_half_written_is_written_again(tmp_path: Path) -> None:
    lease, page = LeaseFile.create(tmp_path / "page", 0, 0.0), Page(tmp_path / "page")
    lease.route(4, 2.5, 1.0)
    page[Field.ROUTES] += 1
    lease.close()
    again = LeaseFile(tmp_path / "page")
    again.route(8, 7.5, 0.5)
    assert RouteReader(page).now() == WorkerRoute(8, 7.5, 0.5)
    again.close()


def test_outside_fairlead_there_is_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PAGE, raising=False)
    assert route() is None
