"""Shared by the tests of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from foundry import foundry


@pytest.fixture(scope="session")
def address() -> Path:
    """The socket of a server of the `fairlead` command."""
    return foundry().address
