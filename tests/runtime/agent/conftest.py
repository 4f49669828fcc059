"""A node that ends everything with the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_node import Node

from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.settings import AgentSettings


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(
        settings: AgentSettings | None = None, accelerators: str | NodeAccelerators = "v100:4", root: Path | None = None
    ) -> Node:
        nodes.append(Node(root or tmp_path / "root", settings, accelerators))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()


@pytest.fixture
def open_root() -> Iterator[Path]:
    """A folder that other users can pass through."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o711)
    yield root
    shutil.rmtree(root)
