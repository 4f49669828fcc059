"""For pytest: `pytest_plugins = ["fairlead.testing.fixtures"]` in a conftest gives the `harness` fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.testing.harness import Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    """A harness whose invariants are checked when the test is over."""
    made = Harness()
    yield made
    made.check()
