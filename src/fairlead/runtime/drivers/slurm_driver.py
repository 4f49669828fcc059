"""Slurm as an engine: each part of a launch is a job of Slurm on the node that Fairlead chose, under the account of the user
that submitted it. Slurm is asked through its own programs, with fixed formats, and seldom: it is not made for being polled."""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from fairlead.core.durations import EXPECTED, parse_duration
from fairlead.core.errors import InputError, check_number, require
from fairlead.runtime.bootstrap import with_own_python
from fairlead.runtime.drivers.base import (
    Capabilities,
    EngineRefused,
    EngineTask,
    EngineUnavailable,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    Machine,
    MachineState,
    TaskState,
)
from fairlead.runtime.drivers.slurm_jobs import (
    SINFO_FORMAT,
    UNKNOWN,
    JobRules,
    SlurmJob,
    SlurmNode,
    SubmitFault,
    agent_script,
    fault_of,
    listed_jobs,
    listed_nodes,
    squeue_format,
    submission,
)
from fairlead.runtime.drivers.slurm_pilot import slurm_words
from fairlead.runtime.host import Host
from fairlead.runtime.http_client import TOKEN

LOOK_REQUESTS = 2.0  # that squeue, and sinfo, send to the controller: jobs or nodes, and partitions
REQUESTS_PER_POLL = 3.0  # in a poll's time, on the average; 0.3 per second with the default
MAX_BURST = 20.0  # requests that may come sooner, after a start or a stop
NODES_EVERY = 3  # polls: nodes change seldom
SOON_S = 30.0  # after a start or a stop, how long looks come sooner
AGAIN_S = 30.0  # until a job that was cancelled, and is still there, is cancelled again
CLEAN_EVERY_S = 3600.0
STANDARD_PATH = "/usr/local/bin:/usr/bin:/bin"  # of jobs under other accounts
_KEPT = ("LANG", "TZ", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CONF_SERVER")  # no other variable may change what programs do
_MOST_ALIVE = (TaskState.RUNNING, TaskState.WAITING, TaskState.UNKNOWN, TaskState.OVER)

RunProgram: TypeAlias = Callable[[Sequence[str], Mapping[str, str], str, float], tuple[int, str, str]]


@dataclass(eq=False)
class _SubmittedPart:
    """A part of a launch, and the jobs that Slurm has for it: one, unless a submission was repeated."""

    jobs: list[SlurmJob] = field(default_factory=list)
    machine: str = ""
    failed: str = ""  # why it could not be submitted
    over: bool = False  # its end is certain
    lost: bool = False  # Slurm ended it while its machine did not answer: it may still run
    forgotten: bool = False
    cancelled_s: float = -math.inf  # when it was last cancelled
    kill_s: float = math.inf  # when its grace ends

    @property
    def live(self) -> list[SlurmJob]:
        return [job for job in self.jobs if job.state in (TaskState.WAITING, TaskState.RUNNING)]


@dataclass(eq=False)
class SlurmDriver:
    """Runs each part of a launch as a job of Slurm in one partition."""

    partition: str = ""  # default: Slurm's default partition
    account: str = ""  # for jobs whose task files give none
    qos: str = ""
    user_accounts: bool | None = None  # run jobs under the Unix accounts of their users; default: if this is root
    fairlead: str = ""  # the command `fairlead` on the nodes; default: this one
    log_folder: str = ""  # all nodes see it; default: ~/.fairlead/slurm, if jobs run under this account
    setup: str = ""  # a line of shell that runs before each agent
    type_of_gres: str = ""  # "TYPE SLURM_TYPE:TYPE ...": a type for GPUs whose gres has none, and types for those of Slurm
    time_limit: str = ""  # of each launch, unless its task file gives one; default: that of the partition
    poll_s: float = 10.0  # how often Slurm is asked for jobs
    starts_per_s: float = 5.0
    timeout_s: float = 20.0  # for each of Slurm's programs
    keep_logs_s: float = 7 * 86400.0
    conf: str = ""  # slurm.conf; default: as Slurm finds it
    host: Host = field(default_factory=Host, repr=False)
    run: RunProgram | None = field(default=None, repr=False)  # of programs, for tests

    name = "slurm"

    def __post_init__(self) -> None:
        for key in ("poll_s", "starts_per_s", "timeout_s"):
            check_number("slurm", key, getattr(self, key), "a number above 0", low=1e-3)
        check_number("slurm", "keep_logs_s", self.keep_logs_s, "seconds")
        limit_s = math.inf
        if self.time_limit:
            try:
                limit_s = parse_duration(self.time_limit, plain_s=60.0)
            except ValueError:
                raise InputError("slurm", EXPECTED, value=self.time_limit, field="time_limit") from None
        words = [word.rpartition(":") for word in self.type_of_gres.split()]
        self._types = {slurm_type: name.lower() for slurm_type, _, name in words}
        self.user_accounts = os.geteuid() == 0 if self.user_accounts is None else self.user_accounts
        require(
            bool(self.log_folder) or not self.user_accounts,
            "slurm",
            "a folder that all nodes share: it is required if jobs run under the accounts of their users",
            "log_folder",
            self.log_folder,
        )
        self._logs = Path(self.log_folder or "~/.fairlead/slurm").expanduser().absolute()
        program = tuple(shlex.split(self.fairlead)) or _own_program()
        self._rules = JobRules(self.partition, self.account, self.qos, limit_s, program, self.setup)
        self.capabilities = Capabilities(poll_s=min(2.0, self.poll_s), starts_per_s=self.starts_per_s)
        self._journals: set[str] = set()
        self._parts: dict[LaunchKey, _SubmittedPart] = {}
        self._nodes: dict[str, SlurmNode] = {}
        self._accounts: dict[LaunchKey, str] = {}  # of parts, for their logs
        self._unsure = True  # whether Slurm may have jobs that are not in this table
        self._requests, self._refilled_s = MAX_BURST, self.host.monotonic()
        self._looked_s = self._saw_nodes_s = self._soon_until_s = self._cleaned_s = -math.inf

    # The contract (drivers/base.py).

    def observe(self, journal: str) -> tuple[Sequence[Machine], Sequence[EngineTask]]:
        self._unsure |= journal not in self._journals
        self._journals.add(journal)
        due = [key for key, part in self._parts.items() if part.kill_s <= self.host.monotonic()]
        for key in due:
            self.stop(key, 0.0)
        if self._is_due():
            self._look()
        self._clean()
        tasks = [self._task(key, part) for key, part in self._parts.items() if key.journal == journal and not part.forgotten]
        return [node.machine for node in self._nodes.values()], tasks

    def watch(self, changed: Callable[[], None]) -> None:
        """Slurm tells nothing by itself: `observe` asks it."""

    def start(self, parts: Sequence[LaunchPart], needs: LaunchNeeds) -> None:
        self._journals.update(part.key.journal for part in parts)
        if self._unsure:
            self._look()
        account, submitted = self._account_of(needs.user), list[LaunchKey]()
        for part in parts:
            self._claim(part.key, account.pw_name)
            if part.key not in self._parts:
                try:
                    self._submit(part, needs, account)
                except EngineRefused:
                    for key in submitted:
                        with contextlib.suppress(EngineUnavailable):
                            self.stop(key, 0.0)
                    raise
                submitted.append(part.key)
        self._soon_until_s = self.host.monotonic() + SOON_S

    def stop(self, key: LaunchKey, grace_s: float) -> None:
        if self._unsure:
            self._look()
        part = self._parts.get(key)
        if part is None:
            return
        live = part.live
        if not live:
            if not part.jobs:  # it has disappeared, or was never submitted
                del self._parts[key]
            return
        now = self.host.monotonic()
        if grace_s > 0 and all(job.state is TaskState.RUNNING for job in live):
            if math.isinf(part.kill_s):
                self._cancel("--batch", "--signal=TERM", *(job.number for job in live))
                part.kill_s = now + grace_s
        elif now > part.cancelled_s + AGAIN_S:
            self._cancel(*(job.number for job in live))
            part.cancelled_s, part.kill_s = now, math.inf
        self._soon_until_s = now + SOON_S

    def log(self, key: LaunchKey, offset: int, limit: int) -> bytes | None:
        account = self._accounts.get(key)
        names = [account] if account else [path.parent.name for path in self._logs.glob(f"*/{key.label}.log")]
        if len(names) != 1:
            return None
        try:
            # A user may put anything there, and this process may be root: no links, no pipes, no files of others.
            file = os.open(self._log_file(key, names[0]), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.stat(self._logs / names[0]).st_uid:
                return None
            return os.pread(file, limit, offset)
        finally:
            os.close(file)

    def forget(self, key: LaunchKey) -> None:
        if (part := self._parts.get(key)) is not None:
            part.forgotten = True
            if part.live:  # its agent is about to end; one that does not would keep its GPUs
                part.kill_s = min(part.kill_s, self.host.monotonic() + AGAIN_S)
            if not part.jobs:
                del self._parts[key]

    def close(self) -> None:
        """There is nothing to end."""

    # Slurm's jobs and nodes.

    def _is_due(self) -> bool:
        now = self.host.monotonic()
        self._requests = min(MAX_BURST, self._requests + (now - self._refilled_s) * REQUESTS_PER_POLL / self.poll_s)
        self._refilled_s = now
        soon = now < self._soon_until_s and self._requests >= LOOK_REQUESTS
        return self._unsure or now >= self._looked_s + (self.poll_s / 5 if soon else self.poll_s)

    def _look(self) -> None:
        """Ask Slurm for its jobs, and for its nodes if that is due."""
        mark = f"|{self.host.token(8)}|"
        words = ["squeue", "--noheader", "--states=all", "--sort=i", f"--Format={squeue_format(mark)}"]
        words += [f"--partition={self.partition}"] if self.partition else []
        words += [] if self.user_accounts else [f"--user={os.geteuid()}"]
        found = dict[LaunchKey, list[SlurmJob]]()
        for job in listed_jobs(self._ask(words), mark):
            if job.key.journal in self._journals and self._accounts.get(job.key, job.user) == job.user:
                found.setdefault(job.key, []).append(job)
        self._requests -= LOOK_REQUESTS
        for key, part in list(self._parts.items()):
            if key not in found and not part.failed:
                part.jobs = []  # it has disappeared
                if part.over or part.forgotten:
                    del self._parts[key]
        ended, twice = list[_SubmittedPart](), list[str]()
        for key, jobs in found.items():
            part = self._parts.setdefault(key, _SubmittedPart(machine=key.machine))
            part.jobs = jobs
            if len({job.user for job in jobs}) == 1:
                self._accounts.setdefault(key, jobs[0].user)
                twice += [job.number for job in part.live[1:]]
            if not (part.over or part.lost) and all(job.state is TaskState.OVER for job in jobs):
                ended.append(part)
        now = self.host.monotonic()
        if now >= self._saw_nodes_s + NODES_EVERY * self.poll_s or any(job.killed for part in ended for job in part.jobs):
            self._look_at_nodes()
        for part in ended:
            node = self._nodes.get(part.machine)
            sure = node is not None and node.machine.state is not MachineState.UNREACHABLE
            part.over = sure or not any(job.killed for job in part.jobs)
            part.lost = not part.over
        self._unsure, self._looked_s = False, now
        if twice:
            self._cancel(*twice)

    def _look_at_nodes(self) -> None:
        words = ["sinfo", "--noheader", "--Node", f"--format={SINFO_FORMAT}"]
        printed = self._ask([*words, f"--partition={self.partition}"] if self.partition else words)
        self._requests -= LOOK_REQUESTS
        nodes = listed_nodes(printed, self.partition, self._types)
        if not nodes:
            where = (
                f"partition {self.partition!r} of Slurm does not exist, or" if self.partition else "Slurm's default partition"
            )
            raise EngineUnavailable(f"{where} has no node with GPUs: 'sinfo -N -o \"%N %P %G\"' lists them (partition=NAME)")
        for name, node in nodes.items():  # after a restart of the controller, nodes are as they were until they answer
            if name in self._nodes and node.machine.reason.startswith(UNKNOWN):
                nodes[name] = self._nodes[name]
        self._nodes, self._saw_nodes_s = nodes, self.host.monotonic()

    def _task(self, key: LaunchKey, part: _SubmittedPart) -> EngineTask:
        if part.failed:
            return EngineTask(key, TaskState.OVER, 1, part.failed)
        if not part.jobs:
            return EngineTask(key, TaskState.UNKNOWN, reason="Slurm does not list its job any more")
        job = min(part.jobs, key=lambda one: _MOST_ALIVE.index(one.state))
        return EngineTask(key, TaskState.UNKNOWN if part.lost else job.state, job.code, job.reason)

    def _claim(self, key: LaunchKey, account: str) -> None:
        """A part is of this account. Any user may give a job the comment of another's launch: such jobs are not the part's."""
        self._accounts[key] = account
        if (part := self._parts.get(key)) is not None and part.jobs:
            part.jobs = [job for job in part.jobs if job.user == account]
            if not part.jobs:
                del self._parts[key]

    def _submit(self, part: LaunchPart, needs: LaunchNeeds, account: pwd.struct_passwd) -> None:
        owner = [f"--uid={account.pw_uid}", f"--gid={account.pw_gid}"] if self.user_accounts else []
        node = self._nodes.get(part.key.machine)
        log = self._log_file(part.key, account.pw_name)
        words = submission(part, needs, self._rules, node.gres if node is not None else "gpu", log, owner)
        self._make_folder(log.parent, account)
        environment = {
            "PATH": STANDARD_PATH if self.user_accounts else with_own_python(os.environ).get("PATH", STANDARD_PATH),
            "HOME": account.pw_dir,
            "USER": account.pw_name,
            "LOGNAME": account.pw_name,
            "SHELL": account.pw_shell,
            TOKEN: part.token,
        }
        code, printed, errors = self._call(words, environment, agent_script(part, self._rules))
        number = printed.strip().partition(";")[0]
        if code == 0 and number.isdecimal():
            job = SlurmJob(number, part.key, account.pw_name, TaskState.WAITING)
            self._parts[part.key] = _SubmittedPart([job], part.key.machine)
            return
        why = slurm_words("sbatch", errors or printed)
        fault = fault_of(why, needs, own_account=not self.user_accounts) if code else SubmitFault.AWAY
        if fault is SubmitFault.NOT_NOW:
            self._parts[part.key] = _SubmittedPart(machine=part.key.machine, failed=why)
        elif fault is SubmitFault.REFUSED:
            raise EngineRefused(f"Slurm refused the job: {why}")
        elif fault is SubmitFault.OPERATOR:
            raise EngineUnavailable(f"Slurm accepts no launch until an operator fixes this: {why}")
        else:
            self._unsure = True
            raise EngineUnavailable(f"sbatch: {why}")

    def _account_of(self, user: str) -> pwd.struct_passwd:
        if not self.user_accounts:
            return pwd.getpwuid(os.geteuid())
        try:
            account = pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise EngineRefused(
                f"user {user!r} has no Unix account on the control plane's machine: create it, or submit as another user"
            ) from None
        if account.pw_uid < _first_user():  # root, or one whose rights other users must not get, such as 'slurm' or 'munge'
            raise EngineRefused(f"Slurm jobs cannot run as {user}, a system account: submit them as another user")
        return account

    def _cancel(self, *words: str) -> None:
        self._ask(["scancel", "--quiet", *words], ignore=("invalid job id", "already completing or completed", "not running"))

    # Files and programs.

    def _log_file(self, key: LaunchKey, account: str) -> Path:
        return self._logs / account / f"{key.label}.log"

    def _make_folder(self, folder: Path, account: pwd.struct_passwd) -> None:
        """Make the folder of an account's logs. No other account can replace it: the folder above is of this process."""
        try:
            self._logs.mkdir(mode=0o711 if self.user_accounts else 0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                if self.user_accounts:
                    os.chown(folder, account.pw_uid, account.pw_gid, follow_symlinks=False)
            found = folder.lstat()
        except OSError as problem:
            raise EngineUnavailable(f"{folder}: {problem.strerror}; create this folder, owned by {account.pw_name}") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.pw_uid:  # jobs of other accounts can start
            raise EngineRefused(f"{folder} is no folder that {account.pw_name} owns: remove it, or set another log_folder")

    def _clean(self) -> None:
        """Remove old logs, now and then."""
        if self.host.monotonic() < self._cleaned_s + CLEAN_EVERY_S:
            return
        self._cleaned_s, before = self.host.monotonic(), self.host.time() - self.keep_logs_s
        for path in self._logs.glob("*/fairlead-*.log"):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < before:
                    path.unlink()
        self._accounts = {key: self._accounts[key] for key in self._parts if key in self._accounts}

    def _ask(self, words: Sequence[str], ignore: tuple[str, ...] = ()) -> str:
        code, printed, errors = self._call(words)
        if code and not any(text in errors.lower() for text in ignore):
            self._unsure = True
            raise EngineUnavailable(f"{words[0]}: {slurm_words(words[0], errors or printed)}")
        return printed

    def _call(self, words: Sequence[str], job: Mapping[str, str] | None = None, script: str = "") -> tuple[int, str, str]:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {"SLURM_CONF": self.conf} if self.conf else {}
        try:
            return (self.run or run_slurm)(words, {**environment, **(job or {})}, script, self.timeout_s)
        except FileNotFoundError:
            raise EngineUnavailable(f"no '{words[0]}' on this machine: install Slurm's commands here") from None
        except OSError as problem:
            raise EngineUnavailable(f"'{words[0]}' could not be started: {problem.strerror}") from None
        except subprocess.TimeoutExpired:
            self._unsure = True
            raise EngineUnavailable(f"'{words[0]}' took more than {self.timeout_s:g} s (timeout_s)") from None


def _first_user() -> int:
    """The lowest number of an account that is not one of the system."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^UID_MIN\s+([0-9]+)", Path("/etc/login.defs").read_text(errors="replace"), re.MULTILINE):
            return max(1, int(found[1]))
    return 1000


def _own_program() -> tuple[str, ...]:
    program = Path(sys.executable).with_name("fairlead")
    return (str(program),) if program.exists() else (sys.executable, "-m", "fairlead.cli.main")


def run_slurm(words: Sequence[str], environment: Mapping[str, str], script: str, timeout_s: float) -> tuple[int, str, str]:
    """Run a program of Slurm with these variables only, and this input. Returns its exit status, output and errors."""
    program = shutil.which(words[0])
    if program is None:
        raise FileNotFoundError(words[0])
    done = subprocess.run(
        [program, *words[1:]],
        env={"PATH": os.environ.get("PATH", STANDARD_PATH), **environment},
        input=script,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
