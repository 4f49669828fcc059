"""Finding accelerators, naming them, and sharing them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from agent_node import PATIENCE_S, RUNS_FOREVER, Node, order

from fairlead.cli.main import app
from fairlead.core.errors import InputError
from fairlead.core.type_names import accelerator_type_of
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.devices import (
    Accelerator,
    MultiProcessService,
    NodeAccelerators,
    host_resources,
    node_has,
)
from fairlead.runtime.protocol.orders import LaunchParameters

GB = 2**30


def test_a_spelling_says_type_and_number() -> None:
    parse = NodeAccelerators.parse("v100:4")
    assert (parse.type_name, len(parse)) == ("v100", 4)
    assert [one.device for one in parse.devices] == ["0", "1", "2", "3"]
    assert parse.samples() == []


@pytest.mark.parametrize("text", ["", "v100", "v100:0", "v100:-1", ":4", "v100:4,k80:1", "v100:99999", "v 100:1"])
def test_other_spellings_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="as in 'v100:4'"):
        NodeAccelerators.parse(text)


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla K80", "k80"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Something", "something"),
    ],
)
def test_products_have_short_names(product: str, name: str) -> None:
    assert accelerator_type_of(product) == name


class NVMLError(Exception):
    pass


def nvml(products: list[str], broken: tuple[int, ...] = ()) -> ModuleType:
    def busy(handle: int) -> SimpleNamespace:
        if handle in broken:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(gpu=10 * handle)

    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(products),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}abc",
        nvmlDeviceGetName=lambda handle: products[handle],
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=16 * GB, used=handle * GB),
        nvmlDeviceGetUtilizationRates=busy,
    )
    return module


def test_accelerators_are_found_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(["Tesla V100-SXM2-16GB"] * 3, broken=(1,)))
    found = NodeAccelerators.detect({})
    assert (found.type_name, len(found), found.devices[2]) == ("v100", 3, Accelerator("2", 16.0, "GPU-2abc"))
    assert found.samples() == [], "they are known by their order, so all are measured or none"
    monkeypatch.setitem(sys.modules, "pynvml", nvml(["Tesla V100-SXM2-16GB"] * 3))
    found = NodeAccelerators.detect({})
    assert found.samples() == [(0.0, 0.0), (0.1, 1.0), (0.2, 2.0)]
    found.close()
    assert found.samples() == []


@pytest.mark.parametrize(
    ("said", "devices"),
    [("2,0", ["2", "0"]), ("GPU-1", ["1"]), ("1,9,0", ["1"]), (" 1 , GPU-2abc", ["1", "2"])],
)
def test_an_agent_takes_only_what_it_may_see(monkeypatch: pytest.MonkeyPatch, said: str, devices: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(["Tesla V100"] * 3))
    assert [one.device for one in NodeAccelerators.detect({"CUDA_VISIBLE_DEVICES": said}).devices] == devices


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ({}, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "3,1,2"}, ["3", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a2f, MIG-GPU-8a2f/1/0"}, ["GPU-8a2f", "MIG-GPU-8a2f/1/0"]),
        ({"SLURM_JOB_GPUS": "0,1,2", "SLURM_STEP_GPUS": "2,1"}, ["2", "1"]),
        ({"SLURM_JOB_GPUS": "5,6", "CUDA_VISIBLE_DEVICES": "0,1"}, ["0", "1"]),
    ],
)
def test_spelled_accelerators_are_those_that_an_engine_gave(given: dict[str, str], devices: list[str]) -> None:
    assert [one.device for one in NodeAccelerators.parse("v100:2", given).devices] == devices


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, "CUDA_VISIBLE_DEVICES allows, which is 1 (3)"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES allows, which is none"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "CUDA_VISIBLE_DEVICES allows, which is none"),
        ({"SLURM_JOB_GPUS": "4,-1,5"}, "SLURM_JOB_GPUS allows, which is 1 (4)"),
    ],
)
def test_more_accelerators_than_an_engine_gave_are_refused(given: dict[str, str], allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        NodeAccelerators.parse("v100:2", given)
    assert allowed in str(caught.value)


def test_found_accelerators_are_those_of_a_slurm_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(["Tesla V100"] * 3))
    assert [one.device for one in NodeAccelerators.detect({"SLURM_STEP_GPUS": "2,0"}).devices] == ["2", "0"]


def test_two_types_none_and_no_library_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(["Tesla V100", "Tesla K80"]))
    with pytest.raises(NodeError, match="k80, v100: a node has GPUs of one type"):
        NodeAccelerators.detect({})
    assert NodeAccelerators.detect({"CUDA_VISIBLE_DEVICES": "1"}).type_name == "k80"
    with pytest.raises(NodeError, match="found no GPU"):
        NodeAccelerators.detect({"CUDA_VISIBLE_DEVICES": ""})
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NodeError, match="--accelerators"):
        NodeAccelerators.detect({})


def test_a_machine_knows_whether_it_has_what_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(["Tesla V100-SXM2-16GB"] * 2))
    asked = [("v100", 2), ("v100", 1), ("k80", 2)]
    assert [node_has(*one) for one in asked] == [True, False, False]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not any(node_has(*one) for one in asked)


CONTROL = """#!{python}
import json, os, sys
word = sys.stdin.read().strip()
with open({calls!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], word, os.environ.get("CUDA_VISIBLE_DEVICES")]) + "\\n")
"""


def test_the_sharing_service_is_started_when_a_second_job_comes(
    make_node: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    control = tmp_path / "bin" / "nvidia-cuda-mps-control"
    control.parent.mkdir()
    control.write_text(CONTROL.format(python=sys.executable, calls=str(calls)))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(control.parent), prepend=":")
    monkeypatch.setattr("fairlead.runtime.agent.devices._MPS_TIMEOUT_S", PATIENCE_S)
    devices = tuple(Accelerator(str(place), identity=f"GPU-{place}") for place in range(4))
    node = make_node(accelerators=NodeAccelerators("v100", devices))
    show = "import os; print(os.environ.get('CUDA_MPS_PIPE_DIRECTORY'), os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
    alone = node.starts(replace(order(show + RUNS_FOREVER), accelerators=(2,)))
    assert not calls.exists()
    others = [node.starts(replace(order(show + RUNS_FOREVER, job=job), accelerators=(2,))) for job in (2, 3)]
    elsewhere = node.starts(replace(order(show + RUNS_FOREVER, job=4), accelerators=(1,)))
    pipe = str(node.root / "mps" / "2-pipe")
    seen = [node.printed(launch).split()[:2] for launch in (alone, *others, elsewhere)]
    assert seen == [["None", "2"], [pipe, "GPU-2"], [pipe, "GPU-2"], ["None", "1"]]
    first = replace(order(show + RUNS_FOREVER, job=5), accelerators=(3,), parameters=LaunchParameters(colocated=True))
    assert node.printed(node.starts(first)).split()[:2] == [str(node.root / "mps" / "3-pipe"), "GPU-3"]
    MultiProcessService(node.root / "mps").close()  # as an agent does that comes after this one
    assert [json.loads(line) for line in calls.read_text().splitlines()] == [
        [["-d"], "", "GPU-2"],
        [["-d"], "", "GPU-3"],
        [[], "quit", None],
        [[], "quit", None],
    ]
    assert list((node.root / "mps").glob("*-pipe")) == []


def test_an_agent_that_ends_its_jobs_ends_the_services_of_shared_accelerators_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(Agent, "run", lambda self: None)
    monkeypatch.setattr(MultiProcessService, "close", lambda self: ended.append(True))
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    given = [
        "--control",
        "127.0.0.1:1",
        "--node",
        "here",
        "--accelerators",
        "v100:1",
        "--root",
        str(tmp_path),
        "--allow-root-jobs",
    ]
    for end_jobs in ([], ["--end-jobs"]):
        app(["agent", *given, *end_jobs], standalone_mode=False)
    assert ended == [True]


def test_an_agent_reports_the_machine_of_real_gpus_and_nothing_of_simulated_ones(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemFree:  1 kB\nMemTotal:       2097152 kB\nSwapTotal: 5 kB\n")
    real = NodeAccelerators("h200", (Accelerator("0", 141.0), Accelerator("1", 140.0)))
    assert host_resources(real, meminfo) == (float(os.cpu_count() or 0), 2.0, 140.0)
    assert host_resources(real, tmp_path / "missing").memory_gb == 0.0
    assert host_resources(NodeAccelerators.parse("v100:2"), meminfo) == (0.0, 0.0, 0.0)
