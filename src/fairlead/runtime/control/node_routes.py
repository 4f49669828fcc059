"""The part of the HTTP API about nodes: the list, drains, and nodes that are added and removed. Changes need an admin token.
They are answered when they are in the journal. (No postponed annotations here: FastAPI reads them.)"""

import math
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fairlead.core.cluster import Drain, Node, is_type_name
from fairlead.core.errors import near_or_all
from fairlead.core.job import Phase
from fairlead.engine.feasibility import feasible_types
from fairlead.runtime.control import views
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.job_routes import Ask, JobName, Requests
from fairlead.runtime.control.node_roster import MAX_NODE_ACCELERATORS
from fairlead.runtime.control.request_guard import ParsedRoute
from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.protocol.task_file import is_job_name
from fairlead.workloads.catalogue import accelerator_type

Moment = Annotated[float, Field(gt=0, lt=2.5e11, description="Unix time")]  # clients show it as a date, up to the year 9999
_NAME = "expected letters, digits, '.', '_' and '-'"


class NewNode(BaseModel):
    """A node to add."""

    model_config = ConfigDict(extra="forbid")

    name: str
    type: Annotated[str, Field(description="GPU type")]
    accelerators: Annotated[int, Field(ge=1, le=MAX_NODE_ACCELERATORS, description="number of GPUs")]
    cpus: Annotated[float | None, Field(gt=0, le=1e6, description="null: not limited")] = None
    memory_gb: Annotated[float | None, Field(gt=0, le=1e9, description="of the host; null: not limited")] = None
    gpu_memory_gb: Annotated[float | None, Field(gt=0, le=1e6, description="of each GPU, for a new type")] = None
    rack: Annotated[str, Field(description="empty: none")] = ""

    @field_validator("name", "rack")
    @classmethod
    def _valid_name(cls, name: str, info: ValidationInfo) -> str:
        if not is_job_name(name) and (name or info.field_name == "name"):
            raise ValueError(_NAME)
        return name

    @field_validator("type")
    @classmethod
    def _valid_type(cls, name: str) -> str:
        if not is_type_name(name):
            raise ValueError(f"{_NAME}, beginning with a letter")
        return name.lower()

    def node(self) -> Node:
        """Return the node; what is not given is not limited."""
        return Node(self.name, self.type, self.accelerators, self.cpus or math.inf, self.memory_gb or math.inf, rack=self.rack)


class DrainRequest(BaseModel):
    """How to drain a node."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    reason: Annotated[str, Field(max_length=500, description="shown to users")] = ""
    start: Annotated[Moment | None, Field(alias="from", description="when it begins; null: now")] = None
    until: Annotated[Moment | None, Field(description="when it ends by itself; null: when it is undone")] = None


def node_routes(plane: ControlPlane, bearer: Callable[..., Any], requests: Requests) -> APIRouter:
    """Return the routes below `/v1/nodes`."""
    router = APIRouter(route_class=ParsedRoute)
    Caller = Annotated[Bearer, Depends(bearer)]

    def operator(caller: Caller) -> Bearer:
        if caller.role is not Role.ADMIN:
            raise HTTPException(403, "changing nodes needs an admin token")
        return caller

    Operator = Annotated[Bearer, Depends(operator)]

    def find(name: str) -> int:
        numbers = plane.cluster.number_of_node
        if name not in numbers:
            raise HTTPException(404, f"there is no node {name[:80]!r}; {near_or_all(name, numbers)}")
        return numbers[name]

    async def changed(ask: Ask, name: str) -> dict[str, Any]:
        """Change a node, and return its record."""
        events = await requests.in_the_journal(ask)
        if not events:
            raise HTTPException(409, getattr(events, "why", "the node was changed meanwhile; try again"))
        records = await requests.read(lambda: views.node_records(plane))
        return next((record for record in records if record["name"] == name), {"name": name})

    @router.get("/v1/nodes")
    async def nodes(caller: Caller) -> dict[str, Any]:
        """All nodes, with your jobs on them."""
        return {"nodes": await requests.read(lambda: views.node_records(plane, caller.visible_user))}

    @router.post("/v1/nodes", status_code=201, responses={403: {}, 409: {}, 411: {}, 422: {}})
    async def add(body: NewNode, caller: Operator) -> dict[str, Any]:
        """Add a node before its agent connects. An agent with an agent token adds its node by itself."""
        spec, type_ = body.node(), accelerator_type(body.type, body.gpu_memory_gb or 0.0)
        return await changed(lambda answer: plane.backend.add_node(spec, type_, answer), body.name)

    @router.delete("/v1/nodes/{name}", responses={403: {}, 404: {}, 409: {}})
    async def remove(name: JobName, caller: Operator) -> dict[str, Any]:
        """Remove a node on which no job runs, and revoke its credential. `stranded` names jobs that no node can run now."""
        number = find(name)
        await changed(lambda answer: plane.backend.remove_node(number, answer), name)
        return {"name": name, "removed": True, "stranded": await requests.read(stranded)}

    def stranded() -> list[str]:
        """Jobs that wait, and could not run on the cluster if all its nodes were up and empty."""
        state = plane.loop.state
        waiting = [n for n in (*state.queue.tolist(), *state.live.tolist()) if state.columns["phase"][n] != Phase.RUNNING]
        return [state.job_of[n].name for n in waiting if not feasible_types(state.job_of[n], state.cluster)]

    @router.put("/v1/nodes/{name}/drain", responses={403: {}, 404: {}, 409: {}, 411: {}, 422: {}})
    async def drain(name: JobName, caller: Operator, body: DrainRequest | None = None) -> dict[str, Any]:
        """Drain a node: its jobs save and move at the next decision, and no job starts there until this is undone, or until
        `until`. With `from`, this is announced, and begins by itself. A later drain replaces it."""
        number, wanted, now = find(name), body or DrainRequest(), plane.backend.now
        from_s, until_s = (None if moment is None else moment - plane.origin for moment in (wanted.start, wanted.until))
        if until_s is not None and until_s <= max(now, from_s or now):
            raise HTTPException(422, "until: expected a time in the future, and later than from")
        if from_s is not None and await requests.read(
            lambda: bool(plane.loop.state.drained[plane.cluster.node_of == number].any())
        ):
            raise HTTPException(409, f"node {name!r} is drained already: undrain it first, or leave out from")
        drain = Drain(wanted.reason, caller.user, until_s, from_s)
        return await changed(lambda answer: plane.backend.drain(number, False, answer, drain), name)

    @router.delete("/v1/nodes/{name}/drain", responses={403: {}, 404: {}, 409: {}})
    async def undrain(name: JobName, caller: Operator) -> dict[str, Any]:
        """Use a node again."""
        number, by = find(name), Drain(by=caller.user)
        return await changed(lambda answer: plane.backend.drain(number, True, answer, by), name)

    return router
