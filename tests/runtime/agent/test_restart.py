"""An agent dies and another one takes over: nothing is lost, nothing runs on unseen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_node import LEASED, OPENS, PATIENCE_S, RUNS_FOREVER, Node, order

from fairlead.runtime.agent.agent_errors import OrderRefused
from fairlead.runtime.agent.processes import END, find_process
from fairlead.runtime.protocol.orders import Ended, Launch

pytestmark = pytest.mark.long

AGENT = """
import signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import pytest
from agent_node import order
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.supervisor import Supervisor
supervisor = Supervisor(Path({root!r}), NodeAccelerators.parse("v100:4"))
{before}
for launch in {launches}:
    supervisor.launch(launch)
print("launched", flush=True)
{after}
while True: signal.pause()
"""


def an_agent_dies(root: Path, launches: str, before: str = "", after: str = "") -> None:
    """A supervisor in a process of its own, killed with SIGKILL once it has launched, or at a moment of its own choosing."""
    script = AGENT.format(tests=str(Path(__file__).parent), root=str(root), launches=launches, before=before, after=after)
    agent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    agent.stdout.readline()
    agent.kill()
    agent.communicate(timeout=PATIENCE_S)


def test_jobs_outlive_their_agent_and_are_adopted(make_node, tmp_path: Path) -> None:
    an_agent_dies(tmp_path / "root", f"[order({LEASED!r}, ranks=2)]")
    node: Node = make_node()
    launch = order(LEASED, ranks=2)
    (running,) = node.supervisor.running()
    assert (running.key, running.record.name) == ((1, 1), "job-1")
    assert [(worker.rank, worker.accelerator) for worker in running.record.workers] == [(0, 0), (1, 1)]
    node.until(lambda: len(node.workers(launch)) == 2, "the workers")
    node.until(lambda: node.progress(), "progress")
    node.launch(launch)  # the control plane does not know what it said last, and says it again
    assert len(node.workers(launch)) == 2
    node.kill(launch)
    assert node.ended(launch).code == -9
    assert not node.workers(launch)


def test_an_adopted_job_yields_and_says_how_it_ended(make_node, tmp_path: Path) -> None:
    an_agent_dies(tmp_path / "root", f"[order({LEASED!r})]")
    node: Node = make_node()
    node.until(lambda: node.progress(), "progress")
    node.revoke(order())
    end = node.ended(order())
    assert (end.code, end.yielded) == (0, True)
    assert end.steps == end.saved > 0


def test_the_exit_of_a_job_that_ended_without_an_agent_is_found(make_node, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"open({str(fifo)!r}).read(); print('last words'); raise SystemExit(5)"
    an_agent_dies(tmp_path / "root", f"[order({script!r})]")
    fifo.write_text("go on")
    exit_file = tmp_path / "root/jobs/1/1/0/exit.json"
    deadline = time.monotonic() + PATIENCE_S
    while not exit_file.exists() and time.monotonic() < deadline:
        os.sched_yield()
    node: Node = make_node()
    end = node.ended(order())
    assert (end.code, end.why) == (5, "worker 0 ended with status 5")
    assert node.printed(order()) == "last words\n"


def test_an_end_is_told_again_until_it_is_acknowledged(node: Node) -> None:
    launch = node.launch(order("raise SystemExit(2)"))
    end = node.ended(launch)
    assert node.supervisor.poll() == []
    node.restarts()
    assert node.supervisor.running() == []
    assert node.supervisor.poll() == [end]
    node.supervisor.acknowledge(launch.key)
    node.restarts()
    assert node.supervisor.poll() == []


def test_a_disk_that_takes_nothing_does_not_end_the_agent_that_is_heard(node: Node) -> None:
    launch = node.launch(order("raise SystemExit(2)"))
    end = node.ended(launch)
    settled = node.directory(launch) / "settled"
    settled.symlink_to(node.directory(launch) / "nowhere" / "settled")  # it cannot be made
    node.supervisor.acknowledge(launch.key)
    assert not node.supervisor.has(launch.key)
    settled.unlink()
    node.restarts()
    assert node.supervisor.poll() == [end]


def test_a_launch_that_has_ended_and_is_ordered_again_is_told_to_have_ended(node: Node) -> None:
    """A control plane that died knew of the end of half a gang, which is no event, and orders it again."""
    launch = node.launch(order("raise SystemExit(3)"))
    ended = node.ended(launch)
    node.supervisor.acknowledge(launch.key)
    assert node.supervisor.launch(launch) == ended
    node.restarts()
    assert node.supervisor.launch(launch) == ended
    assert not node.supervisor.running()


def test_a_grace_goes_on_under_the_next_agent(node: Node) -> None:
    launch = node.starts(order(OPENS + RUNS_FOREVER, grace_s=20))
    with node.clock.stopped():
        node.revoke(launch)
        node.clock.passes(15)
        node.restarts()
        assert node.supervisor.running()[0].stopping
        node.reports += node.supervisor.poll()
        assert node.workers(launch)
        node.clock.passes(6)
    assert node.ended(launch).why == "killed 20 s after it was asked to stop"


def test_an_agent_that_dies_before_the_record_has_started_nothing(make_node, tmp_path: Path) -> None:
    before = """
import os
from fairlead.runtime.agent.launch import LaunchRecord
def die(self, directory):
    print("about to write", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
LaunchRecord.write = die
"""
    began = tmp_path / "began"
    an_agent_dies(tmp_path / "root", f"[order('open({str(began)!r}, \"w\")', ranks=2)]", before)
    node: Node = make_node()
    assert node.supervisor.running() == []
    launch = node.launch(order("print('second try')"))
    assert node.ended(launch).code == 0
    assert not began.exists()


def test_an_agent_that_dies_between_two_workers_leaves_a_gang_that_fails(make_node, tmp_path: Path) -> None:
    before = """
import os
from fairlead.runtime.agent.processes import ShimProcess
send, sent = ShimProcess.send_spec, []
def once(shim, spec):
    if sent:
        print("sent one", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    sent.append(send(shim, spec))
ShimProcess.send_spec = once
"""
    an_agent_dies(tmp_path / "root", f"[order({RUNS_FOREVER!r}, ranks=2)]", before)
    node: Node = make_node()
    gang = order(RUNS_FOREVER, ranks=2)
    node.until(lambda: node.supervisor.running()[0].stopping, "the missing worker being seen")
    node.clock.passes(6)
    assert node.ended(gang).code != 0
    assert not node.workers(gang)


def test_a_pid_that_belongs_to_somebody_else_now_is_left_alone(node: Node) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    node.kill(launch)
    node.ended(launch)
    stranger = subprocess.Popen([sys.executable, "-c", RUNS_FOREVER], stdout=subprocess.DEVNULL)
    try:
        path = node.directory(launch) / "record.json"
        said = json.loads(path.read_text())
        said["workers"][0]["pid"] = stranger.pid
        path.write_text(json.dumps(said))
        for name in ("ended.json", "0/exit.json"):
            (node.directory(launch) / name).unlink()
        node.reports.clear()
        node.restarts()
        node.kill(launch)
        assert "not known" in node.ended(launch).why or node.ended(launch).code == -9
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_after_a_reboot_nothing_runs_and_nobody_is_signalled(node: Node, monkeypatch) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    path = node.directory(launch) / "record.json"
    record = json.loads(path.read_text())
    node.supervisor.close()
    path.write_text(json.dumps({**record, "boot": "another", "workers": [{**record["workers"][0], "pid": os.getpid()}]}))
    shim = find_process(record["workers"][0]["pid"])
    os.kill(shim.pid, END)
    os.waitpid(shim.pid, 0)
    (node.directory(launch) / "0" / "exit.json").unlink()
    node.restarts()
    why = "worker 0: its supervisor process ended, so its exit status is not known"
    assert node.ended(launch) == Ended(1, 1, -9, False, 0, 0, why)


@pytest.mark.parametrize("size", [None, 0, 100])
def test_a_job_that_left_before_a_reboot_has_not_finished(node: Node, size: int | None) -> None:
    """Its page, which said that it left because it was asked to, is gone or cut off."""
    launch = node.starts(order(LEASED))
    shim = node.supervisor.running()[0].workers[0].shim
    page = Path(node.supervisor.running()[0].record.workers[0].page)
    node.revoke(launch)
    node.until(lambda: shim.has_ended(), "its end")
    assert node.ended(launch).yielded
    assert node.ended(launch).code == 0
    for name in ("ended.json", "stop.json"):  # as if its agent had died before it left
        (node.directory(launch) / name).unlink()
    if size is not None:
        page.write_bytes(bytes(size))
    path = node.directory(launch) / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another"}))
    node.reports.clear()
    node.restarts()
    assert (node.ended(launch).code, node.ended(launch).yielded) == (0, True)


def test_a_launch_with_a_record_of_another_version_ends(node: Node) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    path = node.directory(launch) / "record.json"
    (shim,) = [worker["pid"] for worker in json.loads(path.read_text())["workers"]]
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    node.restarts()
    assert (node.ended(launch).code, node.ended(launch).yielded) == (-9, False)
    os.waitpid(shim, 0)
    assert not node.workers(launch)


def test_what_is_set_aside_means_nothing_to_later_jobs_of_the_same_number(node: Node) -> None:
    launch: Launch = node.launch(order("print('old')", generation=3))
    with pytest.raises(OrderRefused, match="still run"):
        node.supervisor.set_aside()
    node.ended(launch)
    place = node.supervisor.set_aside()
    assert "old" in next(place.glob("1/3/0/log/*")).read_text()
    later = node.launch(order("print('new')"))
    assert node.ended(later).code == 0
    assert node.printed(later) == "new\n"
    node.restarts()
    assert not node.supervisor.has(launch.key)
    os.utime(place, (0, 0))
    assert node.supervisor.sweep(time.time()) == 1
    assert not place.exists()


DIES_AT = """
import os
effects = 0
def count(event, _):
    global effects
    effects += event == "open" or event.startswith(("os.", "subprocess."))
    if effects == {moment}:
        print("dies", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
"""


@pytest.mark.parametrize("moment", range(4, 50, 4))
def test_at_whatever_effect_an_agent_dies_a_gang_runs_once_or_not_at_all(make_node, tmp_path: Path, moment: int) -> None:
    an_agent_dies(tmp_path / "root", f"[order({RUNS_FOREVER!r}, ranks=2)]", DIES_AT.format(moment=moment))
    node: Node = make_node()
    gang = node.launch(order(RUNS_FOREVER, ranks=2))  # said again, as a control plane does that has heard nothing
    node.clock.passes(6)

    def settled() -> bool:
        assert len(node.workers(gang)) <= 2
        node.clock.passes(6)
        return len(node.workers(gang)) == 2 or bool(node.ends_of(gang))

    node.until(settled, "two workers, or the end of half a gang")
    node.kill(gang)
    node.ended(gang)
    assert not node.workers(gang)


def test_an_upgraded_agent_takes_over_a_launch_of_the_version_before(make_node, tmp_path: Path) -> None:
    """The files of a launch as the former version wrote them: its record, its request to stop, and its `lifeline`."""
    node: Node = make_node()
    launch = node.starts(order(LEASED))
    path = node.directory(launch) / "record.json"
    worker = json.loads(path.read_text())["workers"][0]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    node.supervisor.close()
    path.write_text(
        f'{{"version": 1, "job": 1, "generation": 1, "name": "job-1", "world_size": 1, "cooperative": true, "grace_s": 30.0, '
        f'"max_s": 0.0, "boot": "{boot}", "workers": [{{"rank": 0, "accelerator": 0, "pid": {worker["pid"]}, '
        f'"started": {worker["started"]}, "page": "{worker["page"]}", "cgroup": ""}}], "central": false}}'
    )
    deadline = node.root / "fencing-deadline"
    deadline.rename(node.root / "lifeline")
    node.restarts()
    assert [one.record.generation for one in node.supervisor.running()] == [1]
    assert deadline.samefile(node.root / "lifeline"), "shims of the former version read their own file"
    stop = {
        "deadline": node.clock.monotonic() + 20.0,
        "why": "killed 20 s after it was asked to stop",
        "asked": True,
        "signalled": False,
    }
    node.supervisor.close()
    (node.directory(launch) / "stop.json").write_text(json.dumps(stop))
    node.restarts()
    assert node.supervisor.running()[0].stopping
    node.clock.passes(21.0)
    assert node.ended(launch).why == stop["why"]
    ended = {"job": 1, "generation": 1, "code": 3, "yielded": False, "steps": 5, "saved": 4, "why": "status 3", "rank": 0}
    (node.directory(launch) / "ended.json").write_text(json.dumps(ended))
    node.reports.clear()
    node.restarts()
    assert node.ended(launch).code == 3
