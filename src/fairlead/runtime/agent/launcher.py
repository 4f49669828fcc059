"""How a launch starts: checks, directories, shims, the record, and only then the launch specs that make the shims start
anything. Up to the record everything is undone when something fails."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.files import make_folder, remove, remove_empty
from fairlead.runtime.agent.agent_errors import OrderRefused, node_errors
from fairlead.runtime.agent.containers import (
    ContainerCommand,
    ContainerRun,
    WorkerFiles,
    container_name,
    runtime_variables,
)
from fairlead.runtime.agent.devices import MultiProcessService, NodeAccelerators
from fairlead.runtime.agent.fencing_deadline import FencingDeadline
from fairlead.runtime.agent.launch import AgentLaunch, LaunchRecord
from fairlead.runtime.agent.lease_file import LeaseFile
from fairlead.runtime.agent.processes import Cgroup, ProcessTable, ShimProcess
from fairlead.runtime.agent.settings import AgentSettings, User, worker_environment
from fairlead.runtime.agent.shim import LOG, LaunchSpec
from fairlead.runtime.agent.worker import LEASE, REPORTS, AgentWorker, WorkerRecord
from fairlead.runtime.agent.worker_reports import WorkerReports
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.code_archive import is_digest
from fairlead.runtime.protocol.command_line import SHELL
from fairlead.runtime.protocol.orders import Launch, Task

_MAX_S = 1e9  # three decades: no job means more
HOME = "home"  # folder of a launch, for a user without an account, and for containers
_IN_CONTAINERS = ("USER", "LOGNAME", "TZ")  # what they inherit; paths and languages are those of the image


@dataclass(frozen=True)
class Launcher:
    """Starts launches in the directory `jobs`, with code from the directory `code`."""

    jobs: Path
    code: Path
    accelerators: NodeAccelerators
    settings: AgentSettings
    mps: MultiProcessService
    fencing_deadline: FencingDeadline
    host: Host
    processes: ProcessTable

    def has_code(self, digest: str) -> bool:
        return is_digest(digest) and (self.code / digest).is_dir()

    def start(self, launch: Launch, held: Sequence[int]) -> AgentLaunch:
        """Start all workers or none; `held` are the accelerators that other launches use."""
        self._check(launch)
        self._check_directories(launch)
        directory = self.jobs / str(launch.job) / str(launch.generation)
        shims: list[ShimProcess] = []
        workers: list[AgentWorker] = []
        with node_errors(directory), contextlib.ExitStack() as undo:
            undo.callback(remove_empty, directory.parent / "checkpoints", directory.parent)
            undo.callback(remove, directory)
            undo.callback(_end_shims, shims)
            self.fencing_deadline.check()
            remove(directory)  # left by an agent that died before the launch
            user = self.settings.user_of(launch.user, self.jobs.parent)
            self._make_job_folder(directory.parent, user)
            make_folder(directory, self.settings.folder_mode)
            directories = self._make_directories(launch, directory, user)
            specs = []
            if self.settings.cgroup is not None:
                group = Cgroup.of_launch(self.settings.cgroup / f"{launch.job}-{launch.generation}", *_limits(launch))
                undo.callback(group.remove)
            for local_rank, rank in enumerate(launch.ranks):
                work_directory = directory / str(rank)
                lease = self._make_work_directory(launch, work_directory, user)
                undo.callback(lease.path.unlink, missing_ok=True)
                undo.callback(lease.close)
                shims.append(self.processes.start_shim(work_directory))
                record = self._record(launch, local_rank, shims[-1], lease.path)
                if record.cgroup:
                    undo.callback(_end_group, Cgroup.create(Path(record.cgroup), record.pid), shims[-1])
                workers.append(AgentWorker(record, work_directory, lease, shims[-1], self.host))
                if launch.parameters.routing is not None:
                    workers[-1].route(launch.parameters.routing)
                undo.callback(workers[-1].close)
                specs.append(self._spec(launch, local_rank, workers[-1], directories, held, user))
            workers.sort(key=lambda worker: worker.record.rank)
            reports = WorkerReports(workers[0].directory / REPORTS)
            task, records = launch.task, tuple(worker.record for worker in workers)
            launch_record = LaunchRecord(
                *launch.key,
                launch.name,
                launch.world_size,
                task.cooperative,
                task.grace_s,
                task.max_s,
                self.processes.boot_id(),
                records,
                task.central,
            )
            launch_record.write(directory)
            undo.pop_all()
        for shim, spec in zip(shims, specs, strict=True):
            shim.send_spec(json.dumps(spec._asdict()).encode() + b"\n")
        return AgentLaunch(launch_record, directory, workers, reports, self.settings, self.host)

    def unknown(self, job: int, generation: int, directory: Path) -> LaunchRecord:
        """A record of a launch whose own is lost or damaged. Its processes are found by their environment, and end."""
        ranks = [int(path.name) for path in directory.iterdir() if re.fullmatch("[0-9]{1,6}", path.name)]
        workers = tuple(
            WorkerRecord(
                rank, 0, 0, 0, str(self._page(job, generation, directory / str(rank))), self._cgroup(job, generation, rank)
            )
            for rank in sorted(ranks) or [0]
        )
        return LaunchRecord(job, generation, "", len(workers), True, 0.0, 0.0, self.processes.boot_id(), workers)

    def _page(self, job: int, generation: int, work_directory: Path) -> Path:
        pages = self.settings.pages
        return work_directory / LEASE if pages is None else pages / f"{job}-{generation}-{work_directory.name}"

    def _cgroup(self, job: int, generation: int, rank: int) -> str:
        return str(self.settings.cgroup / f"{job}-{generation}" / str(rank)) if self.settings.cgroup is not None else ""

    def _check(self, launch: Launch) -> None:
        task = launch.task
        words = [*task.prefix, *task.command, *task.environment.values(), task.directory, launch.checkpoints, task.output]
        problems = {
            "it has no command": not task.command,
            "its number or its generation is out of range": not (0 <= launch.job < 10**15 and 1 <= launch.generation < 10**15),
            "it has no workers here": not launch.ranks,
            "it has a rank twice": len(set(launch.ranks)) != len(launch.ranks),
            f"its ranks are not below its {launch.world_size} workers": any(
                not 0 <= rank < launch.world_size for rank in launch.ranks
            ),
            "it does not have one GPU for each worker": len(launch.accelerators) != len(launch.ranks),
            f"this node has {len(self.accelerators)} GPUs": any(
                not 0 <= accelerator < len(self.accelerators) for accelerator in launch.accelerators
            ),
            "its command, environment or paths contain a NUL byte": any("\0" in word for word in words),
            "the name of a variable is empty, or contains '=' or a NUL byte": any(
                not name or "=" in name or "\0" in name for name in task.environment
            ),
            "its work directory or checkpoint folder is not an absolute path": any(
                path and not os.path.isabs(path) for path in (task.directory, launch.checkpoints)
            ),
            f"its code {task.code[:12]} was not sent": bool(task.code) and not self.has_code(task.code),
            "its grace or its bounds are out of range": not (
                0 <= task.grace_s <= _MAX_S and 0 <= task.max_s <= _MAX_S and 0 <= task.max_steps <= 2**53
            ),
        }
        for problem, found in problems.items():
            if found:
                raise OrderRefused(f"job {launch.job}, generation {launch.generation}: {problem}")

    def _check_directories(self, launch: Launch) -> None:
        """Refuse a job whose earlier launches have replaced or closed its own directories. That would fail on every node, so it
        is not a fault of this one."""
        own, usable = self.jobs / str(launch.job), os.W_OK | os.X_OK
        with node_errors(own):
            for place in (own, _checkpoints(launch, own)):
                if os.path.lexists(place) and not place.is_dir():
                    raise OrderRefused(f"job {launch.job}, generation {launch.generation}: {place} exists and is not a folder")
            if own.is_dir() and not os.access(own, usable) and os.access(self.jobs, usable):
                raise OrderRefused(f"job {launch.job}, generation {launch.generation}: {own} is not readable")

    def _make_job_folder(self, path: Path, user: User | None) -> None:
        """The folder of all launches of a job, through which only its own user may pass."""
        self.settings.make_folder(path)
        if user is not None and os.geteuid() == 0:
            os.chown(path, 0, user.gid)
            os.chmod(path, 0o710)

    def _make_directories(self, launch: Launch, directory: Path, user: User | None) -> tuple[str, Path]:
        """The directories where the command runs and where its checkpoints go."""
        checkpoints = _checkpoints(launch, directory.parent)
        # The agents of a gang may do this at the same moment: each makes sure that it exists and has the right owner.
        if self.settings.pool is not None and launch.checkpoints:
            self.settings.make_folder(checkpoints.parent)
        checkpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
        if user is not None and os.geteuid() == 0:
            _give(checkpoints, user)
        if launch.task.container is not None or (user is not None and not user.home):
            (directory / HOME).mkdir(mode=0o700)
            _change_owner(directory / HOME, user)
        if launch.task.directory:
            return launch.task.directory, checkpoints
        own = directory / "work"
        own.mkdir(mode=0o700)
        if launch.task.code:
            _link_code(self.code / launch.task.code, own)
        # From the leaves up: a folder's new owner may replace anything in it.
        for folder, _, _ in os.walk(own, topdown=False):
            _change_owner(Path(folder), user)
        return str(own), checkpoints

    def _make_work_directory(self, launch: Launch, work_directory: Path, user: User | None) -> LeaseFile:
        make_folder(work_directory, self.settings.folder_mode)
        (work_directory / LOG).mkdir(mode=0o700)
        reports = work_directory / REPORTS
        reports.touch(mode=0o600)
        _change_owner(reports, user)
        page = self._page(*launch.key, work_directory)
        if self.settings.pages is not None:
            self.settings.make_folder(self.settings.pages)
        lease = LeaseFile.create(page, launch.task.max_steps, launch.task.max_s)
        os.chmod(page, 0o600)
        _change_owner(page, user)
        return lease

    def _record(self, launch: Launch, local_rank: int, shim: ShimProcess, page: Path) -> WorkerRecord:
        rank = launch.ranks[local_rank]
        cgroup = self._cgroup(*launch.key, rank)
        return WorkerRecord(rank, launch.accelerators[local_rank], shim.pid, shim.started, str(page), cgroup)

    def _spec(
        self,
        launch: Launch,
        local_rank: int,
        worker: AgentWorker,
        directories: tuple[str, Path],
        held: Sequence[int],
        user: User | None,
    ) -> LaunchSpec:
        (cwd, checkpoints), page, container = directories, worker.record.page, launch.task.container
        accelerator = launch.accelerators[local_rank]
        device = self.accelerators.devices[accelerator]
        own = {name: os.environ[name] for name in self.settings.inherited if name in os.environ}
        own |= _user_variables(user, worker.directory.parent) if user else {}
        home = str(worker.directory.parent / HOME)
        seen = own if container is None else {**{name: own[name] for name in _IN_CONTAINERS if name in own}, "HOME": home}
        variables = launch.task.environment if container is None else {**launch.task.environment, **container.environment}
        environment = worker_environment(
            replace(launch, task=replace(launch.task, environment=variables)),
            local_rank,
            device=device.device,
            page=page,
            reports=worker.directory / REPORTS,
            checkpoints=checkpoints,
            inherited=seen,
        )
        shared = launch.parameters.colocated or Counter([*held, *launch.accelerators])[accelerator] > 1
        environment |= (mps := self.mps.variables(accelerator, device) if shared else {})
        ids = [user.uid, user.gid, *user.groups] if user and os.geteuid() == 0 else []
        run = ContainerCommand([*launch.task.prefix, *_command(launch.task, environment.get("PATH"))], environment, [])
        if container is not None:
            user_ids = ids or [os.geteuid(), os.getegid(), *os.getgroups()]
            shares = (path for path in mps.values() if os.path.isabs(path))
            needed = (str(checkpoints), page, str(worker.directory / REPORTS), *shares)
            run = ContainerRun(
                container,
                launch.task.command,
                environment,
                WorkerFiles(cwd, bool(launch.task.directory), home, needed),
                container_name(*launch.key, launch.ranks[local_rank], page),
                user_ids,
                runtime_variables(own, os.environ, user_ids[0]),
                _worker_limits(launch),
            ).command(self.settings.containers)
        return LaunchSpec(
            command=run.words,
            environment=run.environment,
            directory=cwd,
            work_directory=str(worker.directory),
            log_bytes=self.settings.log_bytes,
            log_files=self.settings.log_files,
            user=ids,
            fencing_deadline=str(self.fencing_deadline.path),
            deadline=self.fencing_deadline.times,
            grace_s=launch.task.grace_s,
            cooperative=launch.task.cooperative,
            page=page if launch.task.cooperative and launch.ranks[local_rank] == 0 else "",
            output=_output(launch, launch.ranks[local_rank], environment),
            outputs=list(launch.task.outputs) if launch.ranks[local_rank] == 0 else [],
            own_page=page if launch.task.cooperative else "",
            settle_s=self.settings.settle_s,
            remove=run.remove,
        )


def _worker_limits(launch: Launch) -> tuple[float, float]:
    """The CPU cores and the host memory in GB of one worker, as planned or as the task says; 0: no limit."""
    task, given = launch.task, launch.parameters
    return given.cpus or task.cpus, given.host_memory_gb or task.host_memory_gb


def _limits(launch: Launch) -> tuple[float, float]:
    """The limits of all workers here together."""
    cpus, memory_gb = _worker_limits(launch)
    return len(launch.ranks) * cpus, len(launch.ranks) * memory_gb


def _user_variables(user: User, launch: Path) -> dict[str, str]:
    return user.variables if user.home else {**user.variables, "HOME": str(launch / HOME)}


def _change_owner(path: Path, user: User | None) -> None:
    if user is not None and os.geteuid() == 0:
        os.chown(path, user.uid, user.gid, follow_symlinks=False)


def _give(directory: Path, user: User) -> None:
    """Make a folder a user's own, and closed to others. If it was another user's, as before a change of the agent's options, so
    are the files in it. By descriptor: links lead nowhere, and files with a second name elsewhere stay as they are."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(top).st_uid == user.uid:
            return
        os.fchmod(top, 0o700)
        for _, _, names, folder in os.fwalk(dir_fd=top, topdown=False):
            for name in names:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if about.st_nlink == 1 and (stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)):
                    os.chown(name, user.uid, user.gid, dir_fd=folder, follow_symlinks=False)
            os.fchown(folder, user.uid, user.gid)
    finally:
        os.close(top)


def _command(task: Task, path: str | None) -> list[str]:
    """The program and its arguments; on a node without bash, `sh` runs what is written for a shell. A prefix may bring its own
    programs."""
    words = list(task.command)
    if task.shell and not task.prefix and words[0] == SHELL and shutil.which(SHELL, path=path) is None:
        words[0] = "sh"
    return words


def _output(launch: Launch, rank: int, environment: Mapping[str, str]) -> str:
    """The file for a worker's output, with the names in it as Slurm has them; `%4j` pads a number with zeros."""
    index, number = environment.get("FAIRLEAD_ARRAY_INDEX", ""), launch.job
    name = launch.name.removesuffix(f"-{index}") if index else launch.name
    values = {"%": "%", "j": number, "x": name, "A": number - int(environment.get("FAIRLEAD_ARRAY_POSITION", 0)), "a": index}
    values |= {"t": rank, "u": environment.get("USER", ""), "N": os.uname().nodename.partition(".")[0]}
    return re.sub(r"%(\d?)([%jxAatuN])", lambda found: str(values[found[2]]).zfill(int(found[1] or 0)), launch.task.output)


def _checkpoints(launch: Launch, own: Path) -> Path:
    """In the folder that all nodes see, or in the job's `own` on this node."""
    return Path(launch.checkpoints) if launch.checkpoints else own / "checkpoints"


def _link_code(code: Path, directory: Path) -> None:
    """Fill a job's directory with code: its files are links to the shared ones, its folders are new and writable."""
    for folder, _, names in os.walk(code):
        here = directory / Path(folder).relative_to(code)
        here.mkdir(mode=0o755, exist_ok=True)
        for name in names:
            os.link(Path(folder) / name, here / name)


def _end_shims(shims: list[ShimProcess]) -> None:
    for shim in shims:
        shim.end()


def _end_group(cgroup: Cgroup, shim: ShimProcess) -> None:
    shim.end()
    cgroup.remove()
