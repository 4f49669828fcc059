"""Why a job does not run: a value with the stage that says so, a code, and facts. Its text is made from these alone."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.core.durations import exact_duration
from fairlead.core.job import Failure

Fact: TypeAlias = tuple[str, float | str]


class Code(enum.StrEnum):
    """What kind of reason it is."""

    TOO_LARGE = "too-large"
    NO_SUITABLE_TYPE = "no-suitable-type"
    NOT_ADMITTED = "not-admitted"
    WAITING_FOR_RESOURCES = "waiting-for-resources"
    BEHIND_HEAD = "behind-head"
    NODES_DOWN = "nodes-down"
    NOT_PLACED = "not-placed"
    NEXT_DECISION = "next-decision"
    DEADLINE_INFEASIBLE = "deadline-infeasible"
    WAITING_FOR_JOBS = "waiting-for-jobs"
    DEPENDENCY_FAILED = "dependency-failed"
    NO_DECISION = "no-decision"
    PLANNED_LATER = "planned-later"
    NOT_SELECTED = "not-selected"
    RETRYING = "retrying"
    FAILED = "failed"
    LAUNCH_FAILED = "launch-failed"
    HELD = "held"
    NO_NODES = "no-nodes"

    @classmethod
    def _missing_(cls, value: object) -> Code | None:
        return _FORMER.get(str(value))


_FORMER = {
    "outranked": Code.WAITING_FOR_RESOURCES,
    "behind-the-head": Code.BEHIND_HEAD,
    "no-place": Code.NOT_PLACED,
    "slo-infeasible": Code.DEADLINE_INFEASIBLE,
    "after-others": Code.WAITING_FOR_JOBS,
    "after-nobody": Code.DEPENDENCY_FAILED,
    "undecided": Code.NO_DECISION,
    "not-chosen": Code.NOT_SELECTED,
    "tried-again": Code.RETRYING,
    "not-begun": Code.LAUNCH_FAILED,
}
"""Codes by their former names, which journals of version 1 have."""

_TEXT = {
    Code.TOO_LARGE: "Too large for this cluster: needs {needed:g} {what}, and there are at most {at_most:g}{there}",
    Code.NO_SUITABLE_TYPE: "No GPU type of this cluster is suitable: {what}",
    Code.NOT_ADMITTED: "Not admitted: {what} ({demand:g} of at most {limit:g})",
    Code.WAITING_FOR_RESOURCES: "Waiting for resources: needs {needed:gpus}; {free:g}{of} eligible GPUs are free",
    Code.BEHIND_HEAD: "Waiting behind the head of the queue, job {head}, which needs {needed:gpus}{stuck}",
    Code.NODES_DOWN: "Waiting for nodes: needs {needed:gpus}; {at_most:g} eligible GPUs are up",
    Code.NOT_PLACED: "Selected, but there are no suitable GPUs: {what}",
    Code.NEXT_DECISION: "Waiting for the next decision{due}",
    Code.DEADLINE_INFEASIBLE: "Its deadline in {left_s:g} s cannot be met: {what} ({needed_s:g} s of work on its fastest type)",
    Code.WAITING_FOR_JOBS: "Waiting until {job} has finished",
    Code.DEPENDENCY_FAILED: "It depends on {job}, which {how}",
    Code.NO_DECISION: "No new job starts for now, because the scheduler makes no decisions: {what}",
    Code.PLANNED_LATER: "Planned in {rounds:g} of {window:g} rounds{when}; it is predicted to take {rho:.2f} times"
    " its fair completion time, and a round costs {cost:.2g} of its budget",
    Code.NOT_SELECTED: "Not selected in this round: needs {needed:gpus}; {free:g}{of} eligible GPUs are free",
    Code.RETRYING: "The last attempt failed: {how}; attempt {next:g} of {attempts:g} at the next decision{due}",
    Code.FAILED: "{how}{attempt}",
    Code.LAUNCH_FAILED: "Its node could not start it: {how}; another attempt at the next decision{due}",
    Code.HELD: "Held by {user}; `fairlead release` lets it run",
    Code.NO_NODES: "Waiting for nodes to join: {what}",
}

_QUEUED = (Code.WAITING_FOR_RESOURCES, Code.NOT_SELECTED, Code.BEHIND_HEAD, Code.NOT_PLACED, Code.NODES_DOWN)
"""Reasons of jobs that wait for GPUs in the order of a policy."""

_STUCK = "; only {up:g} eligible GPUs are up, so no job behind it starts until more are up"

_ATTEMPT = ", in attempt {at:g} of {attempts:g}"


class _Number(float):
    """Can be formatted as a number of GPUs."""

    def __format__(self, spec: str) -> str:
        if spec == "gpus":
            return f"{float(self):g} GPU{'' if float(self) == 1.0 else 's'}"
        return format(float(self), spec)


@dataclass(frozen=True, slots=True)
class Reason:
    """`by` is the stage that says so: feasibility, admission, policy, placement, loop, backend or user."""

    by: str
    code: Code
    facts: tuple[Fact, ...] = ()

    @property
    def text(self) -> str:
        """The sentence without the stage."""
        given = {name: fact if isinstance(fact, str) else _Number(fact) for name, fact in self.facts}
        facts = {"due": _due(given.get("in_s")), "of": "", **given, "there": f" ({given['there']})" if "there" in given else ""}
        if "eligible" in given:
            facts["of"] = f" of the {given['eligible']:g}"
        facts["attempt"] = _ATTEMPT.format(**given) if "at" in given else ""
        facts["stuck"] = _STUCK.format(**given) if "up" in given else ""
        text = _TEXT[self.code].format(**facts)
        text += f", at most {facts['one_type']:g} of one type" if "one_type" in facts else ""
        text += f"; position {facts['position']:g} of {facts['waiting']:g}" if "position" in facts else ""
        text += f"; it shares no GPU: {facts['alone']}" if "alone" in facts else ""
        text += f"; {facts['after_run']}" if "after_run" in facts else ""
        if "launch_failed" in facts:
            return f"{text}; its node could not start it: {facts['launch_failed']}"
        return text + (f"; failed {facts['failed']}" if "failed" in facts else "")

    def after_failure(self, failure: Failure, failures: int, attempts: int, node: str = "") -> Reason:
        """The same reason for a job whose last attempt failed, with that failure."""
        (_, how), *facts = _failure_facts(failure, node, "no details are known")
        return Reason(self.by, self.code, (*self.facts, ("failed", f"in attempt {failures} of {attempts}: {how}"), *facts))

    def after_failed_launch(self, failure: Failure, node: str = "") -> Reason:
        """The same reason for a job that had a place, and whose node could not start it."""
        (_, how), *facts = _failure_facts(failure, node, "no details are known")
        return Reason(self.by, self.code, (*self.facts, ("launch_failed", how), *facts))

    def at_position(self, position: int, waiting: int) -> Reason:
        """The same reason for a job that waits in a ranked queue, with its position among the waiting jobs."""
        if self.code not in _QUEUED:
            return self
        return Reason(self.by, self.code, (*self.facts, ("position", position), ("waiting", waiting)))

    def due(self, in_s: float) -> Reason:
        """The same reason for a job that waits for a decision, with the seconds until then."""
        waits = self.code in (Code.NEXT_DECISION, Code.RETRYING, Code.LAUNCH_FAILED) and 0 < in_s < math.inf
        return Reason(self.by, self.code, (*self.facts, ("in_s", in_s))) if waits else self

    def __str__(self) -> str:
        return f"{self.by}: {self.text}"

    def to_dict(self) -> dict[str, object]:
        """The reason as plain data, with its text."""
        return {"by": self.by, "code": str(self.code), **dict(self.facts), "text": str(self)}


class Reasons:
    """Makes reasons, one function for each code."""

    @staticmethod
    def needs(needed: float, what: str, *, of_at_most: float, there: str = "", by: str = "feasibility") -> Reason:
        """`there` lists what there is, if that is not one number."""
        facts = (("needed", needed), ("what", what), ("at_most", of_at_most))
        return Reason(by, Code.TOO_LARGE, (*facts, ("there", there)) if there else facts)

    @staticmethod
    def unsuitable(what: str, by: str = "feasibility") -> Reason:
        return Reason(by, Code.NO_SUITABLE_TYPE, (("what", what),))

    @staticmethod
    def not_admitted(what: str, *, demand: float, limit: float) -> Reason:
        return Reason("admission", Code.NOT_ADMITTED, (("what", what), ("demand", demand), ("limit", limit)))

    @staticmethod
    def waiting(needed: float, *, free: float, eligible: float | None = None, **more: float | str) -> Reason:
        """Of `more`, `one_type` is the most free GPUs of one type, where those of all types would be enough; `alone` says why
        the job shares no GPU where others do; `after_run` why others go first although it has run."""
        facts = tuple((name, fact) for name, fact in more.items() if fact != "")
        return Reason("policy", Code.WAITING_FOR_RESOURCES, (*_room(needed, free, eligible), *facts))

    @staticmethod
    def not_selected(needed: float, *, free: float, eligible: float | None = None) -> Reason:
        """There is room for the job, but the policy left it out, for instance in a round that is not its turn."""
        return Reason("policy", Code.NOT_SELECTED, _room(needed, free, eligible))

    @staticmethod
    def behind(head: str, *, needed: float, up: float | None = None) -> Reason:
        """`up` is given if fewer GPUs are up for the head than it needs."""
        facts = (("head", head), ("needed", needed))
        return Reason("policy", Code.BEHIND_HEAD, facts if up is None else (*facts, ("up", up)))

    @staticmethod
    def nodes_down(needed: float, *, up: float) -> Reason:
        return Reason("placement", Code.NODES_DOWN, (("needed", needed), ("at_most", up)))

    @staticmethod
    def no_nodes(what: str = "the cluster has no nodes yet") -> Reason:
        return Reason("feasibility", Code.NO_NODES, (("what", what),))

    @staticmethod
    def not_placed(what: str) -> Reason:
        return Reason("placement", Code.NOT_PLACED, (("what", what),))

    @staticmethod
    def next_decision() -> Reason:
        return Reason("loop", Code.NEXT_DECISION)

    @staticmethod
    def after(jobs: str) -> Reason:
        return Reason("feasibility", Code.WAITING_FOR_JOBS, (("job", jobs),))

    @staticmethod
    def dependency_failed(job: str, how: str) -> Reason:
        return Reason("feasibility", Code.DEPENDENCY_FAILED, (("job", job), ("how", how)))

    @staticmethod
    def no_decision(what: str) -> Reason:
        return Reason("loop", Code.NO_DECISION, (("what", what),))

    @staticmethod
    def planned_later(rounds: int, window: int, *, from_s: float, rho: float, cost: float) -> Reason:
        """The plan of rounds has the job later, or not before its end."""
        when = f", from second {from_s:g} on" if rounds else ""
        facts = (("rounds", rounds), ("window", window), ("when", when), ("rho", rho), ("cost", cost))
        return Reason("policy", Code.PLANNED_LATER, facts)

    @staticmethod
    def retrying(failure: Failure, failures: int, attempts: int, node: str = "") -> Reason:
        facts = _failure_facts(failure, node, "no details are known")
        return Reason("loop", Code.RETRYING, (*facts, ("next", failures + 1), ("attempts", attempts)))

    @staticmethod
    def launch_failed(failure: Failure, node: str = "") -> Reason:
        return Reason("backend", Code.LAUNCH_FAILED, _failure_facts(failure, node, "no details are known"))

    @staticmethod
    def failed(failure: Failure, failures: int, attempts: int, node: str = "") -> Reason:
        """The last of the attempts."""
        facts = _failure_facts(failure, node, "it failed")
        return Reason("backend", Code.FAILED, (*facts, ("at", failures + 1), ("attempts", attempts)))

    @staticmethod
    def time_limit(limit_s: float) -> Reason:
        """There is no other attempt: the limit is that of all attempts together."""
        of = f" of {exact_duration(limit_s)}" if math.isfinite(limit_s) else ""
        return Reason("backend", Code.FAILED, (("how", f"reached its time limit{of}"),))

    @staticmethod
    def held(user: str) -> Reason:
        return Reason("user", Code.HELD, (("user", user or "a user"),))

    @staticmethod
    def deadline_infeasible(what: str, *, left_s: float, needed_s: float) -> Reason:
        return Reason("policy", Code.DEADLINE_INFEASIBLE, (("what", what), ("left_s", left_s), ("needed_s", needed_s)))


Unplaced = Reasons  # the former name, for plug-ins


def _room(needed: float, free: float, eligible: float | None) -> tuple[Fact, ...]:
    return (("needed", needed), ("free", free), *(() if eligible is None else (("eligible", eligible),)))


def _due(in_s: float | str | None) -> str:
    return "" if in_s is None else f", in {math.ceil(float(in_s))} s"


def _failure_facts(failure: Failure, node: str, unknown: str) -> tuple[Fact, ...]:
    where = (("node", node),) if node else ()
    return (("how", (failure.why or unknown) + (f" on {node}" if node else "")), *failure.facts, *where)
