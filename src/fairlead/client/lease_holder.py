"""Who holds a lease: it counts steps, looks at its page after each, saves when it is due, and knows when to leave. The loop
around a data loader and the callbacks of other libraries are both built on it. It never touches a batch.

A look costs no system call: the page is memory, and everything that is due by a step or a moment is folded into one bound
each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, sleep
from typing import TypeAlias

from fairlead.client import reporting_api as reports
from fairlead.client.checkpoints import Checkpoint, Checkpoints, sync_all
from fairlead.client.gang import Gang, Patience, SingleWorker
from fairlead.client.gang.follower import Follower
from fairlead.client.gang.leader import Leader
from fairlead.client.launch_context import LaunchContext
from fairlead.client.lease_page import SIZE, Field, Page, Stage

Save: TypeAlias = Callable[[Path], object]

NEVER = 2**63
LOOK_FOR_AN_ANSWER_S = 0.0005
LARGEST_BATCH = 10**9
SETTLED, WINDOW = 10, 100
"""Steps. Batch sizes that last so many have rates of their own; where one after the other does not, the rate is that of their
mixture, over about so many."""

STEPS, LAST_NS, REVOKED, RENEWALS = (int(each) for each in (Field.STEPS, Field.LAST_NS, Field.REVOKED, Field.RENEWALS))


@dataclass(frozen=True, slots=True)
class Saving:
    """When and how to save. `every_rank`: each worker of a gang writes its part of one checkpoint; otherwise the first one
    does."""

    save: Save | None = None
    every_steps: int = 0  # 0: only when leaving
    every_s: float = 0.0
    every_rank: bool = False
    keep: int = 1
    directory: Path | str | None = None  # where Fairlead gives none
    prefix: str = "step-"

    def __post_init__(self) -> None:
        if self.every_steps < 0 or self.every_s < 0:
            raise ValueError(f"every_steps={self.every_steps}, every_s={self.every_s}: expected 0 (never) or more")
        if self.every_rank and self.every_s:
            raise ValueError("every_s= with every_rank=True: workers save together at steps, use every_steps=")


@dataclass(slots=True)
class _Bounds:
    """The agent's bounds on this launch, as steps and moments of this worker."""

    last_step: int
    last_ns: int
    ask_step: int
    ask_ns: int

    @classmethod
    def read(cls, numbers: memoryview, began_at: int, began_ns: int) -> _Bounds:
        """More is asked for when three quarters are used."""
        steps, length_ns = numbers[Field.MAX_STEPS], numbers[Field.MAX_MS] * 1_000_000
        return cls(
            last_step=began_at + steps if steps else NEVER,
            last_ns=began_ns + length_ns if length_ns else NEVER,
            ask_step=began_at + -(-3 * steps // 4) if steps else NEVER,
            ask_ns=began_ns + 3 * length_ns // 4 if length_ns else NEVER,
        )

    def reached(self, steps: int, now: int) -> bool:
        return steps >= self.last_step or now >= self.last_ns


@dataclass(slots=True)
class _Due:
    """The next step and moment at which there is something to do."""

    step: int = 0
    ns: int = 0
    save_step: int = NEVER
    save_ns: int = NEVER
    exit_step: int = NEVER


class Holder:
    """Begin, be ready, do steps until `step` says that it is over, leave."""

    def __init__(
        self,
        saving: Saving,
        *,
        total: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        around = LaunchContext.read()
        self.steps = 0
        self.yielded = False
        self.notes: Mapping[str, int] = {}
        self._saving = saving
        self._total = NEVER if total is None else total
        self._numbers = Page(around.page).numbers if around.page else memoryview(bytearray(SIZE)).cast("Q")
        directory = around.checkpoints or saving.directory
        self._checkpoints = Checkpoints(Path(directory), keep=saving.keep, prefix=saving.prefix) if directory else None
        self._saved = 0
        self._began_at = 0
        self._sized_at = 0  # steps at which the batch size last changed
        self._short = 0  # how many batch sizes in a row did not last
        self._began_ns = monotonic_ns()
        self._renewals = 0
        self._central = around.central
        self._due = _Due()
        self._gang = self._join(around, patience or Patience())

    def _join(self, around: LaunchContext, patience: Patience) -> Gang:
        if not around.in_gang:
            if self._saving.every_rank and around.world_size > 1:
                raise ValueError("every_rank=True: the workers need FAIRLEAD_GANG_PORT to make one checkpoint of their parts")
            return SingleWorker(first=around.rank == 0 or around.world_size == 1)
        if around.rank == 0:
            return Leader(around, self._where, patience)
        return Follower(around, self._where, patience, self._note_saved)

    def begin(self) -> Checkpoint | None:
        """The checkpoint to load, the same for all workers of a gang."""
        latest = self._checkpoints.latest() if self._checkpoints else None
        if self._checkpoints and self._gang.first:
            self._checkpoints.clear_drafts()
        begin = self._gang.agree(latest.steps if latest else 0)
        if latest is None or latest.steps != begin:
            latest = self._checkpoints.at(begin) if self._checkpoints else None
            if begin and latest is None:
                where = self._checkpoints.directory if self._checkpoints else "no directory for checkpoints"
                raise FileNotFoundError(f"{where}: worker 0 begins at step {begin}, of which no checkpoint is here")
        self.steps = self._began_at = begin
        self.notes = latest.notes if latest else {}
        self._numbers[Field.STAGE] = Stage.STARTING
        self._numbers[Field.BEGAN_NS] = self._numbers[Field.WANTS_MORE] = 0
        self._numbers[STEPS] = begin
        self._note_saved(begin)
        return latest

    def ready(self) -> bool:
        """The script has loaded. False where there is nothing left to do: leave. A lease that is over already does not count
        before the first step: where turns are shorter than starts, nobody would ever get any further."""
        self._gang.ready()
        now = monotonic_ns()
        self._plan_save(now)
        self._numbers[Field.STAGE] = Stage.RUNNING
        return self.steps < self._total

    def step(self) -> bool:
        """A step was done. True where it was the last one of this launch: leave."""
        self.steps = steps = self.steps + 1
        now = monotonic_ns()
        numbers, due = self._numbers, self._due
        numbers[STEPS] = steps
        numbers[LAST_NS] = now
        if (
            steps < due.step
            and now < due.ns
            and not numbers[REVOKED]
            and numbers[RENEWALS] == self._renewals
            and not self._gang.calls
        ):
            return False
        return self._attend(steps, now)

    def leave(self) -> None:
        """Save what is not saved, say how it ended, and let go."""
        self._save_now()
        self._gang.done(self.steps)
        self._numbers[Field.STAGE] = Stage.YIELDED if self.yielded else Stage.FINISHED
        reports.flush()

    def detach(self) -> None:
        """The script left its loop in the middle of a step, which does not count."""
        self._gang.detach()
        reports.flush()

    def adopt(self, folder: Path) -> None:
        """Somebody else has saved, on all workers, to this folder."""
        self._gather(folder)
        if self._checkpoints and self._gang.first:
            self._checkpoints.adopt(folder, self.steps, self.notes)
            self._gang.saved(self.steps)
        self._note_saved(self.steps)

    @property
    def batch_size(self) -> int:
        return self._numbers[Field.BATCH_SIZE]

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        try:
            whole = 0 if isinstance(size, bool) else int(size)
        except (TypeError, ValueError, OverflowError):
            whole = 0
        if whole != size or not 1 <= whole <= LARGEST_BATCH:
            raise ValueError(f"batch_size = {size!r}: expected a whole number from 1 to {LARGEST_BATCH:,}")
        numbers = self._numbers
        if numbers[Field.BEGAN_NS] and size != numbers[Field.BATCH_SIZE]:
            self._short = 0 if self.steps - self._sized_at >= SETTLED else self._short + 1
            self._sized_at = self.steps
            if self._short < 2 or self.steps - numbers[Field.BEGAN_AT] >= WINDOW:  # how fast it is counts from here on
                numbers[Field.BEGAN_AT] = self.steps
                numbers[Field.BEGAN_NS] = numbers[LAST_NS]
        numbers[Field.BATCH_SIZE] = whole

    def _where(self) -> int:
        return self.steps

    def _note_saved(self, steps: int) -> None:
        self._saved = steps
        self._numbers[Field.SAVED] = steps

    def _attend(self, steps: int, now: int) -> bool:
        numbers, due = self._numbers, self._due
        if not numbers[Field.BEGAN_NS]:
            numbers[Field.BEGAN_AT] = steps
            numbers[Field.BEGAN_NS] = now
        if self._gang.calls and (told := self._gang.attend()) is not None and due.exit_step == NEVER:
            due.exit_step = told
        if steps >= self._total:
            return True
        bounds = self._bounds()
        if self._central and self._gang.first and due.exit_step == NEVER:
            bounds = self._await_renewal(bounds, steps)
        if due.exit_step == NEVER and self._is_over(bounds, steps, now):
            told = self._gang.end_after(steps)
            due.exit_step = NEVER if told is None else told
        if steps >= due.exit_step:
            self.yielded = True
            return True
        if steps >= due.save_step or now >= due.save_ns:
            self._save_now()
            self._plan_save(monotonic_ns())
        wants_more = self._gang.first and (steps >= bounds.ask_step or now >= bounds.ask_ns)
        numbers[Field.WANTS_MORE] = self._renewals + 1 if wants_more else 0
        due.step = min(due.exit_step, due.save_step, self._total, bounds.last_step if wants_more else bounds.ask_step)
        due.ns = min(due.save_ns, bounds.last_ns if wants_more else bounds.ask_ns)
        return False

    def _bounds(self) -> _Bounds:
        self._renewals = self._numbers[RENEWALS]
        return _Bounds.read(self._numbers, self._began_at, self._began_ns)

    def _await_renewal(self, bounds: _Bounds, steps: int) -> _Bounds:
        """Nothing is done beyond the bounds before there is an answer: more, or that the lease is over."""
        numbers = self._numbers
        while bounds.reached(steps, monotonic_ns()) and not numbers[REVOKED] and not self._gang.calls:
            numbers[Field.WANTS_MORE] = self._renewals + 1
            sleep(LOOK_FOR_AN_ANSWER_S)
            bounds = self._bounds()
        return bounds

    def _is_over(self, bounds: _Bounds, steps: int, now: int) -> bool:
        """Bounds are the first worker's business. A revocation counts wherever it arrives."""
        return (self._gang.first and bounds.reached(steps, now)) or bool(self._numbers[REVOKED])

    def _plan_save(self, now: int) -> None:
        every = self._saving
        if every.save is not None and self._checkpoints and (self._gang.first or every.every_rank):
            self._due.save_step = (self.steps // every.every_steps + 1) * every.every_steps if every.every_steps else NEVER
            self._due.save_ns = now + int(every.every_s * 1e9) if every.every_s else NEVER

    def _save_now(self) -> None:
        save, checkpoints, steps = self._saving.save, self._checkpoints, self.steps
        mine = self._gang.first or self._saving.every_rank
        if save is None or checkpoints is None or not mine or self._saved == steps:
            return
        self._numbers[Field.STAGE] = Stage.SAVING
        draft = checkpoints.draft(steps)
        save(draft)
        if self._saving.every_rank:
            self._gather(draft)
        if self._gang.first:
            checkpoints.complete(draft, steps, self.notes)
            self._gang.saved(steps)
        self._note_saved(steps)
        self._numbers[Field.STAGE] = Stage.RUNNING

    def _gather(self, folder: Path) -> None:
        """Wait for everybody's part. The first worker forces to disk what it sees; others may be on other machines."""
        if not self._gang.first:
            sync_all(folder)
        self._gang.gather(self.steps)
