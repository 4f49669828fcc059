"""The codes of all reasons at once are those of the reasons one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from test_agreement import Scene

from fairlead.core import events as ev
from fairlead.engine.explain import reason_codes, why_not_running

EVERY_S, UNTIL_S = 431.7, 16_000.0


@pytest.mark.parametrize(
    "family", ["gangs, in strict order", "a chain at the door", "shares", "turns in company", "leases", "groups"]
)
def test_the_codes_of_many_jobs_are_those_of_their_reasons(family):
    scene = Scene(family, seed=7)
    loop, seen = scene.begun(), Counter[str]()
    second = 0.0
    while second < UNTIL_S:
        second += EVERY_S
        loop.run(until=second)
        waiting = [*loop.state.live.tolist(), *loop.state.queue.tolist()]
        if int(second) % 3 == 0 and waiting and waiting[0] not in loop.state.running and not loop.state.held:
            loop.record(ev.JobHeld(max(loop.state.time, loop.backend.now), waiting[0], "ann"))
        for plan in (loop.plan, None):
            codes = reason_codes(loop.state, plan, list(loop.state.job_of))
            for number, code in codes.items():
                reason = why_not_running(loop.state, plan, number, loop.backend.now)
                assert code == ("" if reason is None else reason.code), (number, second)
            seen.update(codes.values())
    assert len(seen) >= 4, seen
