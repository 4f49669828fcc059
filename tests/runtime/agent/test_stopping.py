"""How a job is asked to stop, and what happens to those who do not."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_node import IGNORES_SIGTERM, LEASED, OPENS, PATIENCE_S, RUNS_FOREVER, Node, order

from fairlead.client.lease_page import Field, Page
from fairlead.runtime.agent.processes import Process, find_process, send_signal
from fairlead.runtime.agent.settings import AgentSettings
from fairlead.runtime.agent.shim import EXIT
from fairlead.runtime.protocol.orders import Extend, Launch, RenewalRequest

SAVES_WHEN_ASKED = """
import os, signal, sys
def save(*_):
    open(os.environ["FAIRLEAD_CHECKPOINT_DIR"] + "/saved", "w").write("42")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True: signal.pause()
"""

LEAVES_OTHERS = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        while True: signal.pause()
    os._exit(0)
os.wait()
print("up", flush=True)
"""


def _stop_file(node: Node, launch: Launch) -> dict[str, Any]:
    return json.loads((node.directory(launch) / "stop.json").read_text())


def test_a_cooperative_job_is_told_on_its_page_and_yields(node: Node) -> None:
    launch = node.starts(order(LEASED))
    node.until(lambda: any(progress.steps > 2 for progress in node.progress()), "progress")
    node.revoke(launch)
    end = node.ended(launch)
    assert (end.code, end.yielded, end.why) == (0, True, "")
    assert end.steps == end.saved > 2
    assert node.progress()[-1].saved == end.saved
    assert node.progress()[-1].rate > 0


def test_only_the_first_worker_of_a_gang_is_told(node: Node) -> None:
    gang = node.starts(order(OPENS + RUNS_FOREVER, ranks=2))
    rest = node.starts(replace(order(RUNS_FOREVER, job=2), ranks=(1,), world_size=2))
    node.revoke(gang)
    node.revoke(rest)

    def revoked(launch, rank):
        return Page(node.directory(launch) / str(rank) / "lease")[Field.REVOKED]

    assert (revoked(gang, 0), revoked(gang, 1), revoked(rest, 1)) == (1, 0, 0)
    assert all(running.stopping for running in node.supervisor.running())
    node.clock.passes(31)
    assert "killed 30 s after it was asked to stop" in node.ended(rest).why


def test_a_script_that_knows_no_lease_gets_sigterm_and_may_save(node: Node) -> None:
    launch = node.starts(order(SAVES_WHEN_ASKED, cooperative=False))
    node.revoke(launch)
    end = node.ended(launch)
    assert (end.code, end.yielded) == (0, True)
    assert (node.root / "jobs/1/checkpoints/saved").read_text() == "42"


@pytest.mark.parametrize("status", [0, 1])
def test_a_job_that_has_not_opened_its_lease_gets_sigterm_at_once_and_has_yielded(node: Node, status: int) -> None:
    launch = node.starts(order(SAVES_WHEN_ASKED.replace("sys.exit(0)", f"sys.exit({status})")))
    node.revoke(launch)
    end = node.ended(launch)
    assert (end.code, end.yielded) == (0, True)
    assert (node.root / "jobs/1/checkpoints/saved").read_text() == "42"


@pytest.mark.parametrize(("status", "cooperative"), [(0, True), (3, True), (0, False)])
def test_a_script_that_ended_before_it_was_asked_to_stop_has_not_yielded(node: Node, status: int, cooperative: bool) -> None:
    launch = node.launch(order(f"raise SystemExit({status})", cooperative=cooperative))
    deadline = time.monotonic() + PATIENCE_S
    while not (node.directory(launch) / "0" / EXIT).exists() and time.monotonic() < deadline:
        time.sleep(0.01)  # without a poll: the agent does not know it yet
    node.revoke(launch)
    end = node.ended(launch)
    assert (end.code, end.yielded) == (status, False)


def test_a_job_that_has_opened_its_lease_may_make_its_first_step(node: Node) -> None:
    launch = node.starts(order(OPENS + RUNS_FOREVER, grace_s=20))
    with node.clock.stopped():
        node.revoke(launch)
        node.clock.passes(19)
        node.reports += node.supervisor.poll()
        assert node.workers(launch)


def test_a_script_that_dies_of_sigterm_has_yielded_too(node: Node) -> None:
    launch = node.starts(order(RUNS_FOREVER, cooperative=False, ranks=2))
    node.revoke(launch)
    assert node.ended(launch).yielded


def test_a_script_that_was_not_asked_and_dies_of_sigterm_has_failed(node: Node) -> None:
    launch = node.starts(order(RUNS_FOREVER, cooperative=False))
    (pid,) = node.workers(launch)
    os.kill(pid, signal.SIGTERM)
    end = node.ended(launch)
    assert (end.code, end.yielded, end.why) == (-15, False, "worker 0 was ended by SIGTERM")


@pytest.mark.parametrize("first", ["job", "shim"])
@pytest.mark.parametrize("status", [0, 7])
def test_a_script_that_gets_the_signal_of_its_shim_was_asked_to_stop(
    make_node: Callable[..., Node], status: int, first: str
) -> None:
    """As from Slurm, which signals every process, in any order; the shim may get it when its script has ended."""
    node = make_node(AgentSettings(settle_s=PATIENCE_S))  # it waits no longer than until the signal is there
    launch = node.starts(order(SAVES_WHEN_ASKED.replace("sys.exit(0)", f"os._exit({status})"), cooperative=False))
    (worker,) = node.workers(launch)
    shim = find_process(worker).parent
    for pid in (worker, shim) if first == "job" else (shim, worker):
        os.kill(pid, signal.SIGTERM)
    end = node.ended(launch)
    assert (end.code, end.yielded) == (0, True)


def test_a_shim_that_gets_sigterm_lives_on_and_asks_a_job_with_a_lease_to_leave(node: Node) -> None:
    launch = node.starts(order(LEASED))
    node.until(lambda: any(progress.steps > 2 for progress in node.progress()), "progress")
    (worker,) = node.workers(launch)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
        os.kill(find_process(worker).parent, number)
    end = node.ended(launch)
    assert (end.code, end.yielded, end.saved) == (0, True, end.steps)


def test_jobs_start_with_sigusr1_ignored_and_no_signal_blocked(node: Node) -> None:
    ignored = "signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN"
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, ())"
    launch = node.starts(order(f"import signal; print({ignored}, {blocked}, flush=True)"))
    assert node.printed(launch) == "True set()\n"
    assert node.ended(launch).code == 0


def test_a_script_that_was_asked_before_its_agent_died_on_a_full_disk_has_not_finished(node: Node) -> None:
    launch = node.starts(order(SAVES_WHEN_ASKED, cooperative=False))
    node.revoke(launch)
    (node.directory(launch) / "stop.json").unlink()  # as if it had never been written
    node.supervisor.close()
    deadline = time.monotonic() + PATIENCE_S
    while not (node.directory(launch) / "0" / EXIT).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    node.restarts()
    assert node.ended(launch).yielded


@pytest.mark.parametrize("cooperative", [True, False])
def test_who_does_not_stop_within_its_grace_is_killed(node: Node, cooperative: bool) -> None:
    launch = node.starts(order(IGNORES_SIGTERM, cooperative=cooperative, grace_s=20))
    with node.clock.stopped():
        node.revoke(launch)
        node.clock.passes(19)
        node.reports += node.supervisor.poll()
        assert node.workers(launch)
        node.revoke(launch)  # asking again gives no more time
        node.clock.passes(2)
    end = node.ended(launch)
    assert (end.code, end.yielded, end.why) == (-9, True, "killed 20 s after it was asked to stop")


def test_kill_ends_a_job_at_once(node: Node) -> None:
    launch = node.starts(order(IGNORES_SIGTERM, ranks=2))
    node.kill(launch)
    end = node.ended(launch)
    assert (end.code, end.why) == (-9, "killed at the request of the control plane")
    assert not node.workers(launch)


def test_a_job_killed_before_it_began_never_begins(node: Node, tmp_path: Path) -> None:
    launch = node.launch(order(f"open({str(tmp_path / 'began')!r}, 'w')\n" + RUNS_FOREVER))
    node.kill(launch)
    assert node.ended(launch).code == -9
    assert not node.workers(launch)


def test_a_script_revoked_before_it_began_has_yielded(node: Node) -> None:
    launch = node.launch(order(RUNS_FOREVER, cooperative=False))
    node.revoke(launch)
    assert node.ended(launch).yielded


def test_nobody_escapes_by_leaving_the_group_the_session_and_the_parent(node: Node) -> None:
    launch = node.starts(order(LEAVES_OTHERS + RUNS_FOREVER))
    assert len(node.workers(launch)) == 2
    node.kill(launch)
    node.ended(launch)
    assert not node.workers(launch)


def test_what_a_job_leaves_behind_ends_with_it(node: Node) -> None:
    launch = node.launch(order(LEAVES_OTHERS))
    assert node.ended(launch).code == 0
    assert not node.workers(launch)


def test_a_job_that_keeps_forking_is_killed(node: Node) -> None:
    breeds = """
import os, signal, time
print("up", flush=True)
for _ in range(300):
    if os.fork(): signal.pause()
    time.sleep(0.001)
"""
    launch = node.starts(order(breeds))
    node.kill(launch)
    node.ended(launch)
    assert not node.workers(launch)


FLEES = """
import os
print("up", flush=True)
while True:
    if os.fork(): os._exit(0)
    {leave}
"""


def test_a_job_that_flees_from_process_to_process_is_killed_with_its_group(node: Node) -> None:
    launch = node.launch(order("import os\nif os.fork(): os.wait()\n" + FLEES.format(leave="pass")))
    node.until(lambda: node.printed(launch), "a first word")
    node.kill(launch)
    node.ended(launch)
    assert not node.workers(launch)


def test_a_control_group_holds_whoever_leaves_everything_else(make_node: Callable[..., Node]) -> None:
    groups = next((path for path in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")) if _is_ours(path)), None)
    if groups is None:
        pytest.skip("no control group (version 2) that can be written")
    mine = groups / f"fairlead-test-{os.getpid()}"
    mine.mkdir()
    try:
        node = make_node(AgentSettings(cgroup=mine))
        launch = node.launch(order(f"import os, signal\nif os.fork(): signal.pause()\n{FLEES.format(leave='os.setsid()')}"))
        node.until(lambda: node.printed(launch), "a first word")
        node.kill(launch)
        node.clock.passes(6)
        assert node.ended(launch).code == -9
        assert not node.workers(launch)
        done = node.launch(order(job=2))
        assert node.ended(done).code == 0
        assert not [path for path in mine.iterdir() if path.is_dir()]
    finally:
        mine.rmdir()


def _is_ours(path: Path) -> bool:
    return (path / "cgroup.procs").exists() and os.access(path, os.W_OK)


def test_a_worker_that_fails_takes_its_siblings_along_after_a_short_grace(node: Node) -> None:
    script = (
        "import os, sys, signal\nprint('up', flush=True)\nif os.environ['RANK'] == '1': sys.exit(3)\nwhile True: signal.pause()"
    )
    with node.clock.stopped():
        gang = node.starts(order(script, ranks=3))
        node.until(lambda: len(node.workers(gang)) == 2, "the failure")
        node.until(lambda: node.supervisor.running()[0].stopping, "the failure being seen")
        assert not node.ends_of(gang)
        node.clock.passes(6)
    end = node.ended(gang)
    assert (end.code, end.why) == (3, "worker 1 ended with status 3")


def test_a_job_that_overstays_its_bound_is_killed(node: Node) -> None:
    script = LEASED.replace("not page[Field.REVOKED]", "True")
    launch = node.starts(order(script, max_s=1000.0, max_steps=7, grace_s=400))  # its time counts from its own first step on
    page = Page(node.directory(launch) / "0" / "lease")
    assert (page[Field.MAX_MS], page[Field.MAX_STEPS], page[Field.RENEWALS]) == (1_000_000, 7, 0)
    node.until(lambda: node.progress(), "progress")
    node.clock.passes(1200)
    assert not node.supervisor.poll() or node.supervisor.running()
    node.supervisor.carry_out(Extend(1, 1, 1, 9, 2000.0))
    assert (page[Field.MAX_MS], page[Field.MAX_STEPS], page[Field.RENEWALS]) == (2_000_000, 9, 1)
    node.clock.passes(1000)
    node.reports += node.supervisor.poll()
    assert not node.supervisor.running()[0].stopping
    node.clock.passes(200)
    assert node.ended(launch).why == "killed 400 s after its 2000 s were over"


WANTING = LEASED.replace("print(", "page[Field.WANTS_MORE] = 1\nprint(")


def test_who_wants_more_is_told_of_until_it_is_answered_and_answers_count_once(node: Node) -> None:
    launch = node.starts(order(WANTING, max_steps=10))
    page = Page(node.directory(launch) / "0" / "lease")
    with node.clock.stopped():
        node.until(lambda: RenewalRequest(1, 1, 1) in node.reports, "the question")
        node.reports.clear()
        assert RenewalRequest(1, 1, 1) not in node.supervisor.poll()
        node.clock.passes(1.1)
        assert RenewalRequest(1, 1, 1) in node.supervisor.poll()
    for _ in range(2):
        node.supervisor.carry_out(Extend(1, 1, 1, 20, 0.0))
    assert (page[Field.MAX_STEPS], page[Field.RENEWALS]) == (20, 1)
    node.supervisor.carry_out(Extend(1, 2, 2, 30, 0.0))
    assert page[Field.MAX_STEPS] == 20, "of another generation"
    node.clock.passes(5)
    assert RenewalRequest(1, 1, 1) not in node.supervisor.poll()


def test_who_is_asked_to_stop_does_not_ask_for_more(node: Node) -> None:
    launch = node.starts(order(WANTING.replace("not page[Field.REVOKED]", "True"), max_steps=10))
    node.revoke(launch)
    node.reports.clear()
    node.clock.passes(5)
    assert RenewalRequest(1, 1, 1) not in node.supervisor.poll()


def test_the_time_of_a_renewed_lease_counts_anew_under_the_next_agent(node: Node) -> None:
    script = LEASED.replace("not page[Field.REVOKED]", "True")
    launch = node.starts(order(script, max_s=100.0, grace_s=10))
    node.until(lambda: node.progress(), "progress")
    node.supervisor.carry_out(Extend(1, 1, 1, 0, 200.0))
    node.clock.passes(150)
    node.restarts()
    node.supervisor.poll()
    assert not node.supervisor.running()[0].stopping
    node.clock.passes(111)
    assert node.ended(launch).why == "killed 10 s after its 100 s were over"


def test_a_shim_that_dies_takes_its_worker_along(node: Node) -> None:
    launch = node.starts(order(LEAVES_OTHERS + RUNS_FOREVER))
    (shim,) = {find_process(pid).parent for pid in node.workers(launch)}
    os.kill(shim, signal.SIGKILL)
    end = node.ended(launch)
    assert (end.code, end.why) == (-9, "worker 0: its supervisor process was killed")
    assert not node.workers(launch)


def test_a_shim_that_was_stopped_does_not_hold_up_a_kill(node: Node) -> None:
    launch = node.starts(order(RUNS_FOREVER))
    (worker,) = node.workers(launch)
    os.kill(find_process(worker).parent, signal.SIGSTOP)
    node.kill(launch)
    node.clock.passes(6)
    assert node.ended(launch).code == -9


def test_stop_all_asks_everybody_with_one_grace(node: Node) -> None:
    launches = [node.starts(order(LEASED)), node.starts(order(IGNORES_SIGTERM, job=2, cooperative=False))]
    node.supervisor.stop_all(3.0)
    assert node.ended(launches[0]).yielded
    node.clock.passes(4)
    assert node.ended(launches[1]).why == "killed 3 s after it was asked to stop"
    assert not node.supervisor.running()


def test_who_never_looked_at_its_lease_leaves_at_once_when_everything_is_to_stop(node: Node) -> None:
    never, ranks = node.starts(order(RUNS_FOREVER)), node.starts(order(RUNS_FOREVER, job=2, ranks=2))
    ignores = node.starts(order(IGNORES_SIGTERM, job=3, grace_s=3))
    works = node.starts(order(LEASED, job=4))
    node.until(lambda: any(progress.job == 4 and progress.steps > 2 for progress in node.progress()), "progress")
    node.supervisor.stop_all()
    for launch in (never, ranks):
        end = node.ended(launch)
        assert (end.code, end.yielded) == (0, True)
    end = node.ended(works)
    assert (end.yielded, end.saved) == (True, end.steps), "it was told on its page alone"
    node.clock.passes(4)
    assert node.ended(ignores).why == "killed 3 s after it was asked to stop"


def test_who_was_asked_before_it_looked_at_its_lease_leaves_too_when_everything_is_to_stop(node: Node) -> None:
    asked = node.starts(order(OPENS + RUNS_FOREVER))
    works = node.starts(order(IGNORES_SIGTERM, job=2, cooperative=False, grace_s=20))
    for launch in (asked, works):
        node.revoke(launch)
        assert not _stop_file(node, launch)["signalled"]
    node.supervisor.stop_all(10.0)
    stops = [_stop_file(node, launch) for launch in (asked, works)]
    assert [stop["signalled"] for stop in stops] == [True, False], "of who knows no lease it is not told apart"
    assert stops[0]["deadline"] == stops[1]["deadline"] <= node.clock.monotonic() + 10.0
    assert node.ended(asked).yielded
    node.clock.passes(11)
    assert node.ended(works).why == "killed 10 s after it was asked to stop"


def test_an_agent_whose_lease_ran_out_stops_everything_by_itself(node: Node) -> None:
    launches = [node.starts(order(LEASED)), node.starts(order(IGNORES_SIGTERM, job=2, grace_s=7))]
    node.supervisor.end_leases()
    assert node.ended(launches[0]).yielded
    node.clock.passes(8)
    assert node.ended(launches[1]).why == "killed 7 s after it was asked to stop"


def test_a_process_that_has_another_start_time_is_not_signalled() -> None:
    myself = find_process(os.getpid())
    assert myself is not None
    assert not send_signal(Process(myself.pid, myself.started - 1), signal.SIGKILL)


def test_orders_for_what_was_never_here_do_nothing(node: Node) -> None:
    node.revoke(order(job=5))
    node.kill(order(job=5))
    node.supervisor.carry_out(Extend(5, 1, 1, 0, 0.0))
    assert node.supervisor.poll() == []


def test_who_fails_when_asked_has_failed_however_long_the_others_stay(node: Node) -> None:
    script = (
        "import os, time\n"
        f"{OPENS}\n"
        "print('up', flush=True)\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not page[Field.REVOKED]: time.sleep(0.01)\n"
        "    raise SystemExit(3)\n"
        "time.sleep(600)\n"
    )
    gang = node.starts(order(script, ranks=2, grace_s=20))
    with node.clock.stopped():
        node.revoke(gang)
        node.until(lambda: list(node.root.rglob("exit.json")), "the first to fail")
        node.clock.passes(21)
    end = node.ended(gang)
    assert (end.code, end.yielded) == (3, False)
