"""What happens to nodes: they are lost, repaired, drained, left alone for a while, added and removed. Plain functions as in
`transitions`; only `apply_event` calls them. Numbers of nodes, accelerators and types never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import MAX_TYPES, NO_DRAIN, BackoffPeriod, Bools, Cluster, Drain
from fairlead.core.errors import InvalidPlan
from fairlead.engine.feasibility import feasible_types
from fairlead.engine.state import MAX_OUTAGES, State
from fairlead.engine.transitions import check_node

MAX_ACCELERATORS = 1_000_000  # of a cluster


def _drained(state: State, event: ev.NodeDrained) -> None:
    drained = state.drained
    if event.undo or event.from_s is None:
        drained = _with_node(state, drained, event.node, not event.undo)
    else:
        _check_not_removed(state, event.node)
    drain = Drain(event.reason, event.by, event.until_s, event.from_s)
    state.drains = {node: other for node, other in state.drains.items() if node != event.node}
    if not event.undo and drain != NO_DRAIN:
        state.drains[event.node] = drain
    state.set_availability(state.present, drained, state.backoffs)


def _backed_off(state: State, event: ev.NodeBackedOff) -> None:
    _check_not_removed(state, event.node)
    backoffs = {**state.backoffs, event.node: BackoffPeriod(event.until_s, event.why)}
    state.set_availability(state.present, state.drained, backoffs)


def _lost_or_repaired(state: State, event: ev.NodeLost | ev.NodeRepaired) -> None:
    backoffs = {node: backoff for node, backoff in state.backoffs.items() if node != event.node}  # it is over for this one
    present = _with_node(state, state.present, event.node, isinstance(event, ev.NodeRepaired))
    state.set_availability(present, state.drained, backoffs)
    if isinstance(event, ev.NodeLost) and event.time > 0:  # a new journal begins without nodes
        state.lost_since.setdefault(event.node, event.time)
    elif isinstance(event, ev.NodeRepaired) and (lost_s := state.lost_since.pop(event.node, None)) is not None:
        state.outages = [*state.outages[1 - MAX_OUTAGES :], (lost_s, event.time)]


def _added(state: State, event: ev.NodeAdded) -> None:
    """Jobs that have not ended may use the node; types that a job could use before stay feasible for it."""
    before, spec, type_ = state.cluster, event.spec, event.type
    if problem := addition_problem(before, event):
        raise InvalidPlan(problem)
    cluster = state.cluster = before.with_node(event.node, spec, type_)
    more = cluster.size - before.size
    if more:
        state.device_map.grow(cluster.size)
    if len(cluster.types) > len(before.types):
        if len(before.types) == 1:  # with one type, the service of jobs is not summed up
            state.service_by_type = (
                state.service_by_type + state.store.arrays["settled_accelerator_s"][: state.next_number].sum()
            )
        state.service_by_type = np.append(state.service_by_type, 0.0)
        state.memo = None  # policies keep columns by type
    absent = np.zeros(more, dtype=np.bool_)
    state.set_availability(np.append(state.present, absent), np.append(state.drained, absent), state.backoffs)
    fits = state.store.arrays["fits"]
    for number in (*state.live.tolist(), *state.queue.tolist()):
        fits[number] |= feasible_types(state.job_of[number], cluster)
    _changed(state)


def _removed(state: State, event: ev.NodeRemoved) -> None:
    _check_not_removed(state, event.node)
    spec, here = state.cluster.nodes[event.node], state.cluster.node_of == event.node
    if len(jobs := state.device_map.on(here)):
        raise InvalidPlan(f"node {spec.name!r} cannot be removed: job {state.job_of[int(jobs[0])].name!r} runs there")
    state.cluster = state.cluster.with_node(event.node, replace(spec, removed=True))
    state.drains = {node: drain for node, drain in state.drains.items() if node != event.node}
    backoffs = {node: backoff for node, backoff in state.backoffs.items() if node != event.node}
    state.set_availability(state.present & ~here, state.drained & ~here, backoffs)
    _changed(state)


def addition_problem(cluster: Cluster, event: ev.NodeAdded) -> str:
    """Why a node cannot be added; empty if it can."""
    spec, type_ = event.spec, event.type
    if spec.name in cluster.number_of_node:
        return f"the cluster already has a node {spec.name!r}"
    if spec.removed or event.node != cluster.number_for(spec):
        return f"node {spec.name!r} would get number {cluster.number_for(spec)}, not {event.node}"
    if type_ is not None and (type_.name != spec.type or spec.type in cluster.type_code):
        return f"node {spec.name!r}: the properties of GPU type {type_.name!r} cannot be set by a node of type {spec.type!r}"
    if spec.type not in cluster.type_code and len(cluster.types) >= MAX_TYPES:
        return f"node {spec.name!r} has the new GPU type {spec.type!r}, and the cluster has {MAX_TYPES} types already"
    if not 1 <= spec.accelerators <= MAX_ACCELERATORS - int(cluster.size_of_type.sum()):
        return f"node {spec.name!r} has {spec.accelerators} GPUs: expected 1 or more, and {MAX_ACCELERATORS:,} in the cluster"
    return ""


def _changed(state: State) -> None:
    state.node_changes += 1
    state._signature_columns.clear()  # it has feasible types
    state._template = None


def _with_node(state: State, column: Bools, node: int, value: bool) -> Bools:
    _check_not_removed(state, node)
    changed = column.copy()
    changed[state.cluster.node_of == node] = value
    return changed


def _check_not_removed(state: State, node: int) -> None:
    check_node(state, node)
    if state.cluster.nodes[node].removed:
        raise InvalidPlan(f"node {state.cluster.nodes[node].name!r} was removed")


APPLY: dict[type, Callable[[State, Any], None]] = {
    ev.NodeLost: _lost_or_repaired,
    ev.NodeRepaired: _lost_or_repaired,
    ev.NodeDrained: _drained,
    ev.NodeBackedOff: _backed_off,
    ev.NodeAdded: _added,
    ev.NodeRemoved: _removed,
}
