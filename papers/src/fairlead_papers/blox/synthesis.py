"""The synthesizer (Blox §5.2, appendix A): FIFO, SRTF and LAS, each with three admissions, chosen anew every ten rounds by
simulating all nine forward, beside each of the nine alone; at a steady load and with bursts of short jobs. By JCT (Figures 14
and 15), and by JCT and responsiveness (Figures 20 and 21)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed
from fairlead.experiments.inputs import ExperimentInputs, table_for
from fairlead.experiments.synthesize import Advisor, Objective, Synthesized, combinations, synthesize
from fairlead.reporting.pictures import Stack
from fairlead_papers.arms import average_jct
from fairlead_papers.blox.policies import responsiveness
from fairlead_papers.blox.runs import Run, answer, simulation
from fairlead_papers.blox.scale import (
    DURATIONS,
    PAPER_ACCELERATORS,
    SHOWN,
    Choosing,
    Scale,
    at_share,
    cluster_of,
    load_told,
    seeds_told,
)
from fairlead_papers.blox.traces import Workload
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.study import Study

POLICIES = ("fifo", "srtf", "las")
ADMISSIONS = ("accept-all", "accept-up-to:factor=1.2", "accept-up-to:factor=1.4")
JCT, BOTH = ("jct",), ("jct", "responsiveness")
PATTERNS = ("steady", "bursty")
BINS = 24
NEAR_SECOND, FAR_FROM_WORST = 1 / 1.02, 1 / 0.8


def candidates() -> tuple[SchedulerConfig, ...]:
    parts = ([parse_part(name) for name in names] for names in (POLICIES, ADMISSIONS))
    return combinations(SchedulerConfig(), *parts)


def _scheduler(config: SchedulerConfig) -> str:
    policy, admission = config.policy.to_data(), config.admission.to_data()
    return f"policy: {policy}, admission: {admission}"


@dataclass(frozen=True)
class Chosen:
    """A run whose scheduler is chosen anew, by these metrics with equal weights."""

    cluster: str
    workload: Workload
    seed: int
    by: tuple[str, ...] = JCT

    def run(self, inputs: ExperimentInputs) -> Answer:
        given = simulation(candidates()[0], self.cluster, self.workload, self.seed, inputs)
        table = table_for(given.trace, given.cluster, given.table)
        with Advisor(candidates(), table, objective=Objective(dict.fromkeys(self.by, 1.0))) as advisor:
            found = synthesize(given, advisor)
        looks = {"looks": len(found.advice), "switches": sum(one.switch for one in found.advice)}
        return {**answer(found.run.record, self.workload, len(given.trace)), **looks, "decided": decided(found)}


def decided(found: Synthesized) -> dict[str, list[float]]:
    """Who decided, as shares of equal stretches of the time until the end."""
    end = found.run.state.time
    edges = np.linspace(0.0, end, BINS + 1)
    shares = {one.name: np.zeros(BINS) for one in candidates()}
    times = [0.0, *(one.time for one in found.advice), end]
    names = [candidates()[0].name, *(one.chosen.label for one in found.advice)]
    for begin, until, name in zip(times, times[1:], names):
        shares[name] += np.clip(np.minimum(edges[1:], until) - np.maximum(edges[:-1], begin), 0.0, None)
    return {name: (held / (end / BINS)).round(4).tolist() for name, held in shares.items() if held.any()}


@dataclass(frozen=True)
class Setting:
    """One of the synthesizer's workloads."""

    scale: Scale
    durations: str
    pattern: str
    share: float

    @property
    def where(self) -> Choosing:
        return self.scale.choosing[self.durations]

    @property
    def load(self) -> float:
        return at_share(self.durations, self.share)

    @property
    def told(self) -> str:
        return f"{self.pattern}, {load_told(self.durations, self.load)}"

    @property
    def workload(self) -> Workload:
        here = round(self.load * self.where.accelerators / PAPER_ACCELERATORS, 6)
        return Workload(self.durations, here, self.where.measure, bursts=self.pattern == "bursty")

    @property
    def cluster(self) -> str:
        return cluster_of(self.where.accelerators)

    def chosen(self, by: tuple[str, ...]) -> list[Chosen]:
        return [Chosen(self.cluster, self.workload, seed, by) for seed in self.scale.choosing_seeds]

    def static(self) -> dict[str, list[Run]]:
        seeds = self.scale.choosing_seeds
        return {one.name: [Run(_scheduler(one), self.cluster, self.workload, seed) for seed in seeds] for one in candidates()}


def settings(scale: Scale) -> list[Setting]:
    return [
        Setting(scale, durations, pattern, share)
        for durations in DURATIONS
        for share in scale.choosing[durations].shares
        for pattern in PATTERNS
    ]


def cases(by: tuple[str, ...], scale: Scale) -> Iterable[Case]:
    for one in settings(scale):
        yield from one.chosen(by)
        for runs in one.static().values():
            yield from runs


@dataclass(frozen=True)
class Ranked:
    """The nine in their order, and the synthesizer: a figure for each seed, the smaller the better."""

    static: Sequence[tuple[str, list[float]]]
    ours: list[float]

    def over(self, place: int) -> float:
        """The mean of the one at this place over ours."""
        return float(np.mean(self.static[place][1]) / np.mean(self.ours))


def ranked(setting: Setting, answers: Answers, by: tuple[str, ...]) -> Ranked:
    """By average JCT; or by JCT and responsiveness, each in units of the smallest mean among the nine, added up and halved."""
    static = {name: [answers.of(run) for run in runs] for name, runs in setting.static().items()}
    ours = [answers.of(case) for case in setting.chosen(by)]
    picks = [average_jct] if by == JCT else [average_jct, responsiveness]
    least = [min(float(np.mean([pick(one) for one in found])) for found in static.values()) for pick in picks]

    def scores(found: Sequence[Answer]) -> list[float]:
        return [float(np.mean([pick(one) / unit for pick, unit in zip(picks, least)])) for one in found]

    order = sorted(((name, scores(found)) for name, found in static.items()), key=lambda one: float(np.mean(one[1])))
    return Ranked(order, scores(ours))


def read(by: tuple[str, ...], scale: Scale, answers: Answers) -> Findings:
    what = "average JCT" if by == JCT else "JCT and responsiveness"
    rows: list[Row] = []
    notes, pictures = [], []
    for setting in settings(scale):

        def over(place: int, setting: Setting = setting) -> float:
            return ranked(setting, answers, by).over(place)

        size = f"{setting.where.size} measured, {seeds_told(scale.choosing_seeds)}"
        least = partial(row, wants=Wants.LEAST, scale=size)
        best = f"{what}, best of nine / synthesized: {setting.told}"
        rows += [
            row(best, 1.0, partial(over, 0), wants=Wants.NEAR, scale=size),
            least(f"{what}, second best of nine / synthesized: {setting.told}", NEAR_SECOND, partial(over, 1)),
            least(f"{what}, worst of nine / synthesized: {setting.told}", FAR_FROM_WORST, partial(over, -1)),
        ]
        try:
            notes.append(_told(setting, answers, by))
            pictures.append(_who_decided(setting, answers, by))
        except CaseFailed as problem:
            notes.append(f"{setting.told}: {problem}")
    notes.append(
        "second best and worst are this project's own bounds: at most 2 % behind the one, at least 20 % before the other"
    )
    return Findings(rows, pictures, notes)


def _told(setting: Setting, answers: Answers, by: tuple[str, ...]) -> str:
    order, found = ranked(setting, answers, by), [answers.of(case) for case in setting.chosen(by)]
    switches, looks = (sum(one[name] for one in found) for name in ("switches", "looks"))
    seconds = [sorted(by_seed)[1] / ours for by_seed, ours in zip(zip(*(one[1] for one in order.static)), order.ours)]
    wanted = ", ".join(f"{100 * one['demand']:.0f} %" for one in found)
    return (
        f"{setting.told}: the best of the nine is {order.static[0][0]}, then {order.static[1][0]}; the worst is"
        f" {order.static[-1][0]}; {switches} switches at {looks} looks; if nobody had to wait, the measured jobs would find so"
        f" much of the cluster in use, by seed: {wanted}; each seed's second best / synthesized: "
        + ", ".join(f"{ratio:.3f}" for ratio in seconds)
    )


def _who_decided(setting: Setting, answers: Answers, by: tuple[str, ...]) -> Stack:
    shares: dict[str, list[float]] = answers.of(setting.chosen(by)[0])["decided"]
    name = f"{'fig15' if by == JCT else 'fig21'}-{setting.durations}-{setting.pattern}-{100 * setting.share:.0f}"
    title = f"Who decided, {setting.pattern}, {SHOWN[setting.durations]}, {100 * setting.share:.0f} % of capacity, first seed"
    edges = [100.0 * place / BINS for place in range(BINS + 1)]
    return Stack(name, title, "% of the time", "share of the rounds", edges, list(shares.values()), list(shares))


STUDIES = (
    Study(
        "fig14",
        "Figures 14 and 15: the synthesizer, by JCT",
        partial(cases, JCT),
        partial(read, JCT),
        lambda scale: scale.choosing_size,
    ),
    Study(
        "fig20",
        "Figures 20 and 21: the synthesizer, by JCT and responsiveness",
        partial(cases, BOTH),
        partial(read, BOTH),
        lambda scale: scale.choosing_size,
    ),
)
