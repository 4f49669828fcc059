"""Questions about a fork of a running cluster, as its control plane passes them on: what if, which change would start a job,
when would a new job start. Answers are plain data. Other users' names do not occur in the answer to a user."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster, Node
from fairlead.core.errors import InputError, UnknownName, require
from fairlead.core.job import Job
from fairlead.engine.state import State
from fairlead.experiments.fork import Fork, ForkChanges
from fairlead.experiments.smallest_change import FoundChanges, smallest_changes
from fairlead.experiments.whatif import WhatIfOptions, WhatIfResult, what_if
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead.runtime.protocol.whatif_request import MAX_SUBMITTED, RefusedQuestion, SchedulerChoice, WhatIfRequest
from fairlead.workloads.catalogue import accelerator_types

MAX_ADDED = 20_000
"""GPUs that a what-if adds."""

HIDDEN = "{} of another user"
"""The name of another user's job, with its number."""

KEPT = "kept"
"""The key of fields that all answers have, which are sent once."""

Send = Callable[[Mapping[str, Any]], None]


def answer_question(
    state: State, rates: Mapping[str, Any], question: Mapping[str, Any], send: Send, left_s: Callable[[], float]
) -> None:
    """Answer a question about a state, which is consumed. Several answers may be sent; each replaces the one before, but for
    `KEPT` fields.

    Args:
        question: `kind`, the asking `user`, whether they see all jobs (`all_users`), and what the kind needs.
        left_s: Seconds that are left.

    Raises:
        RefusedQuestion: It cannot be answered as it is.
    """
    visible_to = None if question["all_users"] else question["user"]
    if visible_to is not None:
        for number in (*state.live.tolist(), *state.queue.tolist()):
            if (job := state.job_of[number]).user != visible_to:
                state.job_of[number] = replace(job, name=HIDDEN.format(number))
    try:
        _ANSWERS[question["kind"]](Fork.of(state, rates), question, visible_to, send, left_s)
    except (InputError, UnknownName) as problem:
        raise RefusedQuestion(str(problem)) from problem


def _what_if(fork: Fork, question: Mapping[str, Any], visible_to: str | None, send: Send, left_s: Callable[[], float]) -> None:
    request = WhatIfRequest.model_validate(question["request"])
    changes, options = changes_of(request, fork, question["user"]), options_of(request)

    def send_result(found: WhatIfResult) -> None:
        asked = options.scenarios if fork.past or fork.start.costs.varies else 1
        few = (f"{found.scenarios} of {asked} scenarios: there was no time for more",) if found.scenarios < asked else ()
        send(replace(found, guesses=(*found.guesses, *few), timelines=()).to_dict())
        if found.scenarios == 1 and found.timelines:
            send({KEPT: {"timelines": list(found.timelines)}})

    what_if(fork, changes, options, timelines=request.timelines, visible_to=visible_to, on_result=send_result, left_s=left_s)


def _smallest_change(
    fork: Fork, question: Mapping[str, Any], visible_to: str | None, send: Send, left_s: Callable[[], float]
) -> None:
    number = int(question["number"])
    if number not in fork.start.view.job_of:
        raise RefusedQuestion("the job has ended")
    smallest_changes(fork, number, budget_s=left_s(), on_found=lambda found: send(fix_to_json(found, visible_to)))


def fix_to_json(found: FoundChanges, visible_to: str | None = None) -> dict[str, Any]:
    """The smallest changes as plain data, for a user or (None) an admin."""

    def delay(name: str, user: str, seconds: float) -> dict[str, Any]:
        return {"name": name, "user": user if visible_to in (None, user) else "", "seconds": seconds}

    changes = [
        {
            "kind": one.kind,
            "size": one.size,
            "text": one.text,
            "delays": None if one.delays is None else [delay(each.name, each.user, each.seconds) for each in one.delays],
        }
        for one in found.changes
    ]
    return {"starts": found.starts, "changes": changes, "unsearched": list(found.unsearched)}


def _start(fork: Fork, question: Mapping[str, Any], visible_to: str | None, send: Send, left_s: Callable[[], float]) -> None:
    """When each task would start, and with how many fewer GPUs it would start much sooner."""
    answers: list[dict[str, Any]] = []
    for job in jobs_in(question["tasks"], question["user"]):
        starts_s, better = fork.start_of(job, left_s() / 2), list[dict[str, Any]]()
        answers.append({"starts_s": starts_s if starts_s < math.inf else None, "alternatives": better})
        send({"jobs": answers})
        for size in dict.fromkeys(size for size in (job.workers // 2, 1) if 0 < size < job.workers and starts_s > 0):
            if (second := fork.start_of(replace(job, workers=size), left_s() / 2)) < starts_s / 2:
                better.append({"workers": size, "starts_s": second})
                send({"jobs": answers})


_ANSWERS = {"whatif": _what_if, "fix": _smallest_change, "start": _start}


def options_of(request: WhatIfRequest) -> WhatIfOptions:
    """How a what-if is simulated."""
    return WhatIfOptions(request.scenarios, request.window_s)


def changes_of(request: WhatIfRequest, fork: Fork, user: str, registry: Registry | None = None) -> ForkChanges:
    """The changes of a what-if to a fork; new jobs are those of `user`. Raises InputError or UnknownName: there is no such
    node, job, user or part, or no change."""
    changes = ForkChanges(
        scheduler=_scheduler(request, fork, registry or Registry.installed()),
        quotas=dict(request.quotas),
        weights=dict(request.weights),
        add=_nodes(request.add, fork),
        remove=tuple(dict.fromkeys(request.remove)),
        without=tuple(dict.fromkeys(_number(fork, word) for word in request.without)),
        submit=tuple(jobs_in([task.model_dump() for task in request.submit], user)),
        arrivals=request.arrivals,
        faults=tuple((fault.node, fault.in_s, fault.for_s) for fault in request.faults),
    )
    users = {user, *(job.user for job in (*fork.start.view.job_of.values(), *fork.past, *fork.start.arrivals))}
    for name in (*request.quotas, *request.weights):
        if name not in users:
            raise UnknownName("user", name, users)
    require(changes, "what-if", "at least one change, such as scheduler, add or without")
    return changes


def chosen_scheduler(present: SchedulerConfig, choice: SchedulerChoice | None, round_s: float | None) -> SchedulerConfig:
    """The scheduler that a request chooses; what it does not choose is as at present."""
    chosen = present
    if choice is not None and choice.config is not None:
        chosen = SchedulerConfig.from_data(choice.config)
    elif choice is not None and choice.preset:
        chosen = SchedulerConfig.preset(choice.preset)
    elif choice is not None:
        chosen = replace(chosen, policy=parse_part(choice.policy), name="")
    return chosen if round_s is None else replace(chosen, round_s=round_s)


def _scheduler(request: WhatIfRequest, fork: Fork, registry: Registry) -> SchedulerConfig | None:
    chosen = chosen_scheduler(fork.start.scheduler, request.scheduler, request.round_s)
    if chosen == fork.start.scheduler:
        return None
    chosen.build(fork.table, registry)  # so that an error is about the request, and comes first
    return chosen


def _nodes(text: str, fork: Fork) -> tuple[Node, ...]:
    """New nodes, with names that no node has."""
    if not text:
        return ()
    counts = [int(count) for count in re.findall(r"(?:^|,)\s*(\d{1,9})", text)]
    require(sum(counts) <= MAX_ADDED, "what-if", f"at most {MAX_ADDED:,} GPUs", "add", text)
    taken, found = {*fork.start.view.cluster.number_of_node}, list[Node]()
    for node in Cluster.parse(text, accelerator_types()).nodes:
        place = len(found)
        while (name := f"new-{node.type}-{place}") in taken:
            place += 1
        taken.add(name)
        found.append(replace(node, name=name))
    return tuple(found)


def _number(fork: Fork, word: str) -> int:
    jobs = fork.start.view.job_of
    found = [n for n, job in jobs.items() if job.name == word or (word.isdecimal() and str(n) == word)]
    require(found, "what-if", "the name or number of a job that has not ended", "without", word)
    return found[-1]


def jobs_in(tasks: list[dict[str, Any]], user: str) -> Iterator[Job]:
    """The jobs of tasks, with the members of arrays, each with a name of its own."""
    made: list[Job] = []
    for place, data in enumerate(tasks):
        task = TaskSpec.model_validate(data)
        for member in task.members(str(place)):
            name = member.job_name if member else task.name or f"new-{place + 1}"
            made.append(task.job(name, user, (), member))
            require(len(made) <= MAX_SUBMITTED, "what-if", f"at most {MAX_SUBMITTED} new jobs", "submit", len(made))
    seen: set[str] = set()
    for place, job in enumerate(made):
        yield job if job.name not in seen else replace(job, name=f"{job.name}-{place + 1}")
        seen.add(job.name)
