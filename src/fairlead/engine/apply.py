"""Events applied to the state: one at a time, or those of a whole journal."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core import events as ev
from fairlead.core.errors import FairleadError
from fairlead.engine import job_control, node_changes, transitions
from fairlead.engine.state import State

APPLY = {**transitions.APPLY, **job_control.APPLY, **node_changes.APPLY}
"""What each event does to the state."""


def apply_event(state: State, event: ev.Event) -> None:
    """Change the state as the event says.

    Raises:
        FairleadError: the event is older than the state, or contradicts it.
    """
    if event.time < state.time - 1e-6:
        raise FairleadError(f"{type(event).__name__} at second {event.time:g} comes after second {state.time:g}")
    state.store.version += 1
    if state.device_map.shared and event.time > state.time:
        transitions.count_shared_service(state, event.time - state.time)
    APPLY[type(event)](state, event)
    if state.interference.slow and state.interference.settle(state, event):
        state._template = None
    if event.time > state.time:
        state.time = event.time
    if state.ledger is not None:
        state.ledger.observe(state, event)


def replay_events(events: Iterable[ev.Event]) -> State:
    """Return the state after a journal's events.

    Raises:
        FairleadError: the first event does not open a journal, or an event contradicts those before it.
    """
    stream = iter(events)
    opened = next(stream, None)
    if not isinstance(opened, ev.JournalOpened):
        raise FairleadError("the journal does not begin with an 'opened' event, which has its cluster")
    state = State(opened.cluster)
    apply_event(state, opened)
    for event in stream:
        apply_event(state, event)
    return state
