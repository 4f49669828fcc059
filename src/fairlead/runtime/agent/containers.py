"""Launches in containers: which runtime a node has, and how a worker's command becomes a command of that runtime.

A container changes the files that a job sees, and nothing else. Network, processes and shared memory are those of the node, so
gangs, signals and MPS work as without one; the GPUs are chosen by `CUDA_VISIBLE_DEVICES`. The runtime runs as the job's user,
whose rights it has. Of the node the job sees what its task mounts, its directory, its checkpoints, its lease page, its reports
and Fairlead's own package, all at the same paths, except for the last.

Everything here is pure, except for looking at which programs and folders exist. It knows neither processes nor messages."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from fairlead.client.lease_page import PAGE
from fairlead.core.errors import require
from fairlead.runtime.agent.agent_errors import OrderRefused
from fairlead.runtime.protocol.command_line import SHELL
from fairlead.runtime.protocol.orders import Container, Mount

PROGRAMS = {"apptainer": ("apptainer", "singularity"), "podman": ("podman",), "docker": ("docker",)}
"""The programs of each runtime, in the order in which a node's runtimes are tried."""

CLIENT = "/.fairlead"
"""The folder of a container with Fairlead's package, so that images need not have it."""

_TRANSPORT = re.compile(r"[a-z][a-z-]*://|(docker-archive|docker-daemon|oci|oci-archive|containers-storage):")
_REGISTRY = "docker://"

_RUN_SHELL = 'command -v bash >/dev/null && exec bash -c "$0"; exec sh -c "$0"'

_READ_BY_RUNTIMES = re.compile(
    r"""(DOCKER_(HOST|CONFIG|CONTEXT|CERT_PATH|TLS|TLS_VERIFY|API_VERSION|CONTENT_TRUST\w*|DEFAULT_PLATFORM|CUSTOM_HEADERS)
    |PODMAN_(USERNS|CONNECTIONS_CONF)|CONTAINER_(HOST|CONNECTION|SSHKEY|TLS_\w+)|_?CONTAINERS_\w+|BUILDAH_(FORMAT|ISOLATION)
    |STORAGE_(DRIVER|OPTS)|REGISTRY_AUTH_FILE|REGISTRIES_CONFIG_PATH|XDG_\w+|LD_\w+|DBUS_\w+|TMPDIR|SSL_CERT_(FILE|DIR)
    |GO(DEBUG|GC|MAXPROCS|MEMLIMIT|TRACEBACK|ROOT|COVERDIR)|LISTEN_(FDS|PID|FDNAMES|PIDFDID)|NOTIFY_SOCKET)\Z""",
    re.VERBOSE,
)
"""Variables that change what podman or docker do. Those of a task stand in the command that starts the container, which all
users of the node can read: only full names, so that no secret is among them."""

_OF_OPERATORS = ("APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "SINGULARITY_CACHEDIR", "SINGULARITY_TMPDIR", "REGISTRY_AUTH_FILE")
_OF_OWN_USER = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT")


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """What the operator of a node allows."""

    mounts: tuple[str, ...] | None = None  # folders of the node that users may mount; None: all that they may read
    docker: bool = False  # whose daemon runs as root
    nvidia: Path = Path("/dev/nvidiactl")  # exists on a node with NVIDIA's driver
    path: str | None = None  # where programs are looked for; None: in PATH

    @classmethod
    def parse(cls, mounts: str | None, *, docker: bool) -> ContainerRules:
        """The rules of an agent's options; `mounts` are folders with commas between them. Raises `InputError`."""
        if mounts is None:
            return cls(docker=docker)
        folders = tuple(folder for word in mounts.split(",") if (folder := word.strip()))
        right = all(os.path.isabs(folder) for folder in folders)
        require(right, "agent", "absolute paths with commas between them", "container-mounts", mounts)
        return cls(folders, docker)

    def find(self, container: Container) -> tuple[str, str]:
        """Return the runtime for a container, and its program.

        Raises:
            OrderRefused: The node has no such runtime, or it is docker, which is not allowed here.
        """
        if container.runtime == "docker" and not self.docker:
            raise OrderRefused("containers: docker is not allowed on this node: start its agent with --allow-docker")
        names = [container.runtime] if container.runtime else ["apptainer"] if container.is_file else list(PROGRAMS)
        for name in names:
            found = (shutil.which(program, path=self.path) for program in PROGRAMS[name])
            if (name != "docker" or self.docker) and (program := next(filter(None, found), None)):
                return name, program
        names = [name for name in names if name != "docker" or self.docker]
        needed = f"{' or '.join(names)}, which the image {container.image[:100]} needs"
        raise OrderRefused(f"containers: this node has no {needed}: install it")  # other jobs can run on this node

    def check_mount(self, source: str) -> None:
        """Refuse to mount what the operator does not allow. Links are followed."""
        if self.mounts is None:
            return
        real = os.path.realpath(source)
        if not any(Path(real).is_relative_to(os.path.realpath(folder)) for folder in self.mounts):
            allowed = ", ".join(self.mounts) or "no folders"
            raise OrderRefused(f"containers: {source} cannot be mounted here: this node allows {allowed} (--container-mounts)")


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """What of the node a worker needs in its container."""

    directory: str  # where it runs
    is_given: bool  # by its task, and not one of Fairlead's
    home: str
    needed: tuple[str, ...]  # further folders and files that it reads and writes


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """What a shim runs: a command, in a container or not. `remove` removes what may outlive it; empty: nothing does."""

    words: list[str]
    environment: dict[str, str]
    remove: list[str]


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """What a runtime runs, and for whom."""

    container: Container
    words: Sequence[str]  # the worker's command
    variables: Mapping[str, str]  # the worker's
    files: WorkerFiles
    name: str  # of the container on the node
    user: Sequence[int]  # the ids of the job's user, its group and its other groups
    own: Mapping[str, str]  # variables of the runtime itself
    limits: tuple[float, float] = (0.0, 0.0)  # CPU cores and GB, for a runtime outside the node's control groups; 0: none

    def command(self, rules: ContainerRules) -> ContainerCommand:
        """Return the command that runs this.

        Raises:
            OrderRefused: The node has no such runtime, or its operator does not allow it.
        """
        runtime, program = rules.find(self.container)
        if not os.path.normpath(self.files.directory).strip("/"):
            raise OrderRefused("containers: the directory of the job cannot be /")
        for source in (
            *(one.source for one in self.container.mounts),
            *([self.files.directory] if self.files.is_given else ()),
        ):
            rules.check_mount(source)
        mounts, inside = _mounts([*self.container.mounts, *_own_mounts(self.files, self.user)]), dict(self.variables)
        if any(mount.target.startswith(CLIENT + "/") for mount in mounts):
            inside["PYTHONPATH"] = os.pathsep.join(filter(None, (CLIENT, inside.get("PYTHONPATH"))))
        gpus = rules.nvidia.exists()
        if runtime == "apptainer":
            return self._apptainer(program, _mount_words(mounts), inside, gpus=gpus)
        options = self._podman(gpus=gpus) if runtime == "podman" else self._docker(gpus=gpus)
        passed, shown = _passed(inside, self.own)
        options += [word for key in sorted(passed) for word in ("--env", key)]
        options += [word for key in sorted(shown) for word in ("--env", f"{key}={shown[key]}")]
        first = [program, "--cgroup-manager=cgroupfs"] if runtime == "podman" else [program]  # needs no session of systemd
        options += [*_mount_words(mounts), self.container.image.removeprefix(_REGISTRY)]
        remove = ["rm", "--force", *(["--ignore"] if runtime == "podman" else []), self.name]
        environment = {**passed, **self.own, PAGE: inside[PAGE]}  # by which its processes are found
        return ContainerCommand([*first, "run", *options, *self._words], environment, [*first, *remove])

    def _apptainer(self, program: str, mounts: Sequence[str], variables: Mapping[str, str], *, gpus: bool) -> ContainerCommand:
        image, home = self.container.image, self.files.home
        image = image if self.container.is_file or _TRANSPORT.match(image) else _REGISTRY + image
        options = ["--cleanenv", "--home", home, "--pwd", self._directory, *(["--nv"] if gpus else []), *mounts]
        prefix = "SINGULARITY" if Path(program).name == "singularity" else "APPTAINER"
        inside = {f"{prefix}ENV_{key}": value for key, value in variables.items() if key != "HOME"}  # which --home sets
        # Without evaluation, values with a $ stay as they are.
        environment = {**inside, **self.own, f"{prefix}_NO_EVAL": "1", PAGE: variables[PAGE]}
        return ContainerCommand([program, "exec", *options, image, *self._words], environment, [])

    def _podman(self, *, gpus: bool) -> list[str]:
        keep = ["--userns=keep-id"] if self.user[0] else self._limits  # without root, it stays in the worker's control group
        return [*self._common, "--stop-timeout=0", *keep, *(["--device=nvidia.com/gpu=all"] if gpus else [])]

    def _docker(self, *, gpus: bool) -> list[str]:
        groups = [f"--group-add={other}" for other in self.user[2:] if other != self.user[1]]
        return [*self._common, *groups, *self._limits, *(["--gpus=all"] if gpus else [])]

    @property
    def _common(self) -> list[str]:
        """The options of podman and docker."""
        uid, gid = self.user[:2]
        options = ["--rm", "--name", self.name, f"--user={uid}:{gid}", "--entrypoint=", f"--workdir={self._directory}"]
        options += ["--network=host", "--ipc=host", "--pid=host", "--log-driver=none", "--security-opt=label=disable"]
        return options + (["--cap-drop=ALL", "--security-opt=no-new-privileges"] if uid else [])

    @property
    def _limits(self) -> list[str]:
        cpus, memory_gb = self.limits
        return [*([f"--cpus={cpus:g}"] if cpus else []), *([f"--memory={round(memory_gb * 2**30)}b"] if memory_gb else [])]

    @property
    def _directory(self) -> str:
        return self.container.directory or self.files.directory

    @property
    def _words(self) -> list[str]:
        """The worker's command; what is written for a shell runs in bash, or in sh where an image has no bash."""
        words = list(self.words)
        if words[-3:-1] == [SHELL, "-c"]:  # also behind a prefix
            return [*words[:-3], "sh", "-c", _RUN_SHELL, words[-1]]
        return words


def container_name(job: int, generation: int, rank: int, page: str) -> str:
    """The name of a worker's container; other agents on the machine have other pages."""
    return f"fairlead-{job}-{generation}-{rank}-{crc32(page.encode()):08x}"


def runtime_variables(inherited: Mapping[str, str], environment: Mapping[str, str], uid: int) -> dict[str, str]:
    """The variables of a runtime that runs as a user: those that jobs inherit, and what an operator has set for runtimes."""
    found = {key: environment[key] for key in _OF_OPERATORS if key in environment}
    if uid == os.geteuid():
        found |= {key: environment[key] for key in _OF_OWN_USER if key in environment}
    elif (place := Path(f"/run/user/{uid}")).is_dir():
        found["XDG_RUNTIME_DIR"] = str(place)
    return {**inherited, **found}


def _own_mounts(files: WorkerFiles, user: Sequence[int]) -> Iterator[Mount]:
    """What Fairlead mounts, folders before what is in them."""
    package = Path(__file__).parents[2]
    for path in sorted({files.directory, files.home, *files.needed}, key=len):
        yield Mount(path, path)
    if _is_open(package, user[0]):
        yield Mount(str(package), f"{CLIENT}/{package.name}", read_only=True)


def _mounts(wanted: Iterable[Mount]) -> list[Mount]:
    """Mounts without those that are there twice, folders before what is in them. Raises `OrderRefused`: two have one target."""
    by_target = dict[str, Mount]()
    for mount in wanted:
        first = by_target.setdefault(os.path.normpath(mount.target), mount)
        if os.path.normpath(first.source) != os.path.normpath(mount.source):
            raise OrderRefused(f"containers: {first.source} and {mount.source} cannot both be mounted at {mount.target}")
    return [by_target[target] for target in sorted(by_target, key=lambda target: target.count("/"))]


def _is_open(folder: Path, uid: int) -> bool:
    """Whether a user can read a folder: the agent's own user, or any."""
    if uid == os.geteuid():
        return True
    above = (folder, *folder.resolve().parents)
    return bool(folder.stat().st_mode & 0o004) and all(one.stat().st_mode & 0o001 for one in above)


def _mount_words(mounts: Iterable[Mount]) -> list[str]:
    """The options for mounts, which all runtimes read as a line of CSV."""
    words = []
    for mount in mounts:
        fields = ["type=bind", f"source={mount.source}", f"destination={mount.target}", *(["ro"] if mount.read_only else [])]
        words += ["--mount", ",".join(map(_quoted, fields))]
    return words


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if set(field) & set(',"\n') else field


def _passed(variables: Mapping[str, str], own: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables that reach a container through the runtime's own, so that no other user sees them, and those that stand in its
    command, because the runtime would read them itself."""
    shown = {
        key: value
        for key, value in variables.items()
        if own.get(key, value) != value or (key not in own and _READ_BY_RUNTIMES.match(key))
    }
    return {key: value for key, value in variables.items() if key not in shown}, shown
