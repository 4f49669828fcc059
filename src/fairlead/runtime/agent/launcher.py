"""How a launch begins: checks, directories, stubs, the record, and only then the errands that make the stubs start anything.
Up to the record everything can be taken back, and is when something fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fairlead.files import make_folder, remove, remove_empty
from fairlead.runtime.agent.agent_errors import NodeError, OrderRefused, node_errors
from fairlead.runtime.agent.archives import is_digest, link_code
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.launch import Launched
from fairlead.runtime.agent.launch_records import Record, WorkerRecord
from fairlead.runtime.agent.lease_file import LeaseFile
from fairlead.runtime.agent.mps import MultiProcessService
from fairlead.runtime.agent.processes import Cgroup, look
from fairlead.runtime.agent.settings import AgentSettings, worker_environment
from fairlead.runtime.agent.shim import LOG, LaunchSpec
from fairlead.runtime.agent.worker import LEASE, REPORTS, Worker, start_stub
from fairlead.runtime.agent.worker_reports import WorkerReports
from fairlead.runtime.protocol.orders import Launch

LONGEST_S = 1e9  # three decades: no job means more


class Starter:
    def __init__(
        self,
        jobs: Path,
        code: Path,
        accelerators: NodeAccelerators,
        settings: AgentSettings,
        sharing: MultiProcessService,
        lifeline: Path,
    ) -> None:
        self._jobs, self._code, self._accelerators = jobs, code, accelerators
        self._settings, self._sharing, self._lifeline = settings, sharing, lifeline

    def has_code(self, digest: str) -> bool:
        return is_digest(digest) and (self._code / digest).is_dir()

    def start(self, launch: Launch, held: Sequence[int]) -> Launched:
        """`held` are the accelerators that other launches are using."""
        self._check(launch)
        self._check_its_own(launch)
        directory = self._jobs / str(launch.job) / str(launch.generation)
        stubs: list[subprocess.Popen[bytes]] = []
        workers: list[Worker] = []
        with node_errors(directory), contextlib.ExitStack() as undo:
            undo.callback(remove_empty, directory.parent / "checkpoints", directory.parent)
            undo.callback(remove, directory)
            undo.callback(_take_back, stubs)
            remove(directory)  # what was left by an agent that died before anything began
            self._folder(directory.parent)
            self._folder(directory)
            where, checkpoints = self._places(launch, directory)
            errands = []
            for local_rank in range(len(launch.ranks)):
                desk = directory / str(launch.ranks[local_rank])
                lease = self._furnish(launch, desk)
                undo.callback(lease.path.unlink, missing_ok=True)
                undo.callback(lease.close)
                stubs.append(start_stub(desk))
                record = self._record(launch, local_rank, stubs[-1], lease.path)
                if record.cgroup:
                    undo.callback(_dismiss, Cgroup.create(Path(record.cgroup), record.pid), stubs[-1])
                workers.append(Worker(record, desk, lease, stubs[-1]))
                if launch.parameters.routing is not None:
                    workers[-1].route(launch.parameters.routing)
                undo.callback(workers[-1].close)
                errands.append(self._errand(launch, local_rank, desk, lease.path, where, checkpoints, held))
            workers.sort(key=lambda worker: worker.record.rank)
            reports = WorkerReports(workers[0].desk / REPORTS)
            record_of_launch = Record.of(launch, tuple(worker.record for worker in workers))
            record_of_launch.write(directory)
            undo.pop_all()
        for stub, errand in zip(stubs, errands, strict=True):
            _send(stub, errand)
        return Launched(record_of_launch, directory, workers, reports, self._settings, None)

    def _check(self, launch: Launch) -> None:
        task = launch.task
        words = [*task.prefix, *task.command, *task.environment.values(), task.directory, launch.checkpoints]
        problems = {
            "it has no command": not task.command,
            "its number or its generation is out of range": not (0 <= launch.job < 10**18 and 1 <= launch.generation < 10**18),
            "it has no workers here": not launch.ranks,
            "a rank stands in it twice": len(set(launch.ranks)) != len(launch.ranks),
            f"its ranks are not below its {launch.world_size} workers": any(
                not 0 <= rank < launch.world_size for rank in launch.ranks
            ),
            "it does not have one accelerator for each worker": len(launch.accelerators) != len(launch.ranks),
            f"this node has {len(self._accelerators)} accelerators": any(
                not 0 <= accelerator < len(self._accelerators) for accelerator in launch.accelerators
            ),
            "a word of it holds a zero byte": any("\0" in word for word in words),
            "a variable's name is empty or holds '='": any(
                not name or "=" in name or "\0" in name for name in task.environment
            ),
            "a directory of it is not absolute": any(
                path and not os.path.isabs(path) for path in (task.directory, launch.checkpoints)
            ),
            f"its code {task.code[:12]} was not sent": bool(task.code) and not self.has_code(task.code),
            "its grace or its bounds are out of range": not (
                0 <= task.grace_s <= LONGEST_S and 0 <= task.max_s <= LONGEST_S and 0 <= task.max_steps <= 2**53
            ),
        }
        for problem, there in problems.items():
            if there:
                raise OrderRefused(f"job {launch.job}, generation {launch.generation}: {problem}")

    def _check_its_own(self, launch: Launch) -> None:
        """What earlier launches of a job have put in its way, or closed, would stop it on any node: that is no fault of this
        one, on which others can begin."""
        own, usable = self._jobs / str(launch.job), os.W_OK | os.X_OK
        with node_errors(own):
            for place in (own, _checkpoints(launch, own)):
                if os.path.lexists(place) and not place.is_dir():
                    raise OrderRefused(f"job {launch.job}, generation {launch.generation}: {place} is its own, and no folder")
            if own.is_dir() and not os.access(own, usable) and os.access(self._jobs, usable):
                raise OrderRefused(f"job {launch.job}, generation {launch.generation}: {own} is its own, and closed")

    def _places(self, launch: Launch, directory: Path) -> tuple[str, Path]:
        """Where it runs, and where its checkpoints go."""
        checkpoints = _checkpoints(launch, directory.parent)
        # The agents of a gang may come to it in the same moment: each makes sure that it is there, and given.
        checkpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._is_given(checkpoints):
            self._give(checkpoints)
        if launch.task.directory:
            return launch.task.directory, checkpoints
        own = directory / "work"
        own.mkdir()
        if launch.task.code:
            link_code(self._code / launch.task.code, own)
        # From the leaves up: once a folder is given away, its owner may put anything in the place of what is in it.
        for folder, _, _ in os.walk(own, topdown=False):
            self._give(Path(folder))
        return str(own), checkpoints

    def _furnish(self, launch: Launch, desk: Path) -> LeaseFile:
        self._folder(desk)
        (desk / LOG).mkdir(mode=0o700)
        reports = desk / REPORTS
        reports.touch(mode=0o600)
        self._give(reports)
        page = desk / LEASE
        if self._settings.pages is not None:
            self._folder(self._settings.pages)
            page = self._settings.pages / f"{launch.job}-{launch.generation}-{desk.name}"
        lease = LeaseFile.create(page, launch.task.max_steps, launch.task.max_s)
        os.chmod(page, 0o600)
        self._give(page)
        return lease

    def _record(self, launch: Launch, local_rank: int, stub: subprocess.Popen[bytes], page: Path) -> WorkerRecord:
        process = look(stub.pid)
        if process is None:
            raise NodeError(f"/proc/{stub.pid}", "cannot be read: is /proc mounted?")
        rank, groups = launch.ranks[local_rank], self._settings.cgroup
        cgroup = str(groups / f"{launch.job}-{launch.generation}-{rank}") if groups is not None else ""
        return WorkerRecord(rank, launch.accelerators[local_rank], stub.pid, process.started, str(page), cgroup)

    def _errand(
        self, launch: Launch, local_rank: int, desk: Path, page: Path, where: str, checkpoints: Path, held: Sequence[int]
    ) -> bytes:
        accelerator = launch.accelerators[local_rank]
        device = self._accelerators.devices[accelerator]
        user = self._settings.user
        inherited = {name: os.environ[name] for name in self._settings.inherited if name in os.environ}
        environment = worker_environment(
            launch,
            local_rank,
            device=device.device,
            page=page,
            reports=desk / REPORTS,
            checkpoints=checkpoints,
            inherited={**inherited, **(user.variables if user else {})},
        )
        if launch.parameters.colocated or Counter([*held, *launch.accelerators])[accelerator] > 1:
            environment.update(self._sharing.variables(accelerator, device))
        return LaunchSpec(
            command=[*launch.task.prefix, *launch.task.command],
            environment=environment,
            directory=where,
            desk=str(desk),
            log_bytes=self._settings.log_bytes,
            log_pieces=self._settings.log_pieces,
            user=user.numbers if user and os.geteuid() == 0 else [],
            lifeline=str(self._lifeline),
            grace_s=launch.task.grace_s,
            cooperative=launch.task.cooperative,
            page=str(page) if launch.task.cooperative and launch.ranks[local_rank] == 0 else "",
        ).spelled()

    def _folder(self, path: Path) -> None:
        make_folder(path, self._settings.folder_mode)

    def _is_given(self, path: Path) -> bool:
        return self._settings.user is None or path.lstat().st_uid == self._settings.user.number

    def _give(self, path: Path) -> None:
        if self._settings.user is not None and os.geteuid() == 0:
            os.chown(path, self._settings.user.number, self._settings.user.group, follow_symlinks=False)


def _checkpoints(launch: Launch, own: Path) -> Path:
    """In the folder that all nodes see, or in the job's `own` on this one."""
    return Path(launch.checkpoints) if launch.checkpoints else own / "checkpoints"


def _take_back(stubs: list[subprocess.Popen[bytes]]) -> None:
    """Stubs that were told nothing have started nothing: they are gone without a trace."""
    for stub in stubs:
        stub.kill()
        stub.communicate()


def _dismiss(cgroup: Cgroup, stub: subprocess.Popen[bytes]) -> None:
    _take_back([stub])
    cgroup.remove()


def _send(stub: subprocess.Popen[bytes], errand: bytes) -> None:
    assert stub.stdin is not None
    # A stub that was killed meanwhile is found out by the next poll.
    with contextlib.suppress(BrokenPipeError):
        stub.stdin.write(errand)
    with contextlib.suppress(BrokenPipeError):
        stub.stdin.close()
