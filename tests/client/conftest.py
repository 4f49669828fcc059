"""An agent that tests play; it ends what it started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_agent import Agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    one = Agent(tmp_path)
    yield one
    one.close()
