"""How fast the host launches work."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.profiling import host_probe

pytest.importorskip("torch")


def test_a_host_without_a_gpu_has_figures_of_the_cpu_only(monkeypatch):
    monkeypatch.setattr(host_probe, "time", SimpleNamespace(perf_counter=time.thread_time))  # as if nobody else used the CPU
    shown = CliRunner().invoke(app, ["profile", "host", "--device", "cpu", "--json"])
    found = json.loads(shown.stdout)
    assert 0 < found["host_python_us"] < found["host_dispatch_us"] < found["host_step_us"]
    assert found["host_launch_us"] is None
