"""Who meets whom, and how a pair's speeds are read; the measuring itself needs PyTorch and runs only where that is."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import FairleadError, InputError
from fairlead.profiling.pair_selection import (
    DEFAULT_COUNT,
    SelectionMetric,
    device_fill,
    measurement_plan,
    noisiest,
    round_robin,
    select_configurations,
)
from fairlead.profiling.profile_pairs import TOO_FEW, Interval, PairBench, PairRates, PairTiming, WorkInterval, _summary
from fairlead.profiling.results import measured_set
from fairlead_papers.measured_data import evaluation_set


def test_those_who_meet_span_the_range_of_utilization_and_the_families():
    _, found = measured_set()
    by_name = {one["name"]: one for one in found}
    names = select_configurations(found)
    assert len(set(names)) == DEFAULT_COUNT == 34
    assert len({by_name[name]["family"] for name in names}) >= 18
    busy = sorted(by_name[name]["utilization"] for name in names)
    assert busy[0] < 12 < 98 < busy[-1]
    assert max(after - before for before, after in pairwise(busy)) < 8
    assert names == select_configurations(list(reversed(found)))


def test_those_who_meet_can_span_what_of_the_device_they_fill():
    _, found = measured_set()
    by_name, filled = {one["name"]: one for one in found}, device_fill(found)
    names = select_configurations(found, metric=SelectionMetric.DEVICE_FILL)
    assert len(set(names)) == DEFAULT_COUNT
    assert len({by_name[name]["family"] for name in names}) == 22
    parts = sorted(filled[name] for name in names)
    assert parts[0] < 3
    assert parts[-1] > 98
    assert max(after - before for before, after in pairwise(parts)) < 8
    assert all(filled[name] <= 100 for name in filled)
    assert {name for row in measured_set("h200_share_pairs_mps")[1] for name in row.get("pair", [])} == {*names}


def test_what_a_device_is_filled_by_is_told_by_larger_batches():
    one = {"model": "m", "input": 32}
    rows = [{**one, "name": f"m:{size}", "batch_size": size, "steps_per_s": 10.0, "utilization": 90.0} for size in (1, 4)]
    assert device_fill([*rows, {"name": "broken", "problem": "x"}]) == {"m:1": 22.5, "m:4": 90.0}


def test_a_programme_has_everybody_alone_among_the_pairs_and_some_pairs_again():
    names = [str(n) for n in range(6)]
    asked = measurement_plan(names, solo_repeats=3, repeated_pairs=5)
    assert len({one.name for one in asked}) == len(asked) == 6 * 3 + 21 + 5
    assert [one.of for one in asked[:6]] == [(name,) for name in names]
    alone = [place for place, one in enumerate(asked) if len(one.of) == 1]
    assert max(after - before for before, after in pairwise(alone[6:])) <= 4
    again = [place for place, one in enumerate(asked) if len(one.of) == 2 and one.name.endswith(" (2)")]
    first = [next(place for place, one in enumerate(asked) if one.of == asked[later].of) for later in again]
    assert len(again) == 5
    assert [later - before >= 5 for before, later in zip(first, again)][:4] == [True] * 4, "some time later, but for the last"
    assert again[0] < 20 < again[-1], "whatever has been measured when time is up has some repeats"
    assert len({one.of for one in asked if len(one.of) == 2}) == 21
    assert measurement_plan(names) == measurement_plan(names, solo_repeats=1, repeated_pairs=0)
    assert len(measurement_plan(names, repeated_pairs=99)) == 6 + 21 + 21


def test_what_is_kept_is_not_asked_for_and_the_rest_has_everybody_alone_among_it():
    names = [str(n) for n in range(6)]
    known = {one.name for one in measurement_plan(names)}
    asked = measurement_plan(names, solo_repeats=2, repeated_pairs=4, repeats=3, known=known)
    assert len(asked) == len({one.name for one in asked}) == 6 + 2 * 4
    alone = [place for place, one in enumerate(asked) if len(one.of) == 1]
    assert max(after - before for before, after in pairwise(alone)) <= 3, "among the repeats, as there are no pairs left"
    assert Counter(one.of for one in asked if len(one.of) == 2).most_common()[-1][1] == 2
    assert measurement_plan(names, solo_repeats=2, known=known) == [
        one for one in measurement_plan(names, solo_repeats=2) if one.name.endswith("(2)")
    ]
    assert measurement_plan(names, known=known) == []


def test_those_that_varied_most_are_measured_once_more():
    rows = [
        {"name": f"{a} + {b}", "pair": [a, b], "spread": spread}
        for (a, b), spread in zip(round_robin(["x", "y", "z"]), (0.1, 0.4, 0.2, 0.3, 0.05, 0.2))
    ]
    kept = [
        *rows,
        {"name": "x", "spread": 0.9},
        {"name": "x + x (2)", "pair": ["x", "x"], "spread": 0.8},
        {"name": "no", "pair": ["q", "q"], "problem": "x"},
    ]
    vary = noisiest(kept, 2)
    assert vary == [tuple(rows[1]["pair"]), tuple(rows[3]["pair"])]
    asked = measurement_plan(["x", "y", "z"], noisy=vary, known={row["name"] for row in [*rows, *({"name": n} for n in "xyz")]})
    assert [one.name for one in asked] == [f"{' + '.join(pair)} (2)" for pair in vary]
    again = measurement_plan(["x", "y", "z"], repeated_pairs=6, noisy=vary)
    assert len({one.name for one in again}) == len(again) == 3 + 6 + 6, "who is measured again anyway is not twice"


def test_a_few_that_are_fit_are_all_taken():
    fit = {"family": "f", "reserved_mb": 10, "steps_per_s": 50, "spread": 0}
    some = [{**fit, "name": f"m{n}", "utilization": 10.0 * n} for n in range(3)]
    unfit = [{**some[0], "name": "slow", "steps_per_s": 1}, {"name": "x", "problem": "no"}]
    assert select_configurations(some, 5) == select_configurations([*some, *unfit], 9) == ("m0", "m1", "m2")


@pytest.mark.parametrize("many", [2, 5, 34])
def test_everybody_meets_everybody_once_and_a_part_is_a_fair_part(many: int):
    names = [str(n) for n in range(many)]
    found = round_robin(names)
    assert len(found) == len({frozenset(pair) for pair in found}) == many * (many + 1) // 2
    for end in range(many, len(found), 7):
        met = Counter(name for pair in found[many:end] for name in pair)
        assert max(met.values(), default=0) - min(met[name] for name in names) <= 2


class Line:
    """A worker that tells what it was given to tell."""

    def __init__(self, *told: object) -> None:
        self.told = iter(told)

    def send(self, asked: object) -> None:
        pass

    def recv(self) -> object:
        return next(self.told)


def bench(*lines: Line) -> PairBench:
    made = object.__new__(PairBench)
    made.timing, made.device, made._step_s, made._connections = PairTiming(), "cpu", dict.fromkeys("ab", 0.0), [*lines]  # type: ignore[list-item]
    return made


def test_a_problem_of_either_is_the_pairs_problem():
    assert bench(Line([]), Line("OutOfMemoryError: x")).together("a", "b") == {
        "name": "a + b",
        "pair": ["a", "b"],
        "problem": "OutOfMemoryError: x",
    }
    idle = [WorkInterval(0.0, [], 1, 0.0)] * 3
    assert bench(Line(*[idle[:2]] * 3), Line(*[idle] * 3)).together("a", "b")["problem"] == TOO_FEW
    assert bench(Line("RuntimeError: x")).alone("a") == {"name": "a", "problem": "RuntimeError: x"}
    assert bench(Line(idle), Line(idle)).alone("a")["problem"] == TOO_FEW


@pytest.mark.parametrize("gone", [EOFError(), ConnectionResetError()])
def test_a_process_that_has_ended_is_told_however_that_shows(gone: Exception):
    class Ended(Line):
        def recv(self) -> object:
            raise gone

    class Closed(Ended):
        def send(self, asked: object) -> None:
            raise BrokenPipeError

    for line in (Ended(), Closed()):
        with pytest.raises(FairleadError, match="ended early"):
            bench(line).alone("a")


class Slow(Line):
    """A worker whose steps take a while, whatever it was taken for."""

    def __init__(self, step_s: float) -> None:
        self.step_s, self.spans = step_s, list[list[Interval]]()

    def send(self, asked: tuple[str, float, list[Interval]]) -> None:
        self.spans.append(asked[2])

    def recv(self) -> list[WorkInterval]:
        return [WorkInterval(start, np.arange(start, end, self.step_s).tolist(), 1, end) for start, end in self.spans[-1]]


@pytest.mark.parametrize("thought_s", [0.05, 0.001])
def test_who_turns_out_to_be_much_slower_in_company_is_looked_at_for_longer(thought_s: float):
    one, other = Slow(0.01), Slow(0.3)
    made = bench(one, other)  # type: ignore[arg-type]
    made._step_s = {"a": 0.01, "b": thought_s}
    told = made.together("a", "b")
    assert "problem" not in told
    assert told["steps_per_s"] == pytest.approx([100.0, 1 / 0.3])
    lengths = [spans[0][1] - spans[0][0] - PairTiming().warm_s for spans in one.spans]
    assert [length / lengths[0] for length in lengths] == pytest.approx([1, 2, 4][: len(lengths)])
    assert len(lengths) > 1


def test_one_look_tells_no_spread_and_such_pairs_are_the_first_to_be_measured_again():
    rows = [
        {"name": "x + y", "pair": ["x", "y"], "spread": 0.4, "steps_per_s": [1.0, 1.0]},
        {"name": "x + z", "pair": ["x", "z"], "steps_per_s": [1.0, 1.0]},
        {"name": "y + z", "pair": ["y", "z"], "problem": "none"},
    ]
    assert noisiest(rows, 3) == [("x", "z"), ("x", "y")]
    once = Slow(0.01), Slow(0.02)
    made = bench(*once)  # type: ignore[arg-type]
    made.timing = PairTiming(repetitions=1)
    assert "spread" not in made.together("a", "b")
    made.timing = PairTiming(repetitions=2)
    assert made.together("a", "b")["spread"] == pytest.approx(0, abs=0.01)


def test_the_spread_of_a_pair_is_of_its_slowdowns_and_relative():
    windows = [PairRates((10.0, 5.0), (20.0, 5.0)), PairRates((5.0, 5.0), (20.0, 5.0))]
    told = _summary(windows)
    assert told["spread"] == pytest.approx((4 - 2) / 3), "of the first; the second is not disturbed at all"
    assert (told["steps_per_s"], told["undisturbed_steps_per_s"]) == ([7.5, 5.0], [20.0, 5.0])


@pytest.mark.long
def test_pairs_are_measured_on_a_cpu_and_what_is_there_is_not_measured_again(tmp_path):
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    path = tmp_path / "pairs.jsonl"
    asked = ["profile", "pairs", "--out", str(path), "--of", "mlp-512@784:64,mlp-2048@784:64", "--device", "cpu", "--json"]
    short = [*asked, "--window", "0.05", "--alone", "0.03", "--warm", "0", "--solos", "2"]
    told = json.loads(CliRunner().invoke(app, short, catch_exceptions=False).stdout)
    about, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    slow = [row["problem"] for row in rows if "problem" in row]
    assert {*slow} <= {TOO_FEW}, "which a machine may be that has other work to do"
    assert told == {"measured": 7, "left": 0, "kept": 7, "with_a_problem": len(slow)}
    assert about["about"]["sharing"] == "time-slicing"
    assert [len(row["pair"]) for row in rows if "pair" in row] == [2, 2, 2]
    rows = [row for row in rows if "problem" not in row]
    assert all(rate > 0 for row in rows if "pair" in row for rate in row["steps_per_s"])
    assert all(row["session"] == 1 for row in rows)
    assert all(1 <= len(row["windows"]) == len(row["undisturbed_windows"]) <= 2 for row in rows if "pair" in row)
    again = json.loads(CliRunner().invoke(app, short, catch_exceptions=False).stdout)
    assert again == {"measured": 0, "left": 0, "kept": 7, "with_a_problem": len(slow)}


@pytest.mark.parametrize(("device", "chosen"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", [])])
def test_the_device_that_a_training_is_on_is_the_one_that_is_waited_for(monkeypatch, device: str, chosen: list[str]):
    torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
    from fairlead.profiling.profile_alone import TrainingLoop

    asked = list[str]()
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    TrainingLoop(torch.nn.Linear(1, 1), None, None, device)
    assert asked == chosen


class Stub:
    """A bench on which some models cannot be held."""

    unfit: frozenset[str] = frozenset()

    def __init__(self, names: tuple[str, ...], device: str, timing: PairTiming) -> None:
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
    monkeypatch.setattr("fairlead.cli.cmd_profile._about", lambda device: {})
    monkeypatch.setattr("fairlead.profiling.profile_pairs.PairBench", Stub)
    path, names = tmp_path / "pairs.jsonl", ("mlp-512@784:64", "encoder-256x4@128:8")
    asked = ["profile", "pairs", "--out", str(path), "--of", ",".join(names), "--json", "--solos", "2"]
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

    monkeypatch.setattr("fairlead.cli.cmd_profile._about", lambda device: {})
    monkeypatch.setitem(sys.modules, "fairlead.profiling.profile_alone", SimpleNamespace(measure_alone=lacking))
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
    busy = {one["name"]: one["utilization"] for one in measured_set()[1]}
    again = {row["name"]: row for row in evaluation_set("h200_repeated_pairs")[1] if "pair" in row}
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


def test_what_went_wrong_first_is_said_when_all_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("fairlead.cli.cmd_profile._about", lambda device: {})
    monkeypatch.setattr("fairlead.profiling.profile_pairs.PairBench", Stub)
    problem = "OutOfMemoryError: too large\x1b[2J"
    monkeypatch.setattr(Stub, "together", lambda self, *pair: {"pair": [*pair], "problem": problem})
    names = "mlp-512@784:64,encoder-256x4@128:8"
    said = CliRunner().invoke(app, ["profile", "pairs", "--out", str(tmp_path / "pairs.jsonl"), "--of", names])
    assert "3 of them failed" in said.output
    assert "mlp-512@784:64 + mlp-512@784:64: OutOfMemoryError: too large" in said.output.replace("\n", "")
    assert "\x1b" not in said.output, "files go from hand to hand"
    assert said.output.rstrip().endswith(" …")


def ask(path: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["profile", "pairs", "--out", str(path), "--of", "mlp-512@784:64", *words])


@pytest.mark.parametrize(("device", "words", "field"), [("H200", ["--sharing", "mps"], "sharing"), (None, [], "device")])
def test_a_file_holds_what_was_measured_on_one_device_and_in_one_way(tmp_path, monkeypatch, device, words, field):
    monkeypatch.setattr("fairlead.profiling.profile_pairs.PairBench", Stub)
    path = tmp_path / "pairs.jsonl"
    monkeypatch.setattr("fairlead.cli.cmd_profile._about", lambda _: {"device": "H200"})
    assert ask(path).exit_code == 0
    before = path.read_bytes()
    monkeypatch.setattr("fairlead.cli.cmd_profile._about", lambda _: {} if device is None else {"device": device})
    refused = ask(path, *words).exception
    assert isinstance(refused, InputError)
    assert refused.field == field
    assert path.read_bytes() == before


def test_who_is_named_twice_is_measured_once(tmp_path, monkeypatch):
    monkeypatch.setattr("fairlead.cli.cmd_profile._about", lambda _: {})
    monkeypatch.setattr("fairlead.profiling.profile_pairs.PairBench", Stub)
    said = ask(tmp_path / "pairs.jsonl", "--of", "mlp-512@784:64,mlp-512@784:64", "--json")
    assert json.loads(said.stdout) == {"measured": 2, "left": 0, "kept": 2, "with_a_problem": 0}


def test_where_one_process_ends_before_its_time_the_other_is_not_left_behind(monkeypatch):
    left = list[str]()

    class Gone(Line):
        def recv(self) -> object:
            raise EOFError

        def close(self) -> None:
            left.append("closed")

    class Process:
        def __init__(self, **_: object) -> None: ...
        def start(self) -> None: ...
        def join(self, timeout: float) -> None:
            left.append("waited for")

        def is_alive(self) -> bool:
            return True

        def kill(self) -> None:
            left.append("killed")

    context = SimpleNamespace(Pipe=lambda: (Gone(), Gone()), Process=Process)
    monkeypatch.setattr("multiprocessing.get_context", lambda _: context)
    with pytest.raises(FairleadError, match="ended early"):
        PairBench(["a"], "cpu")
    assert left[2:] == ["closed", "waited for", "killed"] * 2, "after the ends of both that are not ours"
