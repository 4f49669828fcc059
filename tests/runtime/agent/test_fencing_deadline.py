"""The fencing deadline: what it stops, what may not start after it, and what happens when its file is damaged."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_node import LEASED, OPENS, RUNS_FOREVER, Node, order

from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.agent_service import Agent, AgentLease
from fairlead.runtime.agent.fencing_deadline import FencingDeadline
from fairlead.runtime.agent.processes import ShimProcess, find_process
from fairlead.runtime.agent.shim import TOO_LATE, LaunchSpec, ShimSystem, _FencingWatch
from fairlead.runtime.protocol.orders import Launch

FAR_S = 10_000.0

SAVES_AND_ENDS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
print("up", flush=True)
while True: signal.pause()
"""


def deadline_passes(node: Node, launch: Launch) -> None:
    """As if the agent had been away since its lease ended: only the shims notice."""
    shims = [worker.record.pid for run in node.supervisor.running() if run.key == launch.key for worker in run.workers]
    FencingDeadline(node.root).move(time.monotonic(), time.monotonic() + FAR_S)
    for shim in shims:
        os.kill(shim, signal.SIGHUP)  # it sleeps until the deadline that it has read


@pytest.mark.parametrize(
    ("script", "code"), [(SAVES_AND_ENDS.format(code=0), 0), (SAVES_AND_ENDS.format(code=143), 143), (RUNS_FOREVER, -15)]
)
def test_a_script_that_its_shim_asked_to_stop_has_yielded(node: Node, script: str, code: int) -> None:
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)
    launch = node.starts(order(script, cooperative=False))
    deadline_passes(node, launch)
    end = node.ended(launch)
    assert (end.code, end.yielded) == (0, True)
    assert json.loads((node.directory(launch) / "0" / "exit.json").read_text())["code"] == code


def test_a_script_that_fails_when_its_shim_asked_it_to_stop_has_failed(node: Node) -> None:
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)
    launch = node.starts(order(SAVES_AND_ENDS.format(code=3), cooperative=False))
    deadline_passes(node, launch)
    assert (node.ended(launch).code, node.ended(launch).yielded) == (3, False)


def test_a_cooperative_job_is_asked_on_its_page_at_the_deadline(node: Node) -> None:
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)
    launch = node.starts(order(LEASED))
    deadline_passes(node, launch)
    assert node.ended(launch).yielded


@pytest.mark.parametrize(
    ("script", "code"), [(SAVES_AND_ENDS.format(code=0), 0), (SAVES_AND_ENDS.format(code=3), 3), (RUNS_FOREVER, -15)]
)
def test_a_job_that_has_not_opened_its_lease_gets_sigterm_at_the_deadline(node: Node, script: str, code: int) -> None:
    """It may never open it. However it ends then, it has neither finished nor failed."""
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)
    launch = node.starts(order(script, grace_s=FAR_S))
    deadline_passes(node, launch)
    end = node.ended(launch)
    assert (end.code, end.yielded) == (0, True)
    assert json.loads((node.directory(launch) / "0" / "exit.json").read_text())["code"] == code


def test_a_gang_whose_first_worker_its_shim_has_stopped_has_yielded(node: Node) -> None:
    """The others are killed when they do not end after it."""
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)
    others_open = f"import os\nif os.environ['RANK'] != '0':\n  exec({OPENS!r})\n"
    launch = node.starts(order(others_open + RUNS_FOREVER, ranks=2, grace_s=FAR_S))
    deadline_passes(node, launch)
    node.until((node.directory(launch) / "0" / "exit.json").exists, "the end of the first worker")
    node.until(lambda: node.supervisor.running()[0].stopping, "a deadline for the others")
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)  # the agent is back
    node.clock.passes(node.settings.sibling_grace_s + 1)
    end = node.ended(launch)
    assert (end.code, end.yielded) == (0, True)


@pytest.mark.parametrize("code", [0, 143])
def test_a_script_that_ended_by_itself_has_not_yielded_at_the_deadline(node: Node, code: int) -> None:
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)
    launch = node.launch(order(f"raise SystemExit({code})", cooperative=False))
    end = node.ended(launch)
    assert (end.code, end.yielded) == (code, False)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", RUNS_FOREVER], stdout=subprocess.PIPE, process_group=0)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


class OneChild(ShimSystem):
    """The system of a shim whose command is a process of the test."""

    def __init__(self, pid: int) -> None:
        self._pid = pid


def watch(path: Path, stop_s: float, pid: int = 0, grace_s: float = FAR_S) -> _FencingWatch:
    spec = LaunchSpec(["x"], {}, "/", "/", 1, 1, [], str(path), grace_s, cooperative=False, deadline=[stop_s, math.inf])
    return _FencingWatch(spec, OneChild(pid))


def test_a_shim_does_not_ask_a_script_that_has_just_ended(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
    late = watch(tmp_path / "none", time.monotonic(), child.pid)
    late.check()
    assert late.asked_ns == 0


def test_a_script_that_was_asked_to_stop_has_its_grace_even_if_the_agent_is_back(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    deadline = FencingDeadline(tmp_path)
    deadline.move(time.monotonic(), math.inf)
    fencing = watch(deadline.path, time.monotonic(), child.pid, grace_s=100.0)
    fencing.check()
    deadline.move(time.monotonic() + FAR_S, math.inf)
    left_s = fencing.check()
    assert left_s is not None
    assert left_s <= 100.0
    deadline.close()


def write_nothing(path: Path) -> None:
    path.write_bytes(b"")


def write_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8])


def write_nan(path: Path) -> None:
    path.write_bytes(b"\xff" * 16)


DAMAGES: list[Callable[[Path], object]] = [Path.unlink, write_nothing, write_half, write_nan]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_deadline_that_cannot_be_read_stays_where_it_was(
    tmp_path: Path, child: subprocess.Popen[bytes], damage: Callable[[Path], object]
) -> None:
    deadline = FencingDeadline(tmp_path)
    deadline.move(time.monotonic(), math.inf)
    fencing = watch(deadline.path, time.monotonic() + FAR_S, child.pid)
    fencing._read()
    damage(deadline.path)
    fencing.check()
    assert fencing.asked_ns > 0
    child.wait()
    never_read = watch(deadline.path, time.monotonic())
    assert never_read.has_passed(), "the launch spec has the times at the launch"
    deadline.move(time.monotonic() + FAR_S, math.inf)
    assert not never_read.has_passed(), "the agent puts the file back"
    deadline.close()


def test_nothing_starts_while_the_deadline_cannot_be_written(node: Node, tmp_path: Path) -> None:
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)
    path = node.root / "fencing-deadline"
    path.unlink()
    path.mkdir()
    began = tmp_path / "began"
    with pytest.raises(NodeError, match="fencing-deadline"):
        node.launch(order(f"open({str(began)!r}, 'w')"))
    assert not node.supervisor.running()
    agent = Agent(node.supervisor, "n", "127.0.0.1:1")
    agent._lease, agent._heartbeats = AgentLease(FAR_S), [time.monotonic()]
    agent._renewed()
    assert agent._lease.is_over(time.monotonic()), "shims would not know of the renewal"
    path.rmdir()
    launch = node.launch(order("print('up')"))
    assert node.ended(launch).code == 0


def test_an_agent_that_was_paused_for_longer_than_its_lease_starts_nothing(node: Node, tmp_path: Path) -> None:
    """The order arrived before the pause, and is carried out after it."""
    began = tmp_path / "began"
    agent = Agent(node.supervisor, "n", "127.0.0.1:1", host=node.clock)
    node.supervisor.set_fencing_deadline(node.clock.monotonic() + FAR_S, FAR_S)
    running = node.starts(order(RUNS_FOREVER, job=2))
    node.clock.passes(FAR_S)
    ended = agent._carry_out(order(f"open({str(began)!r}, 'w')"))
    assert ended is not None
    assert ended.could_not_start, "not a fault of the job"
    assert "lease is over" in ended.why
    assert agent._carry_out(running) is None, "an order that was carried out before the pause changes nothing"
    node.supervisor.set_fencing_deadline(node.clock.monotonic() + FAR_S, FAR_S)
    assert agent._carry_out(order("print('up')", job=3)) is None


def test_a_shim_that_was_paused_before_the_command_began_does_not_begin_it(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[ShimProcess, bytes]] = []
    send = ShimProcess.send_spec
    monkeypatch.setattr(ShimProcess, "send_spec", lambda shim, spec: sent.append((shim, spec)))
    node.supervisor.set_fencing_deadline(time.monotonic() + FAR_S, FAR_S)
    began = tmp_path / "began"
    launch = node.launch(order(f"open({str(began)!r}, 'w')"))
    FencingDeadline(node.root).move(time.monotonic(), time.monotonic() + FAR_S)
    for shim, spec in sent:
        send(shim, spec)
    end = node.ended(launch)
    assert not began.exists()
    assert (end.yielded, end.why) == (True, f"worker 0: {TOO_LATE}")
    assert find_process(sent[0][0].pid) is None
