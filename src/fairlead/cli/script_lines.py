"""Job scripts: a shell script with `#FAIRLEAD` or `#SBATCH` lines, as options of `fairlead submit`. It submits nothing."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fairlead.core.durations import parse_duration
from fairlead.core.errors import InputError, near_names
from fairlead.runtime.protocol.command_line import MAX_WORD

SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")

_MENTION = re.compile(r"\bfairlead\b|FAIRLEAD_CHECKPOINT_DIR")
_SAVES = re.compile(r"save|FAIRLEAD_CHECKPOINT_DIR")
_LINE = re.compile(r"#(FAIRLEAD|SBATCH)\s+(.*)\Z")
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_LETTERS = (
    "J:job-name G:gpus n:ntasks N:nodes t:time a:array o:output e:error c:cpus-per-task D:chdir A:account d:dependency "
    "p:partition q:qos C:constraint w:nodelist x:exclude H:hold W:wait Q:quiet v:verbose i:input L:licenses k:no-kill"
)
_SHORT = dict(pair.split(":") for pair in _LETTERS.split())
_FLAG_NAMES = "requeue no-requeue exclusive hold overcommit contiguous verbose quiet parsable wait oversubscribe no-kill"
_FLAGS = frozenset(_FLAG_NAMES.split())
_REASONS = (
    "partition:no partitions here|qos:no QOS here|mail-type:no mail is sent|constraint:use --types for GPUs|wait:use --wait"
    "|nodelist:the scheduler chooses nodes|exclude:the scheduler chooses nodes|hold:use 'fairlead hold'"
)
_IGNORED = dict(reason.split(":") for reason in _REASONS.split("|"))
_NAMES = (
    "acctg-freq batch bb bbf clusters comment container core-spec cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot "
    "distribution export export-file extra get-user-env gid gpu-bind gpu-freq gpus-per-node gpus-per-socket gpus-per-task gres "
    "gres-flags hint ignore-pbs kill-on-invalid-dep mail-user mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice "
    "ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode power prefer priority profile propagate reboot "
    "reservation segment signal sockets-per-node switches test-only thread-spec threads-per-core time-min tmp tres-bind "
    "spread-job tres-per-task uid use-min-nodes wait-all-nodes wckey wrap x11"
)
_KNOWN = {*_FLAGS, *_IGNORED, *_SHORT.values(), *_NAMES.split()}
_UNLIMITED = ("unlimited", "infinite", "0")

SLURM_VARIABLES = (
    "export SLURM_JOB_ID=$FAIRLEAD_JOB SLURM_PROCID=$RANK SLURM_LOCALID=$LOCAL_RANK SLURM_NTASKS=$WORLD_SIZE"
    " SLURM_JOB_NAME=$FAIRLEAD_JOB_NAME SLURM_JOB_USER=${USER-} SLURM_GPUS_ON_NODE=$LOCAL_WORLD_SIZE"
    " SLURM_NNODES=$FAIRLEAD_NODES SLURM_JOB_NUM_NODES=$FAIRLEAD_NODES"
    "; if [ $FAIRLEAD_NODES = 1 ]; then export SLURM_NODEID=0; fi"
    "; if [ $FAIRLEAD_GENERATION != 1 ]; then export SLURM_RESTART_COUNT=$((FAIRLEAD_GENERATION - 1)); fi"
    '; if [ -n "${FAIRLEAD_ARRAY_INDEX-}" ]; then export SLURM_JOB_NAME=${FAIRLEAD_JOB_NAME%-$FAIRLEAD_ARRAY_INDEX}'
    " SLURM_ARRAY_TASK_ID=$FAIRLEAD_ARRAY_INDEX SLURM_ARRAY_JOB_ID=$((FAIRLEAD_JOB - FAIRLEAD_ARRAY_POSITION))"
    " SLURM_ARRAY_TASK_COUNT=$FAIRLEAD_ARRAY_SIZE SLURM_ARRAY_TASK_MIN=$FAIRLEAD_ARRAY_MIN"
    " SLURM_ARRAY_TASK_MAX=$FAIRLEAD_ARRAY_MAX; fi"
)
"""What a script with `#SBATCH` lines finds in its environment, besides Fairlead's own variables, its `SLURM_SUBMIT_DIR` and
`SLURM_CPUS_PER_TASK`. It takes the place of the first line, so that line numbers in messages stay right."""


@dataclass(frozen=True)
class JobScript:
    """A script with its options."""

    path: Path
    text: str
    shell: tuple[str, ...]  # the program that runs it, with options
    options: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def command(self, arguments: list[str]) -> list[str]:
        """Return the words that run the script where there is no file of it."""
        return [*self.shell, "-c", self.text, self.path.name, *arguments]


def read_script(word: str) -> JobScript | None:
    """Return the job script that a word of the command line names; None if it names none.

    Raises:
        InputError: It is too long, or one of its lines cannot be read.
    """
    path = Path(word)
    if not path.name.endswith(SUFFIXES) or any(map(str.isspace, word)):
        return None
    if not path.is_file():
        if path.name == word:  # no node would find it either
            raise InputError(path, "a job script in this directory; put the command of a node after --, with its path")
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(path, "a shell script in UTF-8") from None
    options: list[str] = []
    slurm: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break  # as in Slurm, options stand before the first command
        if found := _LINE.match(line):
            try:
                words = shlex.split(found[2], comments=True)
            except ValueError as error:
                raise InputError(path, f"options ({error})", line=number) from None
            if found[1] == "FAIRLEAD":
                options += words
            else:
                slurm |= _slurm_options(words, path, number)
    translated, warnings = slurm_to_options(slurm, path) if slurm else ([], [])
    if slurm and re.search(r"^\s*srun\b", text, re.MULTILINE):
        warnings.append("the script calls srun: here each worker runs the whole script, so write the command without srun")
    first, newline, rest = text.partition("\n")
    if slurm and first.startswith("#"):
        count = dict(pairwise(translated)).get("--cpus", "").partition(".")[0]
        cpus = f" SLURM_CPUS_PER_TASK={count}" if count else ""
        text = f"export SLURM_SUBMIT_DIR={shlex.quote(os.getcwd())}{cpus}; {SLURM_VARIABLES}{newline}{rest}"
    if len(text) > MAX_WORD:
        raise InputError(path, f"a script of at most {MAX_WORD:,} characters; --code DIR sends more", value=f"{len(text):,}")
    return JobScript(path, text, _shell(first, path), (*translated, *options), tuple(warnings))


def saves_nothing(task: Mapping[str, object], folder: Path) -> bool:
    """Return whether a task runs scripts of a folder here that never mention Fairlead, or that have a lease without `save`.

    A task that sets `min_run_s` or `cooperative` knows of preemption. Without a script that can be read, nothing is known."""
    run = task["run"]
    text = run if isinstance(run, str) else " ".join(map(str, run)) if isinstance(run, list | tuple) else ""
    named = {word.strip("'\";()") for word in text.split()}
    texts = [text]
    for file in (Path(folder, name) for name in named if name.endswith((".py", *SUFFIXES))):
        with suppress(OSError):  # it cannot be read, or its name is too long
            texts += [file.read_text(errors="replace")] * file.is_file()
    known = len(texts) > 1 or "\n" in text  # the text of a job script is in its command
    every = "\n".join(texts)
    saves = (_SAVES if "lease(" in every else _MENTION).search(every)
    return known and not {"min_run_s", "cooperative"} & task.keys() and not saves


def _shell(first: str, path: Path) -> tuple[str, ...]:
    words = first[2:].split() if first.startswith("#!") else ["bash"]
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if word != "-S"]
    program = words[0].rsplit("/", 1)[-1] if words else ""
    if program not in _SHELLS:
        raise InputError(path, f"a script for {', '.join(_SHELLS)}; run others with 'fairlead submit -- {path}'", value=first)
    return program, *words[1:]


def _slurm_options(words: list[str], path: Path, number: int) -> dict[str, str]:
    """The options of one line, by their long names."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, equals, value = _SHORT.get(word[1], word[1]), word[2:3], word[2:].lstrip("=")
        else:
            raise InputError(path, "options such as --time=2:00:00", line=number, value=word)
        if not equals and name not in _FLAGS and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        found[name] = value
    return found


def slurm_to_options(slurm: Mapping[str, str], path: Path) -> tuple[list[str], list[str]]:
    """Return the options of `fairlead submit` for those of `sbatch`, and warnings about what has no counterpart."""
    given = dict(slurm)
    options: list[str] = []
    warnings: list[str] = []

    def take(name: str, convert: Callable[[str], str] = str) -> str:
        value = given.pop(name, "")
        try:
            return convert(value) if value else ""
        except ValueError as error:
            raise InputError(path, f"#SBATCH --{name}: expected {error}", value=value) from None

    def add(option: str, value: str) -> None:
        if value:
            options.extend((option, value))

    add("--name", re.sub(r"[^A-Za-z0-9._-]", "-", take("job-name")))
    workers, nodes = _workers(given, take, add)
    add("--workers", str(workers) if workers > 1 else "")
    tasks = int(slurm.get("ntasks") or 0) or nodes * int(slurm.get("ntasks-per-node") or 0) or workers
    cpus = int(take("cpus-per-task", _whole) or 0) * tasks / workers
    add("--cpus", f"{cpus:g}" if cpus else "")
    memory = take("mem", _gigabytes)
    memory = f"{float(memory) * nodes / workers:g}" if memory else take("mem-per-gpu", _gigabytes)
    if not memory and cpus and (per_cpu := take("mem-per-cpu", _gigabytes)):
        memory = f"{float(per_cpu) * cpus:g}"
    add("--host-memory-gb", memory if memory != "0" else "")
    time = take("time")
    add("--time", "" if time.lower() in _UNLIMITED else _converted(time, path) if time else "")
    array, _, at_once = take("array").partition("%")
    add("--array", array if not array.isdecimal() else f"{array}-{array}")  # a single index, not a number of jobs
    if at_once:
        warnings.append(f"#SBATCH --array=…%{at_once}: the number of jobs at once is not limited")
    error = take("error")
    output = take("output") or error
    add("--output", output)
    if error and error != output:
        warnings.append("#SBATCH --error: standard error goes to the same file as standard output")
    add("--dir", take("chdir"))
    add("--account", take("account"))
    for name in filter(None, take("export").split(",")):
        if name.upper() == "ALL":
            warnings.append("#SBATCH --export=ALL: the environment is not sent; name variables with --env")
        elif name.upper() != "NONE" and ("=" in name or name in os.environ):
            add("--env", name)
    for dependency in filter(None, re.split("[,?]", take("dependency"))):
        kind, *jobs = dependency.split(":")
        if kind != "afterok" or not jobs:
            warnings.append(f"#SBATCH --dependency={dependency} is ignored: a job can wait with afterok only")
        for job in jobs if kind == "afterok" else ():
            add("--after", job)
    given.pop("requeue", None)
    if given.pop("no-requeue", None) is not None:
        add("--retries", "0")
    if "nice" in given or (given.get("priority", "").isdecimal() and int(given["priority"]) <= 1000):
        wanted = int(take("priority", _whole) or 0) if "nice" not in given else -int(take("nice", _integer) or 100)
        given.pop("nice", None)
        add("--priority", str(max(-1000, min(1000, wanted))))
    if ignored := sorted(given.keys() & _KNOWN):
        reasons = [f"--{name}" + (f" ({_IGNORED[name]})" if _IGNORED.get(name) else "") for name in ignored]
        warnings.append(f"ignored #SBATCH options: {', '.join(reasons)}")
    for name in sorted(given.keys() - _KNOWN):
        near = "".join(f"; did you mean --{other}?" for other in near_names(name, sorted(_KNOWN))[:1])
        warnings.append(f"unknown #SBATCH option {'--' if len(name) > 1 else '-'}{name} is ignored{near}")
    return options, warnings


def _workers(given: dict[str, str], take: Callable[..., str], add: Callable[[str, str], None]) -> tuple[int, int]:
    """The number of workers, one for each GPU, and of nodes; takes what says so, and adds the type of GPU."""
    nodes = int(take("nodes", lambda text: _whole(text.split("-")[0])) or 1)
    tasks, per_node = int(take("ntasks", _whole) or 0), int(take("ntasks-per-node", _whole) or 0)
    tasks = tasks or nodes * per_node
    counts = {"gpus": 1, "gpus-per-node": nodes, "gres": nodes, "gpus-per-task": tasks or 1}
    for name, times in counts.items():
        text = given.get(name, "")
        if name == "gres" and not text.startswith("gpu"):
            continue
        if text:
            kind, _, number = take(name, _gpus).rpartition(":")
            add("--types", kind)
            return max(1, int(number) * times), nodes
    return max(1, tasks, nodes), nodes


def _gpus(text: str) -> str:
    """`type:number` of `2`, `a100:2`, `gpu:2`, `gpu:a100:2` or `gpu`."""
    parts = text.split(",")[0].split(":")
    parts = parts[1:] if parts[0] == "gpu" else parts
    number = parts.pop() if parts and parts[-1].isdecimal() else "1"
    return f"{':'.join(parts)}:{number}"


def _whole(text: str) -> str:
    if not text.isdecimal():
        raise ValueError("a whole number")
    return text


def _integer(text: str) -> str:
    return f"-{_whole(text[1:])}" if text.startswith("-") else _whole(text)


def _gigabytes(text: str) -> str:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError("an amount of memory such as 16G")
    scale = {"K": 2**-20, "M": 2**-10, "": 2**-10, "G": 1, "T": 2**10}[found[2].upper()]
    return f"{float(found[1]) * scale:g}"


def _converted(time: str, path: Path) -> str:
    try:
        return f"{parse_duration(time, plain_s=60.0):g}s"
    except ValueError as error:
        raise InputError(path, f"#SBATCH --time: expected {error}", value=time) from None
