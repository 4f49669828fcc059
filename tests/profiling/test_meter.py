"""What a meter reads, on a machine of three accelerators that is made up: the one that is measured, and no other."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.profiling import meter as metering
from fairlead.profiling.meter import Meter


class Nvml:
    """Accelerator n is used by 10 · n percent."""

    class NVMLError(Exception):
        pass

    mute = False

    def __init__(self) -> None:
        self.looked = threading.Event()

    def __getattr__(self, name: str) -> object:
        if name.startswith("nvmlGpm"):
            raise self.NVMLError("not counted here")
        return lambda *_: None

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{'abc'[handle]}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H%d" % handle

    def nvmlSystemGetDriverVersion(self) -> str:
        return "1.2"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        self.looked.set()
        if self.mute:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=10 * handle, memory=0)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(used=2**20)


@pytest.fixture
def nvml(monkeypatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(metering, "_INTERVAL_S", 0.001)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def read(device: str, nvml: Nvml) -> dict[str, float]:
    with Meter(device) as meter:
        assert nvml.looked.wait(60)
    return meter.summary()


@pytest.mark.parametrize(
    ("device", "visible", "place"),
    [("cuda", None, 0), ("cuda:1", None, 1), ("cuda:0", "2,1", 2), ("cuda:1", "GPU-b,GPU-c", 2), ("cuda", "1", 1)],
)
def test_the_accelerator_that_is_measured_is_the_one_that_is_read(nvml, monkeypatch, device, visible, place):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Meter(device).device()["device"] == f"NVIDIA H{place}"
    assert read(device, nvml)["utilization"] == 10 * place


@pytest.mark.parametrize(("device", "visible"), [("cpu", None), ("cuda:7", None), ("cuda", "")])
def test_of_what_is_no_accelerator_here_none_tells_anything(nvml, monkeypatch, device, visible):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with Meter(device) as meter:
        pass
    assert meter.summary() == {}
    assert not nvml.looked.is_set()
    assert Meter(device).device().keys() == {"host_cpus"}


def test_an_accelerator_that_cannot_tell_its_utilization_tells_nothing_and_nobody_falls_over(nvml, monkeypatch):
    nvml.mute = True
    fallen = list[object]()
    monkeypatch.setattr(threading, "excepthook", fallen.append)
    assert read("cuda", nvml) == {}
    assert not fallen


def test_the_command_has_accelerators_in_the_order_that_they_are_read_in(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    CliRunner().invoke(app, ["profile", "alone", "--out", "x.jsonl", "--device", "nowhere"])
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
