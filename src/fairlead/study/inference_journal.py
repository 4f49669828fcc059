"""Sessions served as a journal tells: by the accelerators that their routes had there, at the rates that they reported, from
when their replicas were up until they were taken away. The journal knows the accelerators; requests are drawn anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlead.backends.sessions import History, Requests
from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError, InputError, JournalError
from fairlead.core.inference import Session
from fairlead.engine.journal import read_events
from fairlead.engine.state import State
from fairlead.policies.nexus import Nexus


def sessions_in(schedulers: Iterable[Mapping[str, Any]]) -> dict[str, Session]:
    """By name, the sessions that any of these schedulers knows; of two that know the same, as the later does."""
    found: dict[str, Session] = {}
    for scheduler in schedulers:
        known = {name: part for name, part in scheduler.items() if name == "policy"}
        said = known.get("policy")
        if (said.get("name") if isinstance(said, Mapping) else said) == "nexus":
            policy = SchedulerConfig.from_data(known).build(None).policy
            if isinstance(policy, Nexus):
                found.update((name, policy.session(name)) for name in policy.sessions)
    return found


def read_history(path: Path) -> History:
    """The sessions of a journal that has a scheduler with policy `nexus`."""
    return history_of(read_events(path), path)


def history_of(events: Iterable[ev.Event], path: Path | str) -> History:
    told = list(events)
    if not told or not isinstance(told[0], ev.Opened):
        raise InputError(path, "a journal, which begins with an 'opened' event")
    schedulers = (event.scheduler for event in told if isinstance(event, (ev.Opened, ev.SchedulerSwitched)))
    requests = Requests(told[0].cluster, sessions_in(schedulers))
    state = State(told[0].cluster)
    for line, event in enumerate(told, start=1):
        if isinstance(event, ev.MemoChanged) and _routed_by_memo(event.memo, requests.sessions):
            expected = "plans with routes; this one is of a version before these, and simulating its trace again makes one"
            raise InputError(path, expected, line=line, field="memo.routing")
        try:
            state.apply(event)
        except (FairleadError, IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise JournalError(f"{path}:{line}: an event that cannot have happened: {error}") from error
        requests.see(event)
    if not requests.jobs:
        raise InputError(path, "a journal of policy 'nexus' with jobs that are sessions")
    return requests.history()


def _routed_by_memo(memo: object, sessions: Mapping[str, Session]) -> bool:
    """Batches were in the policy's memory before plans had routes."""
    routing = memo.get("routing") if isinstance(memo, Mapping) else None
    return isinstance(routing, Mapping) and not sessions.keys().isdisjoint(routing)
