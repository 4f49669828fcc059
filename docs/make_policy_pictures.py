"""Draw the pictures of docs/reference/policies.md: the ten jobs of examples/ten_jobs.csv under every policy that ships with
Fairlead, on one time scale; and write the table of their metrics into the page.

`make pictures` runs it. The same code gives the same pictures; text may look a little different where fonts do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fairlead.config.clusters import read_cluster
from fairlead.config.registry import Registry
from fairlead.config.schedulers import Part, SchedulerConfig, parse_part
from fairlead.experiments.inputs import TraceFile
from fairlead.experiments.metrics import Summary, summarize
from fairlead.experiments.run_record import DeviceIntervals, RunRecord
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.reporting.figures import LOOK
from fairlead.workloads.catalogue import accelerator_types

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent / "examples" / "ten_jobs.csv"
CLUSTER = "1xv100:1,4xp100:4,2xk80:2"
ROUND_S = 360.0
UNTIL_S = 6 * 3600.0
"""Where the pictures end: one scale for all, or lengths could not be compared. An arrow says that a run goes on."""

PICTURES = HERE / "img" / "policies"
PAGE = HERE / "reference" / "policies.md"
BEGIN, END = "<!-- written by make_policy_pictures.py -->\n", "<!-- until here -->\n"

SIZE_PX, DPI = (600, 220), 100
COLOURS = {
    # The kind is the hue: ResNet-50 in blues and greens, A3C in reds and yellows.
    **dict(zip(("R1", "R2", "R3", "R4", "R5"), ("#08519c", "#3f8fc5", "#00796b", "#7e57c2", "#4db6ac"))),
    **dict(zip(("A1", "A2", "A3", "A4", "A5"), ("#b2341f", "#e6733a", "#d4a017", "#c2577f", "#8d6e4a"))),
}

SHOWN = {
    # Not the defaults, where ten jobs are too few for those or the policy is about parameters.
    "gittins": "gittins:min_history=3",
    "hierarchical": "hierarchical:weights={product: 2}",
    "hierarchical-perf": "hierarchical-perf:weights={product: 2}:but={research: fifo}",
    "nexus": "nexus:sessions={R4: {slo_ms: 100, rate: 250, batches: [1, 16], latency_ms: {p100: [18, 60]}}}",
    "optimus": "optimus:resizes_all=true",
    "shockwave": "shockwave:round_s=360",
    "static-partition": "static-partition:weights={product: 2}",
}
NOT_WORK_CONSERVING = ("isolated", "proportional", "static-partition", "max-min-fairness-strategy-proof-perf")
"""What these leave idle is what they are about; by default the mechanism gives it to waiting jobs."""


@dataclass(frozen=True)
class Shown:
    """A policy's run, with what it was given if that was not the default."""

    name: str
    given: str
    record: RunRecord

    @property
    def summary(self) -> Summary:
        return summarize(self.record)


def built_in() -> list[str]:
    """The policies that come with Fairlead, by name."""
    return [entry.name for entry in Registry.installed().of("policy") if entry.origin == "fairlead"]


def run(name: str) -> Shown:
    policy = parse_part(SHOWN.get(name, name))
    mechanism = Part("gavel-rounds", {"work_conserving": False} if name in NOT_WORK_CONSERVING else {})
    scheduler = SchedulerConfig(policy, mechanism=mechanism, round_s=ROUND_S)
    given = Simulation(TraceFile(JOBS).read(), read_cluster(CLUSTER, accelerator_types()), scheduler)
    told = [f"{key}={_plain(value)}" for key, value in policy.parameters.items()]
    told += ["work_conserving=false"] if mechanism.parameters else []
    return Shown(name, ", ".join(told), run_simulation(given, gantt=True).record)


def draw(shown: Shown, folder: Path) -> Path:
    """One picture, which says whose it is and how it came out."""
    record = shown.record
    jobs, cluster = record.jobs, record.cluster
    with rc_context({**LOOK, "font.size": 8}):
        figure = Figure(figsize=(SIZE_PX[0] / DPI, SIZE_PX[1] / DPI), dpi=DPI)
        FigureCanvasAgg(figure)
        axes: Any = figure.add_axes((0.075, 0.16, 0.91, 0.66))
        for job, row, place, of, start, end in _bars(record):
            name = jobs.names[job]
            width, top = (end - start) / 3600, row + 0.05 + 0.9 * place / of
            axes.barh(top, width, 0.9 / of, start / 3600, align="edge", color=COLOURS[name], edgecolor="white", linewidth=0.3)
            width = min(end, UNTIL_S) / 3600 - start / 3600
            if of == 1 and width > 0.18:
                at = (start / 3600 + width / 2, row + 0.53)
                axes.text(*at, name, ha="center", va="center", fontsize=6, color="white", clip_on=True)
        for job in np.flatnonzero(np.isfinite(jobs.deadline_s)).tolist():
            due, colour = float(jobs.submitted_s[job] + jobs.deadline_s[job]), COLOURS[jobs.names[job]]
            kept = bool(jobs.ended_s[job] <= due)
            face = colour if kept else "white"
            axes.plot(due / 3600, -0.3, "v", color=colour, markerfacecolor=face, markersize=5, clip_on=False)
        for row in np.unique(_stretches(record).accelerator[_stretches(record).end_s > UNTIL_S]).tolist():
            axes.plot(UNTIL_S / 3600, row + 0.5, ">", color="#33404d", markersize=4, clip_on=False)
        for first in np.flatnonzero(np.diff(cluster.type_of)) + 1:
            axes.axhline(first, color="#9aa5b1", linewidth=0.8)
        kinds = [(name, np.flatnonzero(cluster.type_of == kind)) for kind, name in enumerate(cluster.type_names)]
        axes.set_yticks([float(rows.mean()) + 0.5 for _, rows in kinds], [name for name, _ in kinds])
        axes.tick_params(axis="y", length=0)
        axes.set(xlim=(0, UNTIL_S / 3600), ylim=(cluster.size, 0))
        axes.set_xlabel("hours", labelpad=1)
        axes.grid(axis="y", visible=False)
        summary = shown.summary
        text = f"avg JCT {summary.average_jct_s / 3600:.2f} h    makespan {summary.makespan_s / 3600:.2f} h"
        figure.text(0.012, 0.91, shown.name, fontsize=9.5, fontweight="bold", color="#1f2933")
        figure.text(0.985, 0.91, text, ha="right", fontsize=8.5, color="#33404d")
        if shown.given:
            figure.text(0.985, 0.02, shown.given, ha="right", fontsize=7, color="#55626f")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{shown.name}.png"
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
    return path


def table(runs: Sequence[Shown]) -> str:
    """The figures of all runs, for the page."""
    heads = ("policy", "average JCT, h", "makespan, h", "deadlines missed", "preemptions and moves", "cost, $")
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for shown in runs:
        s = shown.summary
        hours = f"{s.average_jct_s / 3600:.2f} | {s.makespan_s / 3600:.2f}"
        lines.append(f"| `{shown.name}` | {hours} | {s.deadline_misses} | {s.preemptions + s.moves} | {s.cost:.2f} |")
    return "\n".join(lines) + "\n"


def _bars(record: RunRecord) -> Iterator[tuple[int, int, int, int, float, float]]:
    """(job, accelerator, place, of how many, start, end): stretches, cut where the company on an accelerator changes."""
    device_intervals = _stretches(record)
    for row in range(record.cluster.size):
        here = device_intervals.accelerator == row
        job, start, end = device_intervals.job[here], device_intervals.start_s[here], device_intervals.end_s[here]
        edges = np.unique(np.concatenate((start, end)))
        open_: dict[tuple[int, int, int], float] = {}
        for left, right in zip(edges[:-1].tolist(), edges[1:].tolist()):
            there = sorted(set(job[(start <= left) & (end >= right)].tolist()))
            now = {(number, place, len(there)) for place, number in enumerate(there)}
            for bar in [bar for bar in open_ if bar not in now]:
                yield (bar[0], row, bar[1], bar[2], open_.pop(bar), left)
            for bar in now:
                open_.setdefault(bar, left)
        for bar, began in open_.items():
            yield (bar[0], row, bar[1], bar[2], began, float(edges[-1]))


def _stretches(record: RunRecord) -> DeviceIntervals:
    assert record.device_intervals is not None, "simulate with gantt=True"
    return record.device_intervals


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {'…' if isinstance(inner, dict) else inner}" for key, inner in value.items()) + "}"
    return str(value)


def main() -> None:
    runs = [run(name) for name in built_in()]
    for shown in runs:
        draw(shown, PICTURES)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(runs) + END + after, encoding="utf-8")
    size = sum(path.stat().st_size for path in PICTURES.glob("*.png"))
    print(f"{len(runs)} pictures, {size / 1e6:.2f} MB, in {PICTURES}", file=sys.stderr)


if __name__ == "__main__":
    main()
