"""The parts of a task file: the bounds of a lease, the container that a command runs in, and arrays and grids, where one task
stands for many jobs, which differ in an index or in the values of parameters."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from fairlead.core.job import Job
from fairlead.runtime.protocol.command_line import MAX_WORD, quoted_names
from fairlead.runtime.protocol.orders import Container, Mount

MAX_VARIABLE = 128  # characters of a variable's name
MAX_MOUNTS = 100
MAX_IMAGE = 1024  # characters
_IMAGE = re.compile(
    r"([\w.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@[a-z0-9+._-]+:[0-9a-fA-F]{32,})?\Z", re.ASCII
)

_SURROGATE = re.compile("[\ud800-\udfff]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def possible_word(text: str) -> str:
    """Return a possible argument of a program. Raises `ValueError`: it is none."""
    if len(text) > MAX_WORD or "\0" in text or (not text.isascii() and _SURROGATE.search(text)):
        raise ValueError(f"at most {MAX_WORD} characters, without NUL or halves of surrogate pairs")
    return text


def absolute_path(path: str) -> str:
    """Return an absolute or empty path. Raises `ValueError`: it is relative."""
    if path and not path.startswith("/"):
        raise ValueError("an absolute path, the same on all nodes")
    return possible_word(path)


def text_of_value(value: Any) -> Any:
    """Return a number or a truth value as the text of a variable; other values are left to the validation."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


_OWN = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
_OWN |= {"MASTER_ADDR", "MASTER_PORT"}


def texts_of_values(variables: Any) -> Any:
    """Return variables with texts as values; what is no mapping is left to the validation."""
    return {name: text_of_value(value) for name, value in variables.items()} if isinstance(variables, dict) else variables


def settable_variables(variables: dict[str, str]) -> dict[str, str]:
    """Return variables that a task may set. Raises `ValueError`: Fairlead sets one of them, or a name is none."""
    for name in variables:
        if not _VARIABLE.match(name) or len(name) > MAX_VARIABLE:
            raise ValueError(f"variables such as SEED: '1'; {name[:40]!r} is not one")
        if name.startswith("FAIRLEAD_") or name in _OWN:
            raise ValueError(f"{name} is set by Fairlead")
    return variables


def _image(text: str) -> str:
    name = text.removeprefix("docker://")
    sound = len(text) <= MAX_IMAGE and text.isprintable() and (Container(text).is_file or _IMAGE.match(name))
    if text and not sound:
        raise ValueError("the name of an image, such as pytorch/pytorch:latest, or the path of a .sif file")
    return text


def _mount(text: str) -> str:
    Mount.parse(text)
    return possible_word(text)


Word = Annotated[str, AfterValidator(possible_word)]
Variables = Annotated[dict[str, Word], BeforeValidator(texts_of_values), AfterValidator(settable_variables)]


class Spec(BaseModel):
    """A part of a task file. `true` is not accepted as a number, nor a number as true or false."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _strict_bool(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        found = validate(value)
        if isinstance(value, bool) is not isinstance(found, bool) and not isinstance(found, list):
            raise ValueError("true or false" if isinstance(found, bool) else "a number, not true or false")
        return found


class LeaseSpec(Spec):
    """Bounds of a job's lease. Without bounds a lease is valid until it is revoked. With `central` renewal the job waits at a
    bound for the control plane's answer; `max_steps: 1` asks in every step."""

    max_steps: Annotated[int, Field(ge=0, le=10**12, description="0: no bound")] = 0
    max_duration_s: Annotated[float, Field(ge=0, lt=1e9, description="0: no bound")] = 0.0
    renewal: Literal["optimistic", "central"] = "optimistic"
    """Whether the job continues at a bound until it hears otherwise, or waits for an answer."""

    @model_validator(mode="after")
    def _central_needs_bound(self) -> LeaseSpec:
        if self.renewal == "central" and not (self.max_steps or self.max_duration_s):
            raise ValueError("central renewal needs a bound; max_steps: 1 renews in every step")
        return self


class ContainerSpec(Spec):
    """The container that the command runs in. `container: IMAGE` is short for `container: {image: IMAGE}`. On Kubernetes the
    Pod has this image, and `mounts` are not possible."""

    image: Annotated[str, AfterValidator(_image)] = ""  # a name as in a registry, or the path of a `.sif` file on the nodes
    runtime: Annotated[
        Literal["", "apptainer", "podman", "docker"], Field(description="default: the first of these that the node has")
    ] = ""
    mounts: Annotated[
        list[Annotated[str, AfterValidator(_mount)]],
        Field(max_length=MAX_MOUNTS, description="as in /data:/mnt/data:ro, /data:/mnt/data, or /data for the same path"),
    ] = []
    """Folders or files of the node that the container sees, besides the job's directory and its checkpoints."""
    workdir: Annotated[str, AfterValidator(absolute_path)] = ""  # directory in the container; default: that of the job
    env: Annotated[Variables, Field(description="such as PATH; the default PATH is that of the image")] = {}
    """Further variables, which override those of the task."""

    @model_validator(mode="before")
    @classmethod
    def _from_image(cls, data: Any) -> Any:
        if not isinstance(data, (str, dict)):
            raise ValueError("the name of an image, or a mapping with an image")
        return {"image": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _mounts_once(self) -> ContainerSpec:
        targets = Counter(Mount.parse(text).target.rstrip("/") for text in self.mounts)
        if twice := [target for target, times in targets.items() if times > 1]:
            raise ValueError(f"one mount at {twice[0]}")
        return self

    @model_validator(mode="after")
    def _needs_image(self) -> ContainerSpec:
        if not self.image and self.model_dump(exclude_defaults=True):
            raise ValueError("an image")
        if self.runtime in ("podman", "docker") and Container(self.image).is_file:
            raise ValueError(f"the name of an image in a registry for {self.runtime}; only apptainer runs {self.image[:100]}")
        return self

    @classmethod
    def container(cls, data: dict[str, Any]) -> Container | None:
        """Return the container that is stored in a job; None: it has none."""
        if not data:
            return None
        mounts = tuple(Mount.parse(text) for text in data.get("mounts", ()))
        return Container(data["image"], data.get("runtime", ""), mounts, data.get("workdir", ""), data.get("env", {}))


MAX_ARRAY = 10_000
"""Jobs of one array or grid."""

MAX_INDEX = 1_000_000
MAX_PARAMETERS = 64  # of a grid; every job has all of them

_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?\Z")


@dataclass(frozen=True)
class ArrayMember:
    """The place of one job in its array or grid; `values` are those of a grid's parameters."""

    name: str
    id: str
    index: int
    size: int
    values: Mapping[str, str] = field(default_factory=dict)
    position: int = 0  # among its indices, from 0
    bounds: tuple[int, int] = (0, 0)  # the first and the last index

    @property
    def job_name(self) -> str:
        return f"{self.name}-{self.index}"

    def environment(self) -> dict[str, str]:
        """Return the variables that tell a job its place: `FAIRLEAD_ARRAY_*`, `JOB_INDEX`, and a grid's values."""
        place = zip(("INDEX", "POSITION", "SIZE", "MIN", "MAX"), (self.index, self.position, self.size, *self.bounds))
        values = {name.upper(): value for name, value in self.values.items()}
        return {**{f"FAIRLEAD_ARRAY_{name}": str(one) for name, one in place}, "JOB_INDEX": str(self.index), **values}

    def filled(self, run: list[str] | str) -> list[str] | str:
        """Return a command with `{name}` replaced by the value of that parameter, quoted where a shell reads it. `${name}` is a
        variable of the shell and stays."""
        if not self.values:
            return run
        names = _placeholders(self.values)
        if isinstance(run, list):
            return [names.sub(lambda found: self.values[found[1]], word) for word in run]
        return names.sub(lambda found: shlex.quote(self.values[found[1]]), run)

    def to_json(self) -> dict[str, Any]:
        """Return the member as the task in a journal and the HTTP API have it."""
        plain: dict[str, Any] = {"name": self.name, "id": self.id, "index": self.index, "size": self.size}
        return {**plain, "values": dict(self.values)} if self.values else plain


def _placeholders(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile(r"(?<!\$)\{(" + "|".join(map(re.escape, names)) + r")\}")


def check_filled(run: list[str] | str, grid: Mapping[str, Sequence[str]]) -> None:
    """Raise `ValueError`: a command with some values of a grid is too long, or a quotation in it contains a value that needs
    quotation marks of its own."""
    placeholders, line = _placeholders(grid), isinstance(run, str)
    longest = {name: max(len(shlex.quote(value) if line else value) for value in values) for name, values in grid.items()}
    for word in [run] if isinstance(run, str) else run:
        if len(word) + sum(longest[found[1]] - len(found[0]) for found in placeholders.finditer(word)) > MAX_WORD:
            raise ValueError(f"at most {MAX_WORD} characters when the grid's values are filled in")
    if not line and not placeholders.sub("", run[0]) and all("" in grid[name] for name in placeholders.findall(run[0])):
        raise ValueError("a program to run for all values of the grid")
    for name in quoted_names(run, placeholders) if isinstance(run, str) else ():
        if needy := [value for value in grid[name] if shlex.quote(value) != value]:
            raise ValueError(
                f"{{{name}}} outside quotation marks, comments and lines with here-documents: "
                f"Fairlead quotes values such as {needy[0]!r:.60} itself"
            )


def array_of(job: Job) -> dict[str, Any] | None:
    """Return a job's place in an array, as in its task; None for a job that is in none."""
    if '"array":' not in job.command:  # most jobs; parsing takes longer
        return None
    found: dict[str, Any] | None = orjson.loads(job.command).get("array")
    return found


def parse_indices(text: str) -> list[int]:
    """Return the indices of `0-19`, `0-19:2` or `1,3,5`, in ascending order. Raises `ValueError`: the text is none of these."""
    indices: set[int] = set()
    named = 0  # also those that are named again
    for part in text.split(","):
        found = _RANGE.match(part.strip())
        if found is None:
            raise ValueError("indices such as 0-19, 0-19:2 or 1,3,5")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or not step or last > MAX_INDEX:
            raise ValueError(f"indices such as 0-19, 0-19:2 or 1,3,5, in ascending order, up to {MAX_INDEX:,}")
        if (named := named + (last - first) // step + 1) > MAX_ARRAY:
            raise ValueError(f"at most {MAX_ARRAY:,} jobs")
        indices.update(range(first, last + 1, step))
    return sorted(indices)


def array_indices(array: str | int | Sequence[int]) -> list[int]:
    """Return the indices of a task's `array`: a number of jobs, a list of indices, or a text as in `parse_indices`."""
    if isinstance(array, str) and array.isdecimal():
        array = int(array)
    if isinstance(array, int):
        if not 1 <= array <= MAX_ARRAY:
            raise ValueError(f"a number of jobs from 1 to {MAX_ARRAY:,}, or indices such as 0-19")
        return list(range(array))
    return parse_indices(array if isinstance(array, str) else ",".join(map(str, array)))


def grid_size(grid: Mapping[str, Sequence[str]]) -> int:
    """Return the number of combinations of a grid's values. Raises `ValueError`: there are none, or too many."""
    if len(grid) > MAX_PARAMETERS:
        raise ValueError(f"at most {MAX_PARAMETERS} parameters")
    size = 1
    for name, values in grid.items():
        if not values:
            raise ValueError(f"at least one value for {name}")
        size *= len(values)
        if size > MAX_ARRAY:
            raise ValueError(f"at most {MAX_ARRAY:,} combinations")
    return size


def grid_values(grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return all combinations of a grid's values; the last parameter changes fastest."""
    grid_size(grid)
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
