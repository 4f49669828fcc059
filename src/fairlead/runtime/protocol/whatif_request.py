"""The request of a what-if: the changes that are tried on a fork of a cluster, and how it is simulated. It only bounds the
values; names of nodes, jobs, users and parts are looked up where the fork is."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints, model_validator

from fairlead.core.errors import FairleadError
from fairlead.core.job import MAX_WEIGHT, MIN_WEIGHT
from fairlead.runtime.protocol.task_file import MAX_NAME, TaskSpec

MAX_LISTED = 1000  # nodes, jobs, users or faults of one request
MAX_SUBMITTED = 200  # new jobs, with the members of arrays

Name = Annotated[str, StringConstraints(min_length=1, max_length=2 * MAX_NAME + 64)]


class RefusedQuestion(FairleadError):
    """A question that cannot be answered as it was asked, and what is wrong with it."""


class NoAnswerInTime(FairleadError):
    """A question whose answer took too long."""


class SchedulerChoice(BaseModel):
    """Another scheduler: one of a policy, a preset and the fields of a scheduler file. Parts are those that are installed."""

    model_config = ConfigDict(extra="forbid")

    policy: Annotated[str, Field(max_length=2000, description="as in 'las:by=time'; the other parts stay")] = ""
    preset: Annotated[str, Field(max_length=200)] = ""
    config: Annotated[dict[str, Any] | None, Field(description="as in a scheduler file")] = None

    @model_validator(mode="after")
    def _one(self) -> SchedulerChoice:
        if sum((bool(self.policy), bool(self.preset), self.config is not None)) != 1:
            raise ValueError("expected one of policy, preset and config")
        return self


class NodeFault(BaseModel):
    """A node that fails in some seconds, for some seconds."""

    model_config = ConfigDict(extra="forbid")

    node: Name
    in_s: Annotated[FiniteFloat, Field(ge=0, le=1e9)]
    for_s: Annotated[FiniteFloat, Field(gt=0, le=1e9)]


class WhatIfRequest(BaseModel):
    """Changes to a cluster, and how to simulate it. All keys are optional; at least one change is needed."""

    model_config = ConfigDict(extra="forbid")

    scheduler: SchedulerChoice | None = None
    round_s: Annotated[FiniteFloat | None, Field(ge=0.1, le=1e9, description="length of a round")] = None
    add: Annotated[str, Field(max_length=1000, description="nodes, as GPUs × type : GPUs per node: 16xh200:8")] = ""
    remove: Annotated[list[Name], Field(max_length=MAX_LISTED, description="nodes; their jobs save and move")] = []
    quotas: Annotated[
        dict[Name, Annotated[int, Field(ge=1, le=10**9)]],
        Field(max_length=MAX_LISTED, description="GPUs that a user may have; those of other users need an admin token"),
    ] = {}
    weights: Annotated[
        dict[Name, Annotated[FiniteFloat, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)]],
        Field(max_length=MAX_LISTED, description="weight of all jobs of a user; those of other users need an admin token"),
    ] = {}
    without: Annotated[list[Name], Field(max_length=MAX_LISTED, description="jobs to cancel, by name or number")] = []
    submit: Annotated[list[TaskSpec], Field(max_length=MAX_SUBMITTED, description="tasks of new jobs, as in task files")] = []
    arrivals: Annotated[FiniteFloat, Field(ge=0, le=2, description="how many jobs arrive, in proportion")] = 1.0
    faults: Annotated[list[NodeFault], Field(max_length=MAX_LISTED)] = []
    scenarios: Annotated[int, Field(ge=1, le=100, description="of arrivals; fewer if time is short")] = 5
    window_s: Annotated[FiniteFloat, Field(ge=36, le=3.6e8, description="the recent past, from which arrivals are drawn")] = (
        21600.0
    )
    timelines: Annotated[bool, Field(description="also when each job runs, without and with the changes")] = False

    @model_validator(mode="after")
    def _supported(self) -> WhatIfRequest:
        if any(task.after for task in self.submit):
            raise ValueError("submit: a new job cannot depend on others here: leave out 'after'")
        self.model_dump(mode="json")  # raises ValueError: a value is nested too deeply
        return self
