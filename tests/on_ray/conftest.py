"""Tests on a real Ray cluster: `make test-ray` runs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "runtime"))  # `ClusterAtWork`


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("FAIRLEAD_TEST_RAY"):
        for item in items:
            if "on_ray" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="needs a Ray cluster: make test-ray"))


@pytest.fixture(scope="session", autouse=True)
def environment_of_ray_nodes() -> Iterator[None]:
    """Workers of Ray, and so agents, get this process's environment."""
    from foundry import environment

    with pytest.MonkeyPatch.context() as patch:
        ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        for name, value in {**environment(), **ray}.items():
            patch.setenv(name, value)
        yield
