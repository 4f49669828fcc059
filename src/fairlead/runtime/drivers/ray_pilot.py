"""Pilots on Ray: on each node with GPUs, a detached actor holds the GPUs and runs an agent of Fairlead. Ray knows the actors by
name, so nothing else is stored. The module knows no command line: it takes plain values, and returns what it sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fairlead.files import atomic_write
from fairlead.runtime.drivers import process_guard
from fairlead.runtime.drivers.ray_connection import RayConnection
from fairlead.runtime.host import Host
from fairlead.runtime.http_client import TOKEN

ANSWER_S = 5.0  # for which an actor is asked; one that waits for its GPUs does not answer
PATIENCE_S = 30.0  # the same before an actor is killed, whose agent might just be slow
POLL_S = 1.0
LINGER_S = 60.0  # for which an actor says why its agent has ended, before it gives its GPUs back
_NAMESPACE = "fairlead "
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class RayNode:
    """A node of Ray with GPUs."""

    id: str
    name: str  # as Ray shows it; the address where nothing else was given
    address: str
    gpus: int

    @property
    def node_name(self) -> str:
        """Its name in the cluster. A node that was started again is another one."""
        return f"{_NAME.sub('-', self.name)}-{self.id[:8]}"


def nodes_with_gpus(listed: Sequence[Mapping[str, Any]]) -> list[RayNode]:
    """The live nodes with GPUs in a list of `ray.nodes()`, by name."""
    found = [
        RayNode(
            str(one["NodeID"]),
            str(one.get("NodeName") or one["NodeManagerAddress"]),
            str(one["NodeManagerAddress"]),
            int(one["Resources"].get("GPU", 0)),
        )
        for one in listed
        if one["Alive"] and one["Resources"].get("GPU", 0) >= 1
    ]
    return sorted(found, key=lambda node: node.node_name)


@dataclass(frozen=True)
class AgentRequest:
    """How the agents of a pilot start."""

    control: str  # the control plane's address for agents
    token: str
    gpus: int = 0  # of each node; 0: all
    gpu_type: str = ""  # empty: detected
    authority: str = ""  # the PEM text that signed the control plane's certificate
    insecure: bool = False

    def words(self, node: RayNode) -> list[str]:
        """The arguments of `fairlead` for the agent of a node."""
        words = ["agent", "--control", self.control, "--node", node.node_name, "--address", node.address]
        words += ["--accelerators", f"{self.gpu_type}:{self.count(node)}"] if self.gpu_type else []
        return [*words, "--end-jobs", "--temporary", "--remove-root", *(["--insecure"] if self.insecure else [])]

    def count(self, node: RayNode) -> int:
        """The GPUs that an actor holds on a node."""
        return min(self.gpus, node.gpus) if self.gpus else node.gpus


@dataclass(frozen=True)
class AgentState:
    """What the actor on a node says of its agent."""

    node: str
    address: str = ""
    gpus: int = 0
    state: str = "waiting"  # for its GPUs; "running" or "ended"
    reason: str = ""  # the agent's last line, if it has ended


class AgentActor:
    """In a worker of Ray: holds the GPUs of a node and runs its agent, which ends with this process."""

    def __init__(self, node: str, address: str, gpus: int, words: Sequence[str], token: str, authority: str) -> None:
        self._about = (node, address, gpus)
        root = Path(tempfile.gettempdir()) / f"fairlead-{os.getuid()}-{node}"
        root.mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, "-m", "fairlead.cli.main", *words, "--root", str(root)]
        if authority:
            atomic_write(root / "authority.pem", authority.encode())
            command += ["--tls-ca", str(root / "authority.pem")]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # Ray's, for one CPU
        guard = subprocess.Popen(
            [sys.executable, process_guard.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, TOKEN: token},
            cwd=root,
        )
        guard.wait()  # it goes on in a process of its own, with the pipes
        assert guard.stdin is not None
        assert guard.stdout is not None
        self._pipe, self._last, self._ended = guard.stdin, "", threading.Event()
        threading.Thread(target=self._follow, args=(guard.stdout,), daemon=True).start()

    def state(self) -> tuple[str, str, int, str, str]:
        """The fields of an `AgentState`, as plain values: the caller may have another version."""
        ended = self._ended.is_set()
        return (*self._about, "ended" if ended else "running", self._last if ended else "")

    def leave(self) -> None:
        """Let the agent leave: its jobs checkpoint and end, and it reports that."""
        if not self._ended.is_set():
            self._pipe.write(b"\n")
            self._pipe.flush()

    def _follow(self, output: IO[bytes]) -> None:
        """Show the agent's messages in the log of the actor, until all its processes have ended."""
        for line in output:
            text = line.decode(errors="replace").rstrip()
            if text.startswith(process_guard.LAST_LINE):
                break
            self._last = text or self._last
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        self._ended.set()
        threading.Timer(LINGER_S, os._exit, (0,)).start()


class RayPilot:
    """The agents of one control plane on a Ray cluster. A context, which holds the connection."""

    def __init__(self, address: str, control: str, host: Host | None = None) -> None:
        self.address, self.control = address, control
        self._host = host or Host()
        self._connection: RayConnection

    @property
    def namespace(self) -> str:
        """Of the actors: one for each control plane. A second actor of a node's name in it is refused by Ray."""
        return f"{_NAMESPACE}{self.control}"

    def __enter__(self) -> RayPilot:
        self._connection = RayConnection(self.address, namespace=self.namespace)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def _ray(self) -> Any:
        return self._connection.ray

    def start(self, request: AgentRequest) -> list[RayNode]:
        """Start an agent on each node that has none; returns these nodes. Other callers may start the same at the same time."""
        known, started = set(self._names()), []
        for node in nodes_with_gpus(self._ray.nodes()):
            if node.node_name not in known and self._start(node, request):
                started.append(node)
        return started

    def _start(self, node: RayNode, request: AgentRequest) -> bool:
        strategies = self._ray.util.scheduling_strategies
        actor = self._ray.remote(AgentActor).options(
            name=node.node_name,
            namespace=self.namespace,
            lifetime="detached",
            num_cpus=0,
            num_gpus=request.count(node),
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        about = (node.node_name, node.address, request.count(node))
        try:
            actor.remote(*about, request.words(node), request.token, request.authority)
        except ValueError:  # the name is taken
            return False
        return True

    def states(self, patience_s: float = ANSWER_S) -> list[AgentState]:
        """Of all agents, by node. One that does not answer waits for its GPUs."""
        names = self._names()
        answers = {name: handle.state.remote() for name in names if (handle := self._handle(name)) is not None}
        if answers:
            self._ray.wait(list(answers.values()), num_returns=len(answers), timeout=patience_s)
        return [self._state(name, answers[name]) for name in names if name in answers]

    def _state(self, name: str, answer: Any) -> AgentState:
        try:
            return AgentState(*self._ray.get(answer, timeout=0))
        except self._ray.exceptions.GetTimeoutError:
            return AgentState(name)
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return AgentState(name, state="ended", reason=lines[-1][:200] if lines else "")

    def _handle(self, name: str) -> Any:
        try:
            return self._ray.get_actor(name, self.namespace)
        except ValueError:  # it has ended
            return None

    def end(self, nodes: Sequence[str], report: Callable[[str], None]) -> list[str]:
        """Let agents leave, all of them without `nodes`, and end their actors; returns their names when all have ended."""
        leaving: dict[str, Any] = {}
        for state in self.states(PATIENCE_S):
            if (not nodes or state.node in nodes) and (handle := self._handle(state.node)) is not None:
                leaving[state.node] = handle
                if state.state == "running":
                    report(f"{state.node}: its jobs checkpoint, and the node leaves")
                    handle.leave.remote()
                elif state.state == "waiting":
                    self._ray.kill(handle)
        ended = list(leaving)
        while leaving:
            running = {state.node for state in self.states() if state.state != "ended"}
            for name in [name for name in leaving if name not in running]:
                self._ray.kill(leaving.pop(name))
            if leaving:
                self._host.sleep(POLL_S)
        return ended

    def clear_ended(self) -> list[AgentState]:
        """End the actors whose agents have ended by themselves; returns their states, with the reasons."""
        ended = [state for state in self.states() if state.state == "ended"]
        for state in ended:
            if (handle := self._handle(state.node)) is not None:
                self._ray.kill(handle)
        return ended

    def until_joined(self, connected: Callable[[], Container[str]], patience_s: float) -> list[AgentState]:
        """Wait until every agent has joined or ended, at most this long; returns the states of those that have not joined."""
        until = self._host.monotonic() + patience_s
        while True:
            states, there = self.states(), connected()
            left = [state for state in states if state.node not in there]
            if all(state.state == "ended" for state in left) or self._host.monotonic() > until:
                return left
            self._host.sleep(POLL_S / 2)

    def control_planes(self) -> list[str]:
        """The addresses of all control planes that have agents on this Ray cluster."""
        listed = self._ray.util.list_named_actors(all_namespaces=True)
        spaces = {str(one["namespace"]) for one in listed if one["namespace"].startswith(_NAMESPACE)}
        return sorted(space.removeprefix(_NAMESPACE) for space in spaces)

    def _names(self) -> list[str]:
        listed = self._ray.util.list_named_actors(all_namespaces=True)
        return sorted(one["name"] for one in listed if one["namespace"] == self.namespace)
