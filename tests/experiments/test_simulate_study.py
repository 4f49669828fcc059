"""One simulation as a study: what goes in is checked first, what comes out is what happened."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, InputError, JournalError
from fairlead.core.events import JournalOpened
from fairlead.core.job import TIMED, Job, Phase
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Stalled
from fairlead.experiments.inputs import TraceFile, known_formats, table_for, used_rates
from fairlead.experiments.metrics import summarize
from fairlead.experiments.run_record import record_from_journal
from fairlead.experiments.simulate import Faults, Simulation, run_simulation
from fairlead.journal.jsonl import JsonlJournal, read_events
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage
from fairlead.testing import check_events
from fairlead.workloads.formats import BUILT_IN
from fairlead.workloads.trace import Trace
from scenes import table_of

TWO = Cluster.parse("2xv100:2")
JOBS = [
    Job("a", 0.0, 450.0, user="ann"),
    Job("b", 0.0, 100.0, workers=2),
    Job("c", 50.0, 700.0),
    Job("wide", 60.0, 5.0, workers=9),
]


def run(journal=None, **changes):
    given = {"trace": Trace.of(JOBS, "study"), "cluster": TWO, "scheduler": SchedulerConfig(Part("fifo", {"backfill": True}))}
    return run_simulation(Simulation(**{**given, **changes}), journal=journal, gantt=True)


def test_the_record_says_what_became_of_every_job():
    jobs = run().record.jobs
    assert jobs.names == ("a", "b", "c", "wide")
    assert jobs.users == ("ann", "", "", "")
    assert [Phase(phase) for phase in jobs.phase] == [Phase.FINISHED, Phase.FINISHED, Phase.FINISHED, Phase.REFUSED]
    assert jobs.first_started_s.tolist()[:3] == [0.0, 1200.0, 300.0]
    assert jobs.ended_s.tolist()[:3] == [450.0, 1300.0, 1000.0]
    assert jobs.run_s.tolist() == [450.0, 100.0, 700.0, 0.0]
    assert jobs.accelerator_s.tolist() == [450.0, 200.0, 700.0, 0.0]
    assert jobs.exclusive_s.tolist()[:3] == [450.0, 100.0, 700.0]
    assert math.isnan(jobs.exclusive_s[3])


def test_stretches_say_who_held_what_from_when_to_when():
    found = run().record.device_intervals
    told = sorted(zip(found.job.tolist(), found.start_s.tolist(), found.end_s.tolist()))
    assert told == [(0, 0.0, 450.0), (1, 1200.0, 1300.0), (1, 1200.0, 1300.0), (2, 300.0, 1000.0)]
    assert sorted(found.accelerator[found.job == 1].tolist()) == [0, 1]


def test_the_summary_counts_rounds_and_what_they_cost():
    record = run().record
    assert record.facts["rounds"] >= 4
    assert set(record.facts) >= {"rounds", "decide_s", "wall_s", "peak_rss_mb"}
    summary = summarize(record)
    assert (summary.jobs, summary.finished, summary.refused) == (4, 3, 1)
    assert summary.average_jct_s == pytest.approx((450.0 + 1300.0 + 950.0) / 3)


def test_the_journal_of_a_run_gives_the_same_record(tmp_path):
    path = tmp_path / "run.jsonl"
    live = run(
        journal=JsonlJournal(path, fresh=True),
        scheduler=SchedulerConfig(Part("srtf"), name="mine"),
        faults=Faults([Outage(0, 320.0, 500.0)]),
        costs=Costs(restart_s=20.0, checkpoint_s=5.0, checkpoint_every_s=100.0),
    ).record
    read = record_from_journal(path)
    assert (read.scheduler, read.trace, read.cluster) == ("mine", "study", TWO)
    for name in ("phase", "workers", "ended_s", "run_s", "accelerator_s", "exclusive_s", "preemptions", "restarts"):
        assert np.array_equal(getattr(live.jobs, name), getattr(read.jobs, name), equal_nan=name.endswith("_s")), name
    for name in ("job", "accelerator", "start_s", "end_s"):
        assert getattr(live.device_intervals, name).tolist() == getattr(read.device_intervals, name).tolist(), name
    assert next(read_events(path)).rates == {"|1": (1.0,), "|2": (1.0,), "|9": (1.0,)}


def test_an_empty_journal_has_no_record(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(JournalError, match="the journal is empty"):
        record_from_journal(path)


def test_a_journal_cut_in_the_middle_is_a_record_of_what_was_reached(tmp_path):
    path = tmp_path / "cut.jsonl"
    run(journal=JsonlJournal(path, fresh=True))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    record = record_from_journal(path)
    assert (record.jobs.phase <= int(Phase.RUNNING)).any()
    assert summarize(record).unfinished > 0


def test_measured_jobs_end_a_run_when_they_have_ended():
    jobs = [Job(f"j{i}", 100.0 * i, 150.0) for i in range(20)]
    whole = run(trace=Trace.of(jobs))
    part = run(trace=Trace.of(jobs), measure=(2, 5))
    phases = part.record.jobs.phase
    assert (phases[2:5] == int(Phase.FINISHED)).all()
    assert part.state.time < whole.state.time
    assert part.record.jobs.ended_s[2:5].tolist() == whole.record.jobs.ended_s[2:5].tolist()


def test_more_measured_jobs_than_there_are_is_all_of_them():
    assert (run(measure=(0, 10**9)).record.jobs.phase > int(Phase.RUNNING)).all()


def test_outages_or_a_seeded_process_reach_the_run():
    journal = MemoryJournal()
    run(faults=Faults([Outage(0, 100.0, 200.0)]), journal=journal)
    assert check_events(journal.events).time > 450.0
    seeded = [MemoryJournal() for _ in range(3)]
    for seed, into in zip((1, 1, 2), seeded):
        run(faults=Faults(mean_up_s=400.0, mean_down_s=50.0), costs=Costs(checkpoint_every_s=50.0), seed=seed, journal=into)
    times = [[event.time for event in journal.events] for journal in seeded]
    assert times[0] == times[1] != times[2]


def test_progress_is_told_as_a_share():
    told: list[float] = []
    jobs = [Job(f"j{i}", 10.0 * i, 50.0) for i in range(400)]
    run_simulation(Simulation(Trace.of(jobs), TWO, SchedulerConfig(round_s=0.0)), on_progress=told.append)
    assert told == sorted(told)
    assert told
    assert 0.0 <= told[0] < told[-1] <= 1.0


# What a study is made of.


def test_a_trace_of_durations_needs_no_table():
    table = table_for(Trace.of(JOBS), TWO, None)
    assert table.types == ("v100",)
    assert table.alone.tolist() == [[1.0]]


def test_kinds_are_looked_up_in_the_catalogue_where_no_table_is_given():
    trace = Trace.of([Job("a", 0.0, 10.0, "ResNet-50 (batch size 64)")])
    table = table_for(trace, TWO, None)
    assert table.alone[table.row("ResNet-50 (batch size 64)", 1)][0] > 0


def test_a_kind_that_no_table_has_is_told_before_anything_runs():
    with pytest.raises(InputError, match=r"trace, job 'a': field 'kind'.*ResNet-50"):
        table_for(Trace.of([Job("a", 0.0, 10.0, "ResNet-51 (batch size 64)")]), TWO, None)


def test_a_gang_size_that_no_table_has_is_told_with_the_way_out():
    table = table_of(("v100",), {("m", 1): (1.0,), ("m", 2): (1.9,)})
    trace = Trace.of([Job("a", 0.0, 10.0, "m", workers=3)])
    with pytest.raises(
        InputError, match=r"job 'a': field 'workers' is 3: expected a gang size .* for 'm' \(1, 2\), or --fill-workers"
    ):
        table_for(trace, TWO, table)
    filled = table_for(trace, TWO, table, fill=True)
    assert filled.alone[filled.row("m", 3), 0] > 1.9


def test_a_schedule_with_a_batch_size_that_no_table_has_is_told_before_anything_runs():
    kind = "m (batch size 8)"
    rates = {(kind, 1): (1.0,), (kind, 2): (1.9,), ("m (batch size 16)", 1): (0.6,), ("m (batch size 32)", 1): (0.0,)}
    table = table_of(("v100",), rates)

    def planned(*schedule: tuple[int, float], workers: int = 1, kind: str = kind) -> Trace:
        return Trace.of([Job("a", 0.0, 10.0, kind, workers=workers, mode="expert", schedule=schedule)])

    assert table_for(planned((8, 0.5), (16, 0.5)), TWO, table).types == ("v100",)
    for size in (32, 64):  # one that does not run there, and one that nobody knows
        with pytest.raises(
            InputError,
            match=rf"job 'a': field 'schedule' is 'm \(batch size {size}\)': expected batch sizes at which 'm' with 1",
        ):
            table_for(planned((8, 0.5), (size, 0.5)), TWO, table)
    with pytest.raises(InputError, match="with 2 workers has a throughput"):
        table_for(planned((8, 0.5), (16, 0.5), workers=2), TWO, table)
    filled = table_for(planned((8, 0.5), (16, 0.5), workers=2), TWO, table, fill=True)
    assert filled.alone[filled.row("m (batch size 16)", 2), 0] > 0.6
    table_for(planned((8, 0.5), (64, 0.5), kind=TIMED), TWO, None)  # seconds are the same at any batch size


def test_a_cluster_type_that_the_table_lacks_is_told():
    table = table_of(("v100",), {("m", 1): (1.0,)})
    with pytest.raises(FairleadError, match="unknown GPU type in the throughput table 'p100'"):
        table_for(Trace.of([Job("a", 0.0, 10.0, "m")]), Cluster.parse("1xp100:1"), table)


def test_a_trace_of_durations_runs_on_any_type_whatever_the_table_says():
    table = table_of(("v100",), {})
    assert table_for(Trace.of(JOBS), Cluster.parse("1xnew:1"), table).types == ("new",)


def test_the_rates_that_matter_are_named_by_kind_and_workers():
    table = table_of(("v100", "k80"), {("m", 1): (2.0, 1.0)})
    assert used_rates([Job("a", kind="m"), Job("b", kind="m"), Job("c")], table) == {"m|1": (2.0, 1.0), "|1": (1.0, 1.0)}


def test_formats_are_asked_from_the_particular_to_the_general():
    assert [name for name in known_formats() if name in BUILT_IN] == list(BUILT_IN)


def test_bad_lines_are_an_error_or_are_counted(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("name,submitted_s,duration_s\na,0,10\nb,zero,10\nc,5,10\n")
    with pytest.raises(InputError, match=r"jobs\.csv:3: field 'submitted_s' is 'zero'"):
        TraceFile(path).read()
    trace = TraceFile(path, skip_bad=True).read()
    assert [job.name for job in trace.jobs] == ["a", "c"]
    assert [problem.line for problem in trace.skipped] == [3]


TURNS = Trace.of([Job("one", 0.0, 200.0), Job("two", 1.0, 200.0)], "turns")
SLOW_STARTS = {"trace": TURNS, "cluster": Cluster.parse("1xv100:1"), "costs": Costs(launch_s=3.0, restart_s=11.0)}


def _scheduler(journal: MemoryJournal) -> Mapping[str, object]:
    return next(event.scheduler for event in journal if isinstance(event, JournalOpened))


@pytest.mark.parametrize("rounds", [7.0, 0.0])
def test_where_starts_take_longer_than_rounds_nobody_is_taken_off_before_its_first_step(rounds: float, monkeypatch):
    monkeypatch.setattr("fairlead.engine.loop.STALLED_AFTER", 2000)
    las = SchedulerConfig(Part("las"), round_s=rounds)
    journal = MemoryJournal()
    found = run(journal, scheduler=las, **SLOW_STARTS)
    assert [Phase(phase) for phase in found.record.jobs.phase] == [Phase.FINISHED] * 2
    assert _scheduler(journal)["first_step_s"] == 120.0, "what decided stands in the journal"
    by_kind = Costs(by_kind={TIMED: SLOW_STARTS["costs"]})
    of_a_kind = run(scheduler=las, **{**SLOW_STARTS, "costs": by_kind})
    assert of_a_kind.record.jobs.ended_s.tolist() == found.record.jobs.ended_s.tolist()
    unprotected = SchedulerConfig(Part("las"), round_s=7.0, first_step_s=0.0)
    with pytest.raises(Stalled, match="first_step_s"):
        run(scheduler=unprotected, **SLOW_STARTS)


def test_a_scheduler_whose_rounds_are_longer_than_starts_is_run_as_it_is():
    journal = MemoryJournal()
    run(journal, scheduler=SchedulerConfig(Part("las"), round_s=12.0), **SLOW_STARTS)
    assert "first_step_s" not in _scheduler(journal)
    free = MemoryJournal()
    run(free, scheduler=SchedulerConfig(Part("las"), round_s=0.0), **{**SLOW_STARTS, "costs": Costs()})
    assert "first_step_s" not in _scheduler(free)
