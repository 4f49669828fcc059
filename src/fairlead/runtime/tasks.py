"""What people submit: a task, as they write it in a file or send it, and the job and the launch that it means. The launch
travels in the job's `command`, so that it is in the journal with everything else about the job."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.runtime.orders import Task

UNKNOWN_STEPS = 1e6
"""Of a job whose owner did not say how many it will do."""

LONGEST_NAME, LONGEST_PATH, MOST_WORDS, LARGEST_WORD = 128, 4096, 4096, 32_768

MOST_AFTER = 100

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

Positive = Annotated[float, Field(gt=0, lt=1e15)]
Amount = Annotated[float, Field(ge=0, lt=1e9)]


def is_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and _NAME.match(text) is not None


class TaskSpec(BaseModel):
    """One job, as its owner describes it. `run` is a program with its arguments, as a list, or as one line that is split as a
    shell would split it, but that no shell sees; who wants a shell writes `["bash", "-c", "…"]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    run: Annotated[list[str] | str, Field(description="program and arguments")]
    kind: str = ""
    workers: Annotated[int, Field(ge=1, le=100_000)] = 1
    steps: Positive = UNKNOWN_STEPS
    weight: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    entity: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    types: Annotated[list[str], Field(max_length=64)] = []
    memory_gb: Amount = 0.0
    cpus: Amount = 0.0
    host_memory_gb: Amount = 0.0
    deadline_s: Positive | None = None
    time_limit_s: Positive | None = None
    retries: Annotated[int, Field(ge=0, le=1000)] = 3
    min_run_s: Amount = 0.0
    after: Annotated[list[str | int], Field(max_length=MOST_AFTER, description="jobs that must have finished first")] = []
    env: dict[str, str] = {}
    directory: str = ""
    code: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    prefix: list[str] = []
    cooperative: bool = True
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 30.0

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if name and not is_name(name):
            raise ValueError(f"letters, digits, '.', '_' and '-', at most {LONGEST_NAME}")
        return name

    @field_validator("after", mode="before")
    @classmethod
    def _one_or_several(cls, after: object) -> object:
        return [after] if isinstance(after, (str, int)) else after

    @field_validator("run")
    @classmethod
    def _words(cls, run: list[str] | str) -> list[str] | str:
        words = words_of(run)
        if not words or not words[0]:
            raise ValueError("a program to run")
        _checked_words(words)
        return run

    @field_validator("prefix")
    @classmethod
    def _words_before(cls, prefix: list[str]) -> list[str]:
        return _checked_words(prefix)

    @field_validator("directory")
    @classmethod
    def _absolute(cls, directory: str) -> str:
        if directory and (not directory.startswith("/") or "\0" in directory or len(directory) > LONGEST_PATH):
            raise ValueError(f"an absolute path of at most {LONGEST_PATH} characters")
        return directory

    @field_validator("env")
    @classmethod
    def _variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not _VARIABLE.match(name) or "\0" in value or len(value) > LARGEST_WORD:
                raise ValueError(f"variables such as SEED: '1'; {name[:40]!r} is not one")
            if name.startswith("FAIRLEAD_") or name in ("CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE"):
                raise ValueError(f"{name} is set by Fairlead")
        return env

    @model_validator(mode="after")
    def _one_place(self) -> TaskSpec:
        if self.code and self.directory:
            raise ValueError("either a directory that the nodes have, or code that is sent along; not both")
        return self

    def job(self, name: str, user: str, after: Sequence[int] = ()) -> Job:
        """`after` are the numbers of the jobs it names there."""
        words = words_of(self.run)
        script = next((word for word in words[1:] if not word.startswith("-")), words[0])
        return Job(
            name,
            steps=self.steps,
            kind=self.kind or script.rsplit("/", 1)[-1],
            workers=self.workers,
            weight=self.weight,
            priority=self.priority,
            user=user,
            entity=self.entity,
            deadline_s=math.inf if self.deadline_s is None else self.deadline_s,
            allowed_types=tuple(self.types),
            memory_gb=self.memory_gb,
            cpus=self.cpus,
            host_memory_gb=self.host_memory_gb,
            time_limit_s=math.inf if self.time_limit_s is None else self.time_limit_s,
            retry_limit=self.retries,
            min_run_s=self.min_run_s,
            command=self._command(words),
            after=tuple(after),
        )

    def _command(self, words: list[str]) -> str:
        launch: dict[str, Any] = {"run": words}
        for name in ("env", "directory", "code", "prefix", "cooperative", "grace_s"):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                launch[name] = value
        return orjson.dumps(launch).decode()


def _checked_words(words: list[str]) -> list[str]:
    if len(words) > MOST_WORDS or any(len(word) > LARGEST_WORD or "\0" in word for word in words):
        raise ValueError(f"at most {MOST_WORDS} words of {LARGEST_WORD} characters, without NUL")
    return words


def words_of(run: list[str] | str) -> list[str]:
    if isinstance(run, list):
        return run
    try:
        return shlex.split(run)
    except ValueError as error:
        raise ValueError(f"a command line ({error})") from None


def task_of(job: Job) -> Task:
    """The launch that a job carries."""
    launch = orjson.loads(job.command)
    return Task(
        tuple(launch["run"]),
        launch.get("env", {}),
        launch.get("directory", ""),
        launch.get("code", ""),
        tuple(launch.get("prefix", ())),
        launch.get("cooperative", True),
        launch.get("grace_s", 30.0),
    )


def checked(data: Any, source: str) -> TaskSpec:
    """A task from what somebody wrote; the first thing wrong with it is an error that names the field."""
    try:
        return TaskSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "str"))) or "task"
        raise InputError(source, str(first["msg"]).removeprefix("Value error, "), field=field, value=first["input"]) from None
