"""Completion times, job by job, beside those of the original programs: the picture and the table of docs/papers/agreement.md.

    python benchmarks/agreement.py                   # run all cases, draw the picture, write the table into the page
    python benchmarks/agreement.py --only Tiresias   # run those of one original, and take the others from the last runs

The originals' results are read from ../shared/expected, and their inputs from ../shared/data; Fairlead's are kept in
out/agreement. Where a result has the completion times of jobs, a case has a point for each job; otherwise it has one figure.
Each case runs with the original's options: for Gavel those of benchmarks/gavel.py, for Shockwave's baselines those of
`fairlead_papers.shockwave.runs`. A deviation above 3 % needs a cause in `CAUSES`; without one, the table calls it open."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gavel
import numpy as np
import yaml
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster, Floats
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.metrics import MetricOptions, summarize
from fairlead.experiments.run_record import RunRecord
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.reporting.figures import COLOURS, LOOK
from fairlead.simulator.costs import Costs
from fairlead_papers.shockwave import runs

ROOT = Path(__file__).resolve().parents[1]
SHARED = (ROOT / ".." / "shared").resolve()
PAGE, PICTURE = ROOT / "docs" / "papers" / "agreement.md", ROOT / "docs" / "img" / "agreement.png"
KEPT = ROOT / "out" / "agreement"
BEGIN, END = "<!-- written by benchmarks/agreement.py -->\n", "<!-- until here -->\n"

NEAR = 0.03
"""The relative deviation of a figure above which a cause is given."""

CAUSES: Mapping[str, str] = {
    "120 jobs, shockwave": "the preset's own window and penalties (`rounds`, `power`, `critical`)",
    "120 jobs, max_min_fairness, worst": "one job; with arrivals moved by up to 1 s −3.6 to −5.2 %",
    "120 jobs, finish_time_fairness, makespan": "optima are not unique; with arrivals moved by up to 1 s +2.8 to +4.0 %",
    "120 jobs, finish_time_fairness, worst": "one job; with arrivals moved by up to 1 s −12.5 to −15.2 %; the rest is open",
    "120 jobs, min_total_duration, mean": "optima are not unique; with arrivals moved by up to 1 s +2.8 to +4.0 %",
    "120 jobs, min_total_duration, worst": "one job; with arrivals moved by up to 1 s +5.3 to +7.6 %; the rest is open",
}
"""By the beginning of a case and its figure, the first that fits."""


@dataclass(frozen=True)
class Compared:
    """A figure of the original and of Fairlead; with completion times of the same jobs, where the original's are known."""

    original: str
    case: str
    theirs: float
    ours: float
    jobs: tuple[Floats, Floats] | None = None
    figure: str = "mean JCT, s"
    cpu_s: float = 0.0

    @classmethod
    def of_jobs(cls, original: str, case: str, theirs: Sequence[float], ours: Sequence[float], cpu_s: float) -> Compared:
        """Compare completion times, in the same order."""
        both = np.array(theirs, dtype=np.float64), np.array(ours, dtype=np.float64)
        return cls(original, case, float(both[0].mean()), float(both[1].mean()), both, cpu_s=cpu_s)

    @property
    def deviation(self) -> float:
        return self.ours / self.theirs - 1

    @property
    def by_job(self) -> Floats:
        """The relative deviation of each job, without its sign."""
        assert self.jobs is not None
        theirs, ours = self.jobs
        return np.asarray(np.abs(ours / theirs - 1))


def simulated(given: Simulation) -> tuple[RunRecord, float]:
    """The run, and its CPU seconds."""
    before = time.process_time()
    return run_simulation(given).record, time.process_time() - before


def completion_times(record: RunRecord) -> Floats:
    return np.asarray(record.jobs.ended_s - record.jobs.submitted_s)


def beside(original: str, case: str, published: Mapping[str, float], given: Simulation) -> Compared:
    """A run beside published completion times by name of job."""
    record, spent = simulated(given)
    ours = dict(zip(record.jobs.names, completion_times(record).tolist()))
    return Compared.of_jobs(original, case, [*published.values()], [ours[name] for name in published], spent)


def gavel_cases() -> Iterator[Compared]:
    """Gavel's simulator on generated traces and on that of its physical cluster."""
    table = read_table(SHARED / "data" / "gavel" / "simulation_throughputs.json")
    for file in sorted((SHARED / "expected" / "gavel").glob("*.json")):
        case, _, policy = file.stem.partition("__")
        if case not in gavel.TRACES or policy not in gavel.POLICIES:
            continue
        trace, cluster, measure = gavel.TRACES[case]
        name, mechanism = gavel.POLICIES[policy]
        scheduler = SchedulerConfig(parse_part(name), mechanism=parse_part(mechanism), round_s=360.0)
        jobs = TraceFile(SHARED / "data" / "gavel" / trace).read(table)
        published = {int(row): float(seconds) for row, seconds in json.loads(file.read_text())["window_jct_s"].items()}
        before = time.process_time()
        ran = run_simulation(Simulation(jobs, Cluster.parse(cluster), scheduler, table, measure=measure)).state.all_jobs()
        ours = (ran.ended_s - ran.submitted_s)[sorted(published)]
        theirs = [published[row] for row in sorted(published)]
        yield Compared.of_jobs("Gavel", f"{case}, {policy}", theirs, ours.tolist(), time.process_time() - before)


TIRESIAS = {"dlas-gpu": "tiresias:first=running", "fifo": "fifo", "shortest": "srtf"}
"""By the schedule of Tiresias' simulator."""


def tiresias_cases() -> Iterator[Compared]:
    """Tiresias' simulator on its 60 jobs, where they have to wait: on two nodes of four GPUs."""
    trace = TraceFile(SHARED / "data" / "tiresias" / "60_job.csv").read()
    for published in json.loads((SHARED / "expected" / "tiresias" / "60_job.json").read_text()):
        if published["config"] == "60_job_n2g4_count":
            config = SchedulerConfig(parse_part(TIRESIAS[published["schedule"]]), round_s=0.0)
            given = Simulation(trace, Cluster.parse("8xv100:4"), config)
            yield beside("Tiresias", f"60 jobs, {published['schedule']}", published["jct"], given)


POLLUX: Mapping[str, dict[str, object]] = {
    "tiresias": {"policy": {"name": "tiresias", "thresholds": [57600], "first": "submitted"}, "rounds": 60},
    "optimus": {"policy": {"name": "optimus", "oracle": True}, "rounds": 60},
    "pollux": {"policy": "pollux", "estimator": "fitted", "rounds": 60},
}
"""By the policy of Pollux' simulator."""


def pollux_cases() -> Iterator[Compared]:
    """The simulator of Pollux' authors on their workloads."""
    expected, data = SHARED / "expected" / "pollux", SHARED / "data" / "pollux"
    costs = Costs(launch_s=30.0, restart_s=30.0)

    def given(policy: str, workload: int) -> Simulation:
        trace = TraceFile(data / "workloads" / f"workload-{workload}.csv", applications=data).read()
        return Simulation(trace, Cluster.parse("64xv100:4"), SchedulerConfig.from_data(POLLUX[policy]), costs=costs)

    summary = json.loads((expected / "summary.json").read_text())
    jobs = json.loads((expected / "tiresias_w6.json").read_text())["jcts"]
    sixth = {name.split()[0]: seconds for name, seconds in summary["average_jct_s"].items()}
    for policy in POLLUX:
        found = list[float]()
        for workload in range(1, 9):
            if policy == "tiresias" and workload == 6:
                one = beside("Pollux", "workload 6, tiresias", jobs, given(policy, workload))
                found.append(one.ours)
                yield one
                continue
            record, spent = simulated(given(policy, workload))
            found.append(float(completion_times(record).mean()))
            if workload == 6:
                yield Compared("Pollux", f"workload 6, {policy}", sixth[policy], found[-1], cpu_s=spent)
        published = float(summary["mean_over_8_workloads_published_s"][policy])
        yield Compared("Pollux", f"8 workloads, {policy}", published, float(np.mean(found)))


SHOCKWAVE = {
    "shockwave": runs.SHOCKWAVE,
    "max_min_fairness": runs.GAVEL,
    "finish_time_fairness": runs.THEMIS,
    "min_total_duration": runs.OSSP,
}
"""By the policy of Shockwave's simulator."""


def shockwave_cases() -> Iterator[Compared]:
    """Shockwave's simulator on its 120 jobs on 32 GPUs."""
    data = SHARED / "data" / "shockwave"
    table = read_table(data / "tacc_throughputs.json")
    trace = TraceFile(next(data.glob("120_*.trace")), regimes=data / "trace120_regimes.json").read(table)
    for policy, published in json.loads((SHARED / "expected" / "shockwave" / "tacc_32gpus.json").read_text()).items():
        config = SchedulerConfig.from_data(yaml.safe_load(f"{{{SHOCKWAVE[policy].scheduler}}}"), "agreement")
        given = Simulation(trace, Cluster.parse("32xv100:32"), config, table, Costs(restart_s=runs.RESTART_S))
        record, spent = simulated(given)
        case = f"120 jobs, {policy}"
        if "jct_list" in published:
            yield Compared.of_jobs("Shockwave", case, published["jct_list"], completion_times(record).tolist(), spent)
        found = summarize(record, MetricOptions(contention="static", makespan_from="zero"))
        figures = [] if "jct_list" in published else [("mean JCT, s", "avg_jct", found.average_jct_s)]
        figures += [("makespan, s", "makespan", found.makespan_s), ("worst ρ", "worst_ftf", found.worst_ftf)]
        for name, key, ours in figures:
            yield Compared("Shockwave", case, float(published[key]), float(ours), figure=name, cpu_s=spent)


ORIGINALS: Mapping[str, Callable[[], Iterator[Compared]]] = {
    "Gavel": gavel_cases,
    "Tiresias": tiresias_cases,
    "Pollux": pollux_cases,
    "Shockwave": shockwave_cases,
}


def cause(one: Compared) -> str:
    """Why the case deviates; nothing for a deviation of at most 3 %."""
    if abs(one.deviation) <= NEAR:
        return ""
    named = f"{one.case}, {one.figure}"
    return next((text for key, text in CAUSES.items() if named.startswith(key)), "open")


def table(cases: Sequence[Compared]) -> str:
    """The figures of all cases, for the page."""
    heads = (
        "original",
        "case",
        "figure",
        "original's",
        "Fairlead's",
        "deviation",
        "of a job, median",
        "jobs within 3 %",
        "cause",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---:|---:|---:|---:|---:|---|"]
    for one in cases:
        digits = 2 if one.theirs < 100 else 0
        figures = f"{one.theirs:,.{digits}f} | {one.ours:,.{digits}f} | {100 * one.deviation:+.1f} %"
        jobs = " | "
        if one.jobs is not None:
            jobs = f"{100 * np.median(one.by_job):.1f} % | {np.count_nonzero(one.by_job <= NEAR)} of {len(one.by_job)}"
        lines.append(f"| {one.original} | {one.case} | {one.figure} | {figures} | {jobs} | {cause(one)} |")
    return "\n".join(lines) + "\n"


COLUMNS = 4


def draw(cases: Sequence[Compared], path: Path) -> None:
    """A panel for each case with jobs, and below them one with the deviations of all other figures."""
    shown, others = [one for one in cases if one.jobs is not None], [one for one in cases if one.jobs is None]
    rows, colour = -(-len(shown) // COLUMNS), dict(zip(ORIGINALS, COLOURS))
    with rc_context({**LOOK, "font.size": 7, "axes.titlesize": 6.5}):
        figure = Figure(figsize=(2.6 * COLUMNS, 2.7 * rows + 0.2 * len(others)), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        upper, lower = figure.subfigures(2, 1, height_ratios=(2.7 * rows, 0.2 * len(others)))
        for at, one in enumerate(shown):
            assert one.jobs is not None
            panel: Any = upper.add_subplot(rows, COLUMNS, at + 1)
            theirs, ours = (seconds / 3600 for seconds in one.jobs)
            ends = 0.8 * min(theirs.min(), ours.min()), 1.25 * max(theirs.max(), ours.max())
            panel.plot(ends, ends, color="#9aa5b1", linewidth=0.8, zorder=1)
            panel.scatter(theirs, ours, s=6, color=colour[one.original], linewidth=0, alpha=0.7, zorder=2)
            panel.set(
                xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal", xlabel="original, h", ylabel="Fairlead, h"
            )
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda hours, _: f"{hours:g}"))
                axis.set_minor_formatter(NullFormatter())
            inputs, _, policy = one.case.partition(", ")
            panel.set_title(f"{one.original}: {inputs}\n{policy}, mean {100 * one.deviation:+.1f} %")
        last: Any = lower.add_subplot()
        last.axvspan(-100 * NEAR, 100 * NEAR, color="#e5e9ee", zorder=0)
        for at, one in enumerate(others):
            last.plot(100 * one.deviation, at, "o", color=colour[one.original], markersize=4)
        names = [f"{one.original}: {one.case}, {one.figure.partition(',')[0]}" for one in others]
        last.set_yticks(range(len(others)), names)
        last.set(xlabel="deviation, %", ylim=(len(others) - 0.5, -0.5), title="figures without jobs")
        figure.savefig(path, metadata={"Software": None})


def kept(original: str) -> list[Compared]:
    """The cases of the last run."""
    path = KEPT / f"{original}.json"
    if not path.is_file():
        raise SystemExit(f"no results of {original} in {KEPT}: run without --only first")
    cases = [Compared(**case) for case in json.loads(path.read_text())]
    return [replace(one, jobs=one.jobs and (np.array(one.jobs[0]), np.array(one.jobs[1]))) for one in cases]


def ran(original: str) -> list[Compared]:
    """The cases of a new run, which is kept."""
    cases = list[Compared]()
    for one in ORIGINALS[original]():
        cases.append(one)
        print(f"{original}, {one.case}, {one.figure}: {100 * one.deviation:+.2f} % ({one.cpu_s:.1f} CPU s)", flush=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{original}.json").write_text(json.dumps([asdict(one) for one in cases], default=np.ndarray.tolist))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*ORIGINALS, "none"], help="run only the cases of this original")
    only = parser.parse_args().only
    if not (SHARED / "expected").is_dir():
        raise SystemExit(f"no results of the originals: {SHARED / 'expected'} does not exist")
    cases = [one for original in ORIGINALS for one in (ran(original) if only in (None, original) else kept(original))]
    draw(cases, PICTURE)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(cases) + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
