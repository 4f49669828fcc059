"""Tests on a real Ray cluster: `make test-ray` runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from ray_cluster import ray_cluster

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("FAIRLEAD_TEST_RAY"):
        for item in items:
            if "on_ray" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="needs a Ray cluster: make test-ray"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes with one CPU each."""
    with ray_cluster(3) as found:
        yield found
