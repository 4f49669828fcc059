"""The rows of jobs and nodes that pages show, with a revision for each. The scheduling loop only notes which jobs and nodes an
event concerns. `refresh` makes their rows once, for pages of all users; a page gets all rows, or those with a later revision
than the last one that it has. It knows no HTTP."""

from __future__ import annotations

import heapq
import math
import secrets
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson

from fairlead.config.schedulers import scheduler_of
from fairlead.core import events as ev
from fairlead.core.cluster import NO_DRAIN, Bools, Cluster, Drain
from fairlead.core.job import ENDED, Job, Phase
from fairlead.core.plan import RoundPlan
from fairlead.engine.explain import reason_codes
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.event_log import RECENT_DECISIONS, decision_record
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS

JOB_COLUMNS = (
    *("number", "name", "user", "account", "job_type", "state", "gpus", "gpu_type", "devices"),
    *("submitted", "started", "ended", "priority", "weight", "reason", "progress", "launches", "preemptions"),
)
NODE_COLUMNS = ("index", "name", "type", "gpus", "first", "state", "drain", "utilization", "memory_gb", "rack", "host")
DECISIONS = 20  # in a reset
MAX_ENDED, ENDED_S = 2000, 86_400.0  # ended jobs that a reset has, at most: the last ones, of a day
AT_ONCE = 1000  # jobs whose facts are copied while the loop waits
READ_WITHIN_S = 2.0  # a refresh waits for the state
MEASURE_S = 10.0  # between two samples of what a node measures, and whether it is silent
PROGRESS_S, PROGRESS = 5.0, 0.01  # between two samples of progress, and the change of a row that is worth another
REASONS_S = 5.0  # between two samples of why jobs wait, if there was a decision
PRUNE_S = 60.0
UTILIZATION, MEMORY = 0.05, 0.05  # changes of what a node measures that are worth another row

_PHASES = {phase: phase.name.lower() for phase in Phase}
_COLUMNS = ("phase", "held", "type", "submitted_s", "run_started_s", "ended_s", "starts", "preemptions")


@dataclass(slots=True)
class LiveRow:
    """A row as JSON, for its user and for admins (`full`), and for other users (`masked`)."""

    full: bytes
    masked: bytes
    user: str = ""
    revision: int = 0
    state: str = ""
    reason: str = ""
    progress: float = math.nan
    ended: float = math.inf  # Unix time
    beat: Heartbeat = field(default_factory=Heartbeat)


class _NodeFacts(NamedTuple):
    """What the state says of nodes at one moment."""

    cluster: Cluster
    present: Bools
    drained: Bools
    backoffs: set[int]
    drains: dict[int, Drain]


@dataclass(slots=True)
class LiveTable:
    """Rows by number, in the order of their revisions."""

    rows: dict[int, LiveRow] = field(default_factory=dict)

    def put(self, number: int, row: LiveRow, revision: int) -> bool:
        """Add a row; return whether it differs from the one before, and so gets the revision."""
        if (old := self.rows.get(number)) is not None and old.full == row.full:
            row.revision = old.revision
            self.rows[number] = row  # in its place
            return False
        row.revision = revision
        self.rows.pop(number, None)
        self.rows[number] = row
        return True

    def all(self) -> Iterable[LiveRow]:
        return (self.rows[number] for number in sorted(self.rows))

    def since(self, revision: int) -> Iterable[LiveRow]:
        for row in reversed(self.rows.values()):
            if row.revision <= revision:
                break
            yield row


class LiveFeed:
    """The feed of one control plane. It is asleep, and costs nothing, until `wake`. The loop's thread calls `_observe`; all
    else is for one thread at a time."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.epoch, self.revision, self.second = "", 0, 0.0  # no epoch: asleep
        self._observes = False
        self._forget()

    def _forget(self) -> None:
        self._touched, self._touched_nodes, self._decided = set[int](), set[int](), list[RoundPlan]()
        self._left = set[int]()  # jobs whose rows could not be made: the state was busy
        self._jobs, self._nodes = LiveTable(), LiveTable()
        self._decisions: deque[tuple[int, RoundPlan]] = deque(maxlen=RECENT_DECISIONS)
        self._scheduler: Any = None
        self._plan: RoundPlan | None = None  # the one that reasons are from
        self._scheduler_revision = 0
        self._reset_below = 0  # who has an earlier revision needs a reset: a row is gone, or there is a new GPU type
        self._types: tuple[str, ...] = ()
        self._ended: dict[int, float] = {}
        self._next: dict[str, float] = {}
        self._part = 0  # of the nodes whose measurements are looked at next

    def wake(self) -> None:
        """Begin, with all rows. Raises `StateBusy`: the state cannot be read now."""
        if self.epoch:
            return
        plane = self._plane
        with plane.backend.at_rest():
            self._forget()
            if not self._observes:
                plane.observers.append(self._observe)
                self._observes = True
            state = plane.loop.state
            self._touched.update(state.live.tolist(), state.queue.tolist(), state.held, self._recently_ended())
            self._touched_nodes.update(n for n, node in enumerate(state.cluster.nodes) if not node.removed)
            self._decisions.extend((0, plan) for plan in plane.decisions.plans)
            self.epoch = secrets.token_hex(8)
        self.refresh()

    def sleep(self) -> None:
        """Forget everything."""
        self.epoch = ""
        self._forget()

    def _recently_ended(self) -> list[int]:
        state = self._plane.loop.state
        ended_s = state.columns["ended_s"][: state.next_number]
        with np.errstate(invalid="ignore"):
            found = np.flatnonzero(np.isfinite(ended_s) & (ended_s >= self._plane.backend.now - ENDED_S))
        found = found[state.columns["phase"][found] > int(Phase.RUNNING)]
        latest: list[int] = found[np.argsort(ended_s[found], kind="stable")][-MAX_ENDED:].tolist()
        return latest

    def _observe(self, events: Sequence[ev.Event], seconds: float) -> None:
        """Note what the events of a commit concern. Called in the loop's thread: nothing else may happen here."""
        if not self.epoch:
            return
        jobs, nodes = self._touched, self._touched_nodes
        for event in events:
            match event:
                case (
                    ev.JobSubmitted() | ev.JobCancelled() | ev.JobHeld() | ev.JobReleased() | ev.JobRequeued() | ev.JobUpdated()
                ):
                    jobs.add(event.number)
                case ev.JobsFinished() | ev.JobsFailed() | ev.JobsInterrupted():
                    jobs.update(event.jobs.tolist())
                case ev.RoundPlanned(plan):
                    jobs.update(plan.admitted.tolist(), plan.ended.tolist(), plan.suspended.tolist())
                    jobs.update(plan.launches.jobs.tolist(), [number for number, _ in plan.refused])
                    self._decided.append(plan)
                case (
                    ev.NodeLost()
                    | ev.NodeRepaired()
                    | ev.NodeDrained()
                    | ev.NodeAdded()
                    | ev.NodeRemoved()
                    | ev.NodeBackedOff()
                ):
                    nodes.add(event.node)

    def refresh(self) -> None:
        """Make the rows of what has changed; `revision` grows if there are any. Raises `StateBusy`: the rest comes later."""
        plane, revision = self._plane, self.revision + 1
        due = {name for name, every_s in _SWEEPS.items() if self._is_due(name, every_s)}
        with plane.backend.at_rest(READ_WITHIN_S):
            jobs, self._touched = self._touched | self._left, set()
            nodes, self._touched_nodes = self._touched_nodes, set()
            plans, self._decided = self._decided, []
            state, plan = plane.loop.state, plane.loop.plan
            jobs |= self._moved() if "progress" in due else set()
            waiting = self._waiting() if "reasons" in due and plan is not self._plan else []
            seen = _NodeFacts(state.cluster, state.present, state.drained, set(state.backoffs), dict(state.drains))
            scheduler = plane.scheduler_in_use
        self._left, changed = jobs, bool(plans)
        self._decisions.extend((revision, plan) for plan in plans)
        if scheduler is not self._scheduler:
            self._scheduler, self._scheduler_revision, changed = scheduler, revision, True
        if seen.cluster.type_names != self._types:
            self._types, self._reset_below, changed = seen.cluster.type_names, revision, True
        try:
            for index in sorted(nodes | self._measured(len(seen.cluster.nodes))):
                changed |= self._nodes.put(index, self._node_row(index, seen), revision)
            for some in _batches(waiting):
                with plane.backend.at_rest(READ_WITHIN_S):
                    codes = reason_codes(plane.loop.state, plane.loop.plan, some)
                jobs.update(n for n, code in codes.items() if (old := self._jobs.rows.get(n)) is None or old.reason != code)
            self._plan = plan if "reasons" in due else self._plan
            for some in _batches(sorted(jobs)):
                for number, row in self._job_rows(some):
                    changed |= self._jobs.put(number, row, revision)
                    self._ended.pop(number, None)
                    self._ended |= {number: row.ended} if row.ended < math.inf else {}
                self._left.difference_update(some)
        finally:
            self.revision = revision if changed else self.revision
            self.second = plane.backend.now
            if "prune" in due or len(self._ended) > MAX_ENDED:
                self._prune()

    def _is_due(self, what: str, every_s: float) -> bool:
        now = self._plane.host.monotonic()
        if now < self._next.get(what, -math.inf):
            return False
        self._next[what] = now + every_s
        return True

    def _waiting(self) -> list[int]:
        state = self._plane.loop.state
        live = state.live[state.columns["phase"][state.live] == int(Phase.WAITING)]
        return [*live.tolist(), *state.queue.tolist()]

    def _moved(self) -> set[int]:
        """Running jobs whose progress has changed since their rows were made."""
        running = self._plane.loop.state.running
        shown = [row.progress if (row := self._jobs.rows.get(n)) is not None else math.nan for n in running.tolist()]
        with np.errstate(invalid="ignore"):
            far = np.abs(self._progress(running) - np.array(shown, dtype=np.float64)) >= PROGRESS
        return set(running[far].tolist())

    def _progress(self, numbers: Any) -> Any:
        """From 0 to 1; nan where the steps are unknown."""
        a, plane = self._plane.loop.state.columns, self._plane
        now, steps = min(plane.backend.now, plane.progress_until_s), a["steps"][numbers]
        done = a["base_steps"][numbers] + a["rate"][numbers] * np.maximum(now - a["since_s"][numbers], 0.0)
        shares = np.where(steps == UNKNOWN_STEPS, math.nan, np.clip(done / np.maximum(steps, 1e-9), 0.0, 1.0))
        return np.where(a["phase"][numbers] == int(Phase.FINISHED), 1.0, shares)

    def _job_rows(self, numbers: Sequence[int]) -> Iterator[tuple[int, LiveRow]]:
        """The rows of some jobs. What changes is copied while the loop waits; the rows are made after that."""
        plane = self._plane
        with plane.backend.at_rest(READ_WITHIN_S):
            state, at = plane.loop.state, np.array(numbers, dtype=np.int64)
            columns = [state.columns[name][at].tolist() for name in _COLUMNS]
            progress = self._progress(at).round(3).tolist()
            jobs: list[Job] = [state.job_of[number] for number in numbers]
            held = {number for number in numbers if number in state.held}
            devices: dict[int, list[int]] = {}
            for number, place in zip(*(column.tolist() for column in state.device_map.places(at))):
                devices.setdefault(number, []).append(place)
            codes = reason_codes(state, plane.loop.plan, numbers)
        origin = plane.origin
        for number, job, done, phase, gpus, type_, submitted_s, started_s, ended_s, launches, preemptions in zip(
            numbers, jobs, progress, *columns
        ):
            ended, runs = phase in ENDED, phase == Phase.RUNNING
            name = "held" if number in held and not ended else _PHASES[phase]
            began = launches and (ended or runs)
            places = devices.get(number, []) if runs else []
            public = (name, gpus if runs else job.workers, type_ if began else -1, places)
            end = round(origin + ended_s, 3) if ended else None
            full = (
                *(number, job.name, job.user, job.account, job.kind, *public, round(origin + submitted_s, 3)),
                *(round(origin + started_s, 3) if began else None, end, job.priority, job.weight, codes[number]),
                *(None if math.isnan(done) else done, launches, preemptions),
            )
            masked = (number, "", "", "", "", *public, None, None, None, None, None, "", None, None, None)
            yield (
                number,
                LiveRow(
                    orjson.dumps(full),
                    orjson.dumps(masked),
                    job.user,
                    state=name,
                    reason=codes[number],
                    progress=done,
                    ended=math.inf if end is None else end,
                ),
            )

    def _prune(self) -> None:
        """Remove ended jobs that are too old, or too many. A page that has not seen their ends needs a reset."""
        before = self._plane.origin + self._plane.backend.now - ENDED_S
        oldest = heapq.nsmallest(max(0, len(self._ended) - MAX_ENDED), self._ended, key=self._ended.__getitem__)
        for number in {*oldest, *(number for number, ended in self._ended.items() if ended < before)}:
            del self._ended[number]
            self._reset_below = max(self._reset_below, self._jobs.rows.pop(number).revision)

    def _measured(self, nodes: int) -> set[int]:
        """Nodes that became silent or can be reached again, or whose GPUs are used otherwise, of the part that is due."""
        if not self._is_due("measure", MEASURE_S / PARTS):
            return set()
        self._part = (self._part + 1) % PARTS
        hub, found = self._plane.hub, set[int]()
        for node in range(self._part, nodes, PARTS):
            row = self._nodes.rows.get(node)
            if row is None or row.state in ("removed", "lost"):
                continue
            if self._is_silent(node) != (row.state == "unreachable") or _differs(row.beat, hub.heartbeats.get(node, row.beat)):
                found.add(node)
        return found

    def _is_silent(self, node: int) -> bool:
        return 0 < self._plane.hub.silent_s(node) < math.inf

    def _node_row(self, index: int, seen: _NodeFacts) -> LiveRow:
        node, beat = seen.cluster.nodes[index], self._plane.hub.heartbeats.get(index)
        first = seen.cluster.bounds_of_node[index][0]
        if node.removed or not seen.present[first]:
            state = "removed" if node.removed else "lost"
        elif self._is_silent(index):
            state = "unreachable"
        else:
            state = "backed-off" if index in seen.backoffs else "drained" if seen.drained[first] else "up"
        beat = Heartbeat() if beat is None or state in ("removed", "lost") else beat
        row = orjson.dumps(
            (
                *(index, node.name, seen.cluster.kind_of_node[index], node.accelerators, first, state),
                seen.drains.get(index, NO_DRAIN).reason,
                [_percent(share) for share in beat.utilization],
                [round(used, 1) for used in beat.memory_gb],
                node.rack,
                _host_percents(beat),
            )
        )
        return LiveRow(row, row, state=state, beat=beat)

    def knows(self, epoch: str, revision: int) -> bool:
        """Return whether a page with this revision needs only what came after it."""
        return epoch == self.epoch and self._reset_below <= revision <= self.revision

    def message(self, sight: str | None, since: int | None = None) -> bytes:
        """Return the event for pages that see the names of one user's jobs or (None) of all users': what came after a revision,
        or (None) everything."""
        reset = since is None or since < self._reset_below
        after = -1 if reset or since is None else since
        data: dict[str, Any] = {"epoch": self.epoch, "revision": self.revision, "origin": self._plane.origin} if reset else {}
        data["second"] = self.second
        if reset or self._scheduler_revision > after:
            data["scheduler"] = {"label": scheduler_of(self._scheduler).label, "parameters": dict(self._scheduler)}
        if reset:
            data |= {"types": self._types, "job_columns": JOB_COLUMNS, "node_columns": NODE_COLUMNS}
        jobs, nodes = (table.all() if reset else table.since(after) for table in (self._jobs, self._nodes))
        data["jobs"] = _joined(row.full if sight in (None, row.user) else row.masked for row in jobs)
        data["nodes"] = _joined(row.full for row in nodes if not (reset and row.state == "removed"))
        state = self._plane.loop.state
        plans = [plan for stamp, plan in reversed(self._decisions) if stamp > after]
        decisions = (decision_record(plan, state, sight) for plan in plans)
        data["decisions"] = [found for found in decisions if found][: DECISIONS if reset else None]
        name = b"reset" if reset else b"change"
        return b"event: %b\nid: %b:%d\ndata: %b\n\n" % (name, self.epoch.encode(), self.revision, orjson.dumps(data))


PARTS = 20
"""Of the nodes: each is looked at every `MEASURE_S`, and not all at once."""

_SWEEPS = {"progress": PROGRESS_S, "reasons": REASONS_S, "prune": PRUNE_S}


def _joined(rows: Iterable[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(rows) + b"]")


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[begin : begin + AT_ONCE] for begin in range(0, len(numbers), AT_ONCE))


def _differs(shown: Heartbeat, now: Heartbeat) -> bool:
    """Whether what a node measures is worth another row."""
    if shown is now or (shown.utilization, shown.memory_gb, shown.host) == (now.utilization, now.memory_gb, now.host):
        return False
    hosts = zip(_host_percents(shown), _host_percents(now))
    if any((one is None) != (other is None) or abs((one or 0) - (other or 0)) > 100 * UTILIZATION for one, other in hosts):
        return True
    pairs: Collection[tuple[float, float]] = list(zip(shown.memory_gb, now.memory_gb))
    return (
        (len(shown.utilization), len(shown.memory_gb)) != (len(now.utilization), len(now.memory_gb))
        or any(abs(one - other) > UTILIZATION for one, other in zip(shown.utilization, now.utilization))
        or any(abs(one - other) > MEMORY * max(one, 1.0) for one, other in pairs)
    )


def _host_percents(beat: Heartbeat) -> tuple[int | None, ...]:
    """The used percent of a node's CPUs, memory and disk; None: not measured."""
    if (host := beat.host) is None:
        return (None, None, None)
    used = ((host.cpu, 1.0), (host.memory_gb, host.memory_total_gb), (host.disk_gb, host.disk_total_gb))
    return tuple(None if value is None or not total else _percent(value / total) for value, total in used)


def _percent(share: float) -> int:
    """Percents that a page can read, whatever an agent reports."""
    return round(100 * min(share, 10.0))
