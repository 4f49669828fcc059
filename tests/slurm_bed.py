"""A real Slurm cluster for tests and benchmarks: Debian's packages, as processes in a folder of its own, on loopback, with GPUs
that are files. Each test process has its own: ports, key and socket differ. It ends with the process that started it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from foundry import free_port

DEADLINE_S = 180.0
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "munged")
LOOK_S = 0.1


class SlurmBed:
    """`with SlurmBed() as bed:` has all nodes idle; `bed.environment` lets Slurm's programs find it."""

    def __init__(self, nodes: int = 4, gpus: int = 4, **settings: object) -> None:
        """`settings` replace lines of slurm.conf."""
        self.folder = Path(tempfile.mkdtemp(prefix="fairlead-slurm-"))
        self.nodes, self.gpus = nodes, gpus
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def missing() -> str | None:
        """Why there can be no Slurm here, or None."""
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
        if lacking := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
            return f"Slurm is not installed: no {lacking[0]} (Debian: apt-get install slurmctld slurmd slurm-client munge)"
        if os.getuid() != 0:
            return "the daemons of Slurm need root"
        with contextlib.suppress(KeyError):
            pwd.getpwnam("munge")
            return None
        return "there is no user 'munge'"

    def __enter__(self) -> SlurmBed:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._end()

    def run(self, *words: str) -> str:
        """What one of Slurm's programs prints; it has to succeed."""
        done = subprocess.run(
            words, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def jobs(self) -> dict[str, str]:
        """The state of each job that Slurm still knows, by its number."""
        lines = self.run("squeue", "--noheader", "--states=all", "-o", "%i %T").splitlines()
        return dict(line.split(None, 1) for line in lines)  # type: ignore[misc]

    def cancel_all(self) -> None:
        """Leave no job behind for the next test."""
        self.run("scancel", "--user=root")
        self.until("no job is left", lambda: not self.alive())

    def until(self, what: str, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not reached():
            assert time.monotonic() < deadline, f"in vain: {what}\n{self.logs()}"
            time.sleep(LOOK_S)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The controller is ended; it starts again at the end. By SIGKILL it would lose the jobs of its last seconds."""
        ended, conf = self._processes.pop(1), self.environment["SLURM_CONF"]
        ended.terminate()
        ended.wait()
        try:
            yield
        finally:
            self._process("slurmctld", "-D", "-f", conf)
            self._processes.insert(1, self._processes.pop())
            self.until("all nodes answer", self._known)

    def _known(self) -> bool:
        with contextlib.suppress(AssertionError):
            return "unknown" not in self.run("sinfo", "--noheader", "-N", "-o", "%T")
        return False

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))

    def alive(self) -> list[str]:
        """The jobs that wait or run."""
        over = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        return [job for job, state in self.jobs().items() if state not in over]

    def _start(self) -> None:
        munge = pwd.getpwnam("munge")
        secret = self.folder / "munge"  # its socket and key: munged wants to own the folder
        self.folder.chmod(0o755)
        secret.mkdir(mode=0o755)
        (secret / "key").write_bytes(os.urandom(1024))
        (secret / "key").chmod(0o400)
        for path in (secret, secret / "key"):
            os.chown(path, munge.pw_uid, munge.pw_gid)
        for name in ("state", "spool", "devices", *(f"spool/n{n}" for n in range(self.nodes))):
            (self.folder / name).mkdir()
        for number in range(self.gpus):
            os.mknod(self.folder / "devices" / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))
        (self.folder / "slurm.conf").write_text("\n".join(self._configuration()) + "\n")
        (self.folder / "gres.conf").write_text(
            f"AutoDetect=off\nName=gpu Type=v100 File={self.folder}/devices/gpu[0-{self.gpus - 1}]\n"
        )
        own = [
            f"--{what}={secret / where}" for what, where in (("key-file", "key"), ("socket", "socket"), ("seed-file", "seed"))
        ]
        own += [f"--pid-file={secret / 'pid'}", f"--log-file={secret / 'log'}"]
        self._process("munged", "--foreground", "--force", *own, user=munge.pw_uid, group=munge.pw_gid, extra_groups=[])
        self.until("munged has a socket", (secret / "socket").exists)
        conf = str(self.folder / "slurm.conf")
        self._process("slurmctld", "-D", "-f", conf)
        for number in range(self.nodes):
            self._process("slurmd", "-D", "-f", conf, "-N", f"n{number}")
        self.until("all nodes are idle", self._idle)

    def _idle(self) -> bool:
        with contextlib.suppress(AssertionError):  # the daemon does not answer yet
            return self.run("sinfo", "--noheader", "-N", "-o", "%T").split() == ["idle"] * self.nodes
        return False

    def _configuration(self) -> Iterator[str]:
        here = socket.gethostname().partition(".")[0]
        settings: dict[str, object] = {
            "ClusterName": "fairlead",
            "SlurmctldHost": f"{here}(127.0.0.1)",
            "SlurmctldPort": free_port(),
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/munge/socket,cred_expire=5",
            "CredType": "cred/munge",
            "SlurmUser": "root",
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool" / "%n",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "slurmd-%n.pid",
            "SlurmctldLogFile": self.folder / "slurmctld.log",
            "SlurmdLogFile": self.folder / "slurmd-%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "batch_sched_delay=1,sched_interval=2,bf_interval=2",
            "GresTypes": "gpu",
            "ReturnToService": 2,
            "SlurmdTimeout": 120,
            "SlurmdParameters": "config_overrides",
            "KillWait": 30,
            "MinJobAge": 60,
            "InactiveLimit": 0,
            "MessageTimeout": 60,
            "MailProg": "/bin/true",
            "AccountingStorageType": "accounting_storage/none",
            "JobAcctGatherType": "jobacct_gather/none",
            **self._settings,
        }
        yield from (f"{name}={value}" for name, value in settings.items())
        for number in range(self.nodes):
            about = f"NodeAddr=127.0.0.1 Port={free_port()} CPUs=16 RealMemory=4000 Gres=gpu:v100:{self.gpus}"
            yield f"NodeName=n{number} NodeHostname={here} {about} State=UNKNOWN"
        yield "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP"

    def _process(self, program: str, *arguments: str, **user: object) -> None:
        with_us = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        with open(self.folder / f"{program}.out", "ab") as said:
            process = subprocess.Popen(
                [*with_us, program, *arguments],
                cwd=self.folder,
                env={**os.environ, **self.environment, "PATH": f"{os.environ['PATH']}:/usr/sbin"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                **user,  # type: ignore[call-overload]
            )
        self._processes.append(process)

    def _end(self) -> None:
        """Jobs first: their processes outlive the daemons."""
        if len(self._processes) > 1:
            with contextlib.suppress(AssertionError):
                self.cancel_all()
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
