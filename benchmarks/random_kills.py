"""Random kills over real processes: two control planes on one PostgreSQL journal, agents, and jobs, half without leases.

Control planes, agents, whole nodes and the database are killed, stopped or ended at random. Afterwards all jobs must have
finished, none may have run twice at once, and steps may be repeated back to the last checkpoint only. It prints how long
takeovers and restarts after a lost node took. `python benchmarks/random_kills.py --minutes 60` is the full run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from postgres_server import PostgresServer

LEASE_S, GRACE_S, ROUND_S = 10.0, 10.0, 5.0
NODES, GPUS = 5, 2
SAVE_EVERY = 10  # steps
PATIENCE_S = 900.0  # for the jobs that are left after the last kill

START = """
import fcntl, json, os, signal, sys, time
about = json.loads(sys.argv[1])
lock = open(about["name"] + ".lock", "a")
generation = os.environ["FAIRLEAD_GENERATION"]
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    with open("twice", "a") as twice:
        print(about["name"], generation, time.time(), file=twice, flush=True)
log = open(about["name"] + ".steps", "a")
def note(word, step):
    print(word, step, generation, time.time(), file=log, flush=True)
"""

LEASED = (
    START
    + """
import fairlead
for step in fairlead.lease(range(about["steps"]), save=lambda folder: None, every_steps=about["save_every"]):
    note("step", step)
    time.sleep(about["step_s"])
"""
)

PLAIN = (
    START
    + """
place = os.path.join(os.environ["FAIRLEAD_CHECKPOINT_DIR"], "done")
os.makedirs(os.path.dirname(place), exist_ok=True)
done = int(open(place).read()) if os.path.exists(place) else 0
def save():
    with open(place + ".new", "w") as file:
        file.write(str(done))
    os.replace(place + ".new", place)
    note("saved", done)
if about["polite"]:
    signal.signal(signal.SIGTERM, lambda *_: (save(), os._exit(0)))
while done < about["steps"]:
    time.sleep(about["step_s"])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    note("step", done)
    done += 1
    if done % about["save_every"] == 0:
        save()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
"""
)


class Gone(Exception):
    """No control plane answers."""


class KillRun:
    """The processes of one run, and what was done to them."""

    def __init__(self, folder: Path, server: PostgresServer, planes: str, seed: int) -> None:
        self.folder, self.server, self.journal = folder, server, server.database()
        self.random = random.Random(seed)
        self.planes: dict[str, subprocess.Popen[bytes]] = {}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {name: (free_port(), free_port()) for name in planes}
        self.standby = ["--standby"] if len(planes) > 1 else []
        self.done: Counter[str] = Counter()
        self.takeovers: list[float] = []
        self.survivors: list[tuple[int, int]] = []  # workers before a takeover, and of these after it
        self.lost_nodes: list[tuple[float, list[str]]] = []  # when, and the jobs there
        self.accepted: dict[str, dict[str, Any]] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.away: set[str] = set()  # control planes that were ended here, and are started again later
        for name, text in (("leased.py", LEASED), ("plain.py", PLAIN)):
            (folder / name).write_text(text)

    # Processes.

    def start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "FAIRLEAD_ALLOW_ROOT_JOBS": "1"}
        with (self.folder / f"{log}.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "fairlead.cli.main", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def start_plane(self, name: str) -> None:
        assert name not in self.planes or self.planes[name].poll() is not None, f"control plane {name} runs already"
        self.away.discard(name)
        http, agents = self.ports[name]
        options = {
            "--cluster": f"{NODES * GPUS}xv100:{GPUS}",
            "--policy": "las",
            "--round": ROUND_S,
            "--lease": LEASE_S,
            "--grace": GRACE_S,
            "--journal": self.journal,
            "--root": self.folder / f"plane-{name}",
            "--http": f"127.0.0.1:{http}",
            "--agents": f"127.0.0.1:{agents}",
            "--checkpoints": self.folder / "checkpoints",
        }
        self.planes[name] = self.start(
            name, "serve", *(self.standby if self.planes else []), *(str(x) for pair in options.items() for x in pair)
        )

    def start_agent(self, node: str) -> None:
        control = ",".join(f"127.0.0.1:{agents}" for _, agents in self.ports.values())
        words = ["agent", "--control", control, "--node", node, "--accelerators", f"v100:{GPUS}"]
        words += ["--root", str(self.folder / node), "--token-file", str(self.folder / "plane-a" / "agent.token")]
        self.agents[node] = self.start(node, *words)

    def active(self) -> str:
        """The control plane that answers. Raises `Gone`: none does."""
        for name, (http, _) in self.ports.items():
            with contextlib.suppress(httpx.HTTPError, OSError):
                if self.ask(http, "GET", "/v1/scheduler").status_code == 200:
                    return name
        raise Gone("no control plane answers")

    def ask(self, port: int, method: str, path: str, body: object = None) -> httpx.Response:
        token = (self.folder / "plane-a" / "admin.token").read_text()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(trust_env=False, timeout=20.0, verify=False) as client:
            return client.request(method, f"http://127.0.0.1:{port}{path}", json=body, headers=headers)

    def until_active(self, within_s: float = 180.0) -> float:
        """Wait for a control plane that answers; return for how long."""
        begin = time.monotonic()
        while time.monotonic() - begin < within_s:
            with contextlib.suppress(Gone):
                self.active()
                return time.monotonic() - begin
            self.due()
            time.sleep(0.1)
        raise AssertionError("no control plane answers")

    # Jobs.

    def submit(self, number: int) -> None:
        name, leased = f"job-{number}", number % 2 == 0
        about = {
            "name": name,
            "steps": self.random.randint(40, 160),
            "step_s": 0.4,
            "save_every": SAVE_EVERY,
            "plain": not leased,
            "polite": number % 4 == 1,
        }
        run = [sys.executable, str(self.folder / ("leased.py" if leased else "plain.py")), json.dumps(about)]
        job = {"name": name, "kind": "leased" if leased else "plain", "run": run, "directory": str(self.folder)}
        job |= {"steps": about["steps"]} if leased else {}
        try:
            answer = self.ask(self.ports[self.active()][0], "POST", "/v1/jobs", {"jobs": [job]})
        except (Gone, httpx.HTTPError):
            self.later.append((time.monotonic() + 5.0, lambda: self.submit(number)))
            return
        if answer.is_success or (answer.status_code == 409 and "name" in answer.text):  # accepted before its answer was lost
            self.accepted[name] = about
        elif answer.status_code in (429, 503):
            self.later.append((time.monotonic() + 5.0, lambda: self.submit(number)))
        else:
            raise AssertionError(answer.text)

    def jobs(self) -> list[dict[str, Any]]:
        answer = self.ask(self.ports[self.active()][0], "GET", "/v1/jobs")
        if not answer.is_success:
            raise Gone(answer.text)
        found: list[dict[str, Any]] = answer.json()["jobs"]
        return found

    # Harm.

    def harm(self) -> None:
        """One random fault."""
        kinds = {
            self.kill_active: 5,
            self.kill_standby: 2,
            self.end_active: 1,
            self.pause_active: 1,
            self.kill_agent: 4,
            self.pause_agent: 2,
            self.lose_node: 2,
            self.kill_database: 2,
        }
        fault = self.random.choices(list(kinds), list(kinds.values()))[0]
        try:
            fault()
            self.done[fault.__name__] += 1
        except (Gone, IndexError):
            self.done["skipped"] += 1

    def kill_active(self) -> None:
        name = self.active()
        if any(other in self.away or self.planes[other].poll() is not None for other in self.ports if other != name):
            raise Gone("there is no standby to take over")
        before = set(self.workers())
        self.away.add(name)
        end(self.planes[name])
        if len(self.ports) == 1:
            self.start_plane(name)
        self.takeovers.append(self.until_active())
        time.sleep(2.0)
        self.survivors.append((len(before), len(before & set(self.workers()))))
        if name in self.away:
            self.restart(0.0, 20.0, lambda: self.start_plane(name))

    def kill_standby(self) -> None:
        active = self.active()
        name = next((name for name in self.ports if name != active), "")
        if not name or name in self.away:
            raise Gone("there is no standby")
        self.away.add(name)
        end(self.planes[name])
        self.restart(0.0, 10.0, lambda: self.start_plane(name))

    def end_active(self) -> None:
        name = self.active()
        self.away.add(name)
        end(self.planes[name], signal.SIGTERM)
        self.restart(0.0, 10.0, lambda: self.start_plane(name))

    def pause_active(self) -> None:
        self.pause(self.planes[self.active()].pid, self.random.uniform(1.0, 30.0))

    def kill_agent(self) -> None:
        node = self.random.choice(sorted(self.agents))
        agent = self.agents.pop(node)
        end(agent, self.random.choice((signal.SIGKILL, signal.SIGTERM)))
        self.restart(0.0, 2.0 * (LEASE_S + GRACE_S), lambda: self.start_agent(node))

    def pause_agent(self) -> None:
        self.pause(self.agents[self.random.choice(sorted(self.agents))].pid, self.random.uniform(1.0, 40.0))

    def lose_node(self) -> None:
        """The machine is off: its agent, shims and workers end at once."""
        node = self.random.choice(sorted(self.agents))
        agent = self.agents.pop(node)
        end(agent)
        jobs = [name for _, name in self.processes(str(self.folder / node)) if name]
        for _ in range(20):
            found = self.processes(str(self.folder / node))
            for pid, _name in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                break
            time.sleep(0.02)
        self.lost_nodes.append((time.time(), sorted(set(jobs))))
        wait_s = 2.0 * (LEASE_S + GRACE_S)
        self.restart(wait_s, 2 * wait_s, lambda: self.start_agent(node))

    def kill_database(self) -> None:
        self.server.kill()
        time.sleep(self.random.uniform(0.0, 8.0))
        self.server.start()

    def pause(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        self.later.append((time.monotonic() + seconds, go_on))

    def restart(self, least_s: float, most_s: float, call: Callable[[], None]) -> None:
        self.later.append((time.monotonic() + self.random.uniform(least_s, most_s), call))

    def due(self) -> None:
        """Do what is due by now; also notice control planes and agents that ended by themselves."""
        now = time.monotonic()
        calls = [call for at, call in self.later if at <= now]
        self.later = [(at, call) for at, call in self.later if at > now]
        for call in calls:
            call()
        for name, plane in self.planes.items():
            if plane.poll() is not None and name not in self.away:
                self.done[f"plane ended with {plane.returncode}"] += 1
                self.start_plane(name)

    # What is there.

    def processes(self, text: str) -> list[tuple[int, str]]:
        """Processes with a text in their command or environment, and the jobs of those that are workers."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if text in " ".join(words) or text in (path / "environ").read_bytes().decode(errors="replace"):
                    is_worker = len(words) > 2 and words[1].endswith(("leased.py", "plain.py"))
                    found.append((int(path.name), json.loads(words[2])["name"] if is_worker else ""))
        return found

    def workers(self) -> list[int]:
        return [pid for pid, name in self.processes(str(self.folder)) if name]

    # What must hold.

    def check(self) -> dict[str, Any]:
        found = {job["name"]: job for job in self.jobs()}
        lost = sorted(set(self.accepted) - set(found))
        other = {name: found[name]["phase"] for name in self.accepted if name in found and found[name]["phase"] != "finished"}
        twice = (self.folder / "twice").read_text().splitlines() if (self.folder / "twice").exists() else []
        wrong = [text for name, about in self.accepted.items() if (text := self.wrong_steps(name, about))]
        restarts = sorted(s for at, jobs in self.lost_nodes for s in self.restart_times(at, jobs))
        alive = sum(after for _, after in self.survivors), sum(before for before, _ in self.survivors)
        return {
            "accepted": len(self.accepted),
            "lost": lost,
            "not_finished": other,
            "ran_twice": twice,
            "wrong_steps": wrong,
            "faults": dict(self.done),
            "takeover_s": summary(self.takeovers),
            "workers_alive_after_takeovers": f"{alive[0]} of {alive[1]}",
            "restart_after_lost_node_s": summary(restarts),
            "lease_grace_round_s": LEASE_S + GRACE_S + ROUND_S,
        }

    def lines(self, name: str) -> list[tuple[str, int, int, float]]:
        path = self.folder / f"{name}.steps"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(word, int(step), int(generation), float(at)) for word, step, generation, at in rows]

    def wrong_steps(self, name: str, about: dict[str, Any]) -> str:
        saved, last, generation = 0, -1, -1
        seen = set()
        for word, step, launch, _ in self.lines(name):
            if word == "saved":
                saved = step
                continue
            seen.add(step)
            if launch != generation:
                least = saved if about["plain"] else max(0, last + 1 - about["save_every"])
                if not least <= step <= last + 1:
                    return f"{name}: launch {launch} began at step {step} after step {last}, saved {saved}"
            elif step != last + 1:
                return f"{name}: step {step} after {last} in launch {launch}"
            last, generation = step, launch
        missing = set(range(about["steps"])) - seen
        return f"{name}: steps {sorted(missing)[:5]} are missing" if missing else ""

    def restart_times(self, at: float, jobs: Sequence[str]) -> Iterator[float]:
        for name in jobs:
            if later := [when for _, _, _, when in self.lines(name) if when > at]:
                yield later[0] - at


def summary(values: Sequence[float]) -> dict[str, float]:
    """Number, median, and largest."""
    if not values:
        return {"count": 0}
    return {"count": len(values), "median": round(statistics.median(values), 2), "largest": round(max(values), 2)}


def end(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL) -> None:
    """End a process, also one that is stopped, and wait for its end."""
    for each in (number, signal.SIGCONT):
        process.send_signal(each)
    process.wait()


def free_port() -> int:
    """A port of this machine that nothing uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run(folder: Path, server: PostgresServer, planes: str, minutes: float, jobs: int, seed: int) -> dict[str, Any]:
    """Run it, and end all processes."""
    at = KillRun(folder, server, planes, seed)
    try:
        at.start_plane("a")
        deadline = time.monotonic() + 60.0
        while not (folder / "plane-a" / "admin.token").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        at.until_active()
        for name in planes[1:]:
            at.start_plane(name)
        for number in range(NODES):
            at.start_agent(f"v100-{number}")
        begin, submitted = time.monotonic(), 0
        next_fault = begin + 20.0
        while (now := time.monotonic()) < begin + 60 * minutes:
            at.due()
            while submitted < jobs * min(1.0, (now - begin) / (50 * minutes) + 0.05):
                at.submit(submitted)
                submitted += 1
            if now >= next_fault:
                at.harm()
                print(f"{now - begin:6.0f} s, {len(at.accepted)} jobs, {dict(at.done)}", file=sys.stderr, flush=True)
                next_fault = time.monotonic() + at.random.uniform(3.0, 20.0)
            time.sleep(0.2)
        patience = time.monotonic() + PATIENCE_S
        while time.monotonic() < patience:
            at.due()
            with contextlib.suppress(Gone, httpx.HTTPError):
                if not at.later and all(job["phase"] in ("finished", "failed", "cancelled", "refused") for job in at.jobs()):
                    break
            time.sleep(1.0)
        return at.check()
    finally:
        for process in (*at.planes.values(), *at.agents.values()):
            end(process)
        for pid, _ in at.processes(str(folder)):
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--jobs", type=int, default=0, help="[default: 4 a minute]")
    parser.add_argument("--planes", type=int, default=2, choices=(1, 2), help="control planes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep all files here")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="fairlead-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    with PostgresServer() as server:
        result = run(folder, server, "ab"[: given.planes], given.minutes, given.jobs or int(4 * given.minutes), given.seed)
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["lost"] or result["not_finished"] or result["ran_twice"] or result["wrong_steps"] else 0)


if __name__ == "__main__":
    main()
