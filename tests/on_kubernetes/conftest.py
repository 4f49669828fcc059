"""Tests on a real Kubernetes API server: `make test-kubernetes` runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from kubernetes_bed import DEADLINE_S, KubernetesBed

from fairlead.runtime.drivers import kubernetes_api, kubernetes_driver


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("FAIRLEAD_TEST_KUBERNETES"):
        for item in items:
            if "on_kubernetes" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="needs a Kubernetes API server: make test-kubernetes"))


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """On a busy machine the API server answers late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_api, "ANSWER_WITHIN_S", DEADLINE_S)
        patch.setattr(kubernetes_api, "CONNECT_WITHIN_S", DEADLINE_S)
        patch.setattr(kubernetes_driver, "FIRST_LIST_S", DEADLINE_S)
        yield


@pytest.fixture(scope="session")
def bed() -> Iterator[KubernetesBed]:
    with KubernetesBed() as started:
        yield started
