"""Alerts of a control plane: it follows the events of the journal and some conditions, and gives what the rules ask for to one
thread for each address. The loop's thread only appends to a list. Each alert is delivered at least once: a mark in the control
plane's files says how far each address has come, and after a restart the journal has what follows."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fairlead.config.alert_rules import JOB_ENDED, JOB_FAILED, AlertRule, AlertSettings, read_alerts
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError, JournalError, JournalUnreachable
from fairlead.core.reasons import Code
from fairlead.journal.control_files import ALERTS, ControlFiles
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.runtime.control.alert_conditions import AGAIN_AFTER_S, AlertConditions, duration_text, job_facts, job_text
from fairlead.runtime.control.alert_delivery import AlertChannel, AlertMessage, DeliveryFailed, create_channel
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.lookahead_service import Lookahead

log = logging.getLogger("fairlead.cluster")

MAX_WAITING = 20_000  # alerts for one address
MAX_NEW = 10_000  # events that were not looked at yet; of more, the journal has them
MAX_AGE_S = 86_400.0  # older alerts are not sent any more
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 300.0
CHECK_EVERY_S, MARK_EVERY_S = 10.0, 60.0
STOP_WITHIN_S = 5.0  # for deliveries that have begun
MAX_TEXT = 500
ALL = 1 << 40  # the place behind all alerts of an event

Mark: TypeAlias = tuple[int, int]  # the number of an event, and the place of an alert in it
ENDING = (ev.JobsFinished, ev.JobsFailed, ev.JobCancelled, ev.RoundPlanned)


class JobEnd(NamedTuple):
    """How a job ended, from an event."""

    number: int
    outcome: str
    at_s: float
    why: str = ""
    code: int = 0
    node: int = -1


class WaitingAlert(NamedTuple):
    """An alert in an outbox: an end of a job with its mark, or a message about a condition with the condition's key."""

    at: float  # Unix time
    content: JobEnd | AlertMessage
    mark: Mark = (0, 0)
    key: str = ""


def job_ends(event: ev.Event) -> Iterator[JobEnd]:
    """Return the jobs that an event ends, always in the same order."""
    match event:
        case ev.JobsFinished():
            yield from (JobEnd(number, "finished", at_s) for number, at_s in zip(event.jobs.tolist(), event.at.tolist()))
        case ev.JobsFailed():
            for number, at_s in zip(event.jobs.tolist(), event.at.tolist()):
                yield JobEnd(number, "failed", at_s, event.why, event.code, event.node)
        case ev.JobCancelled():
            yield JobEnd(event.number, "cancelled", event.time)
        case ev.RoundPlanned(plan):
            for number, reason in plan.refused:
                outcome = "cancelled" if reason.code is Code.DEPENDENCY_FAILED else "refused"
                yield JobEnd(number, outcome, plan.time, reason.text)
            yield from (JobEnd(number, "finished", plan.time) for number in plan.ended.tolist())


class AlertMarks:
    """How far each address has come, and when it got the last alert about a condition, in a file of the control plane."""

    def __init__(self, files: ControlFiles, journal: str) -> None:
        self._files, self._journal, self._written, self._lock = files, journal, b"", threading.Lock()
        self._ended = False
        self.reached: dict[str, Mark] = {}
        self.sent: dict[str, float] = {}
        try:
            found = json.loads(files.read(ALERTS) or b"{}")
            if found.get("journal") == journal:
                self.reached = {str(name): (int(seq), int(place)) for name, (seq, place) in found["reached"].items()}
                self.sent = {str(key): float(at) for key, at in found["sent"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning("cannot read which alerts were sent; alerts begin now", extra={"file": f"{files.where}/{ALERTS}"})

    def write(self, update: Callable[[], None], *, last: bool = False) -> None:
        """Update the marks and write them, if they have changed, until the `last` time: then another service has the file. If
        that fails, alerts may be sent again after a restart."""
        with self._lock:  # first: an older state must not be written last
            if self._ended:
                return
            self._ended = last
            update()
            data = {"journal": self._journal, "reached": self.reached, "sent": self.sent}
            content = json.dumps(data, sort_keys=True).encode()
            if content == self._written:
                return
            try:
                self._files.write(ALERTS, content)
                self._written = content
            except (OSError, JournalError) as problem:
                log.warning("cannot record which alerts were sent; some may be sent again", extra={"why": str(problem)})


@dataclass(eq=False)
class Outbox:
    """The alerts that wait for one address."""

    target: str
    channel: AlertChannel
    rules: Sequence[AlertRule]
    reached: Mark
    waiting: deque[WaitingAlert] = field(default_factory=deque)
    sent: dict[str, float] = field(default_factory=dict)  # by condition: when the last alert about it was delivered

    @property
    def name(self) -> str:
        """The name of the address in the marks; the address itself may be a secret."""
        return hashlib.sha256(self.target.encode()).hexdigest()[:16]

    def wants(self, end: JobEnd, user: str, account: str) -> bool:
        """Return whether a rule asks for this end of a job."""
        kinds = (JOB_ENDED, JOB_FAILED) if end.outcome in ("failed", "refused") else (JOB_ENDED,)
        addressed = bool(user) or "{user}" not in self.target
        return addressed and any(rule.on in kinds and rule.covers(user, account) for rule in self.rules)


class AlertService:
    """Sends the alerts of one control plane. Create it before the control plane starts, then call `start`."""

    def __init__(
        self, plane: ControlPlane, settings: AlertSettings, files: ControlFiles, forecast: Lookahead | None = None
    ) -> None:
        self._given = plane, files, forecast
        if not isinstance(plane.journal, DatabaseJournal):
            raise FairleadError("alerts need a journal in SQLite or PostgreSQL: pass --journal FILE.sqlite or postgresql://…")
        self._plane, self.settings, self._journal = plane, settings, plane.journal
        self._host, self._changed = plane.host, plane.host.condition()  # it is never held while something is written or sent
        self._conditions = AlertConditions(plane, forecast)
        self._marks = AlertMarks(files, plane.name)
        self._new: list[tuple[int, ev.Event]] = []
        self._behind = False  # events have to be read from the journal
        with plane.backend.lock:
            self._seen = self._last = last = plane.journal.last  # numbers of events: looked at, and committed
            plane.observers.append(self.observe)
        conditions = tuple(f"{place} {rule.on} " for place, rule in enumerate(settings.rules))
        self.outboxes: list[Outbox] = []
        for target in settings.targets:
            rules = [rule for rule in settings.rules if target in rule.to]
            outbox = Outbox(target, create_channel(target, settings), rules, (last, ALL))
            known = self._marks.reached.get(outbox.name)
            if known is not None and known < (last, ALL):
                outbox.reached, self._seen = known, min(self._seen, max(0, known[0] - 1))
            sent = ((key.partition(" "), at) for key, at in self._marks.sent.items())
            outbox.sent = {key: at for (name, _, key), at in sent if name == outbox.name and key.startswith(conditions)}
            self.outboxes.append(outbox)
        self._behind |= self._seen < last
        self._stopping, self._running, self._since = False, 0, self._host.monotonic()

    def observe(self, events: Sequence[ev.Event], seconds: float) -> None:
        """Take note of committed events, in the loop's thread."""
        last = self._journal.last
        found = [(number, event) for number, event in enumerate(events, last - len(events) + 1) if isinstance(event, ENDING)]
        with self._changed:
            self._last = last
            if len(self._new) + len(found) > MAX_NEW:
                self._behind = True
                self._new.clear()
            elif not self._behind:
                self._new += found
            if found:
                self._changed.notify_all()

    def start(self) -> None:
        """Start the threads. The marks are written first: a control plane that is killed has them from the beginning."""
        self._marks.write(self._mark)
        works: list[tuple[str, Callable[[], None]]] = [("alerts", self._follow)]
        kinds = sorted({rule.on for rule in self.settings.rules if rule.on in AGAIN_AFTER_S})
        works += [("alert-conditions", partial(self._watch, on)) for on in kinds]  # a forecast may take long
        works += [("alert-delivery", partial(self._deliver, outbox)) for outbox in self.outboxes]
        self._running = len(works)
        for name, work in works:
            self._host.spawn(name, partial(self._run, work))

    def stop(self) -> None:
        """Stop; wait a little for deliveries that have begun. What was not delivered is sent after the next start."""
        until = self._host.monotonic() + STOP_WITHIN_S
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            while self._running and self._host.monotonic() < until:
                self._changed.wait(0.2)
        self._marks.write(self._mark, last=True)

    def restarted(self, settings: AlertSettings) -> AlertService:
        """Stop, and return the service with other settings, started. Each address continues where it was."""
        plane, files, forecast = self._given
        self.stop()
        with plane.backend.lock:
            plane.observers.remove(self.observe)
        found = AlertService(plane, settings, files, forecast)
        found.start()
        return found

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("alerts have stopped")
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _pause(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait; return False if the service stops. Hold the condition."""
        deadline = self._host.monotonic() + seconds
        while not self._stopping and not until() and (left := deadline - self._host.monotonic()) > 0:
            self._changed.wait(min(left, 60.0))
        return not self._stopping

    # Ends of jobs.

    def _follow(self) -> None:
        """Look at events, in their order, each once."""
        marked = self._host.monotonic()
        while True:
            with self._changed:
                if not self._pause(MARK_EVERY_S, lambda: bool(self._new or self._behind)):
                    return
                events, self._new = self._new, []
                behind, self._behind = self._behind, False
                if not (events or behind):
                    self._seen = max(self._seen, self._last)  # nothing to tell in the events up to here
            if behind:
                self._catch_up()
            for number, event in events:
                self._look_at(number, event)
            if self._host.monotonic() - marked >= MARK_EVERY_S:
                self._marks.write(self._mark)
                marked = self._host.monotonic()

    def _catch_up(self) -> None:
        """Read events from the journal: after a restart, or when too many came at once."""
        begin: int | None = self._seen
        while not self._stopping:
            try:
                for number, event in self._journal.numbered(begin):
                    self._look_at(number, event)
                return
            except JournalUnreachable:
                with self._changed:
                    self._pause(FIRST_RETRY_S)
            except JournalError as problem:
                if begin is None or self._stopping:
                    return
                log.warning("the journal has dropped events; their alerts are not sent", extra={"why": str(problem)})
                begin = None  # from the first event that is left

    def _look_at(self, number: int, event: ev.Event) -> None:
        if number <= self._seen:
            return
        jobs, origin, oldest = self._plane.loop.state.job_of, self._plane.origin, self._host.time() - MAX_AGE_S
        ends = [(place, end) for place, end in enumerate(job_ends(event)) if end.number in jobs]
        found: list[list[WaitingAlert]] = []
        for outbox in self.outboxes:
            new = [(place, end, jobs[end.number]) for place, end in ends if (number, place) > outbox.reached]
            wanted = [(place, end) for place, end, job in new if outbox.wants(end, job.user, job.account)]
            found.append([WaitingAlert(origin + end.at_s, end, (number, place)) for place, end in wanted])
        with self._changed:
            dropped = [self._put(outbox, alerts, oldest) for outbox, alerts in zip(self.outboxes, found)]
            self._seen = number
            if any(found):
                self._changed.notify_all()
        for outbox, count in zip(self.outboxes, dropped):
            self._count(outbox, "dropped", count)

    @staticmethod
    def _put(outbox: Outbox, alerts: Sequence[WaitingAlert], oldest: float) -> int:
        """Add alerts to an outbox; return how many are too old, or too many. Hold the condition."""
        recent = [alert for alert in alerts if alert.at >= oldest][: max(0, MAX_WAITING - len(outbox.waiting))]
        outbox.waiting.extend(recent)
        return len(alerts) - len(recent)

    def _count(self, outbox: Outbox, outcome: str, alerts: int) -> None:
        if alerts:
            self._plane.metrics.alerts.labels(outbox.channel.kind, outcome).inc(alerts)
            if outcome == "dropped":
                log.warning("alerts dropped", extra={"to": outbox.channel.label, "alerts": alerts})

    # Delivery.

    def _deliver(self, outbox: Outbox) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            with self._changed:
                if not self._pause(math.inf, lambda: bool(outbox.waiting)):
                    return
                batch = list(islice(outbox.waiting, outbox.channel.batch))
            try:
                refused = outbox.channel.send([self._message(alert) for alert in batch])
            except DeliveryFailed as problem:
                about = {"to": outbox.channel.label, "alerts": len(batch), "why": str(problem)}
                if problem.again:
                    log.warning("alerts not delivered; trying again", extra=about | {"after_s": retry_s})
                    with self._changed:
                        self._pause(retry_s)
                        old = self._drop_old(outbox)
                    self._count(outbox, "dropped", old)
                    retry_s = min(2 * retry_s, LAST_RETRY_S)
                    continue
                log.error("alerts refused", extra=about)
                refused = len(batch)
            except Exception:
                log.exception("alerts cannot be sent", extra={"to": outbox.channel.label, "alerts": len(batch)})
                refused = len(batch)
            retry_s, now = FIRST_RETRY_S, self._host.time()
            with self._changed:
                for alert in batch:
                    outbox.waiting.popleft()
                    outbox.reached = max(outbox.reached, alert.mark)
                outbox.sent |= {alert.key: now for alert in batch if alert.key}
            self._count(outbox, "failed", refused)
            self._count(outbox, "sent", len(batch) - refused)
            self._marks.write(self._mark)

    def _drop_old(self, outbox: Outbox) -> int:
        """Drop alerts that are too old to be of use; return how many. Hold the condition."""
        oldest, count = self._host.time() - MAX_AGE_S, len(outbox.waiting)
        outbox.waiting = deque(alert for alert in outbox.waiting if alert.at >= oldest)
        return count - len(outbox.waiting)

    def _mark(self) -> None:
        """Update how far each address has come."""
        with self._changed:
            for outbox in self.outboxes:
                if all(alert.key for alert in outbox.waiting):
                    outbox.reached = max(outbox.reached, (self._seen, ALL))
            self._marks.reached = {outbox.name: outbox.reached for outbox in self.outboxes}
            self._marks.sent = {f"{outbox.name} {key}": at for outbox in self.outboxes for key, at in outbox.sent.items()}

    def _message(self, alert: WaitingAlert) -> AlertMessage:
        if isinstance(alert.content, AlertMessage):
            return alert.content
        end, state = alert.content, self._plane.loop.state
        job, run_s = state.job_of[end.number], float(state.columns["settled_run_s"][end.number])
        node = state.cluster.nodes[end.node].name if end.node >= 0 else ""
        text = f"{job_text(end.number, job)} {'was ' if end.outcome in ('cancelled', 'refused') else ''}{end.outcome}"
        text += f" after running for {duration_text(run_s)}" if run_s > 0 else ""
        text += (f": {end.why.rstrip('. ')}" if end.why else "") + (f" (node {node})" if node else "")
        about = {"state": end.outcome, "run_s": round(run_s, 3), "why": end.why, "node": node or None}
        about |= {"exit_code": end.code or None}
        on = JOB_FAILED if end.outcome in ("failed", "refused") else JOB_ENDED
        facts = {"job": {**job_facts(end.number, job), **about}}
        return self._made(f"{alert.mark[0]}-{alert.mark[1]}", on, alert.at, f"{text}.", facts, job.user)

    def _made(self, subject: str, on: str, at: float, text: str, facts: Mapping[str, Any], user: str) -> AlertMessage:
        text = " ".join(text.split())  # a reason may have several lines
        text = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
        return AlertMessage(f"{self._plane.name}-{subject}", on, at, text, facts, user)

    # Conditions.

    def _watch(self, on: str) -> None:
        """Check the conditions of the rules of one kind now and then."""
        rules = [rule for rule in self.settings.rules if rule.on == on]
        while True:
            for rule in rules:
                try:
                    self.check(rule)
                except FairleadError as problem:  # the state is busy, or a forecast failed: the next check may succeed
                    log.warning("the condition of an alert was not checked", extra={"on": rule.on, "why": str(problem)})
                except Exception:  # the other conditions are still checked
                    log.exception("the condition of an alert was not checked", extra={"on": rule.on})
            with self._changed:
                if not self._pause(CHECK_EVERY_S):
                    return

    def check(self, rule: AlertRule) -> None:
        """Put alerts about conditions that hold into the outboxes, and forget those that do not hold any more."""
        now, place = self._host.time(), self.settings.rules.index(rule)
        settled = self._host.monotonic() - self._since > AGAIN_AFTER_S[rule.on] + rule.bound  # all that holds was seen again
        held = {f"{place} {rule.on} {one.subject}": one for one in self._conditions.find(rule)}
        for outbox in (one for one in self.outboxes if one.target in rule.to):
            with self._changed:
                waiting = {alert.key for alert in outbox.waiting}
                for key in [one for one in outbox.sent if one.startswith(f"{place} {rule.on} ") and one not in held]:
                    if settled and now - outbox.sent[key] > AGAIN_AFTER_S[rule.on]:
                        del outbox.sent[key]
                sent = {key: now - at for key, at in outbox.sent.items()}
                due = [key for key in held if key not in waiting and (key not in sent or sent[key] >= rule.repeat_s)]
                alerts = []
                for key in due:
                    if held[key].user or "{user}" not in outbox.target:
                        name = f"{rule.on}-{held[key].subject}-{now:.0f}"
                        message = self._made(name, rule.on, now, held[key].text, held[key].facts, held[key].user)
                        alerts.append(WaitingAlert(now, message, key=key))
                dropped = self._put(outbox, alerts, -math.inf)
                self._changed.notify_all()
            self._count(outbox, "dropped", dropped)


class FollowedAlerts:
    """The alerts of an alert file, which is read again when asked for. A wrong file changes nothing."""

    def __init__(self, path: Path, service: AlertService) -> None:
        self._path, self._service, self._lock = path, service, threading.Lock()

    def reload(self) -> None:
        """Read the file again, with the secrets that it names, and use it."""
        about = {"file": str(self._path)}
        with self._lock:
            try:
                wanted = read_alerts(self._path)
                for target in wanted.targets:
                    create_channel(target, wanted)
            except (FairleadError, OSError) as problem:
                log.error("alert file refused; the current alerts stay", extra=about | {"why": str(problem)})
                return
            if wanted == self._service.settings:
                log.info("alerts unchanged", extra=about)
                return
            self._service = self._service.restarted(wanted)
            log.info("alerts reloaded", extra=about | {"rules": len(wanted.rules)})

    def stop(self) -> None:
        """Stop the alerts."""
        with self._lock:
            self._service.stop()
