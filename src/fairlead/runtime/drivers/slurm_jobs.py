"""What Fairlead asks of Slurm's programs for its launches, and how it reads what they print. All of it is pure: values in,
words out; text in, values out."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from fairlead.core.cluster import is_type_name
from fairlead.core.durations import parse_duration
from fairlead.runtime.drivers.base import EngineRefused, LaunchKey, LaunchNeeds, LaunchPart, Machine, MachineState, TaskState
from fairlead.runtime.drivers.slurm_pilot import AWAY_WORDS, slurm_time

SINFO_FORMAT = "%N|%P|%G|%T|%c|%m|%E"  # name, partition, gres, state, CPUs, MB, reason
_SQUEUE = ("JobID:20", "State:20", "exit_code:12", "UserName:128", "Reason:60", "Comment:400")
SETTLE_S = 10.0  # from the end of a job's grace to the end of its allocation, so that its agent can report
MAX_NICE = 2_147_483_645
UNKNOWN = "unknown"  # the state of a node that has not answered since the controller was started

_GPU = re.compile(r"(?:^|,)gpu(?::([^:,]+))?:([0-9]{1,4})(?=,|$)")
_DRAINED = ("drain", "drained", "draining", "fail", "failing", "maint")
_AWAY = ("down", "inval", UNKNOWN, "future", "error", "no_respond", "powered_down", "powering_down", "powering_up", "reboot")
_AWAY_FLAGS = "*~#!%^"  # not responding, powered down, powering up or down, rebooting
_WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_RUNS = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})
_ENDED = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})  # the node's daemon saw the agent end
_KILLED = frozenset({"CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED"})  # by Slurm: on a node that answers, all its processes


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node with GPUs: the machine, and what to ask Slurm for to get its GPUs."""

    machine: Machine
    gres: str


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job of Slurm that runs the agent of one part of a launch."""

    number: str
    key: LaunchKey
    user: str
    state: TaskState
    code: int = 0
    reason: str = ""
    killed: bool = False  # by Slurm, which is sure about its processes only if the node answers


def listed_nodes(printed: str, partition: str, types: Mapping[str, str]) -> dict[str, SlurmNode]:
    """Read `sinfo -N`: the nodes of a partition, the default one if it is empty, that have GPUs. `types` are the names of
    GPU types by that of Slurm, which is empty for GPUs without a type."""
    found = dict[str, SlurmNode]()
    for line in printed.splitlines():
        words = line.split("|", 6)
        if len(words) == 7 and (words[1].removesuffix("*") == partition if partition else words[1].endswith("*")):
            node = _node(words, types)
            if node is not None:
                found[node.machine.name] = node
    return found


def _node(words: Sequence[str], types: Mapping[str, str]) -> SlurmNode | None:
    name, _, gres, state, cpus, memory, reason = words
    gpus = [(kind, int(count)) for kind, count in _GPU.findall(re.sub(r"\([^)]*\)", "", gres)) if int(count)]
    if not gpus:
        return None
    slurm_type, count = max(gpus, key=lambda one: one[1])
    gpu_type = types.get(slurm_type) or re.sub(r"[^a-z0-9_.-]", "-", slurm_type.lower()) or "gpu"
    gpu_type = gpu_type if is_type_name(gpu_type) else f"gpu-{gpu_type}"
    seen, why = _machine_state(state, "" if reason.strip() == "none" else " ".join(reason.split()))
    memory_mb = float(memory.rstrip("+")) if memory.rstrip("+").isdecimal() else 0.0
    machine = Machine(
        name=name,
        type=gpu_type,
        accelerators=count,
        state=seen,
        reason=why,
        cpus=float(cpus.rstrip("+")) if cpus.rstrip("+").isdecimal() else 0.0,
        memory_gb=memory_mb / 1024 if memory_mb > 1 else 0.0,  # 1: it is not configured
    )
    return SlurmNode(machine, f"gpu:{slurm_type}" if len(gpus) > 1 else "gpu")


def _machine_state(state: str, reason: str) -> tuple[MachineState, str]:
    word = state.rstrip("*~#!%$@^-+").lower()
    if set(state) & set(_AWAY_FLAGS) or word.startswith(_AWAY):
        return MachineState.UNREACHABLE, f"{state}: {reason}" if reason else state
    if word in _DRAINED or "$" in state:
        return MachineState.CORDONED, reason or state
    return MachineState.READY, ""


def squeue_format(mark: str) -> str:
    """What `squeue` prints of each job, with a mark between two values. It is to be secret: any user of Slurm may give a job a
    comment with line breaks, which is printed as it is, and could look like the job of another user."""
    return f"{mark},".join(_SQUEUE)


def listed_jobs(printed: str, mark: str) -> Iterator[SlurmJob]:
    """Read `squeue`: the jobs whose comment is the key of a launch."""
    for line in printed.splitlines():
        words = line.split(mark, 5)
        key = LaunchKey.parse(words[5].strip()) if len(words) == 6 else None
        if key is not None:
            number, word, status, user, reason = (word.strip() for word in words[:5])
            state = (
                TaskState.WAITING
                if word in _WAITS
                else TaskState.RUNNING
                if word in _RUNS
                else TaskState.OVER
                if word in _ENDED | _KILLED
                else TaskState.UNKNOWN  # NODE_FAIL, BOOT_FAIL, REVOKED: its processes may still run
            )
            why = "" if reason in ("None", "") else reason
            if state in (TaskState.OVER, TaskState.UNKNOWN) and word != "COMPLETED":
                why = f"{word}: {why}" if why else word
            over = state is TaskState.OVER
            yield SlurmJob(number, key, user, state, _exit_code(status) if over else 0, why, word in _KILLED)


def _exit_code(status: str) -> int:
    """The exit status of a shell for what Slurm prints: the number of `wait`, or CODE:SIGNAL."""
    code, colon, signal = status.partition(":")
    if not code.isdecimal() or (colon and not signal.isdecimal()):
        return 0
    exited, killed = (int(code), int(signal)) if colon else (int(code) >> 8 & 255, int(code) & 127)
    return 128 + killed if killed else exited


@dataclass(frozen=True)
class JobRules:
    """What an operator sets for all launches."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit_s: float = math.inf
    program: tuple[str, ...] = ("fairlead",)
    setup: str = ""


def _word(value: object) -> str | None:
    text = str(value)
    return text if isinstance(value, str | int) and text and text.isprintable() and len(text) <= 500 else None


def _limit(value: object) -> str | None:
    try:
        seconds = parse_duration(value, plain_s=60.0)  # type: ignore[arg-type]
    except ValueError:
        return None
    return str(seconds) if 60.0 <= seconds < math.inf else None


def _nice(value: object) -> str | None:
    """A negative one would have the rights of the control plane."""
    return str(value) if isinstance(value, int) and 0 <= value <= MAX_NICE else None


OPTIONS = {
    "account": (_word, "a string"),
    "constraint": (_word, "a string"),
    "exclusive": (lambda value: str(value).lower() if isinstance(value, bool) else None, "true or false"),
    "licenses": (_word, "a string"),
    "nice": (_nice, "a whole number from 0"),
    "qos": (_word, "a string"),
    "reservation": (_word, "a string"),
    "time": (_limit, "at least a minute, as in 2h; a plain number counts minutes"),
    "tmp": (_word, "a size, as in 10G"),
}
"""What users may set in the `slurm` part of a task file, named as in `sbatch`: how it is read, and what is expected."""


def submission(part: LaunchPart, needs: LaunchNeeds, rules: JobRules, gres: str, log: Path, owner: Sequence[str]) -> list[str]:
    """The words of `sbatch` for one part of a launch. `gres` names the GPUs of its machine; `owner` are options for the account
    that it runs under. Raises `EngineRefused`: an option of the task file is wrong."""
    given = _user_options(needs.options)
    limit_s = float(given.pop("time", rules.time_limit_s))
    gpus, exclusive = len(part.accelerators), given.pop("exclusive", "false") == "true"
    options = {
        "job-name": part.key.label,
        "comment": part.key.text,
        "partition": rules.partition,
        "account": rules.account,
        "qos": rules.qos,
        **given,
        "nodelist": part.key.machine,
        "nodes": "1",
        "ntasks": "1",
        "gres": f"{gres}:{gpus}" if gpus else "",
        "cpus-per-task": str(math.ceil(needs.cpus * gpus)) if needs.cpus else "",
        "mem": f"{math.ceil(needs.memory_gb * gpus * 1024)}M" if needs.memory_gb else "",
        "time": slurm_time(max(60.0, limit_s)) if limit_s < math.inf else "",
        "signal": f"B:TERM@{math.ceil(min(needs.grace_s + SETTLE_S, 65_535))}",
        "output": str(log),
        "open-mode": "append",
        "chdir": "/",
        "export": "ALL",
        "propagate": "NONE",
    }
    words = [f"--{name}={value}" for name, value in options.items() if value]
    return ["sbatch", "--parsable", "--no-requeue", *(["--exclusive"] if exclusive else []), *owner, *words]


def _user_options(options: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for name, value in options.items():
        if name not in OPTIONS:
            raise EngineRefused(f"slurm.{name}: a task file cannot set this option; it can set {', '.join(OPTIONS)}")
        read, expected = OPTIONS[name]
        text = read(value)
        if text is None:
            raise EngineRefused(f"slurm.{name}: expected {expected}, got {str(value)[:100]!r}")
        found[name] = text
    return found


def agent_script(part: LaunchPart, rules: JobRules) -> str:
    """The batch script of a part. It holds no secret: the token is in the job's environment."""
    agent = shlex.join((*rules.program, *part.arguments))
    return "\n".join(("#!/bin/bash", *([rules.setup] if rules.setup else []), f"exec {agent}", ""))


class SubmitFault(Enum):
    """Why `sbatch` failed."""

    AWAY = auto()  # Slurm does not answer; the job may exist
    OPERATOR = auto()  # nothing can start before an operator changes something
    NOT_NOW = auto()  # not on this node, or not now; another attempt may succeed
    REFUSED = auto()  # it will never be accepted


_FAULTS = (
    *((SubmitFault.AWAY, words) for words in AWAY_WORDS),
    (SubmitFault.OPERATOR, "invalid partition"),
    (SubmitFault.OPERATOR, "required partition not available"),
    (SubmitFault.OPERATOR, "--uid only permitted"),
    (SubmitFault.OPERATOR, "access/permission denied"),
    (SubmitFault.NOT_NOW, "invalid node name"),
    (SubmitFault.NOT_NOW, "violates accounting/qos policy"),
    (SubmitFault.NOT_NOW, "temporarily un"),
)


def fault_of(errors: str, needs: LaunchNeeds, *, own_account: bool) -> SubmitFault:
    """Tell what to do about an error of `sbatch`. One user's mistake must not keep the launches of others waiting."""
    text = errors.lower()
    fault = next((fault for fault, words in _FAULTS if words in text), SubmitFault.REFUSED)
    if fault is not SubmitFault.REFUSED:
        return fault
    if own_account and ("invalid account" in text or "invalid qos" in text) and not {"account", "qos"} & set(needs.options):
        return SubmitFault.OPERATOR
    if "requested node configuration" in text and not (needs.options or needs.cpus or needs.memory_gb):
        return SubmitFault.NOT_NOW  # the node has changed
    return SubmitFault.REFUSED
