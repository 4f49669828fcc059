"""The whole of it on this machine: a control plane with its journal, agents of two kinds, and real jobs in real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.config.registry import Registry
from fairlead.config.schedulers import FIRST_STEP_S, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.job import Phase
from fairlead.engine.state import State
from fairlead.journal.recovery import open_journal, read_journal, recover
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.http_api import create_app
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.testing import check_events

pytestmark = pytest.mark.long

PATIENCE_S = 180.0
SOURCE = str(Path(__file__).resolve().parents[2] / "src")
CLUSTER = Cluster.parse("2xv100:2,2xk80:2")
ENDED = {"finished", "failed", "cancelled", "refused"}

COUNTS = """
import os, sys, time
import fairlead

rank = os.environ["RANK"] if int(os.environ["WORLD_SIZE"]) > 1 else ""
log, steps, pause = open(sys.argv[1] + rank, "a"), int(sys.argv[2]), float(sys.argv[3])
for step in fairlead.lease(range(steps), save=lambda folder: None, every_steps=int((sys.argv[4:] or ["0"])[0])):
    print(step, file=log, flush=True)
    time.sleep(0 if os.path.exists(sys.argv[1] + ".hurry") else pause)
"""


class Together:
    """A control plane and agents in threads of this process; jobs are processes of their own."""

    def __init__(self, root: Path, cluster: Cluster = CLUSTER, **scheduler: Any) -> None:
        self.cluster = cluster
        self.root, self.where = root, str(root / "journal.sqlite")
        self.scheduler = {"policy": "las", "estimator": "measured", "rounds": 1.0, "first_step_s": FIRST_STEP_S, **scheduler}
        self.tokens = Tokens()
        self.admin = self.tokens.issue(Role.ADMIN, "root")
        self.word = self.tokens.issue(Role.AGENT, "agent")
        self.agents: list[tuple[Agent, threading.Thread]] = []
        self.script = root / "counts.py"
        self.script.write_text(COUNTS)

    async def __aenter__(self) -> Together:
        journal = open_journal(self.where)
        known = any(True for _ in journal)
        self.plane = ControlPlane(
            self.cluster,
            self.scheduler,
            lambda data: SchedulerConfig.from_data(dict(data)).build(None, Registry.installed()),
            journal,
            recover(journal)[0] if known else None,
            lease_s=90.0,
            grace_s=5.0,
            checkpoints=str(self.root / "checkpoints"),
            tokens=self.tokens,
        )
        self.port = await self.plane.start()
        transport = httpx.ASGITransport(create_app(self.plane, self.tokens))
        headers = {"Authorization": f"Bearer {self.admin}"}
        self.people = httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers)
        for number, node in enumerate(self.cluster.nodes):
            supervisor = Supervisor(self.root / f"agent-{number}", NodeAccelerators.parse(f"{node.type}:{node.accelerators}"))
            agent = Agent(supervisor, node.name, f"127.0.0.1:{self.port}", self.word)
            thread = threading.Thread(target=agent.run, daemon=True)
            thread.start()
            self.agents.append((agent, thread))
        return self

    async def __aexit__(self, *problem: object) -> None:
        for agent, thread in self.agents:
            agent.stopping.set()
            await asyncio.to_thread(thread.join)
            agent.supervisor.close()
        self.agents.clear()
        await self.people.aclose()
        await self.plane.stop()

    def counting(self, name: str, steps: int, pause: float, save_every: int = 0, **about: Any) -> dict[str, Any]:
        log = str(self.root / f"{name}.steps")
        run = [sys.executable, str(self.script), log, str(steps), str(pause), str(save_every)]
        return {"name": name, "run": run, "steps": steps, "env": {"PYTHONPATH": SOURCE}, **about}

    def hurry(self, *names: str) -> None:
        """All that was to be seen of jobs while they run has been seen: the rest of their steps take no time."""
        for name in names:
            (self.root / f"{name}.steps.hurry").touch()

    def steps_of(self, name: str, rank: str = "") -> list[int]:
        return [int(line) for line in (self.root / f"{name}.steps{rank}").read_text().split()]

    async def submit(self, *jobs: dict[str, Any]) -> None:
        answer = await self.people.post("/v1/jobs", json={"jobs": jobs})
        assert answer.status_code == 201, answer.text

    async def jobs(self) -> dict[str, dict[str, Any]]:
        return {job["name"]: job for job in (await self.people.get("/v1/jobs")).json()["jobs"]}

    async def until(self, reached: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        async def look() -> dict[str, dict[str, Any]]:
            while not reached(jobs := await self.jobs()):
                await asyncio.sleep(0.1)
            return jobs

        return await asyncio.wait_for(look(), PATIENCE_S)


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())


def all_ended(jobs: Iterable[dict[str, Any]]) -> bool:
    return all(job["phase"] in ENDED for job in jobs)


def check_journal(where: str) -> State:
    events = list(read_journal(where))
    return check_events(events, real=True)


def test_jobs_end_in_the_right_phase_and_every_step_is_done_once(tmp_path):
    async def scene() -> None:
        async with Together(tmp_path) as all_of_it:
            counts = [f"count-{n}" for n in range(6)]
            await all_of_it.submit(*(all_of_it.counting(name, 250, 0.08) for name in counts))
            await all_of_it.submit(
                {"name": "fails", "run": [sys.executable, "-c", "raise SystemExit(3)"], "retries": 1},
                all_of_it.counting("cancelled", 10_000, 0.05),
                all_of_it.counting("only-k80", 5, 0.05, types=["k80"]),
            )
            await all_of_it.until(lambda jobs: jobs["cancelled"]["starts"] > 0)
            assert (await all_of_it.people.delete("/v1/jobs/cancelled")).status_code == 200
            await all_of_it.until(lambda jobs: sum(jobs[name]["preemptions"] for name in counts) > 0)
            all_of_it.hurry(*counts)
            jobs = await all_of_it.until(lambda jobs: all_ended(jobs.values()))
        phases = {name: job["phase"] for name, job in jobs.items()}
        assert phases == {
            **dict.fromkeys(counts, "finished"),
            "fails": "failed",
            "cancelled": "cancelled",
            "only-k80": "finished",
        }
        for name in counts:
            assert all_of_it.steps_of(name) == list(range(250))
        assert jobs["fails"]["failures"] == 2, "both of its tries"
        state = check_journal(all_of_it.where)
        assert state.digest() == all_of_it.plane.loop.state.digest()

    run(scene)


def test_a_control_plane_that_comes_back_finds_its_jobs_running(tmp_path):
    async def scene() -> None:
        together = Together(tmp_path, policy="fifo")
        async with together:
            await together.submit(together.counting("long", 600, 0.05))
            await together.until(lambda jobs: jobs["long"]["steps_done"] > 5)
        before = check_journal(together.where).digest()
        async with together:
            assert together.plane.loop.state.next_number == 1
            together.hurry("long")
            jobs = await together.until(lambda jobs: all_ended(jobs.values()))
        assert (jobs["long"]["phase"], jobs["long"]["starts"]) == ("finished", 1)
        assert together.steps_of("long") == list(range(600))
        after = check_journal(together.where)
        assert after.digest() != before
        assert after.columns["phase"][0] == Phase.FINISHED

    run(scene)


def test_a_gang_on_two_nodes_stops_and_goes_on_as_one(tmp_path):
    async def scene() -> None:
        together = Together(tmp_path, Cluster.parse("4xv100:2"))
        async with together:
            await together.submit(together.counting("gang", 400, 0.05, workers=3))
            await together.until(lambda jobs: jobs["gang"]["steps_done"] > 3)
            assert len((await together.jobs())["gang"]["nodes"]) == 2
            singles = [f"single-{n}" for n in range(4)]
            await together.submit(*(together.counting(name, 300, 0.05) for name in singles))
            await together.until(lambda jobs: jobs["gang"]["preemptions"] > 0)
            together.hurry(*singles, "gang")
            jobs = await together.until(lambda jobs: all_ended(jobs.values()))
        assert {job["phase"] for job in jobs.values()} == {"finished"}
        for rank in "012":
            assert together.steps_of("gang", rank) == list(range(400))
        check_journal(together.where)

    run(scene)


def test_a_new_journal_knows_nothing_of_what_agents_have_of_the_old_one(tmp_path):
    async def scene() -> None:
        together = Together(tmp_path, policy="fifo")
        async with together:
            old = [together.counting(f"old-{n}", 10_000, 0.05, save_every=1) for n in range(2)]
            await together.submit({"name": "over", "run": [sys.executable, "-c", ""]}, *old)
            await together.until(lambda jobs: min(jobs[one["name"]]["steps_done"] for one in old) > 3)
        for path in tmp_path.glob("journal.sqlite*"):
            path.unlink()
        async with together:
            await together.submit(*(together.counting(f"new-{n}", 20, 0.01, save_every=1) for n in range(3)))
            jobs = await together.until(lambda jobs: all_ended(jobs.values()))
            logs = [str(tmp_path / f"{one['name']}.steps") for one in old]
            await together.until(lambda _: not any(map(workers_of, logs)))
            last = [together.steps_of(one["name"])[-1] for one in old]
        assert {name: job["phase"] for name, job in jobs.items()} == {f"new-{n}": "finished" for n in range(3)}
        assert [together.steps_of(f"new-{n}") for n in range(3)] == 3 * [list(range(20))]
        assert [together.steps_of(one["name"])[-1] for one in old] == last
        assert {path.name for path in tmp_path.glob("agent-*/aside/*/[0-9]")} == {"0", "1", "2"}
        check_journal(together.where)

    run(scene)


def workers_of(log: str) -> list[int]:
    """Processes of this machine that were started to write this log, those that start others left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if log.encode() in words and any(word.endswith(b"counts.py") for word in words[1:2]):
                found.append(int(path.parent.name))
    return found


def test_after_a_kill_only_steps_since_the_last_checkpoint_are_done_again(tmp_path):
    async def scene() -> None:
        together = Together(tmp_path, policy="fifo")
        async with together:
            await together.submit(together.counting("hit", 400, 0.05, save_every=5))
            await together.until(lambda jobs: jobs["hit"]["steps_done"] > 12)
            (worker,) = workers_of(str(tmp_path / "hit.steps"))
            os.kill(worker, signal.SIGKILL)
            together.hurry("hit")
            jobs = await together.until(lambda jobs: all_ended(jobs.values()))
        assert (jobs["hit"]["phase"], jobs["hit"]["failures"], jobs["hit"]["starts"]) == ("finished", 1, 2)
        steps = together.steps_of("hit")
        cut = next((at for at in range(1, len(steps)) if steps[at] != steps[at - 1] + 1), 0)
        again = steps[cut]  # 0 where the kill came between a save and the next step: nothing is done again
        assert steps == ([*range(steps[cut - 1] + 1), *range(again, 400)] if cut else list(range(400)))
        assert again % 5 == 0
        assert not cut or steps[cut - 1] + 1 - again <= 5
        check_journal(together.where)

    run(scene)
