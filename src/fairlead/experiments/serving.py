"""Inference sessions in experiments: pack them, serve requests, and read a run's sessions from its journal. The journal has the
accelerators of their routes and the reported rates; requests are drawn again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError, InputError, JournalError, require
from fairlead.core.routes import ServingPlan, Session
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.journal.jsonl import read_events
from fairlead.policies.serving.nexus import Nexus
from fairlead.policies.serving.packing.pooled import DEFAULT_POOLING, PoolingOptions, pack_pooled
from fairlead.policies.serving.packing.squishy import pack_squishy
from fairlead.simulator.sessions import (
    ArrivalProcess,
    ServingHistory,
    ServingResult,
    SessionTracker,
    request_arrivals,
    serve_requests,
)

Packing = Literal["pooled", "squishy"]


def pack_sessions(
    sessions: Sequence[Session],
    accelerators: Mapping[str, float],
    packing: Packing = "pooled",
    how: PoolingOptions = DEFAULT_POOLING,
) -> ServingPlan:
    """A plan on at most these numbers of accelerators, by type."""
    if packing == "pooled":
        return pack_pooled(sessions, accelerators, how)
    if len(accelerators) > 1:
        raise InputError("packing squishy", "a cluster of one type; 'pooled' takes several", value=", ".join(accelerators))
    ((name, count),) = accelerators.items()
    return pack_squishy(sessions, name, count)


def serve_sessions(
    plan: ServingPlan, sessions: Sequence[Session], *, duration_s: float = 60.0, seed: int = 0, how: ArrivalProcess = "poisson"
) -> ServingResult:
    """Serve the requests that arrive within `duration_s` seconds."""
    return serve_requests(plan, sessions, {s.name: request_arrivals(s, duration_s, seed, how) for s in sessions})


def sessions_in(schedulers: Iterable[Mapping[str, Any]]) -> dict[str, Session]:
    """The sessions of these schedulers by name; where several have the same one, that of the last."""
    found: dict[str, Session] = {}
    for scheduler in schedulers:
        part = scheduler.get("policy")
        if (part.get("name") if isinstance(part, Mapping) else part) == "nexus":
            policy = SchedulerConfig.from_data({"policy": part}).build(None).policy
            if isinstance(policy, Nexus):
                found.update((name, policy.session(name)) for name in policy.sessions)
    return found


def read_history(path: Path) -> ServingHistory:
    """The sessions of a journal whose scheduler has the policy `nexus`."""
    events = list(read_events(path))
    if not events or not isinstance(opened := events[0], ev.JournalOpened):
        raise InputError(path, "a journal, which begins with an 'opened' event")
    schedulers = (event.scheduler for event in events if isinstance(event, (ev.JournalOpened, ev.SchedulerSwitched)))
    requests = SessionTracker(opened.cluster, sessions_in(schedulers))
    state = State(opened.cluster)
    for line, event in enumerate(events, start=1):
        if isinstance(event, ev.MemoChanged) and _routed_by_memo(event.memo, requests.sessions):
            expected = "plans with routes; this one is of a version before these, and simulating its trace again makes one"
            raise InputError(path, expected, line=line, field="memo.routing")
        try:
            apply_event(state, event)
        except (FairleadError, IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise JournalError(f"{path}:{line}: an event that cannot have happened: {error}") from error
        requests.cluster = state.cluster  # nodes may have been added
        requests.observe(event)
    require(requests.jobs, path, "a journal of policy 'nexus' with jobs that are sessions")
    return requests.history()


def _routed_by_memo(memo: object, sessions: Mapping[str, Session]) -> bool:
    """Whether this is a memo of a version whose plans had no routes."""
    routing = memo.get("routing") if isinstance(memo, Mapping) else None
    return isinstance(routing, Mapping) and not sessions.keys().isdisjoint(routing)
