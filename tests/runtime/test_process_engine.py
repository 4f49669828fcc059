"""The engine of plain processes that other tests use keeps to the contract of drivers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_at_work import PLUGINS

from fairlead.testing.contracts.driver_contract import DriverContract

sys.path.insert(0, str(PLUGINS))
from process_engine import ProcessEngine


class TestProcessEngine(DriverContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> ProcessEngine:
        return ProcessEngine(self.folder)

    @contextmanager
    def away(self) -> Iterator[None]:  # type: ignore[override]
        (self.folder / "away").touch()
        yield
        (self.folder / "away").unlink()
