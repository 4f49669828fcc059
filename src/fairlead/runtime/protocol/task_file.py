"""The task file that users submit, and the job and the task that it describes. The task is stored in the job's `command`, so
that the journal has everything about the job."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fairlead.core.durations import parse_duration
from fairlead.core.errors import InputError
from fairlead.core.job import EXPERT, FORMER_FIELDS, MAX_ACCOUNT_LEVELS, Job, is_account, wrong_schedule
from fairlead.core.type_names import accelerator_type_of
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.runtime.protocol.command_line import MAX_WORDS, command_words, program_name
from fairlead.runtime.protocol.orders import NO_CONTAINERS, Task
from fairlead.runtime.protocol.task_parts import (
    ArrayMember,
    ContainerSpec,
    LeaseSpec,
    Spec,
    Variables,
    Word,
    absolute_path,
    array_indices,
    check_filled,
    grid_size,
    grid_values,
    possible_word,
    settable_variables,
    text_of_value,
)
from fairlead.workloads.dynamics import SEPARATOR, parse_regimes

MAX_SCHEDULE = 256  # batch sizes of a schedule; every list of jobs contains them

UNKNOWN_STEPS = 1e6  # steps of a job whose task file does not state them

MAX_NAME = 128
MAX_TASK_BYTES = 1 << 20  # size limit of an encoded task, which agents receive in one message

MAX_AFTER = 100

MAX_GB = 1e9  # of memory, and cores

ENGINES = ("slurm", "kubernetes")  # parts of a task file that only the driver of this name reads

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def _label(text: str) -> str:
    if len(text) > MAX_NAME or not text.isprintable():
        raise ValueError(f"at most {MAX_NAME} printable characters")
    return text


def _account(text: str) -> str:
    if not is_account(text):
        raise ValueError(f"an account such as research/vision, with at most {MAX_ACCOUNT_LEVELS} levels, none of them empty")
    return text


def _output(path: str) -> str:
    if path.endswith("/") or len(path) > 1024 or not path.isprintable():
        raise ValueError("the path of a file, of at most 1,024 printable characters")
    return path


def _pattern(text: str) -> str:
    if not text or len(text) > 1024 or not text.isprintable() or text.startswith("/") or ".." in text.split("/"):
        raise ValueError("a path or pattern inside the work directory, such as model.pt or logs/*.csv")
    return text


def _seconds(value: Any) -> Any:
    """A duration such as `2h` in seconds; other values are left to the validation."""
    return parse_duration(value) if isinstance(value, str) else value


Label = Annotated[str, AfterValidator(_label)]
Account = Annotated[str, AfterValidator(_label), AfterValidator(_account)]
Positive = Annotated[float, Field(gt=0, lt=1e15)]
Amount = Annotated[float, Field(ge=0, lt=MAX_GB)]
Seconds = Annotated[float, BeforeValidator(_seconds)]

DURATIONS = {name: f"{name}_s" for name in ("deadline", "time_limit", "min_run", "grace")}
"""Fields of a task file that take durations such as `2h`, and the fields with the seconds."""

ALIASES = {**FORMER_FIELDS, **DURATIONS}
"""Further names of fields."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, (str, int, float)) else value


def is_job_name(text: str) -> bool:
    """Whether a text can be the name of a job, a user or a token."""
    return len(text) <= MAX_NAME and _NAME.match(text) is not None


class TaskSpec(Spec, BaseModel):
    """One job, or an array of jobs, as its user describes it. `run` is the command: a list is a program with its arguments,
    executed as it is; a string runs in a shell (bash, or sh on a node without bash), so `a && b` runs both."""

    name: str = ""  # name of the job; default: job- and its number
    run: Annotated[list[str] | str, Field(description="a program and its arguments, or a string for a shell")]
    kind: Label = ""  # job type, for throughputs; default: name of the script or program
    workers: Annotated[int, Field(ge=1, le=100_000)] = 1  # number of workers, each with one GPU; all run or none (a gang)
    mode: Annotated[
        Literal["static", "accordion", "gns", "expert", "elastic"],
        Field(description="how its batch size changes; elastic: the number of workers may change too"),
    ] = "static"
    steps: Positive = UNKNOWN_STEPS  # total number of steps, if known; policies that need run times use it
    schedule: Annotated[str, Field(description="for mode expert: batch sizes and shares of steps, as in 32@0.3|256@0.7")] = ""
    weight: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0  # weight of the job in policies that weigh jobs
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0  # higher goes first, in policies that use priorities
    account: Account = ""  # team or project that the job counts for; default: that of the token
    types: Annotated[list[Label], Field(max_length=64)] = []  # GPU types that the job may use; default: any
    memory_gb: Amount = 0.0  # memory that the job needs on each GPU; default: as predicted
    cpus: Amount = 0.0  # CPU cores that each worker needs
    host_memory_gb: Amount = 0.0  # host memory that each worker needs
    deadline_s: Annotated[Seconds, Field(gt=0, lt=1e15, description="or deadline: 2h")] | None = None
    """Deadline in seconds after submission."""
    time_limit_s: Annotated[Seconds, Field(gt=0, lt=1e15, description="or time_limit: 2h")] | None = None
    """Run time of all launches together; waiting does not count. Then the job is stopped and fails, with `grace_s` to save."""
    retries: Annotated[int, Field(ge=0, le=1000)] = 3
    """How often the job is retried after a failure of its own; lost nodes do not count."""
    min_run_s: Annotated[Seconds, Field(ge=0, lt=1e9, description="or min_run: 10m")] = 0.0
    """Seconds for which a started job is not preempted."""
    group: Annotated[Label, Field(description="trials of one search; the worst may be stopped early")] = ""
    group_order: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # place of the job in its group
    after: Annotated[list[StrictStr | StrictInt], Field(max_length=MAX_AFTER, description="jobs that must finish first")] = []
    max_slowdown: Annotated[
        float | None, Field(ge=1, lt=1e15, description="tolerated slowdown by co-location, relative to running alone; 1: none")
    ] = None
    prediction: Annotated[
        dict[str, Any], Field(description="what `fairlead predict module --json` prints; a task file may name a file of it")
    ] = {}
    array: Annotated[
        str | StrictInt | list[StrictInt], Field(description="many jobs of this task: 20 (0 to 19), 0-19, 0-19:2 or 1,3,5")
    ] = ""
    grid: Annotated[
        dict[str, list[Word]], Field(description="one job for each combination of values, as in {lr: [0.1, 0.01]}")
    ] = {}
    env: Annotated[Variables, Field(description="variables; numbers are allowed, and true and false are text")] = {}
    directory: Annotated[str, AfterValidator(absolute_path)] = ""  # directory on the nodes in which the job runs; absolute
    code: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """In a task file: a directory or zip file to send along; in the HTTP API: the digest of a stored archive."""
    prefix: Annotated[list[Word], Field(max_length=MAX_WORDS)] = []  # words before the command, such as `nice`
    container: ContainerSpec = ContainerSpec()  # the container that the command runs in; the name of an image is enough
    cooperative: bool = True  # the job may use a lease; false: a plain program, which always gets SIGTERM
    grace_s: Annotated[Seconds, Field(ge=0, le=3600, description="or grace: 2m")] = 30.0
    """Seconds that a job has to save its state when it is stopped."""
    outputs: Annotated[
        list[Annotated[str, AfterValidator(_pattern)]],
        Field(max_length=100, description="files of the work directory to keep for `fairlead fetch`: paths or patterns"),
    ] = []
    output: Annotated[
        str,
        AfterValidator(_output),
        Field(description="a file of the node that also gets the output; %j: number, %x: name, %a: index; see --output"),
    ] = ""
    lease: LeaseSpec = LeaseSpec()  # bounds of the lease
    slurm: Annotated[dict[str, Any], Field(description="what a Slurm cluster needs to know; see the guide")] = {}
    kubernetes: Annotated[dict[str, Any], Field(description="image, volumes and more of its pods; see the guide")] = {}

    @model_validator(mode="before")
    @classmethod
    def _read_aliases(cls, data: Any) -> Any:
        if not isinstance(data, dict) or ALIASES.keys().isdisjoint(data):
            return data
        if both := [old for old, new in ALIASES.items() if old in data and new in data]:
            raise ValueError(f"{both[0]} is another name of {ALIASES[both[0]]}; give one of them")
        return {ALIASES.get(name, name): value for name, value in data.items()}

    @model_validator(mode="after")
    def _fields_agree(self) -> TaskSpec:
        if self.grid:
            check_filled(self.run, self.grid)
        if len(self._command().encode()) + self._growth() > MAX_TASK_BYTES:
            raise ValueError(f"arguments, variables and paths of a task together have at most {MAX_TASK_BYTES:,} bytes")
        if not self.cooperative and self.lease != LeaseSpec():
            raise ValueError("a lease with bounds is for cooperative jobs; time_limit_s bounds every job")
        if self.array != "" and self.grid:
            raise ValueError("either an array or a grid, not both; a grid with a parameter seed=0,1,2 repeats each combination")
        if both := [name for name in self.grid if name.upper() in self.env or name.upper() in self.container.env]:
            raise ValueError(f"variables other than {both[0].upper()}, which the grid's parameter {both[0]} sets")
        last = grid_size(self.grid) - 1 if self.grid else 0 if self.array == "" else array_indices(self.array)[-1]
        if not is_job_name(longest := f"{self.name or 'array-00000000'}-{last}") and (self.grid or self.array != ""):
            raise ValueError(f"a shorter name: the jobs of the array are called {longest[:40]}…")
        if self.container.image and self.directory == "/":
            raise ValueError("a directory other than /, which a container has itself")
        if self.code and self.directory:
            raise ValueError("either a directory on the nodes or code that is sent along, not both")
        return self

    @field_validator("name")
    @classmethod
    def _valid_name(cls, name: str) -> str:
        if name and not is_job_name(name):
            raise ValueError(f"letters, digits, '.', '_' and '-', at most {MAX_NAME}")
        if name.isdecimal():
            raise ValueError("a name with a letter in it; digits alone mean a job number")
        return name

    @field_validator("steps")
    @classmethod
    def _stated(cls, steps: float) -> float:
        """Steps that are stated differ from `UNKNOWN_STEPS`, even if they have the same value."""
        return math.nextafter(steps, math.inf) if steps == UNKNOWN_STEPS else steps

    @field_validator("schedule")
    @classmethod
    def _valid_schedule(cls, schedule: str, others: ValidationInfo) -> str:
        if schedule.count(SEPARATOR) >= MAX_SCHEDULE:
            raise ValueError(f"at most {MAX_SCHEDULE} batch sizes")
        if schedule and (expected := wrong_schedule(parse_regimes(schedule), others.data.get("mode", EXPERT))):
            raise ValueError(expected)
        if schedule and others.data.get("steps") == UNKNOWN_STEPS:
            raise ValueError("no schedule without `steps`: its shares are shares of the steps")
        return schedule

    @field_validator("prediction")
    @classmethod
    def _valid_prediction(cls, prediction: dict[str, Any]) -> dict[str, Any]:
        if not prediction:
            return {}
        try:
            found = StepPrediction.from_data(prediction)
        except InputError as error:
            field = "" if error.field is None else f"{error.field}: "
            raise ValueError(f"{field}{error.expected}, not {error.value!r:.60}") from None
        if not found.memory_gb < MAX_GB:
            raise ValueError(f"memory_mb: less than {MAX_GB:g} GB, not {found.memory_mb!r}")
        return prediction

    @field_validator("after", "outputs", mode="before")
    @classmethod
    def _after_as_list(cls, after: object) -> object:
        return _as_list(after)

    @field_validator("run")
    @classmethod
    def _valid_command(cls, run: list[str] | str) -> list[str] | str:
        words, _ = command_words(run)
        for word in words:
            possible_word(word)
        return run

    @field_validator("array")
    @classmethod
    def _valid_array(cls, array: str | int | list[int]) -> str | int | list[int]:
        if array != "":
            array_indices(array)
        return array

    @field_validator("grid", mode="before")
    @classmethod
    def _grid_as_texts(cls, grid: Any) -> Any:
        if not isinstance(grid, dict):
            return grid
        return {name: [text_of_value(value) for value in _as_list(values)] for name, values in grid.items()}

    @field_validator("grid")
    @classmethod
    def _valid_grid(cls, grid: dict[str, list[str]]) -> dict[str, list[str]]:
        grid_size(grid)
        if len({name.upper() for name in grid}) < len(grid):
            raise ValueError("parameters that differ in more than upper and lower case; each becomes a variable in upper case")
        settable_variables({name.upper(): "" for name in grid})
        if needed := [name for name in grid if name.upper() in ("PATH", "HOME", "JOB_INDEX")]:
            raise ValueError(f"another name than {needed[0]}, because each parameter becomes a variable in upper case")
        return grid

    def _growth(self) -> int:
        """At least the bytes by which the encoded command of a grid's member is longer than this one's: a member has each of
        its values as a variable, among its values, and in its command."""
        text, bytes_more = self.run if isinstance(self.run, str) else "\n".join(self.run), 0
        for name, values in self.grid.items():
            bytes_more += 2 * (2 * len(name) + max(len(orjson.dumps(value)) for value in values))
            if places := text.count(f"{{{name}}}"):
                bytes_more += places * max(len(orjson.dumps(shlex.quote(value))) for value in values)
        return bytes_more

    def members(self, array_id: str) -> list[ArrayMember | None]:
        """The members of the array or grid that this task describes; [None] where it is one job."""
        if self.array == "" and not self.grid:
            return [None]
        name, grid = self.name or f"array-{array_id}", grid_values(self.grid)
        indices = list(range(len(grid))) if self.grid else array_indices(self.array)
        size, bounds, values = len(indices), (indices[0], indices[-1]), grid if self.grid else [{}] * len(indices)
        return [ArrayMember(name, array_id, index, size, values[place], place, bounds) for place, index in enumerate(indices)]

    @cached_property
    def _predicted(self) -> tuple[str, float]:
        """What jobs carry of the prediction, and its memory in GB."""
        if not self.prediction:
            return "", 0.0
        found = StepPrediction.from_data(self.prediction)
        return found.job_text(accelerator_type_of(found.device)), found.memory_gb

    @property
    def job_type(self) -> str:
        """The kind of its jobs. Without one, other predictions are other kinds: a script may train many models."""
        predicted, program = self._predicted[0], program_name(self.run).rsplit("/", 1)[-1]
        if self.kind or not predicted:
            return self.kind or program[:MAX_NAME]
        return f"{program[: MAX_NAME - 7]}@{hashlib.blake2b(predicted.encode(), digest_size=3).hexdigest()}"

    def job(self, name: str, user: str, after: Sequence[int] = (), member: ArrayMember | None = None) -> Job:
        """The job of this task, or of one member of its array; `after` are the numbers of the jobs that it waits for."""
        return Job(
            name,
            steps=self.steps,
            kind=self.job_type,
            workers=self.workers,
            weight=self.weight,
            priority=self.priority,
            user=user,
            account=self.account,
            deadline_s=math.inf if self.deadline_s is None else self.deadline_s,
            allowed_types=tuple(self.types),
            memory_gb=self.memory_gb or self._predicted[1],
            cpus=self.cpus,
            host_memory_gb=self.host_memory_gb,
            time_limit_s=math.inf if self.time_limit_s is None else self.time_limit_s,
            retry_limit=self.retries,
            min_run_s=self.min_run_s,
            group=f"{user}/{self.group}" if self.group and user else self.group,  # users do not stop each other's trials
            group_order=self.group_order,
            mode=self.mode,
            command=self._command(member),
            after=tuple(after),
            max_slowdown=math.inf if self.max_slowdown is None else self.max_slowdown,
            schedule=parse_regimes(self.schedule) if self.schedule else (),
            prediction=self._predicted[0],
        )

    def _command(self, member: ArrayMember | None = None) -> str:
        words, shell = command_words(self.run if member is None else member.filled(self.run))
        task: dict[str, Any] = {"run": words, "shell": True} if shell else {"run": words}
        for name in ("env", "directory", "code", "prefix", "cooperative", "grace_s", "output", "outputs"):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                task[name] = value
        if engines := {name: options for name in ENGINES if (options := getattr(self, name))}:
            task["engines"] = engines
        if self.container.image:
            task["container"] = self.container.model_dump(exclude_defaults=True)
        if self.lease != LeaseSpec():
            task["lease"] = self.lease.model_dump(exclude_defaults=True)
        if member is not None:
            task["env"] = {**self.env, **member.environment()}
            task["array"] = member.to_json()
        return orjson.dumps(task).decode()


def task_of(job: Job) -> Task:
    """The task that is stored in a job."""
    task = orjson.loads(job.command)
    lease, container = task.get("lease", {}), ContainerSpec.container(task.get("container", {}))
    words, prefix = tuple(task["run"]), tuple(task.get("prefix", ()))
    return Task(
        words if container is None else (*prefix, *words),
        task.get("env", {}),
        task.get("directory", ""),
        task.get("code", ""),
        prefix if container is None else (NO_CONTAINERS,),
        task.get("cooperative", True),
        task.get("grace_s", 30.0),
        lease.get("max_steps", 0),
        lease.get("max_duration_s", 0.0),
        lease.get("renewal") == "central",
        task.get("shell", False),
        task.get("output", ""),
        tuple(task.get("outputs", ())),
        engines=task.get("engines", {}),
        container=container,
    )


def parse_task(data: Any, source: str) -> TaskSpec:
    """The task of a file or request. Raises `InputError`: it is not valid; names the first wrong field."""
    try:
        return TaskSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "str")))
        mend = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
        if not field:  # several fields do not agree
            raise InputError(source, mend) from None
        raise InputError(source, mend, field=field, value=first["input"]) from None
