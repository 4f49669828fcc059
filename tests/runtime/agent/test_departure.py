"""When an agent leaves before its machine is taken away, and how the end of an allocation is spelled."""

from __future__ import annotations

import math
import time
from datetime import datetime

import pytest
from agent_node import PATIENCE_S, RUNS_FOREVER, Node, order

from fairlead.cli.cmd_cluster import _end_of_allocation
from fairlead.core.errors import InputError
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.agent_stream import ConnectionLost
from fairlead.runtime.agent.departure import ANSWER_WITHIN_S, KILL_MARGIN_S, RECONNECT_WITHIN_S, Departure
from fairlead.runtime.protocol.orders import Ended


def test_an_agent_leaves_when_its_jobs_need_the_time_that_is_left(node: Node) -> None:
    own, bounded = Departure(node.supervisor, 1000.0), Departure(node.supervisor, 1000.0, grace_s=10.0)
    assert not Departure(node.supervisor).is_due(1e12)
    assert [own.is_due(1000.0 - KILL_MARGIN_S - 0.1), own.is_due(1000.0 - KILL_MARGIN_S)] == [False, True]
    node.starts(order(RUNS_FOREVER, grace_s=60.0, cooperative=False))
    for one, grace_s in ((own, 60.0), (bounded, 10.0)):
        latest = 1000.0 - KILL_MARGIN_S - grace_s
        assert [one.is_due(latest - 0.1), one.is_due(latest)] == [False, True]
    assert (own.left_s(400.0), own.left_s(2000.0) > 0, Departure(node.supervisor).left_s(0.0)) == (600.0, True, 0.0)


def test_an_agent_waits_for_its_ends_to_be_acknowledged_but_not_for_long(node: Node) -> None:
    departure = Departure(node.supervisor)
    departure.begin(100.0)
    assert not departure.is_over(100.0, connected=True, reported=True), "it does not know yet that nothing runs"
    departure.advance(101.0)
    assert departure.is_over(101.0, connected=True, reported=True)
    assert not departure.is_over(101.0, connected=True, reported=False)
    assert departure.is_over(101.0 + ANSWER_WITHIN_S, connected=True, reported=False)
    assert departure.is_over(101.0 + RECONNECT_WITHIN_S, connected=False, reported=False)


def test_an_end_that_is_found_when_the_agent_connects_again_is_told(node: Node) -> None:
    told: list[tuple[str, Ended]] = []
    launch = node.starts(order(RUNS_FOREVER, cooperative=False))
    departure = Departure(node.supervisor, on_end=lambda name, ended: told.append((name, ended)))
    departure.begin(node.clock.monotonic())

    def connect() -> Away:
        node.supervisor.stop_all()
        deadline = time.monotonic() + PATIENCE_S
        while not (node.directory(launch) / "0" / "exit.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return Away()

    Agent(node.supervisor, "v100-0", "127.0.0.1:1", departure=departure, connect=connect).run()
    assert [(name, ended.yielded) for name, ended in told] == [("job-1", True)]


class Away:
    """The stream of a control plane that ends."""

    def send(self, message: object) -> None: ...

    def receive(self) -> list[bytes]:
        raise ConnectionLost("it ended")

    def close(self) -> None: ...


def test_the_end_of_an_allocation_is_unix_or_iso_time() -> None:
    assert _end_of_allocation("") == math.inf
    assert _end_of_allocation("1790000000") == 1790000000.0
    assert _end_of_allocation("2026-05-01T18:00") == datetime(2026, 5, 1, 18).timestamp()
    for wrong in ("soon", "0", "nan"):
        with pytest.raises(InputError, match="Unix time"):
            _end_of_allocation(wrong)
