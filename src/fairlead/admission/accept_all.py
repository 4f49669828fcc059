"""Everybody enters at once."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.core.plan import Admitted
from fairlead.core.snapshot import Snapshot


@dataclass(frozen=True)
class AcceptAll:
    """Every job enters as soon as it is submitted."""

    def admit(self, view: Snapshot) -> Admitted:
        return Admitted(view.queued.number)
