"""Gangs: all workers stop after the same step, in whatever order they are, and none hangs when another dies."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import threading
from pathlib import Path

import pytest
from fake_agent import Agent, Worker, lines, until

from fairlead.client.gang import Follower
from fairlead.client.lease_page import Field, Stage
from foundry import free_port

SCRIPT = """
import os, random, sys, time
from pathlib import Path
import fairlead
from fairlead.client import Patience

rank, log, steps, pace = os.environ["RANK"], Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
answer_s = float(os.environ.get("ANSWER_S", "30"))
chance = random.Random(f"{pace} {rank}")
every_rank = "EVERY_RANK" in os.environ

def save(folder):
    (folder / f"part-{rank}").write_text(log.with_name(f"{log.name}.{rank}").read_text().split()[-1])

def load(folder):
    assert (folder / f"part-{rank if every_rank else 0}").exists()

patience = Patience(start_s=120, answer_s=answer_s)
if "FORKS" in os.environ and not os.fork():
    while os.read(0, 1):
        pass
    os._exit(0)

lease = fairlead.lease(range(steps), load=load, save=save, every_rank=every_rank, patience=patience)
for number in lease:
    if pace == "paced":
        sys.stdin.read(1)
    else:
        time.sleep(chance.random() ** 3 * 0.004)
    if pace == "breaks" and number == 3:
        break
    if pace == "fails" and number == 3 and rank == "1":
        raise ArithmeticError("of its own")
    with log.with_name(f"{log.name}.{rank}").open("a") as file:
        file.write(f"{number}\\n")
if pace == "breaks":
    print("out of the loop", flush=True)
    sys.stdin.read(1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def together(gang: list[Worker], log: Path) -> int:
    """All left well and after the same step; which."""
    for worker in gang:
        assert worker.ends() == 0, worker.errors
    steps = {worker.page[Field.STEPS] for worker in gang}
    assert len(steps) == 1
    (last,) = steps
    for worker in gang:
        assert worker.page[Field.SAVED] == last
        assert lines(log.with_name(f"{log.name}.{worker.rank}")) == list(range(last))
    return last


@pytest.mark.parametrize("ahead", list(itertools.permutations((0, 2, 5))), ids=str)
def test_whoever_is_ahead_all_stop_after_one_step(agent: Agent, script: Path, tmp_path: Path, ahead: tuple[int, ...]) -> None:
    log = tmp_path / "log"
    gang = agent.launch_gang(3, script, log, "1000", "paced")
    for worker, steps in zip(gang, ahead):
        worker.pace(steps)
        worker.reaches(steps)
    until(lambda: all(worker.stage == Stage.RUNNING for worker in gang))
    gang[0].revoke()
    gang[0].pace(1)
    gang[0].reaches(ahead[0] + 1)
    for worker in gang:
        worker.pace(1000)
    last = together(gang, log)
    assert max(ahead) < last < 1000
    assert {worker.stage for worker in gang} == {Stage.YIELDED}
    assert [folder.name for folder in agent.checkpoints.iterdir()] == [f"step-{last}"]


def test_a_gang_with_steps_of_random_length_does_each_step_once_over_preemptions(
    agent: Agent, script: Path, tmp_path: Path
) -> None:
    log, chance, done = tmp_path / "log", random.Random(0), 0
    for launch in range(4):
        gang = agent.launch_gang(3, script, log, "100000", str(launch))
        gang[0].reaches(done + chance.randrange(1, 40))
        gang[0].revoke()
        done = together(gang, log)
        assert {worker.stage for worker in gang} == {Stage.YIELDED}
    gang = agent.launch_gang(3, script, log, str(done + 20), "last")
    assert together(gang, log) == done + 20
    assert {worker.stage for worker in gang} == {Stage.FINISHED}


def test_a_revocation_that_reaches_another_worker_is_passed_on(agent: Agent, script: Path, tmp_path: Path) -> None:
    gang = agent.launch_gang(3, script, tmp_path / "log", "100000", "free")
    gang[2].reaches(3)
    gang[2].revoke()
    together(gang, tmp_path / "log")
    assert {worker.stage for worker in gang} == {Stage.YIELDED}


def test_revocations_that_reach_all_workers_at_once_are_one(agent: Agent, script: Path, tmp_path: Path) -> None:
    gang = agent.launch_gang(3, script, tmp_path / "log", "100000", "free")
    gang[2].reaches(3)
    for worker in gang:
        worker.revoke()
    together(gang, tmp_path / "log")
    assert {worker.stage for worker in gang} == {Stage.YIELDED}


def test_every_worker_writes_its_part_of_one_checkpoint(agent: Agent, script: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        gang = agent.launch_gang(3, script, log, "100000", "free", environment={"EVERY_RANK": "1"})
        gang[0].reaches(gang[0].page[Field.SAVED] + 3)
        gang[0].revoke()
        last = together(gang, log)
        parts = [(agent.checkpoints / f"step-{last}" / f"part-{rank}").read_text() for rank in range(3)]
        assert parts == [str(last - 1)] * 3


@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_worker_is_killed_the_others_fail_at_their_next_step(
    agent: Agent, script: Path, tmp_path: Path, victim: int
) -> None:
    gang = agent.launch_gang(3, script, tmp_path / "log", "100000", "free")
    gang[victim].reaches(3)
    gang[victim].kill()
    for worker in gang[:victim] + gang[victim + 1 :]:
        assert worker.ends() == 1
        assert "is gone" in worker.errors
        assert worker.stage not in (Stage.YIELDED, Stage.FINISHED)


def test_a_killed_worker_is_missed_though_its_own_children_live_on(agent: Agent, script: Path, tmp_path: Path) -> None:
    """As those of a data loader do for a while."""
    gang = agent.launch_gang(2, script, tmp_path / "log", "100000", "free", environment={"FORKS": "1"})
    gang[1].reaches(3)
    gang[1].kill()
    assert (gang[0].ends(), "worker 1 is gone" in gang[0].errors) == (1, True)


def test_when_a_worker_fails_the_others_fail_too(agent: Agent, script: Path, tmp_path: Path) -> None:
    gang = agent.launch_gang(3, script, tmp_path / "log", "100000", "fails")
    assert [worker.ends() for worker in gang] == [1, 1, 1]
    assert "ArithmeticError: of its own" in gang[1].errors
    assert "worker 1 is gone" in gang[0].errors
    assert "worker 1 is gone" in gang[2].errors


def test_workers_that_all_leave_their_loops_by_themselves_end_well(agent: Agent, script: Path, tmp_path: Path) -> None:
    gang = agent.launch_gang(3, script, tmp_path / "log", "100000", "breaks", environment={"ANSWER_S": "5"})
    for worker in gang:
        assert worker.process.stdout
        assert worker.process.stdout.readline() == b"out of the loop\n"
    for worker in gang:
        worker.pace(1)
        assert worker.ends() == 0, worker.errors
        assert worker.stage == Stage.RUNNING


def test_workers_with_nobody_to_tell_leave_saving_to_the_first(agent: Agent, script: Path, tmp_path: Path) -> None:
    for rank in (1, 0):
        worker = agent.launch(script, tmp_path / "log", "5", "free", rank=rank, environment={"WORLD_SIZE": "2"})
        assert (worker.ends(), worker.stage, worker.page[Field.SAVED]) == (0, Stage.FINISHED, 0 if rank else 5)


def test_a_worker_that_hangs_in_a_step_is_ended_when_another_has_died(agent: Agent, script: Path, tmp_path: Path) -> None:
    gang = agent.launch_gang(2, script, tmp_path / "log", "100", "paced", environment={"ANSWER_S": "0.05"})
    until(lambda: all(worker.stage == Stage.RUNNING for worker in gang))
    gang[1].kill()
    assert gang[0].ends() == 75
    assert "worker 1 is gone; this worker does not end its step and is stopped" in gang[0].errors


def test_a_worker_that_does_not_answer_does_not_hold_the_others_for_ever(agent: Agent, script: Path, tmp_path: Path) -> None:
    gang = agent.launch_gang(3, script, tmp_path / "log", "100000", "free", environment={"ANSWER_S": "20"})
    gang[0].reaches(3)
    gang[1].process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, gang[1].process.pid, os.WSTOPPED | os.WNOWAIT)
    gang[0].revoke()
    assert gang[0].ends() == 1
    assert "worker 1 did not answer within 20 s" in gang[0].errors
    assert gang[2].ends() == 1
    assert "worker 1 did not answer within 20 s" in gang[2].errors


@pytest.mark.parametrize("variable", ["FAIRLEAD_GANG_TOKEN", "FAIRLEAD_GENERATION"])
def test_a_worker_with_another_token_or_generation_is_refused(
    agent: Agent, script: Path, tmp_path: Path, variable: str
) -> None:
    port = str(free_port())
    common = {"WORLD_SIZE": "2", "FAIRLEAD_GANG_PORT": port}
    command = (script, tmp_path / "log", "100", "paced")
    is_leader = agent.launch(*command, environment={**common, variable: "2"})
    stranger = agent.launch(*command, rank=1, environment={**common, variable: "1"})
    assert stranger.ends() == 1
    assert "worker 0 refuses this worker" in stranger.errors
    other = agent.launch(*command, rank=1, environment={**common, variable: "2"})
    until(lambda: is_leader.stage == other.stage == Stage.RUNNING)


def test_strangers_that_say_nothing_or_nonsense_do_not_disturb(agent: Agent, script: Path, tmp_path: Path) -> None:
    port = free_port()
    common = {"WORLD_SIZE": "2", "FAIRLEAD_GANG_PORT": str(port)}
    is_leader = agent.launch(script, tmp_path / "log", "5", "free", environment=common)
    talks = []

    def connected() -> bool:
        try:
            talks.append(socket.create_connection(("127.0.0.1", port)))
        except OSError:
            return False
        return len(talks) == 4

    until(connected)
    for talk, said in zip(talks[1:], (b"GET / HTTP/1.1\r\n\r\n", b"[" * 100_000, b"[" * 4000 + b"\n")):
        with contextlib.suppress(OSError):  # the worker hangs up before it has read all
            talk.sendall(said)
    other = agent.launch(script, tmp_path / "log", "5", "free", rank=1, environment=common)
    assert (is_leader.ends(), other.ends(), is_leader.errors) == (0, 0, "")
    for talk in talks:
        talk.close()


def test_workers_that_do_not_see_the_same_checkpoints_do_not_begin(agent: Agent, script: Path, tmp_path: Path) -> None:
    gang = agent.launch_gang(2, script, tmp_path / "log", "100000", "free")
    gang[0].reaches(2)
    gang[0].revoke()
    last = together(gang, tmp_path / "log")
    common = {"WORLD_SIZE": "2", "FAIRLEAD_GANG_PORT": str(free_port())}
    agent.launch(script, tmp_path / "log", "100000", "free", environment=common)
    elsewhere = {**common, "FAIRLEAD_CHECKPOINT_DIR": str(tmp_path / "elsewhere")}
    other = agent.launch(script, tmp_path / "log", "100000", "free", rank=1, environment=elsewhere)
    assert other.ends() == 1
    assert f"worker 0 begins at step {last}, and no checkpoint of it is here" in other.errors


def test_keys_of_a_message_that_are_unknown_are_ignored() -> None:
    follower = object.__new__(Follower)
    follower._received, follower._condition = {}, threading.Condition()
    follower._handle({"go": 1, "of a later version": "text"})
    assert follower._received == {"go": 1}
