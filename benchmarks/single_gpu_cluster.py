"""One accelerator under a real agent, for benchmarks that look at what jobs do to each other on it: a control plane in this
process, an agent in another, jobs as processes of that one."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, install
from fairlead.core.stages import Stages
from fairlead.engine.journal import MemoryJournal

PATIENCE_S = 120.0
NEEDED = {"torch": "torch", "pynvml": "nvidia-ml-py", "grpc": "grpcio", "prometheus_client": "prometheus-client"}


def options_of(about: str | None, seconds: str, **others: tuple[int, str]) -> argparse.Namespace:
    """What the command line says: `--seconds` and what those are, `--out`, and `others`, each a number with a word on it."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=10.0, help=seconds)
    for name, (usual, of_what) in others.items():
        options.add_argument(f"--{name}", type=int, default=usual, help=of_what)
    options.add_argument("--out", type=Path, help="write the figures there, as JSON")
    return options.parse_args()


def machine_or_why_not() -> tuple[str, str]:
    """The machine as `machine_here` spells it, or what it lacks for this."""
    if absent := lacking():
        return "", absent
    try:
        return machine_here(), ""
    except FairleadError as problem:
        return "", f"this needs an NVIDIA GPU: {problem}"


def write_figures(figures: Mapping[str, Any], to: Path | None) -> None:
    if to is not None:
        to.write_text(json.dumps(figures, indent=1) + "\n")


def lacking() -> str:
    """What has to be installed first; empty where nothing has."""
    absent = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    return f"this needs {', '.join(absent)}: {install('cluster,nvml,torch')}" if absent else ""


def machine_here() -> str:
    """The accelerators that NVML finds, spelled as a cluster of one node."""
    from fairlead.runtime.agent.devices import NodeAccelerators

    found = NodeAccelerators.detect()
    try:
        return f"1x{found.type_name}:{len(found)}"
    finally:
        found.close()


@contextmanager
def plane_on(cluster: Cluster, config: Mapping[str, Any], stages: Stages, lease_s: float = 15.0) -> Iterator[tuple[Any, int]]:
    """A control plane in a thread of its own, with an event loop of its own, and the port for its agents."""
    from fairlead.runtime.control.control_plane import ControlPlane

    plane = ControlPlane(cluster, config, lambda data: stages, MemoryJournal(), lease_s=lease_s)
    up, over, ports = threading.Event(), threading.Event(), list[int]()

    async def work() -> None:
        ports.append(await plane.start())
        up.set()
        await asyncio.to_thread(over.wait)
        await plane.stop()

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    if not up.wait(PATIENCE_S):
        raise FairleadError("the control plane did not begin")
    try:
        yield plane, ports[0]
    finally:
        over.set()
        thread.join(PATIENCE_S)


@contextmanager
def agent_of(plane: Any, port: int, folder: Path, environment: Mapping[str, str], *more: str) -> Iterator[None]:
    """Its first node's agent, which ends its jobs with itself; what it says is in `folder / "agent.log"`."""
    command = [sys.executable, "-m", "fairlead.cli.main", "agent", "--end-jobs", "--node", plane.cluster.nodes[0].name]
    command += ["--control", f"127.0.0.1:{port}", "--root", str(folder / "agent"), *more]
    with (folder / "agent.log").open("ab") as log:
        agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: bool(plane.hub.connected), "the agent to connect", lambda: (folder / "agent.log").read_text()[-2000:])
        yield
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(timeout=PATIENCE_S)


def passed_on() -> dict[str, str]:
    """What a job needs of this process's environment to find the same packages."""
    return {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}


def until(reached: Callable[[], bool], what: str, log: Callable[[], str] = lambda: "", patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not reached():
        if time.monotonic() > deadline:
            raise FairleadError(f"waited in vain for {what}\n{log()}")
        time.sleep(0.2)
