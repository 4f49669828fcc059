"""What `foundry.py` talks to. It imports everything once; each process is a fork of it that goes on as the `fairlead` command.

It reads orders as JSON lines: `{"words": […], "stdout": PATH, "stderr": PATH, "cwd": PATH, "death": "before JobsFinished",
"calendar": PATH, "plugins": PATH}` makes a process, and its pid is the answer; `{"ended": PID}` is answered with how that one
ended. When its input ends, it ends, and whoever is left of those it made with it. It also answers the program of
`command_server.py`, at a socket; its number and the program are the arguments.

A control plane with a `death` kills itself with SIGKILL when it is about to commit, or has just committed, the first event of
that kind. `calendar` is a file with seconds by which the calendar is wrong, now. SIGUSR1 switches the scheduler to FIFO."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_true_time = time.time


def _calendar() -> float:
    wrong = os.environ.get("WRONG_CALENDAR")
    return _true_time() + (float(Path(wrong).read_text()) if wrong else 0.0)


time.time = _calendar  # before anybody takes it for a default

import uvicorn  # noqa: E402
from fastapi import FastAPI  # noqa: E402

import fairlead.cli.main  # noqa: E402
import fairlead.runtime.agent.agent_service  # noqa: E402
import fairlead.runtime.control.http_api  # noqa: E402
from command_server import fork_agents, serve_call  # noqa: E402
from fairlead.cli import cmd_synthesize  # noqa: E402
from fairlead.cli.main import COMMANDS  # noqa: E402
from fairlead.config.registry import Registry  # noqa: E402
from fairlead.config.schedulers import SchedulerConfig  # noqa: E402
from fairlead.core.events import Event  # noqa: E402
from fairlead.experiments import cases, compare  # noqa: E402
from fairlead.journal.sql_journal import DatabaseJournal  # noqa: E402
from fairlead.runtime.agent import departure  # noqa: E402
from fairlead.runtime.control.control_plane import ControlPlane  # noqa: E402
from fairlead.workloads.catalogue import accelerator_types, catalogue  # noqa: E402


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies(moment: str, kind: str) -> None:
    """`moment` is before or after the commit of the first event of that kind."""
    append, commit = DatabaseJournal.append, DatabaseJournal.commit
    seen: list[Event] = []

    def watched_append(self: DatabaseJournal, event: Event) -> None:
        append(self, event)
        if type(event).__name__ == kind:
            seen.append(event)

    def watched_commit(self: DatabaseJournal) -> None:
        if seen and moment == "before":
            die()
        commit(self)
        if seen:
            die()

    DatabaseJournal.append, DatabaseJournal.commit = watched_append, watched_commit  # type: ignore[method-assign]


def switches_on_a_signal() -> None:
    begin = ControlPlane.__post_init__

    def watched(self: ControlPlane) -> None:
        begin(self)
        other = {**self.scheduler, "policy": "fifo"}
        signal.signal(signal.SIGUSR1, lambda *_: self.backend.switch(other, "a signal"))

    ControlPlane.__post_init__ = watched  # type: ignore[method-assign]


def work_alone() -> None:
    """A study has one process unless it asks for more: tests keep all cores busy, and another one would import everything."""
    run = cases.run_in_processes

    def alone(function: Any, some: Any, inputs: object, processes: int | None, on_result: Any, on: str | None = None) -> None:
        run(function, some, inputs, processes or 1, on_result, on)

    cases.run_in_processes = compare.run_in_processes = alone  # type: ignore[assignment]
    cmd_synthesize.os = SimpleNamespace(cpu_count=lambda: 1)  # type: ignore[assignment]


def be_patient() -> None:
    """An agent that leaves has only seconds to report the last ends; if a busy machine takes longer, nothing frees its node."""
    departure.ANSWER_WITHIN_S = 60.0


def made(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        os.chdir(order.get("cwd", "."))
        sys.modules["__main__"] = fairlead.cli.main  # whoever is spawned from here imports that, not this
        if "plugins" in order:  # a folder with packages that only this process has
            sys.path.insert(0, order["plugins"])
            os.environ["PYTHONPATH"] = os.pathsep.join((order["plugins"], os.environ.get("PYTHONPATH", "")))
            Registry.installed.cache_clear()
        if "calendar" in order:
            os.environ["WRONG_CALENDAR"] = order["calendar"]
        if order.get("death"):
            dies(*order["death"].split())
        switches_on_a_signal()
        sys.argv = ["fairlead", *order["words"]]
        fairlead.cli.main.run()
        code = 0
    except SystemExit as problem:
        code = problem.code if isinstance(problem.code, int) else int(problem.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 70
    try:
        sys.stderr.flush()
        sys.stdout.flush()
    finally:
        os._exit(code)


def warm_up() -> None:
    """Whatever is imported late."""
    accelerator_types()
    catalogue()
    for command in COMMANDS.values():
        import_module(command.target.partition(":")[0])
    for module in Registry.installed().modules():
        import_module(module)
    for policy in ("fifo", "las", "max-min-fairness"):
        SchedulerConfig.from_data({"policy": policy, "estimator": "measured"}).build(None, Registry.installed())
    uvicorn.Config(FastAPI(), loop="asyncio").load()


def main(listening: str, program: str) -> None:
    warm_up()
    fork_agents(Path(program))
    work_alone()
    be_patient()
    left: set[int] = set()
    calls: set[int] = set()
    with socket.socket(fileno=int(listening)) as listener:
        listener.set_inheritable(False)
        while True:
            for stream in select.select([listener, sys.stdin], [], [])[0]:
                if stream is listener:
                    calls.add(called(listener))
                elif line := sys.stdin.buffer.raw.readline():  # no line waits in a buffer, where nobody sees it
                    follow(json.loads(line), left)
                else:
                    for pid in left:
                        os.kill(pid, signal.SIGKILL)
                    return
            calls = {pid for pid in calls if os.waitpid(pid, os.WNOHANG) == (0, 0)}


def called(listener: socket.socket) -> int:
    """The process that answers a call."""
    client, _ = listener.accept()
    if pid := os.fork():
        client.close()
        return pid
    listener.close()
    serve_call(client)
    os._exit(0)


def follow(order: dict[str, Any], left: set[int]) -> None:
    if "ended" in order:
        pid, status = os.waitpid(order["ended"], 0)
        left.discard(pid)
        print(os.waitstatus_to_exitcode(status), flush=True)
    else:
        left.add(pid := made(order))
        print(pid, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
