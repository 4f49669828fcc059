"""Horus says why who waits has no company: nothing is known of it, it refuses, or somebody would be slower than it may be."""

from __future__ import annotations

from test_horus import believed, machine, of, scene

from fairlead.core.job import Job

ALONE = "Waiting for resources: needs 1 GPU; 0 eligible GPUs are free; it shares no GPU: "


def why(*jobs: Job, **how) -> dict[str, str]:
    """By name, of those who do not run on one accelerator."""
    harness = scene(on=machine(size=1), **how).submit(*jobs)
    round_ = harness.round()
    return {name: round_.reason(name).text for name in round_.reasons}


def test_reason_without_a_prediction():
    uses = believed()
    known = {kind: use for kind, use in uses.parameters["usage"].items() if kind != "heavy"}
    told = why(of("light", "one"), of("heavy", "two"), estimator=type(uses)("predicted", {"usage": known}))
    assert told == {"two": f"{ALONE}nothing is predicted for its kind"}


def test_reason_of_a_job_that_tolerates_no_slowdown():
    told = why(of("light", "one"), of("light", "two", max_slowdown=1.0))
    assert told == {"two": f"{ALONE}it tolerates no slowdown (max_slowdown)"}
    assert why(of("light", "one"), of("light", "two"), slo=1.0) == {"two": f"{ALONE}this scheduler allows no slowdown (slo)"}


def test_reason_of_a_job_whose_limit_would_be_exceeded():
    told = why(of("heavy", "one"), of("heavy", "two", max_slowdown=1.01))
    assert told == {"two": f"{ALONE}with every job that leaves room for it, one of the two would exceed its slowdown limit"}


def test_reason_of_a_job_that_could_share_on_a_full_cluster():
    told = why(of("light", "one"), of("light", "two"), of("light", "three"))
    assert told == {"three": "Waiting for resources: needs 1 GPU; 0 of the 1 eligible GPUs are free"}


def test_reason_of_a_preempted_job_says_when_its_wait_began():
    harness = scene(on=machine(nodes=2, size=1), max_jobs=1).outage(1, 100.0, 1e6)
    harness.submit(of("light", "one"), of("light", "two"))
    while "two" not in (round_ := harness.round()).reasons:
        pass
    assert round_.reason("two").text.endswith("the longest wait goes first, and its own counts from when it last stopped")


def test_reason_of_a_job_that_waits_for_nodes():
    harness = scene(on=machine(nodes=2, size=1)).outage(0, 0.0, 1e6)
    harness.submit(of("light", "one", at=10.0), of("light", "wide", workers=2, at=20.0, max_slowdown=1.0))
    while "wide" not in (round_ := harness.round()).reasons:
        pass
    assert round_.reason("wide").text == "Waiting for nodes: needs 2 GPUs; 1 eligible GPUs are up"
