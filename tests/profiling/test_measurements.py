"""What is measured, and how results are kept; the measuring itself needs PyTorch and runs only where that is."""

from __future__ import annotations

import errno
import json
import statistics
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.cmd_profile import _all_met
from fairlead.cli.main import app
from fairlead.core.errors import FairleadError, InputError
from fairlead.prediction.measured_profiles import shipped_profiles
from fairlead.profiling.configurations import configuration, configurations
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead.profiling.results import ResultsFile, measured_set, read_results
from fairlead.workloads.table_files import read_throughputs

FAMILIES = [
    *("mobilenet-v1", "mobilenet-v2", "mobilenet-v3", "googlenet", "resnet", "vgg", "squeezenet", "densenet", "shufflenet-v2"),
    *("mnasnet", "dpn", "proxyless", "pyramidnet", "resnext", "lstm", "gru", "fully-connected"),
    *("transformer", "bert", "gpt2", "vit", "unet"),
]


def test_every_family_at_several_batch_sizes_and_in_turns():
    found = configurations()
    assert len({one.name for one in found}) == len(found) >= 290
    assert [one.family for one in found[: len(FAMILIES)]] == FAMILIES
    for family in FAMILIES:
        assert len({one.batch_size for one in found if one.family == family}) >= 2
    assert configuration("resnet18@224:64").family == "resnet"
    with pytest.raises(InputError, match="resnet18@224:64"):
        configuration("resnet18@224:65")


def test_what_is_there_is_kept_and_half_a_line_is_not(tmp_path):
    path = tmp_path / "some" / "device.jsonl"
    results = ResultsFile(path, {"device": "none"})
    results.add({"name": "a", "steps_per_s": 1.0})
    results.add({"name": "b", "steps_per_s": 2.0})
    with path.open("ab") as file:
        file.write(b'{"name": "c", "ste')
    again = ResultsFile(path, {"device": "another"})
    assert sorted(again.known) == ["a", "b"]
    assert json.loads(path.read_text().splitlines()[0]) == {"about": {"device": "none"}}
    again.add({"name": "c", "steps_per_s": 3.0})
    assert sorted(ResultsFile(path, {}).known) == ["a", "b", "c"]


def test_no_measurement_is_lost_where_a_disk_is_full_when_a_file_is_opened_again(tmp_path, monkeypatch):
    path = tmp_path / "device.jsonl"
    ResultsFile(path, {}).add({"name": "a", "steps_per_s": 1.0})
    whole = path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        self.open("wb").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert sorted(ResultsFile(path, {}).known) == ["a"], "there is nothing to write"
    with path.open("ab") as file:
        file.write(b'{"name": "b", "ste')
    with pytest.raises(InputError, match="No space left"):
        ResultsFile(path, {})
    assert path.read_bytes().startswith(whole)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_results(tmp_path / "x.jsonl")


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"event": "journal_opened"}\n')
    with pytest.raises(InputError, match="file of measurements"):
        ResultsFile(path, {})
    path.write_text('{"about": {}}\nnonsense\n{"name": "a"}\n')
    with pytest.raises(InputError, match="jsonl:2"):
        ResultsFile(path, {})


@pytest.mark.parametrize(
    "text",
    [
        *("5\n", "null\n{}\n", '"about"\n{"name":"a"}\n', '{"about":3}\n', '{"about":{}}\n[1,2]\n', '{"about":{}}\n{"x":1}\n'),
        *('{"about":{}}\n{"name":[1]}\n', '{"about":{}}\n{"name":5}\n', '{"about":{}}\n{cut\n{"name":"a"}\n', "a picture"),
    ],
)
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path, text: str):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="jsonl:"):
        ResultsFile(path, {})
    assert path.read_text() == text


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x.jsonl"):
        with pytest.raises(InputError, match="read and written"):
            ResultsFile(path, {})


@pytest.mark.parametrize("option", [["--window", "inf"], ["--warm", "inf"]])
def test_times_without_end_are_refused(tmp_path, option: list[str]):
    path = tmp_path / "x.jsonl"
    refused = CliRunner().invoke(app, ["profile", "pairs", "--out", str(path), *option])
    assert isinstance(refused.exception, InputError)
    assert refused.exception.field == option[0][2:]
    assert not path.exists()


@pytest.mark.parametrize("device", ["nosuch", "meta", "cuda:99", ""])
@pytest.mark.parametrize("command", ["pairs", "alone"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path, command: str, device: str):
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    path = tmp_path / "x.jsonl"
    refused = CliRunner().invoke(app, ["profile", command, "--out", str(path), "--device", device])
    assert isinstance(refused.exception, InputError)
    assert refused.exception.field == "device"
    assert not path.exists()


def test_the_measured_set_is_what_its_page_says():
    about, found = measured_set()
    assert about["device"] == "NVIDIA H200"
    assert {one["name"] for one in found} == {one.name for one in configurations()}
    assert not any("problem" in one for one in found)
    assert statistics.median(one["spread"] for one in found) < 0.05
    assert min(one["utilization"] for one in found) < 20 < 90 < max(one["utilization"] for one in found)
    assert all(one["steps_per_s"] > 0 and one["allocated_mb"] > 0 for one in found)


def test_the_command_lists_and_says_what_is_wrong(tmp_path):
    told = json.loads(CliRunner().invoke(app, ["profile", "list", "--only", "unet-*", "--json"]).stdout)
    assert len(told["configurations"]) == 8
    wrong = CliRunner().invoke(app, ["profile", "list", "--only", "nothing"])
    assert wrong.exit_code != 0


def test_a_training_is_measured_on_a_cpu():
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    from fairlead.profiling.profile_alone import AloneTiming, measure_alone

    told = measure_alone(configuration("mlp-512@784:64"), "cpu", AloneTiming(1, 0.0, 0.01, 1, 1.0, 1))
    assert told["steps_per_s"] > 0
    assert told["parameters"] == 785 * 512 + 513 * 512 + 513 * 1000


def table_of(*words: str) -> dict[str, object]:
    said = CliRunner().invoke(app, ["profile", "table", *words, "--json"], catch_exceptions=False)
    return json.loads(said.stdout)


def test_what_ships_can_be_a_simulators_table(tmp_path):
    path = tmp_path / "h200.csv"
    assert table_of("--out", str(path)) == {"out": str(path), "type": "h200", "kinds": 296, "pairs": 595}
    table = read_throughputs(path)
    known = shipped_profiles()
    one, other = "gpt2-small@512:2", "shufflenet_v2_x1_0@32:16"
    assert table.types == ("h200",)
    assert table.alone[table.row(one, 1), 0] == pytest.approx(known.alone[one].steps_per_s)
    pair = next(iter(known.pairs["time-slicing"]))
    rows = [table.row(name, 1) for name in pair]
    left = table.paired[rows[0], rows[1], 0] / table.alone[rows[0], 0]
    assert left == pytest.approx(1 / max(1.0, known.slowdowns(*pair)[0]), rel=1e-6)
    assert table.paired[table.row(one, 1), table.row(other, 1), 0] == 0, "these two were not measured"
    assert table_of("--out", str(path), "--sharing", "mps")["pairs"] > 595


def test_of_a_pair_in_several_sets_the_mean_is_told_by_all_commands(tmp_path):
    by_span = [shipped_profiles(metric=metric).pairs["mps"] for metric in SelectionMetric]
    pair = min(pair for pair in set.intersection(*map(set, by_span)) if all(found[pair][0] > 1 for found in by_span))
    slower = statistics.fmean(found[pair][0] for found in by_span)
    assert abs(slower - by_span[0][pair][0]) > 0.01, "they differ"
    told = CliRunner().invoke(app, ["predict", "pair", *pair, "--sharing", "mps", "--json"], catch_exceptions=False)
    assert json.loads(told.stdout)["measured"][0] == pytest.approx(slower)
    table_of("--out", str(path := tmp_path / "mps.csv"), "--sharing", "mps")
    table = read_throughputs(path)
    one, other = (table.row(name, 1) for name in pair)
    assert table.alone[one, 0] / table.paired[one, other, 0] == pytest.approx(slower, rel=1e-3)


def test_own_measurements_make_a_table_too(tmp_path):
    alone, pairs, out = tmp_path / "alone.jsonl", tmp_path / "pairs.jsonl", tmp_path / "mine.csv"
    nvml = {"utilization": 40.0, "memory_utilization": 5.0, "device_memory_mb": 1024.0, "family": "f"}
    results = ResultsFile(alone, {"device": "NVIDIA A100-SXM4-40GB"})
    for name in ("a", "b"):
        results.add({"name": name, "steps_per_s": 10.0, **nvml})
    results.add({"name": "c", "family": "f", "problem": "too large"})
    beside = ResultsFile(pairs, {"sharing": "time-slicing"})
    for name in ("a", "b"):
        beside.add({"name": name, "alone": name, "steps_per_s": 8.0, "spread": 0.0})
    beside.add({"name": "a + b", "pair": ["a", "b"], "steps_per_s": [4.0, 9.0], "spread": 0.0})
    told = table_of("--alone", str(alone), "--pairs", str(pairs), "--out", str(out))
    assert told == {"out": str(out), "type": "a100", "kinds": 2, "pairs": 1}
    table = read_throughputs(out)
    a, b = table.row("a", 1), table.row("b", 1)
    assert table.paired[a, b, 0] == pytest.approx(5.0), "half of its speed, whatever that host was like"
    assert table.paired[b, a, 0] == pytest.approx(10.0), "nobody gains by company"
    for words in (["--pairs", str(pairs)], ["--alone", str(pairs)], ["--set", "h20"], ["--alone", str(tmp_path / "none")]):
        assert isinstance(CliRunner().invoke(app, ["profile", "table", "--out", str(out), *words]).exception, InputError)
    beside.add({"name": "a + z", "pair": ["a", "z"], "steps_per_s": [4.0, 9.0], "spread": 0.0})
    words = ["profile", "table", "--alone", str(alone), "--pairs", str(pairs), "--out", str(out)]
    assert "'z'" in str(CliRunner().invoke(app, words).exception)


@pytest.mark.parametrize("sharing", ["time-slicing", "mps"])
def test_a_table_of_those_who_met_lets_a_scheduler_put_any_two_together(tmp_path, sharing: str):
    path, jobs = tmp_path / "beside.csv", tmp_path / "jobs.csv"
    told = table_of("--out", str(path), "--together", "--sharing", sharing)
    assert (told["kinds"], told["pairs"]) == (34, 595)
    for words in (
        ["trace", "generate", "--jobs", "20", "--load", "6", "--throughputs", str(path), "--out", str(jobs)],
        [
            "simulate",
            "--preset",
            "horus",
            "--estimator",
            "predicted:profiles=h200",
            "--trace",
            str(jobs),
            "--throughputs",
            str(path),
            "--cluster",
            "4xh200:4",
        ],
    ):
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0


def test_who_missed_others_is_left_out_of_such_a_table():
    met = [("a", "b"), ("a", "a"), ("b", "b"), ("c", "c"), ("a", "c")]
    both = {pair for one, other in met for pair in ((one, other), (other, one))}
    assert _all_met(both) in ({"a", "b"}, {"a", "c"})
    assert _all_met(set()) == set()


def test_features_without_onnx_say_what_to_install(tmp_path, monkeypatch):
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fairlead.cli.cmd_profile._about", lambda device: {})
    monkeypatch.setattr("fairlead.cli.cmd_profile.version", missing)
    refused = CliRunner().invoke(app, ["profile", "features", "--out", str(tmp_path / "features.jsonl")]).exception
    assert isinstance(refused, FairleadError)
    assert "[predict]" in str(refused)
