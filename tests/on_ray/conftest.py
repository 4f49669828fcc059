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
    from ray_cluster import ray_environment

    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_environment().items():
            patch.setenv(name, value)
        yield
