"""Sessions served as a journal tells: by the accelerators that their routes had there, at the rates that they reported, from
when their replicas were up until they were taken away. The journal knows the accelerators; requests are drawn anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlead.backends.sessions import History, Requests
from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import InputError
from fairlead.core.inference import Session
from fairlead.engine.journal import read_events
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
    for event in told:
        requests.see(event)
    if not requests.jobs:
        raise InputError(path, "a journal of policy 'nexus' with jobs that are sessions")
    return requests.history()
