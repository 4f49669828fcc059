"""Who meets whom, and how a pair's speeds are read; the measuring itself needs PyTorch and runs only where that is."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import FairleadError, InputError
from fairlead.profiling.host import MOST, Host, parts
from fairlead.profiling.pairs import AHEAD, Bench, Look, Seen, pace
from fairlead.profiling.results import measured
from fairlead.profiling.sharing import Sharing, shared
from fairlead.profiling.spanning import MANY, Span, meetings, noisiest, programme, shares, spanning


def test_those_who_meet_span_the_range_of_utilization_and_the_families():
    _, found = measured()
    by_name = {one["name"]: one for one in found}
    names = spanning(found)
    assert len(set(names)) == MANY == 34
    assert len({by_name[name]["family"] for name in names}) >= 18
    busy = sorted(by_name[name]["utilization"] for name in names)
    assert busy[0] < 12 < 98 < busy[-1]
    assert max(after - before for before, after in pairwise(busy)) < 8
    assert names == spanning(list(reversed(found)))


def test_those_who_meet_can_span_what_of_the_device_they_fill():
    _, found = measured()
    by_name, filled = {one["name"]: one for one in found}, shares(found)
    names = spanning(found, span=Span.SHARE)
    assert len(set(names)) == MANY
    assert len({by_name[name]["family"] for name in names}) == 22
    parts = sorted(filled[name] for name in names)
    assert parts[0] < 3
    assert parts[-1] > 98
    assert max(after - before for before, after in pairwise(parts)) < 8
    assert all(filled[name] <= 100 for name in filled)
    assert {name for row in measured("h200_share_pairs_mps")[1] for name in row.get("pair", [])} == {*names}


def test_what_a_device_is_filled_by_is_told_by_larger_batches():
    one = {"model": "m", "input": 32}
    rows = [{**one, "name": f"m:{size}", "batch_size": size, "steps_per_s": 10.0, "utilization": 90.0} for size in (1, 4)]
    assert shares([*rows, {"name": "broken", "problem": "x"}]) == {"m:1": 22.5, "m:4": 90.0}


def test_a_programme_has_everybody_alone_among_the_pairs_and_some_pairs_again():
    names = [str(n) for n in range(6)]
    asked = programme(names, solos=3, again=5)
    assert len({one.name for one in asked}) == len(asked) == 6 * 3 + 21 + 5
    assert [one.of for one in asked[:6]] == [(name,) for name in names]
    alone = [place for place, one in enumerate(asked) if len(one.of) == 1]
    assert max(after - before for before, after in pairwise(alone[6:])) <= 3
    assert [one.name.endswith(" (2)") for one in asked[-5:]] == [True] * 5
    assert len({one.of for one in asked if len(one.of) == 2}) == 21
    assert programme(names) == programme(names, solos=1, again=0)
    assert len(programme(names, again=99)) == 6 + 21 + 21


def test_what_is_kept_is_not_asked_for_and_the_rest_has_everybody_alone_among_it():
    names = [str(n) for n in range(6)]
    known = {one.name for one in programme(names)}
    asked = programme(names, solos=2, again=4, times=3, known=known)
    assert len(asked) == len({one.name for one in asked}) == 6 + 2 * 4
    alone = [place for place, one in enumerate(asked) if len(one.of) == 1]
    assert max(after - before for before, after in pairwise(alone)) <= 3, "among the repeats, as there are no pairs left"
    assert Counter(one.of for one in asked if len(one.of) == 2).most_common()[-1][1] == 2
    assert programme(names, solos=2, known=known) == [one for one in programme(names, solos=2) if one.name.endswith("(2)")]
    assert programme(names, known=known) == []


def test_those_that_varied_most_are_measured_once_more():
    rows = [
        {"name": f"{a} + {b}", "pair": [a, b], "spread": spread}
        for (a, b), spread in zip(meetings(["x", "y", "z"]), (0.1, 0.4, 0.2, 0.3, 0.05, 0.2))
    ]
    kept = [
        *rows,
        {"name": "x", "spread": 0.9},
        {"name": "x + x (2)", "pair": ["x", "x"], "spread": 0.8},
        {"name": "no", "pair": ["q", "q"], "problem": "x"},
    ]
    vary = noisiest(kept, 2)
    assert vary == [tuple(rows[1]["pair"]), tuple(rows[3]["pair"])]
    asked = programme(["x", "y", "z"], noisy=vary, known={row["name"] for row in [*rows, *({"name": n} for n in "xyz")]})
    assert [one.name for one in asked] == [f"{' + '.join(pair)} (2)" for pair in vary]
    again = programme(["x", "y", "z"], again=6, noisy=vary)
    assert len({one.name for one in again}) == len(again) == 3 + 6 + 6, "who is measured again anyway is not twice"


def test_a_few_that_are_fit_are_all_taken():
    fit = {"family": "f", "reserved_mb": 10, "steps_per_s": 50, "spread": 0}
    some = [{**fit, "name": f"m{n}", "utilization": 10.0 * n} for n in range(3)]
    unfit = [{**some[0], "name": "slow", "steps_per_s": 1}, {"name": "x", "problem": "no"}]
    assert spanning(some, 5) == spanning([*some, *unfit], 9) == ("m0", "m1", "m2")


@pytest.mark.parametrize("many", [2, 5, 34])
def test_everybody_meets_everybody_once_and_a_part_is_a_fair_part(many: int):
    names = [str(n) for n in range(many)]
    found = meetings(names)
    assert len(found) == len({frozenset(pair) for pair in found}) == many * (many + 1) // 2
    for end in range(many, len(found), 7):
        met = Counter(name for pair in found[many:end] for name in pair)
        assert max(met.values(), default=0) - min(met[name] for name in names) <= 2


class Clockwork:
    """A training whose steps take a given time on a clock of its own; the device is behind the host, as a real one is."""

    def __init__(self, seconds: Callable[[float], float]) -> None:
        self.now, self.free, self.seconds = 0.0, 0.0, seconds

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    def step(self) -> None:
        self.now += 1e-4
        self.free = max(self.free, self.now) + self.seconds(max(self.free, self.now))

    def mark(self) -> Callable[[], None]:
        done = self.free

        def wait() -> None:
            self.now = max(self.now, done)

        return wait


@pytest.mark.parametrize("seconds", [0.0005, 0.013, 0.11, 0.31])
def test_a_pace_is_told_though_windows_hold_no_whole_number_of_steps(seconds: float):
    training = Clockwork(lambda now: seconds)
    rate, spread, quiet = pace(training, 0.05, Look(0.2, 0.8, 0.05), clock=training.clock)
    assert rate == pytest.approx(1 / seconds, rel=0.02)
    assert spread < 0.03
    assert quiet == pytest.approx(1.0, abs=0.001)
    assert training.now > 0.05 + 0.2 + 0.8 + 0.05


def test_a_pace_that_changes_is_told_by_its_spread():
    training = Clockwork(lambda now: 0.01 if now < 0.65 else 0.02)
    rate, spread, _ = pace(training, 0.05, Look(0.2, 0.8, 0.05), clock=training.clock)
    assert rate == pytest.approx(75, rel=0.03)
    assert spread == pytest.approx(50 / 75, rel=0.1)
    assert AHEAD < 10


class Neighbours:
    """A host whose core is slow from one moment to another, for the training on it too. There may be a better one to go to."""

    def __init__(self, slow: tuple[float, float], other: bool = False) -> None:
        self.slow, self.other, self.moves = slow, other, 0
        self.training = Clockwork(lambda now: 0.01 if self.fast(now) else 0.02)

    def fast(self, now: float) -> bool:
        return (self.other and self.moves > 0) or not self.slow[0] < now < self.slow[1]

    def quiet(self) -> bool:
        return self.fast(self.training.now)

    def settle(self) -> bool:
        self.moves += 1
        return self.quiet()

    def seen(self) -> Seen:
        return pace(self.training, 0.05, Look(0.2, 0.8, 0.05), self, self.training.clock)  # type: ignore[arg-type]


def test_moments_of_a_slow_host_do_not_count_unless_there_is_little_else():
    rate, spread, quiet = Neighbours((0.4, 0.8)).seen()
    assert rate == pytest.approx(100, rel=0.03)
    assert spread < 0.05
    assert 0.4 < quiet < 0.5
    rate, _, quiet = Neighbours((0.4, 1.1)).seen()
    assert rate == pytest.approx((0.15 * 100 + 0.65 * 50) / 0.8, rel=0.05)
    assert quiet < 0.2


def test_a_core_that_got_slow_is_left_for_another():
    neighbours = Neighbours((0.4, 1.1), other=True)
    rate, _, quiet = neighbours.seen()
    assert rate == pytest.approx(100, rel=0.05), "the steps that were under way when it moved are late"
    assert quiet > 0.85
    assert neighbours.moves == 1


def test_a_host_is_quiet_where_it_is_as_fast_as_it_was_ever_seen():
    took = iter([2.0, 1.0, 1.3, 1.4, 1.0])
    host = Host(looped=lambda: next(took))
    assert [host.quiet() for _ in range(5)] == [True, True, True, False, True]
    assert Host(looped=lambda: 1.0).settle(), "without cores to choose from, it stays where it is"


def test_a_process_goes_to_the_cores_that_are_fastest_now(monkeypatch):
    bound: dict[int, list[int]] = {}
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: bound.__setitem__(thread, sorted(cores)))
    took = {4: 1.1, 5: 1.9, 6: 1.0, 7: 1.2}
    host = Host([*took], lambda: took[bound[0][0]])
    assert host.settle()
    assert len(bound) == 1 + len(os.listdir("/proc/self/task"))
    assert all(cores == [4, 6] for thread, cores in bound.items() if thread)
    took |= {4: 1.8, 6: 1.7}
    assert not host.settle(), "the second best is slow too"
    assert all(cores == [6, 7] for thread, cores in bound.items() if thread)


@pytest.mark.parametrize(("left", "goes_to"), [({4, 6, 7}, [4, 6]), ({7}, [7]), (set(), None)])
def test_cores_that_a_container_has_lost_meanwhile_are_left_out(monkeypatch, left: set[int], goes_to: list[int] | None):
    bound: dict[int, list[int]] = {}

    def bind(thread: int, cores: set[int]) -> None:
        if not left.issuperset(cores):
            raise OSError
        bound[thread] = sorted(cores)

    monkeypatch.setattr(os, "sched_setaffinity", bind)
    took = {4: 1.1, 5: 0.9, 6: 1.0, 7: 1.2}
    assert Host([*took], lambda: took[bound[0][0]] if bound else 1.0).settle()
    assert bound.get(os.getpid()) == goes_to


def test_who_measures_alone_is_as_quiet_as_the_less_quiet_of_both_processes(monkeypatch):
    told = iter([([90.0], 0.1), ([110.0], 0.9)])

    def asked(_: Bench, wanted: dict[int, str]) -> dict[str, object]:
        rates, quiet = next(told)
        return {"steps_per_s": rates, "windows": [rates], "quiet": quiet}

    monkeypatch.setattr(Bench, "_ask", asked)
    seen = object.__new__(Bench).alone("mlp")
    assert (seen["steps_per_s"], seen["windows"], seen["quiet"]) == (100.0, [90.0, 110.0], 0.1)


def test_cores_are_dealt_out_and_nobody_has_to_make_do_with_too_few(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 4, 5, 6, 7, 8})
    assert parts(2) == [(2, 3, 4), (5, 6, 7)]
    assert parts(3) == [(), (), ()]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(192)))
    assert [len(cores) for cores in parts(2)] == [MOST, MOST], "to look at a hundred takes as long as a step or two"
    monkeypatch.delattr(os, "sched_getaffinity")
    assert parts(2) == [(), ()]


def test_time_slicing_needs_nothing_and_mps_says_what_it_lacks(monkeypatch):
    with shared(Sharing.TIME_SLICING):
        pass
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="time-slicing"), shared(Sharing.MPS):
        pass


def test_pairs_are_measured_on_a_cpu_and_what_is_there_is_not_measured_again(tmp_path):
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    path = tmp_path / "pairs.jsonl"
    asked = ["profile", "pairs", "--out", str(path), "--of", "mlp-512@784:64,encoder-256x4@128:8", "--device", "cpu", "--json"]
    short = [*asked, "--window", "0.05", "--warm", "0"]
    told = json.loads(CliRunner().invoke(app, short, catch_exceptions=False).stdout)
    assert told == {"measured": 7, "left": 0, "kept": 7, "with_a_problem": 0}
    about, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert about["about"]["sharing"] == "time-slicing"
    assert [len(row["pair"]) for row in rows if "pair" in row] == [2, 2, 2]
    assert all(rate > 0 for row in rows if "pair" in row for rate in row["steps_per_s"])
    assert {row["session"] for row in rows} == {1}
    assert all(1 <= len(row["windows"]) <= 2 for row in rows if "pair" in row)
    again = json.loads(CliRunner().invoke(app, short, catch_exceptions=False).stdout)
    assert again == {"measured": 0, "left": 0, "kept": 7, "with_a_problem": 0}


class Stub:
    """A bench on which some models cannot be held."""

    unfit: frozenset[str] = frozenset()

    def __init__(self, names: tuple[str, ...], device: str, look: Look) -> None:
        self.problems = {name: "ImportError: No module named 'timm'" for name in names if name in self.unfit}

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def alone(self, name: str) -> dict[str, object]:
        return {"name": name, "steps_per_s": 1.0}

    def together(self, one: str, other: str) -> dict[str, object]:
        return {"name": f"{one} + {other}", "pair": [one, other], "steps_per_s": [1.0, 1.0]}


def test_what_cannot_be_set_up_is_left_out_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("fairlead.cli.profile._about", lambda device: {})
    monkeypatch.setattr("fairlead.profiling.pairs.Bench", Stub)
    path, names = tmp_path / "pairs.jsonl", ("mlp-512@784:64", "encoder-256x4@128:8")
    asked = ["profile", "pairs", "--out", str(path), "--of", ",".join(names), "--json"]
    monkeypatch.setattr(Stub, "unfit", frozenset(names))
    refused = CliRunner().invoke(app, asked)
    assert isinstance(refused.exception, FairleadError)
    assert "timm" in str(refused.exception)
    monkeypatch.setattr(Stub, "unfit", frozenset(names[:1]))
    told = json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)
    assert told == {"measured": 3, "left": 4, "kept": 3, "with_a_problem": 0}
    monkeypatch.setattr(Stub, "unfit", frozenset())
    told = json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)
    assert told == {"measured": 4, "left": 0, "kept": 7, "with_a_problem": 0}


def test_a_library_that_is_not_there_is_no_result(tmp_path, monkeypatch):
    def lacking(*_: object) -> dict[str, object]:
        raise ImportError("No module named 'timm'", name="timm")

    monkeypatch.setattr("fairlead.cli.profile._about", lambda device: {})
    monkeypatch.setitem(sys.modules, "fairlead.profiling.alone", SimpleNamespace(measure_alone=lacking))
    path = tmp_path / "alone.jsonl"
    said = CliRunner().invoke(
        app, ["profile", "alone", "--out", str(path), "--only", "unet-*", "--json"], catch_exceptions=False
    )
    assert json.loads(said.stdout) == {"measured": 0, "left": 8, "kept": 0, "with_a_problem": 0}
    assert "timm" in said.stderr
    assert len(path.read_text().splitlines()) == 1


def test_pairs_measured_again_are_what_they_were():
    """Sixty of the pairs by turns, evenly chosen, were measured twice more on one host: by how much their speeds differ. Who
    waits for its host varies with that; who keeps the device busy hardly does."""
    busy = {one["name"]: one["utilization"] for one in measured()[1]}
    again = {row["name"]: row for row in measured("h200_repeated_pairs")[1] if "pair" in row}
    twice = [(row, again[name.replace(" (2)", " (3)")]) for name, row in again.items() if name.replace(" (2)", " (3)") in again]
    twice = [(one, other) for one, other in twice if one["name"] != other["name"]]
    assert len(twice) == 60
    off = [
        (abs(before - after) / ((before + after) / 2), busy[name])
        for one, other in twice
        for name, before, after in zip(one["pair"], one["steps_per_s"], other["steps_per_s"])
    ]
    assert statistics.median(each for each, _ in off) < 0.05
    assert statistics.median(each for each, percent in off if percent >= 60) < 0.015
    assert statistics.median(row["spread"] for pair in twice for row in pair) < 0.045


def test_while_the_host_is_quiet_two_windows_of_a_pair_hardly_differ():
    pairs = [row for row in measured("h200_quiet_pairs")[1] if "pair" in row]
    assert len(pairs) == 366
    assert all(row["quiet"] >= Look().quiet for row in pairs)
    twice = [row["windows"] for row in pairs if len(row["windows"]) == 2]
    off = [abs(one - other) / ((one + other) / 2) for first, second in twice for one, other in zip(first, second)]
    assert len(off) > 100
    assert statistics.median(off) < 0.025
