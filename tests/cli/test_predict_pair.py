"""`fairlead predict pair`: with whom does my model get on?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError
from fairlead.prediction.measured_profiles import shipped_profiles

onnx = pytest.importorskip("onnx", reason="the extra `predict` is not installed")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT
OTHER = "resnet50@224:64"


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """Two wide layers over a sequence, with an open batch."""
    nodes = [helper.make_node("MatMul", ["x", "v"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    ends = [[helper.make_tensor_value_info(name, FLOAT, ("N", 128, 1024))] for name in "xy"]
    held = [onnx.TensorProto(name=name, data_type=FLOAT, dims=(1024, 1024), raw_data=bytes(4 * 1024**2)) for name in "vw"]
    graph = helper.make_graph(nodes, "g", *ends, initializer=held)
    path = tmp_path / "mine.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return str(path)


def text(*words: str) -> Any:
    return CliRunner().invoke(app, ["predict", "pair", *words], catch_exceptions=False)


def told(*words: str) -> Any:
    return json.loads(text(*words, "--json").stdout)


def refused(*words: str) -> InputError:
    problem = CliRunner().invoke(app, ["predict", "pair", *words]).exception
    assert isinstance(problem, InputError)
    return problem


@pytest.mark.parametrize("sharing", ["time-slicing", "mps"])
def test_a_file_beside_a_configuration_is_what_its_graph_says_beside_what_was_measured(mine, sharing):
    alone = json.loads(CliRunner().invoke(app, ["predict", "model", mine, "--batch", "64", "--json"]).stdout)
    found = told(mine, OTHER, "--batch", "64", "--sharing", sharing)
    own, other = found["jobs"]
    assert (own["from"], other["from"]) == ("predicted", "measured")
    for name in ("utilization", "memory_mb", "multiprocessors", "kernel_s"):
        assert own[name] == alone[name]
    assert other["utilization"] == shipped_profiles().alone[OTHER].utilization
    assert other["memory_mb"] == shipped_profiles().alone[OTHER].memory_mb
    assert found["by"] == (
        "multiprocessors and kernels, predicted from both graphs" if sharing == "mps" else "utilization alone"
    )
    turned = told(OTHER, mine, "--batch", "64", "--sharing", sharing)
    assert turned["slowdowns"] == pytest.approx(found["slowdowns"][::-1])


def test_what_was_predicted_and_what_measured_is_told(mine):
    said = text(mine, OTHER)
    assert "mine.onnx: predicted from its graph, batch size 1, because the file does not fix it; pass --batch" in said.stderr
    assert f"{OTHER}: measured\n" in said.stderr
    through = ("--sharing", "mps", "--json")
    counted = next(name for name, one in shipped_profiles().alone.items() if one.multiprocessors is not None)
    assert [each["multiprocessors_from"] for each in told(OTHER, counted, *through)["jobs"]] == ["predicted", "measured"]
    assert f"{OTHER}: measured; multiprocessors predicted\n" in text(OTHER, counted, "--sharing", "mps").stderr
    assert f"{counted}: measured\n" in text(OTHER, counted, "--sharing", "mps").stderr


def test_whether_both_fit_in_the_memory_is_told(mine):
    small, large = ("--batch", "64"), ("--batch", "1000000")
    assert "on NVIDIA H200 both fit in its memory: " in text(mine, OTHER, *small).stdout
    assert told(mine, OTHER, *small)["fit_together"] is True
    assert "they do not fit in its memory together" in text(mine, OTHER, *large).stdout
    assert told(mine, OTHER, *large)["fit_together"] is False
    assert told(mine, "40")["fit_together"] is None, "of a number nobody knows"
    assert "fit" not in text(mine, "40").stdout


def test_files_have_one_batch_size_or_one_each(mine):
    one, other = (each["utilization"] for each in told(mine, mine, "--batch", "1", "--batch", "64")["jobs"])
    assert one < other
    both = [each["utilization"] for each in told(mine, mine, "--batch", "64")["jobs"]]
    assert both == [other, other]
    beside = told(OTHER, mine, "--batch", "64")["jobs"]
    assert beside[1]["utilization"] == other
    assert refused(mine, OTHER, "--batch", "1", "--batch", "2").field == "batch"
    assert text(mine, OTHER, "--batch", "0").exit_code == 2
    assert refused("40", OTHER, "--batch", "2").field == "batch"
    assert refused("40", OTHER, "--size", "N=2").field == "size"


def test_a_number_beside_what_is_known_has_multiprocessors_of_its_own():
    mps = ("--sharing", "mps")
    little, much = (told("90", OTHER, *mps, "--multiprocessors", held) for held in ("5", "95"))
    assert little["by"] == "multiprocessors and kernels, predicted from the graph of one job"
    assert little["slowdowns"][1] < much["slowdowns"][1], "the other suffers from what it holds"
    assert little["jobs"][1] == much["jobs"][1]
    assert little["jobs"][0]["kernel_s"] == little["jobs"][1]["kernel_s"], "as long as the other's"
    long = told(OTHER, "90", *mps, "--multiprocessors", "95", "--kernel-us", "5000")
    assert long["jobs"][1]["kernel_s"] == pytest.approx(0.005)
    assert long["slowdowns"][0] > much["slowdowns"][1]
    assert refused(OTHER, OTHER, *mps, "--multiprocessors", "5").field == "multiprocessors"
    assert refused("90", OTHER, *mps, "--multiprocessors", "5", "--kernel-us", "5", "--kernel-us", "5").field == "kernel-us"


def test_what_is_neither_is_refused_with_all_three(tmp_path):
    problem = refused("resnet5@224:64", "40")
    assert "an existing ONNX file, a measured configuration, or a percentage" in problem.expected
    assert OTHER in problem.expected
    assert "`fairlead profile list` shows them" in refused("qqqq", "40").expected
    assert "No such file" in refused(str(tmp_path / "nothing.onnx"), "40").expected
