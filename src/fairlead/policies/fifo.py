"""First in, first out, plain and with priorities.

Order: by submission; with priorities by (−priority, submission). The baseline of every paper of the field (Philly, ATC'19)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.ranking import in_order
from fairlead.core.snapshot import Snapshot


@dataclass(frozen=True)
class Fifo:
    """Run jobs in the order of their submission. Strict: nobody overtakes the head of the line, unless `backfill`."""

    paper: ClassVar[str] = "Jeon et al., ATC'19 (Philly)"
    backfill: bool = False
    preempt: bool = False

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return in_order(view, backfill=self.backfill, preempt=self.preempt, holds_until=math.inf), memo


@dataclass(frozen=True)
class FifoPriority:
    """Run jobs of higher priority first, by submission among equals; they push aside whoever has less."""

    paper: ClassVar[str] = "Jeon et al., ATC'19 (Philly)"
    backfill: bool = False
    preempt: bool = True

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        key = -view.jobs.priority
        return in_order(view, key, backfill=self.backfill, preempt=self.preempt, holds_until=math.inf), memo
