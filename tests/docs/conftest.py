"""Shared by the tests of the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import command_server


@pytest.fixture(scope="session")
def address() -> Iterator[Path]:
    """The socket of a server of the `fairlead` command."""
    with command_server() as found:
        yield found
