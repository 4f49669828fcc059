"""Shared by the tests of policies."""

from __future__ import annotations

import pytest


@pytest.fixture
def all_digits(monkeypatch):
    """Shares as they were computed, so that an optimum can be told from its neighbourhood."""
    monkeypatch.setattr("fairlead.core.allocation.DIGITS", 14)
    monkeypatch.setattr("fairlead.core.allocation.NEGLIGIBLE", 1e-14)
