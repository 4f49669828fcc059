"""Shared by the tests of journals: patience with a database server on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.journal import postgres, postgres_files


@pytest.fixture(autouse=True)
def patience_with_servers() -> Iterator[None]:
    """A server may take long to notice that a writer has left or died, and to answer. Tests that want it short set it."""
    with pytest.MonkeyPatch.context() as patched:  # not the test's own, which it may undo
        for module in (postgres, postgres_files):
            patched.setattr(module, "LOCK_WAIT_MS", 60_000)
            patched.setitem(module._CONNECTION, "connect_timeout", 60)
        yield
