"""Pilots on Slurm: one batch job that runs an agent on each node of its allocation. The script is a pure function of what the
user asks for. Slurm is asked through its own programs, with fixed formats; it knows the pilots, so nothing else is stored. The
module knows no command line: it takes plain values, and callbacks for what is to be printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zlib import crc32

from fairlead.core.errors import REFUSED, UNREACHABLE, FairleadError, InputError, NotFound, require
from fairlead.files import atomic_write
from fairlead.runtime.bootstrap import with_own_python
from fairlead.runtime.host import Host
from fairlead.runtime.http_client import TOKEN

JOB_NAME = "fairlead-pilot"
TOKEN_FILE = "agent.token"
POLL_S = 5.0  # between two questions to Slurm in a loop
PROGRAM_TIMEOUT_S = 120.0
WITHOUT_END = -1  # pilots that follow in a chain
LEAVE = "USR1"  # the signal at which agents leave; the loaders of a training would die of SIGTERM before it can save
MAX_WARNING_S = 60.0  # from the batch shell's SIGTERM to the end of the allocation
LIVE = frozenset(
    ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
)
FAILED = ("FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")
_ERROR, _MAX_OUTPUT = "fairlead: error: ", 1 << 16
_FORMAT = "%i|%T|%D|%S|%e|%r|%Z"  # number, state, nodes, start, end, reason, working directory
_ONE_WORD = re.compile(r"[^\s'\"\\`$]+")
_NUMBER = re.compile(r"[0-9]+(?=;|\s*\Z)")
AWAY_WORDS = (
    "unable to contact slurm controller",
    "timed out",
    "zero bytes",
    "connect failure",
    "communication",
    "authentication",
    "munge",
    "standby mode",
    "configuration source",
    "unable to establish",
    "not responding",
)
"""In errors of Slurm's programs when Slurm does not answer. What was asked for may have happened."""
_HINTS = {
    "account": "'sacctmgr show associations user=$USER' lists your accounts (--account, --qos)",
    "qos": "'sacctmgr show associations user=$USER' lists your accounts (--account, --qos)",
    "partition": "'sinfo --summarize' lists partitions (--partition)",
    "node configuration": "'sinfo --Node --Format=nodehost,gres,features' lists what nodes have (--gpus, --type, --constraint)",
}


class SlurmError(FairleadError):
    """A program of Slurm refused a request; the message has Slurm's own words."""

    exit_code = REFUSED


class NoSlurm(FairleadError):
    """There is no Slurm on this machine, or it does not answer."""

    exit_code = UNREACHABLE


@dataclass(frozen=True)
class PilotRequest:
    """What a pilot asks Slurm for, and how its agents start. Paths are absolute, and the same on all nodes."""

    nodes: int
    gpus: int  # of each node
    time_s: float
    control: str
    folder: Path  # of the script, the token and the output
    program: Sequence[str]  # the command `fairlead`
    gpu_type: str = ""  # empty: any in Slurm, detected by the agent
    cpus: int = 0  # of each node; 0: whole nodes
    memory_gb: float = 0.0  # of each node; 0: all of it
    options: Mapping[str, str] | None = None  # of sbatch, by name
    lines: Sequence[str] = ()  # more options of sbatch, as typed
    setup: Sequence[str] = ()  # shell lines that run on each node before its agent
    container: str = ""  # shell words before the agent's command
    agent_options: Sequence[str] = ()
    chain: int = 0  # pilots that follow; WITHOUT_END: always another one
    overlap_s: float = 600.0  # how long before its end the next pilot may start

    def __post_init__(self) -> None:
        require(self.time_s >= 60.0, "--time", "at least a minute: Slurm counts in minutes", "time", f"{self.time_s:g} s")
        for name, value in (("type", self.gpu_type), *(self.options or {}).items()):
            if value and not _ONE_WORD.fullmatch(value):
                raise InputError(f"--{name}", "one word without quotes", field=name, value=value)
        for line in (*self.lines, *self.setup, self.container):
            require("\n" not in line, "slurm up", "an option without line breaks", "value", line)
        for line in self.lines:
            require(line.startswith("-"), "--sbatch", "an option of sbatch, as in --sbatch=--reservation=NAME", "sbatch", line)

    @property
    def script(self) -> Path:
        """The file of the batch script: its own for each request, because a chain submits it again and again."""
        return self.folder / f"pilot-{crc32(repr(self).encode()):08x}.sh"


@dataclass(frozen=True)
class Pilot:
    """A pilot as Slurm sees it. Times are Unix times; None: not known yet."""

    job: str
    state: str
    nodes: int
    start: float | None
    end: float | None
    reason: str

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def node_names(self) -> re.Pattern[str]:
        """The names that the nodes of this pilot have in the cluster: the host's, and the number of the job."""
        return re.compile(rf".*-{re.escape(self.job)}(?:r\d+)?")

    def joined(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """How many of the cluster's nodes are this pilot's, with an agent that is connected. Others may have a similar name."""
        own = [node for node in nodes if node.get("temporary", True) and self.node_names.fullmatch(str(node["name"]))]
        return sum(bool(node["connected"]) for node in own)


def output_file(folder: Path, job: str) -> Path:
    """The file with the output of a pilot: the logs of its agents, and Slurm's own messages."""
    return folder / f"pilot-{job}.out"


def error_in_output(folder: Path, job: str) -> str:
    """The last error of an agent in the output of a pilot; empty: there is none."""
    try:
        lines = output_file(folder, job).read_text(errors="replace")[-_MAX_OUTPUT:].splitlines()
    except OSError:
        return ""
    return next((line.partition(_ERROR)[2] for line in reversed(lines) if _ERROR in line), "")


def batch_script(request: PilotRequest) -> str:
    """The batch script of a pilot. It holds no secret: the agents read the join token from a file."""
    return "\n".join((*_directives(request), "", *_next_in_chain(request), *_agents(request))) + "\n"


def _directives(request: PilotRequest) -> Iterator[str]:
    gpus = f"gpu:{request.gpu_type}:{request.gpus}" if request.gpu_type else f"gpu:{request.gpus}"
    given: dict[str, object] = {
        "job-name": JOB_NAME,
        "nodes": request.nodes,
        "ntasks-per-node": 1,
        "gres": gpus,
        **({"cpus-per-task": request.cpus} if request.cpus else {"exclusive": ""}),
        "mem": f"{request.memory_gb * 1024:.0f}M" if request.memory_gb else 0 if not request.cpus else "",
        "time": slurm_time(request.time_s),
        "signal": f"B:TERM@{min(MAX_WARNING_S, request.time_s / 10):.0f}",
        **(request.options or {}),
        "no-kill": "",
        "requeue": "",
        "chdir": request.folder,
        "output": output_file(request.folder, "%j"),
        "open-mode": "append",
    }
    bare = ("exclusive", "no-kill", "requeue")
    yield "#!/bin/bash"
    yield from (
        f"#SBATCH --{name}" + (f"={value}" if value != "" else "")
        for name, value in given.items()
        if value != "" or name in bare
    )
    yield from (f"#SBATCH {line}" for line in request.lines)
    yield "# Written by 'fairlead slurm up': an agent of Fairlead on each node. The join token is in a file that only you read."


def _next_in_chain(request: PilotRequest) -> Iterator[str]:
    if not request.chain:
        return
    minutes = int((request.time_s - min(request.overlap_s, request.time_s / 2)) // 60)
    when = f"after:$SLURM_JOB_ID+{minutes}" if request.overlap_s else "afterany:$SLURM_JOB_ID"
    script = shlex.quote(str(request.script))
    yield "# The next pilot of the chain; the argument of this script is how many follow (-1: no end)."
    yield 'left=${1:-0}; [ "$left" -lt 0 ] || next=$((left - 1))'
    yield 'if [ "$left" -ne 0 ] && [ -z "$SLURM_RESTART_COUNT" ]; then'
    yield f'  sbatch --parsable --dependency="{when}" {script} "${{next:--1}}" ||'
    yield '    echo "fairlead: the next pilot could not be submitted; the chain ends here" >&2'
    yield "fi"
    yield ""


def _agents(request: PilotRequest) -> Iterator[str]:
    words = [*request.program, "agent", "--control", request.control, "--token-file", str(request.folder / TOKEN_FILE)]
    words += ["--accelerators", f"{request.gpu_type}:{request.gpus}"] if request.gpu_type else []
    words += ["--end-jobs", "--temporary", "--remove-root", *request.agent_options]
    prefix = f"{request.container} " if request.container else ""
    yield "agent() {  # runs on each node"
    yield from (f"  {line}" for line in request.setup)
    yield "  name=$SLURMD_NODENAME-$SLURM_JOB_ID${SLURM_RESTART_COUNT:+r$SLURM_RESTART_COUNT}"
    yield f"  exec {prefix}{shlex.join(words)} \\"
    yield '    --until "$FAIRLEAD_UNTIL" --node "$name" --root "${TMPDIR:-/tmp}/fairlead-$(id -u)-$name"'
    yield "}"
    yield "export -f agent"
    yield 'export FAIRLEAD_UNTIL=$(squeue --noheader --jobs="$SLURM_JOB_ID" -o %e)'
    yield ""
    yield "# Signals reach the agents through Slurm: srun would kill them. They let jobs save, and report it, before they end."
    yield "# The signal goes to all processes on the nodes. Jobs ignore this one, and their agents ask them in order."
    yield f"""trap 'scancel --quiet --signal={LEAVE} "$SLURM_JOB_ID"' TERM"""
    yield "srun --label --kill-on-bad-exit=0 --no-kill --wait=0 --cpu-bind=none bash -c agent &"
    yield "while kill -0 $! 2>/dev/null; do wait $!; done  # a signal ends the wait, not the agents"


def slurm_time(seconds: float) -> str:
    """A duration as Slurm writes it: days-hours:minutes:seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02}:{minute:02}:{second:02}"


class SlurmPrograms:
    """Slurm's command-line programs. `run` starts one, and returns its exit status, output and errors."""

    def __init__(self, run: Callable[[Sequence[str]], tuple[int, str, str]] | None = None, host: Host | None = None) -> None:
        self._run = run or _run_program
        self._host = host or Host()

    def submit(self, request: PilotRequest, token: str) -> str:
        """Write the script and the token, submit a pilot, and return the number of its job. Raises `SlurmError`."""
        request.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(request.folder / TOKEN_FILE, token.encode(), private=True)
        atomic_write(request.script, batch_script(request).encode())
        printed = self._ask("sbatch", "--parsable", str(request.script), str(request.chain))
        if (found := _NUMBER.search(printed)) is None:
            raise SlurmError(
                f"sbatch printed {printed.strip()[:200]!r} instead of a job number; 'squeue --me' shows if the pilot exists"
            )
        return found[0]

    def pilots(self, folder: Path) -> list[Pilot]:
        """The pilots of a folder that Slurm knows: those that wait or run, and those that ended some minutes ago."""
        words = ("squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--name={JOB_NAME}", "-o", _FORMAT)
        found = []
        for line in self._ask(*words).splitlines():
            job, state, nodes, start, end, rest = line.split("|", 5)
            reason, _, place = rest.partition("|")
            if place == str(folder):
                about = (int(nodes) if nodes.isdecimal() else 0, _moment_of(start), _moment_of(end))
                found.append(Pilot(job, state, *about, "" if reason in ("None", "") else reason))
        return sorted(found, key=lambda pilot: int(pilot.job))

    def end(self, folder: Path, jobs: Sequence[str], report: Callable[[str], None]) -> list[str]:
        """End pilots, all of a folder without `jobs`. Their agents let jobs save, report it, and leave; then the allocation
        ends. Returns the numbers, after the last has ended. Raises `NotFound`: there is no such pilot."""
        live = [pilot.job for pilot in self.pilots(folder) if pilot.is_live]
        if unknown := [job for job in jobs if job not in live]:
            raise NotFound(f"no pilot {unknown[0]} waits or runs here: 'fairlead slurm status' lists them")
        ended, signalled = dict[str, None](), set[str]()
        while True:
            now = [pilot for pilot in self.pilots(folder) if pilot.is_live and (not jobs or pilot.job in jobs)]
            if not now:
                return list(ended)
            for pilot in sorted(now, key=lambda one: one.state == "RUNNING"):  # a chain's next one first
                ended[pilot.job] = None
                if pilot.state == "PENDING":
                    self._ask("scancel", "--quiet", pilot.job)
                elif pilot.state == "RUNNING" and pilot.job not in signalled:
                    self._ask("scancel", "--quiet", f"--signal={LEAVE}", pilot.job)
                    report(f"pilot {pilot.job}: its jobs checkpoint, and its nodes leave")
                    signalled.add(pilot.job)
            self._host.sleep(POLL_S)

    def _ask(self, *words: str) -> str:
        try:
            code, printed, errors = self._run(words)
        except FileNotFoundError:
            raise NoSlurm(f"no '{words[0]}' on this machine: run this on a login node of a Slurm cluster") from None
        except subprocess.TimeoutExpired:
            raise NoSlurm(f"Slurm does not answer: '{words[0]}' took more than {PROGRAM_TIMEOUT_S:g} s") from None
        if code and any(away in (errors + printed).lower() for away in AWAY_WORDS):
            what = f"Slurm does not answer: {slurm_words(words[0], errors or printed)}"
            raise NoSlurm(f"{what}; running pilots and jobs continue. Run 'fairlead slurm status' before you try again")
        if code:
            raise SlurmError(_refusal(words[0], errors or printed))
        return printed


def _refusal(program: str, errors: str) -> str:
    """Slurm's own words on one line, and what to do where that is known."""
    text = slurm_words(program, errors)
    if program != "sbatch":
        return f"'{program}' failed: {text}"
    hint = next((f" ({hint})" for word, hint in _HINTS.items() if word in text.lower()), "")
    return f"Slurm refused the pilot: {text}{hint}"


def slurm_words(program: str, errors: str) -> str:
    """Slurm's own words on one line."""
    lines = [line.removeprefix(f"{program}: ").removeprefix("error: ") for line in errors.strip().splitlines() if line.strip()]
    return "; ".join(lines)[:500] or "no reason given"


def _moment_of(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # N/A
        return None


def _run_program(words: Sequence[str]) -> tuple[int, str, str]:
    """Run a program of Slurm. Slurm stores the environment with the job, so the user's token is not part of it."""
    kept = {name: value for name, value in with_own_python(os.environ).items() if name != TOKEN}
    done = subprocess.run(
        list(words), env=kept, capture_output=True, text=True, errors="replace", timeout=PROGRAM_TIMEOUT_S, check=False
    )
    return done.returncode, done.stdout, done.stderr
