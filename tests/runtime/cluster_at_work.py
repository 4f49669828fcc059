"""A cluster of real processes to do harm to: a control plane and agents that can be killed and started again, jobs that write
down every step and notice when they run twice at once. `check` says whether all that must hold after any harm does:

- no job that was acknowledged is lost, and each ends in its phase;
- none ran twice at once;
- what has ended stays ended as it did;
- every step was done, and steps only again where a job was killed, from its last checkpoint on;
- the journal replays to the state of the control plane, byte for byte."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.demo.demo_cluster import a_dozen
from fairlead.engine.apply import apply_event, replay_events
from fairlead.journal.recovery import read_journal
from fairlead.testing import check_events
from foundry import SOURCE, ends, foundry, free_port, has_ended

PATIENCE_S = 180.0
AGAIN_S = 5.0  # for requests that a control plane, which runs, does not answer
PLUGINS = Path(__file__).with_name("process_engine_plugin")
LOOK_S = 0.05
ENDED = {"finished", "failed", "cancelled", "refused"}

JOB = """
import fcntl, json, os, sys, time
import fairlead

about = json.loads(sys.argv[1])
rank = os.environ["RANK"] if int(os.environ["WORLD_SIZE"]) > 1 or about["elastic"] else ""
lock = open(about["name"] + ".lock" + rank, "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    with open("twice", "a") as twice:
        print(about["name"], os.environ["FAIRLEAD_GENERATION"], file=twice, flush=True)
launch = ".{FAIRLEAD_GENERATION}.{WORLD_SIZE}.{RANK}".format_map(os.environ)
log = open(about["name"] + ".steps" + (launch if about["elastic"] else rank), "a")
lease = fairlead.lease(range(about["steps"]), save=lambda folder: None, every_steps=about["save_every"])
for step in lease:
    if about["double_every"]:
        lease.batch_size = 32 * 2 ** (step // about["double_every"])
    if step == about["fails_at"] and rank in ("", "0") and not os.path.exists(about["name"] + ".failed"):
        open(about["name"] + ".failed", "w").close()
        sys.exit(9)
    print(step, file=log, flush=True)
    fairlead.report(loss=1 / (1 + step))
    time.sleep(0 if os.path.exists(about["name"] + ".hurry") else about["step_s"])
"""


class Gone(Exception):
    """The control plane does not answer."""


class ClusterAtWork:
    """`with ClusterAtWork(folder) as cluster:` has a control plane and all agents running. At the end of a good scene `check`
    is called; whatever happened, all processes are gone then."""

    scheme = "http"

    def __init__(
        self,
        root: Path,
        machines: str = "2xv100:2,2xk80:2",
        policy: str = "las",
        round_s: float = 0.5,
        lease_s: float = 20.0,
        grace_s: float = 10.0,
        embedded: bool = False,
        journal: str = "",
        preset: str = "",
        engine: str = "",
    ) -> None:
        """`embedded`: all of it by `fairlead up`; there are no agents to kill one by one then. With `preset`, the policy is
        that one's. Without `machines`, nodes come by themselves. An `engine` of plain processes starts all agents."""
        self.root, self.cluster, self._machines = root, Cluster.parse(machines) if machines else Cluster(()), machines
        who = ["--preset", preset] if preset else ["--policy", policy]
        self._command = ["up" if embedded else "serve", *who, "--round", str(round_s)]
        self._command += [] if embedded else ["--lease", str(lease_s), "--grace", str(grace_s)]
        self._command += ["--journal", journal] if journal else []
        self._command += ["--engine", engine] if engine else []
        self._embedded, self._engine = embedded, engine
        self.http, self.port = free_port(), free_port()
        self.journal = root / "plane" / "journal.sqlite"
        self._journal = journal or str(self.journal)
        self.plane = 0
        self.agents: dict[str, int] = {}
        self.expected: dict[str, str] = {}  # of acknowledged jobs: the phase each must end in
        self.harmed: set[str] = set()  # jobs that were killed, and may do steps again
        self._about: dict[str, dict[str, Any]] = {}
        self._workers: dict[str, int] = {}
        self._ended: dict[str, str] = {}
        (root / "job.py").write_text(JOB)

    def __enter__(self) -> ClusterAtWork:
        try:
            self.start_plane()
            for node in () if self._embedded else self.cluster.nodes:
                self.start_agent(node.name)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self._end()

    # Processes.

    def start_plane(self, death: str = "", wait: bool = True, **more: str) -> None:
        words = [*self._command, *(["--cluster", self._machines] if self._machines else []), "--root", str(self.root / "plane")]
        more |= {"plugins": str(PLUGINS)} if self._engine else {}
        words += ["--http", f"127.0.0.1:{self.http}", "--agents", f"127.0.0.1:{self.port}"]
        self.plane = foundry().make(words, self.root / "plane.log", death=death, **more)
        if wait:
            self.until_there()

    def until_there(self) -> None:
        wait_for(lambda: has_ended(self.plane) or _listens(self.http), "the control plane listens", self._logs)

    def kill_plane(self) -> None:
        os.kill(self.plane, signal.SIGKILL)
        self.plane_ended()

    def plane_ended(self, of: str = "") -> int:
        """Waits for the control plane's end: its exit status, or the negative signal."""
        assert ends(self.plane, PATIENCE_S), f"the control plane does not end, of {of}\n{self._logs()}"
        status = foundry().status(self.plane)
        self.plane = 0
        return status

    def start_agent(self, node: str, through: int | None = None, temporary: bool = False) -> None:
        (about,) = (one for one in self.cluster.nodes if one.name == node)
        words = ["agent", "--control", f"127.0.0.1:{through or self.port}", "--node", node, "--end-jobs"]
        words += ["--accelerators", f"{about.type}:{about.accelerators}", "--root", str(self.root / node)]
        words += [
            "--token-file",
            str(self.root / "plane" / "agent.token"),
            *(["--temporary", "--remove-root"] if temporary else []),
        ]
        self.agents[node] = foundry().make(words, self.root / f"{node}.log")

    def end_agent(self, node: str, number: signal.Signals = signal.SIGKILL) -> None:
        pid = self.agents.pop(node)
        os.kill(pid, number)
        assert ends(pid, PATIENCE_S), f"the agent does not end\n{self._logs()}"
        foundry().status(pid)

    # People.

    def job(
        self,
        name: str,
        steps: int = 10,
        step_s: float = 0.05,
        save_every: int = 0,
        fails_at: int = -1,
        double_every: int = 0,
        **about: Any,
    ) -> dict[str, Any]:
        """A task that counts; `fails_at` is a step at which it fails, the first time it comes there. With `double_every` its
        batch size doubles after so many steps."""
        what = {"name": name, "steps": steps, "step_s": step_s, "save_every": save_every, "fails_at": fails_at}
        what |= {"double_every": double_every, "elastic": about.get("mode") == "elastic"}
        self._about[name], self._workers[name] = what, about.get("workers", 1)
        run = [sys.executable, str(self.root / "job.py"), json.dumps(what)]
        environment = {"PYTHONPATH": SOURCE}
        told = {"name": name, "kind": name, "run": run, "steps": steps, "env": environment, "directory": str(self.root)}
        return {**told, **about}

    def submit(self, *jobs: dict[str, Any], ends: str = "finished") -> None:
        self.ask("POST", "/v1/jobs", {"jobs": jobs})
        self.expected.update((job["name"], ends) for job in jobs)

    def run_the_dozen(
        self, widen: int = 2, seen: Callable[[dict[str, dict[str, Any]]], bool] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Run the jobs of the demo to their ends, with an elastic one and one that fails for good, and return them; `check` is
        their audit. Each has `widen` times as many workers as in the demo, for a cluster that is to be too small for all. They
        take ten times as long until `seen`: by default, until a job was preempted."""
        demo = [one.task for one in a_dozen()]
        assert {"endless", "fails-once", "gang", "grows"} <= {str(task["name"]) for task in demo}
        for task in demo:
            name, steps, kept = str(task["name"]), 10 * task["steps"], {"kind": task["kind"], "retries": task["retries"]}
            odd = {"fails-once": {"fails_at": 22}, "grows": {"double_every": steps // 3}}.get(name, {})
            workers = task["workers"] * (
                widen if name != "fails-once" else 1
            )  # workers of this test do not wait for each other
            job = self.job(name, steps, 0.15, save_every=5, workers=workers, **kept, **odd)
            self.submit(job, ends="cancelled" if name == "endless" else "finished")
        self.harmed.add("fails-once")
        self.submit(self.job("elastic", 600, 0.15, save_every=5, workers=2 * widen, mode="elastic"))
        self.submit(self.job("fails", 5, fails_at=2, retries=0), ends="failed")
        self.until("it runs", lambda jobs: jobs["endless"]["steps_done"] > 0)
        self.cancel("endless")
        preempted = lambda jobs: any(job["preemptions"] for job in jobs.values())  # noqa: E731
        self.until("what is to be seen of them", seen or preempted)
        for name in self.expected:
            self.hurry(name)
        jobs = self.until_all_ended()
        assert len(jobs) == len(demo) + 2
        return jobs

    def hurry(self, name: str) -> None:
        """All that was to be seen of a job while it runs has been seen: the rest of its steps take no time."""
        (self.root / f"{name}.hurry").touch()

    def cancel(self, name: str) -> None:
        self.ask("DELETE", f"/v1/jobs/{name}")

    def metrics(self) -> dict[str, float]:
        """As Prometheus is told: by name and labels."""
        lines = self._answer("GET", "/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        told: dict[str, Any] = self._answer(method, path, body).json()
        return told

    def _answer(self, method: str, path: str, body: object = None) -> httpx.Response:
        token = (self.root / "plane" / "admin.token").read_text()
        url, headers = f"{self.scheme}://127.0.0.1:{self.http}{path}", {"Authorization": f"Bearer {token}"}
        deadline, answer = time.monotonic() + AGAIN_S, None
        while answer is None:
            try:
                with httpx.Client(verify=False, trust_env=False, timeout=PATIENCE_S) as client:
                    answer = client.request(method, url, json=body, headers=headers)
            except httpx.HTTPError as problem:  # a killed plane may leave a process that holds its port for a moment
                if not self.plane or ends(self.plane, 1.0) or time.monotonic() > deadline:
                    raise Gone(str(problem)) from None
        if answer.status_code == 503:
            raise Gone(answer.text)
        assert answer.is_success, answer.text
        return answer

    def jobs(self) -> dict[str, dict[str, Any]]:
        """By name; that nobody who has ended comes back to life is looked at every time."""
        found = {job["name"]: job for job in self.ask("GET", "/v1/jobs")["jobs"]}
        for name, phase in self._ended.items():
            assert found[name]["phase"] == phase, f"{name} had ended as {phase} and is {found[name]['phase']}"
        self._ended.update((name, job["phase"]) for name, job in found.items() if job["phase"] in ENDED)
        return found

    def until(self, what: str, reached: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """What was told of the jobs when it was reached."""
        seen: dict[str, dict[str, Any]] = {}

        def looks() -> bool:
            nonlocal seen
            seen = self.jobs()
            return reached(seen)

        wait_for(looks, what, self._logs)
        return seen

    def until_all_ended(self) -> dict[str, dict[str, Any]]:
        return self.until("all jobs end", lambda jobs: all(job["phase"] in ENDED for job in jobs.values()))

    def until_connected(self) -> None:
        """Every agent has found the control plane (again)."""
        wait_for(lambda: all(node["connected"] for node in self.nodes().values()), "all agents connect", self._logs)

    def until_up(self) -> None:
        """All nodes are there: nobody begins elsewhere because the first one is late, or moves when it comes."""
        wait_for(lambda: all(node["up"] and node["connected"] for node in self.nodes().values()), "all nodes come", self._logs)

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.ask("GET", "/v1/nodes")["nodes"]}

    # What jobs left.

    def steps_of(self, name: str, rank: str = "") -> list[int]:
        path = self.root / f"{name}.steps{rank}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def launches_of(self, name: str) -> dict[int, list[list[int]]]:
        """The steps of each rank of each launch of an elastic job."""
        found: dict[int, dict[int, list[int]]] = {}
        sizes: dict[int, int] = {}
        for path in self.root.glob(f"{name}.steps.*"):
            generation, size, rank = map(int, path.name.rsplit(".", 3)[1:])
            found.setdefault(generation, {})[rank] = [int(line) for line in path.read_text().split()]
            sizes[generation] = size
        return {launch: [ranks.get(rank, []) for rank in range(sizes[launch])] for launch, ranks in sorted(found.items())}

    def workers_of(self, name: str) -> list[int]:
        """The processes of a job, without their stubs."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().decode(errors="replace").split("\0")
                if words[1:2] == [str(self.root / "job.py")] and json.loads(words[2])["name"] == name:
                    found.append(int(path.parent.name))
        return found

    def node_of(self, name: str, rank: str) -> str:
        """The node on which a worker of a running job is: its agent's folder has the name."""
        for pid in self.workers_of(name):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                about = dict(word.partition("=")[::2] for word in words)
                if about.get("RANK") == rank:
                    return about["FAIRLEAD_REPORTS"].partition("/jobs/")[0].rpartition("/")[2]
        raise AssertionError(f"worker {rank} of {name} does not run\n{self._logs()}")

    # What must hold.

    def check(self) -> None:
        jobs = self.until_all_ended()
        phases = {name: job["phase"] for name, job in jobs.items()}
        assert {name: phases.get(name) for name in self.expected} == self.expected, "by acknowledged job"
        twice = self.root / "twice"
        assert not twice.exists(), f"jobs ran twice at once: {twice.read_text()}"
        for name in [name for name, phase in phases.items() if phase == "finished" and name in self._about]:
            if self._about[name]["elastic"]:
                self._check_launches(name)
                continue
            ranks = [str(rank) for rank in range(self._workers[name])] if self._workers[name] > 1 else [""]
            self._check_steps(name, [self.steps_of(name, rank) for rank in ranks])
        said = self.ask("GET", "/v1/digest")
        os.kill(self.plane, signal.SIGTERM)
        assert self.plane_ended() == 0, self._logs()
        events = list(read_journal(self._journal))
        assert check_events(events, real=True).digest() == replay_events(events).digest()
        # A round may have been decided after it was asked: it is a state of that second that it told.
        assert said["digest"] in digests_at(events, said["second"]), (said, events[-4:])

    def _check_steps(self, name: str, by_rank: list[list[int]]) -> None:
        about = self._about[name]
        again = list[list[int]]()
        for done in by_rank:
            assert sorted(set(done)) == list(range(about["steps"])), f"{name} did {done}"
            cuts = [at for at in range(1, len(done)) if done[at] != done[at - 1] + 1]
            if name not in self.harmed:
                assert not cuts, f"{name} did steps twice, though nobody killed it: {done}"
            again.append([done[at - 1] + 1 - done[at] for at in cuts])
        most = about["save_every"] or about["steps"]
        for fallen in zip(*again):  # these workers do not wait for each other: what all have saved is the slowest one's last
            assert 0 <= min(fallen) <= most, f"{name} fell back by {fallen} steps, and saves every {most}"

    def _check_launches(self, name: str) -> None:
        """Each step of an elastic job was done once by all workers of one launch, and launches resumed where others stopped."""
        at = 0
        for launch, ranks in self.launches_of(name).items():
            done = max(map(len, ranks))
            assert ranks == [list(range(at, at + done))] * len(ranks), f"launch {launch} of {name}, from {at}, did {ranks}"
            at += done
        assert at == self._about[name]["steps"], f"{name} did {at} steps"

    def _logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.root.glob("*.log")))

    def _end(self) -> None:
        """Agents end their jobs; where that does not help, what is left is killed."""
        for node in list(self.agents):
            with contextlib.suppress(AssertionError):
                self.end_agent(node, signal.SIGTERM)
        if self.plane:
            os.kill(self.plane, signal.SIGTERM if self._embedded else signal.SIGKILL)
            self.plane_ended()
        for name in self._about:
            for pid in self.workers_of(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def digests_at(events: Iterable[ev.Event], second: float) -> list[str]:
    """Of the states that a journal leads to, those of a second: of each moment when its last event had come in."""
    stream = iter(events)
    state = replay_events([next(stream)])
    found = [state.digest()] if state.time == second else []
    for event in stream:
        apply_event(state, event)
        if state.time == second:
            found.append(state.digest())
    return found


def wait_for(reached: Callable[[], bool], what: str, logs: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, f"in vain: {what}\n{logs()}"
        time.sleep(LOOK_S)


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def gone_is_fine() -> Iterator[None]:
    """For requests to a control plane that may die of them."""
    with contextlib.suppress(Gone):
        yield
