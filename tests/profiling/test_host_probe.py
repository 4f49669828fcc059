"""How fast the host launches work."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app

pytest.importorskip("torch")


def test_a_host_without_a_gpu_has_figures_of_the_cpu_only():
    shown = CliRunner().invoke(app, ["profile", "host", "--device", "cpu", "--json"])
    found = json.loads(shown.stdout)
    assert 0 < found["host_python_us"] < found["host_dispatch_us"] < found["host_step_us"]
    assert found["host_launch_us"] is None
