"""Why a job does not run: a value with who said it, a code, and the numbers; its text is made from those alone."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from fairlead.core.job import Failure


class Code(enum.StrEnum):
    TOO_LARGE = "too-large"
    NO_SUITABLE_TYPE = "no-suitable-type"
    NOT_ADMITTED = "not-admitted"
    OUTRANKED = "outranked"
    BEHIND_HEAD = "behind-the-head"
    NODES_DOWN = "nodes-down"
    NO_PLACE = "no-place"
    NEXT_DECISION = "next-decision"
    SLO_INFEASIBLE = "slo-infeasible"
    WAITING_FOR_JOBS = "after-others"
    DEPENDENCY_FAILED = "after-nobody"
    NO_DECISION = "undecided"
    PLANNED_LATER = "planned-later"
    NOT_CHOSEN = "not-chosen"
    RETRYING = "tried-again"
    FAILED = "failed"
    LAUNCH_FAILED = "not-begun"


_TEXT = {
    Code.TOO_LARGE: "needs {needed:g} {what}, of at most {at_most:g}{there}",
    Code.NO_SUITABLE_TYPE: "no accelerator type of this cluster suits it: {what}",
    Code.NOT_ADMITTED: "not admitted: {what} ({demand:g} of at most {limit:g})",
    Code.OUTRANKED: "others go first: needs {needed:accelerators}, free where it may run: {free:g}",
    Code.BEHIND_HEAD: "behind the head of the line, job {head}, which waits for {needed:accelerators}{stuck}",
    Code.NODES_DOWN: "needs {needed:accelerators}, up where it may run: {at_most:g}",
    Code.NO_PLACE: "selected, but without a place: {what}",
    Code.NEXT_DECISION: "waits for the next decision{due}",
    Code.SLO_INFEASIBLE: "its deadline in {left_s:g} s is given up: {what} ({needed_s:g} s of work on its fastest type)",
    Code.WAITING_FOR_JOBS: "waits until {whom} has finished",
    Code.DEPENDENCY_FAILED: "it was to come after {whom}, which {how}",
    Code.NO_DECISION: "nobody new starts for now, what was decided last stands: {what}",
    Code.PLANNED_LATER: "the plan has it in {rounds:g} of {window:g} rounds{when}; it is predicted to end at {rho:.2f} times"
    " its fair end, and a round costs {cost:.2g} of its budget",
    Code.NOT_CHOSEN: "the policy left it out for now: needs {needed:accelerators}, free where it may run: {free:g}",
    Code.RETRYING: "its last try failed: {how}; try {next:g} of {tries:g} at the next decision{due}",
    Code.FAILED: "{how}, in try {at:g} of {tries:g}",
    Code.LAUNCH_FAILED: "its node could not begin it: {how}; tried again at the next decision{due}",
}


_STUCK = "; up where that may run: {up:g}, so nobody behind it starts until there are more"


class _Number(float):
    """Can be spelled as so many accelerators."""

    def __format__(self, spec: str) -> str:
        if spec == "accelerators":
            return f"{float(self):g} accelerator{'' if float(self) == 1.0 else 's'}"
        return format(float(self), spec)


@dataclass(frozen=True, slots=True)
class Reason:
    """`by` is the stage that said it: door, admission, policy, placement."""

    by: str
    code: Code
    facts: tuple[tuple[str, float | str], ...] = ()

    @property
    def text(self) -> str:
        """The sentence alone, for people who need not know of stages."""
        given = {name: fact if isinstance(fact, str) else _Number(fact) for name, fact in self.facts}
        facts = {"due": _due(given.get("in_s")), **given, "there": f" ({given['there']})" if "there" in given else ""}
        facts["stuck"] = _STUCK.format(**given) if "up" in given else ""
        told = _TEXT[self.code].format(**facts)
        told += f"; it shares none: {facts['alone']}" if "alone" in facts else ""
        told += f"; {facts['anew']}" if "anew" in facts else ""
        if "not_begun" in facts:
            return f"{told}; its node could not begin it: {facts['not_begun']}"
        return told + (f"; failed {facts['failed']}" if "failed" in facts else "")

    def after_failure(self, failure: Failure, failures: int, tries: int, node: str = "") -> Reason:
        """The same of a job whose last try failed, and that says so too."""
        (_, how), *facts = _told(failure, node, "no more is known")
        return Reason(self.by, self.code, (*self.facts, ("failed", f"in try {failures} of {tries}: {how}"), *facts))

    def after_no_beginning(self, failure: Failure, node: str = "") -> Reason:
        """The same of a job that was given a place, and whose node could not begin it."""
        (_, how), *facts = _told(failure, node, "no more is known")
        return Reason(self.by, self.code, (*self.facts, ("not_begun", how), *facts))

    def due(self, in_s: float) -> Reason:
        """The same of a job that waits for a decision, and that says when this will be made."""
        waits = self.code in (Code.NEXT_DECISION, Code.RETRYING, Code.LAUNCH_FAILED) and 0 < in_s < math.inf
        return Reason(self.by, self.code, (*self.facts, ("in_s", in_s))) if waits else self

    def __str__(self) -> str:
        return f"{self.by}: {self.text}"

    def to_dict(self) -> dict[str, object]:
        return {"by": self.by, "code": str(self.code), **dict(self.facts), "text": str(self)}


class Unplaced:
    """The reasons there are, by name."""

    @staticmethod
    def needs(needed: float, what: str, *, of_at_most: float, there: str = "", by: str = "door") -> Reason:
        """`there`: of what there is how much, where that is not one thing."""
        facts = (("needed", needed), ("what", what), ("at_most", of_at_most))
        return Reason(by, Code.TOO_LARGE, (*facts, ("there", there)) if there else facts)

    @staticmethod
    def unsuitable(what: str, by: str = "door") -> Reason:
        return Reason(by, Code.NO_SUITABLE_TYPE, (("what", what),))

    @staticmethod
    def not_admitted(what: str, *, demand: float, limit: float) -> Reason:
        return Reason("admission", Code.NOT_ADMITTED, (("what", what), ("demand", demand), ("limit", limit)))

    @staticmethod
    def outranked(needed: float, *, free: float, alone: str = "", anew: str = "") -> Reason:
        """`alone`: why it does not share accelerators, where others do; `anew`: why others go first although it has run."""
        more = tuple((name, told) for name, told in (("alone", alone), ("anew", anew)) if told)
        return Reason("policy", Code.OUTRANKED, (("needed", needed), ("free", free), *more))

    @staticmethod
    def behind(head: str, *, needed: float, up: float | None = None) -> Reason:
        """`up`: how many there are for the head, where those are fewer than it needs."""
        facts = (("head", head), ("needed", needed))
        return Reason("policy", Code.BEHIND_HEAD, facts if up is None else (*facts, ("up", up)))

    @staticmethod
    def nodes_down(needed: float, *, up: float) -> Reason:
        return Reason("placement", Code.NODES_DOWN, (("needed", needed), ("at_most", up)))

    @staticmethod
    def no_place(what: str) -> Reason:
        return Reason("placement", Code.NO_PLACE, (("what", what),))

    @staticmethod
    def next_decision() -> Reason:
        return Reason("loop", Code.NEXT_DECISION)

    @staticmethod
    def after(whom: str) -> Reason:
        return Reason("door", Code.WAITING_FOR_JOBS, (("whom", whom),))

    @staticmethod
    def dependency_failed(whom: str, how: str) -> Reason:
        return Reason("door", Code.DEPENDENCY_FAILED, (("whom", whom), ("how", how)))

    @staticmethod
    def no_decision(what: str) -> Reason:
        return Reason("loop", Code.NO_DECISION, (("what", what),))

    @staticmethod
    def planned_later(rounds: int, window: int, *, from_s: float, rho: float, cost: float) -> Reason:
        """A plan of rounds has it later, or not before its end."""
        when = f", from second {from_s:g} on" if rounds else ""
        facts = (("rounds", rounds), ("window", window), ("when", when), ("rho", rho), ("cost", cost))
        return Reason("policy", Code.PLANNED_LATER, facts)

    @staticmethod
    def not_chosen(needed: float, *, free: float) -> Reason:
        """Nobody stands before it, and yet it was not selected: such as in a round that is not its turn."""
        return Reason("policy", Code.NOT_CHOSEN, (("needed", needed), ("free", free)))

    @staticmethod
    def retrying(failure: Failure, failures: int, tries: int, node: str = "") -> Reason:
        told = _told(failure, node, "no more is known")
        return Reason("loop", Code.RETRYING, (*told, ("next", failures + 1), ("tries", tries)))

    @staticmethod
    def launch_failed(failure: Failure, node: str = "") -> Reason:
        return Reason("backend", Code.LAUNCH_FAILED, _told(failure, node, "no more is known"))

    @staticmethod
    def failed(failure: Failure, failures: int, tries: int, node: str = "") -> Reason:
        """The last of `tries`, or the one that used up what all together may take."""
        return Reason("backend", Code.FAILED, (*_told(failure, node, "it failed"), ("at", failures + 1), ("tries", tries)))

    @staticmethod
    def late(what: str, *, left_s: float, needed_s: float) -> Reason:
        return Reason("policy", Code.SLO_INFEASIBLE, (("what", what), ("left_s", left_s), ("needed_s", needed_s)))


def _due(in_s: float | str | None) -> str:
    if in_s is None:
        return ""
    return f", in {math.ceil(float(in_s))} s"


def _told(failure: Failure, node: str, unknown: str) -> tuple[tuple[str, float | str], ...]:
    where = (("node", node),) if node else ()
    return (("how", (failure.why or unknown) + (f" on {node}" if node else "")), *failure.facts, *where)
