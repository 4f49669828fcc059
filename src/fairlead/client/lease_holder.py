"""The holder of a lease: it counts steps, reads its page after each, saves when it is due, and decides when to leave. The loop
around a data loader and the callbacks of other libraries are built on it. It knows nothing of batches. A step costs no system
call: the page is memory, and everything that is due by a step or a time is folded into one bound each."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, sleep
from types import FrameType
from typing import TypeAlias

from fairlead.client.checkpoints import Checkpoint, Checkpoints, fsync_all
from fairlead.client.gang import Follower, Gang, Leader, Patience
from fairlead.client.launch_context import LaunchContext
from fairlead.client.lease_page import SIZE, Field, Page, Stage
from fairlead.client.metric_reports import flush_reports

Save: TypeAlias = Callable[[Path], object]

_NEVER = 2**63
_ANSWER_POLL_S = 0.0005
_MAX_BATCH = 10**9
_LOADER_SIGNALS = "torch.utils.data._utils.signal_handling"
_SAME_SIGNAL_S = 0.5  # between the death of a loader's process and the same signal to this one
_SETTLED, _WINDOW = 10, 100
"""Steps. A batch size that lasts this long has a rate of its own; otherwise the rate is that of a mixture, over about
`_WINDOW`."""

STEPS, LAST_NS, REVOKED, RENEWALS = (int(each) for each in (Field.STEPS, Field.LAST_NS, Field.REVOKED, Field.RENEWALS))


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """When and how to save. `every_rank`: each worker of a gang writes its part of one checkpoint; otherwise the first worker
    saves."""

    save: Save | None = None
    every_steps: int = 0  # 0: only when leaving
    every_s: float = 0.0
    every_rank: bool = False
    keep: int = 1
    directory: Path | str | None = None  # used outside Fairlead
    prefix: str = "step-"

    def __post_init__(self) -> None:
        if self.every_steps < 0 or self.every_s < 0:
            raise ValueError(f"every_steps={self.every_steps}, every_s={self.every_s}: expected 0 (never) or more")
        if self.every_rank and self.every_s:
            raise ValueError("every_s= with every_rank=True: workers save together at steps, use every_steps=")


@dataclass(slots=True)
class _Bounds:
    """The bounds of this launch, as steps and times of this worker."""

    last_step: int
    last_ns: int
    ask_step: int
    ask_ns: int

    @classmethod
    def read(cls, numbers: memoryview, began_at: int, began_ns: int) -> _Bounds:
        """The bounds in a page; a renewal is requested when three quarters are used."""
        steps, length_ns = numbers[Field.MAX_STEPS], numbers[Field.MAX_MS] * 1_000_000
        return cls(
            last_step=began_at + steps if steps else _NEVER,
            last_ns=began_ns + length_ns if length_ns else _NEVER,
            ask_step=began_at + -(-3 * steps // 4) if steps else _NEVER,
            ask_ns=began_ns + 3 * length_ns // 4 if length_ns else _NEVER,
        )

    def reached(self, steps: int, now: int) -> bool:
        return steps >= self.last_step or now >= self.last_ns


@dataclass(slots=True)
class _Due:
    """The next step and time at which there is something to do."""

    step: int = 0
    ns: int = 0
    save_step: int = _NEVER
    save_ns: int = _NEVER
    exit_step: int = _NEVER


def _save_at_sigterm(numbers: memoryview) -> None:
    """Let SIGTERM end the lease, as an engine such as Slurm sends it to all processes of its job: the script saves after its
    step, and leaves. Before its first step, after its last one, and in other processes, the signal ends the process as usual. A
    script's own handler stays."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    owner = os.getpid()

    def end_lease(number: int, _: object) -> None:
        begun = numbers[Field.STAGE] == Stage.STARTING and numbers[Field.BEGAN_NS]
        if os.getpid() == owner and (begun or numbers[Field.STAGE] in (Stage.RUNNING, Stage.SAVING)):
            numbers[REVOKED] = 1
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end_lease)


def _outlive_loaders(numbers: memoryview) -> None:
    """PyTorch's DataLoader raises an error in the middle of a step when one of its processes dies. Where a signal to all
    processes has ended it, the script can still complete the step, and save."""
    handler = signal.getsignal(signal.SIGCHLD)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler) or getattr(handler, "__module__", "") != _LOADER_SIGNALS:
        return

    def outlive(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except RuntimeError:
            sleep(_SAME_SIGNAL_S)
            if not numbers[REVOKED]:
                raise

    signal.signal(signal.SIGCHLD, outlive)


class LeaseHolder:
    """Holds the lease of a worker: call `begin`, `ready`, `step` until it returns True, then `leave`."""

    def __init__(
        self,
        saving: SaveOptions,
        *,
        total: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        context = LaunchContext.read()
        self.steps = 0
        self.yielded = False
        self.notes: Mapping[str, int] = {}
        self._saving = saving
        self._total = _NEVER if total is None else total
        self._numbers = Page(context.page).numbers if context.page else memoryview(bytearray(SIZE)).cast("Q")
        self._numbers[Field.OPENED] = 1
        if context.page:
            _save_at_sigterm(self._numbers)
        directory = context.checkpoints or saving.directory
        self._checkpoints = Checkpoints(Path(directory), keep=saving.keep, prefix=saving.prefix) if directory else None
        self._saved = 0
        self._began_at = 0
        self._sized_at = 0  # steps at which the batch size last changed
        self._short = 0  # how many batch sizes in a row did not last
        self._began_ns = monotonic_ns()
        self._renewals = 0
        self._central = context.central
        self._due = _Due()
        self._gang = self._join(context, patience or Patience())

    def _join(self, context: LaunchContext, patience: Patience) -> Gang:
        if not context.in_gang:
            if self._saving.every_rank and context.world_size > 1:
                raise ValueError("every_rank=True: the workers need FAIRLEAD_GANG_PORT to make one checkpoint of their parts")
            return Gang(is_leader=context.rank == 0 or context.world_size == 1)
        if context.rank == 0:
            return Leader(context, self._current_step, patience)
        return Follower(context, self._current_step, patience, self._record_saved)

    def begin(self) -> Checkpoint | None:
        """Start; returns the checkpoint to load, the same for all workers of a gang."""
        latest = self._checkpoints.latest() if self._checkpoints else None
        if self._checkpoints and self._gang.is_leader:
            self._checkpoints.clear_drafts()
        begin = self._gang.agree_on_start(latest.steps if latest else 0)
        if latest is None or latest.steps != begin:
            latest = self._checkpoints.at(begin) if self._checkpoints else None
            if begin and latest is None:
                current_step = self._checkpoints.directory if self._checkpoints else "no directory for checkpoints"
                raise FileNotFoundError(f"{current_step}: worker 0 begins at step {begin}, and no checkpoint of it is here")
        self.steps = self._began_at = begin
        self.notes = latest.notes if latest else {}
        self._numbers[Field.STAGE] = Stage.STARTING
        self._numbers[Field.BEGAN_NS] = self._numbers[Field.WANTS_MORE] = 0
        self._numbers[STEPS] = begin
        self._record_saved(begin)
        return latest

    def ready(self) -> bool:
        """The script has loaded; False if no step is left to do. A lease that is over does not count before the first step:
        otherwise a job whose start takes longer than a round would never progress."""
        self._gang.ready()
        now = monotonic_ns()
        self._plan_save(now)
        self._numbers[Field.STAGE] = Stage.RUNNING
        return self.steps < self._total

    def step(self) -> bool:
        """Count a step; True if it was the last one of this launch."""
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
            and not self._gang.has_messages
        ):
            return False
        return self._handle_due(steps, now)

    def loader_started(self) -> None:
        """The loader of the batches may have processes of its own from now on."""
        _outlive_loaders(self._numbers)

    def loader_failed(self) -> bool:
        """No batch can be loaded any more. True if the lease is over anyway; the steps of a gang end together."""
        self.yielded = bool(self._numbers[REVOKED]) and type(self._gang) is Gang
        return self.yielded

    def leave(self) -> None:
        """Save what is not saved, record how it ended, and leave the gang."""
        self._save_now()
        self._gang.done(self.steps)
        self._numbers[Field.STAGE] = Stage.YIELDED if self.yielded else Stage.FINISHED
        flush_reports()

    def detach(self) -> None:
        """The script left its loop in the middle of a step, which does not count."""
        self._gang.detach()
        flush_reports()

    def adopt(self, folder: Path) -> None:
        """Another library has saved to this folder, on all workers."""
        self._wait_for_parts(folder)
        if self._checkpoints and self._gang.is_leader:
            self._checkpoints.adopt(folder, self.steps, self.notes)
            self._gang.saved(self.steps)
        self._record_saved(self.steps)

    @property
    def batch_size(self) -> int:
        return self._numbers[Field.BATCH_SIZE]

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        try:
            number = 0 if isinstance(size, bool) else int(size)
        except (TypeError, ValueError, OverflowError):
            number = 0
        if number != size or not 1 <= number <= _MAX_BATCH:
            raise ValueError(f"batch_size = {size!r}: expected a whole number from 1 to {_MAX_BATCH:,}")
        numbers = self._numbers
        if numbers[Field.BEGAN_NS] and size != numbers[Field.BATCH_SIZE]:
            self._short = 0 if self.steps - self._sized_at >= _SETTLED else self._short + 1
            self._sized_at = self.steps
            if self._short < 2 or self.steps - numbers[Field.BEGAN_AT] >= _WINDOW:  # the rate counts from here on
                numbers[Field.BEGAN_AT] = self.steps
                numbers[Field.BEGAN_NS] = numbers[LAST_NS]
        numbers[Field.BATCH_SIZE] = number

    def _current_step(self) -> int:
        return self.steps

    def _record_saved(self, steps: int) -> None:
        self._saved = steps
        self._numbers[Field.SAVED] = steps

    def _handle_due(self, steps: int, now: int) -> bool:
        numbers, due = self._numbers, self._due
        if not numbers[Field.BEGAN_NS]:
            numbers[Field.BEGAN_AT] = steps
            numbers[Field.BEGAN_NS] = now
        if self._gang.has_messages and (exit_step := self._gang.handle_messages()) is not None and due.exit_step == _NEVER:
            due.exit_step = exit_step
        if steps >= self._total:
            return True
        bounds = self._bounds()
        if self._central and self._gang.is_leader and due.exit_step == _NEVER:
            bounds = self._await_renewal(bounds, steps)
        if due.exit_step == _NEVER and self._is_over(bounds, steps, now):
            exit_step = self._gang.request_stop(steps)
            due.exit_step = _NEVER if exit_step is None else exit_step
        if steps >= due.exit_step:
            self.yielded = True
            return True
        if steps >= due.save_step or now >= due.save_ns:
            self._save_now()
            self._plan_save(monotonic_ns())
        wants_more = self._gang.is_leader and (steps >= bounds.ask_step or now >= bounds.ask_ns)
        numbers[Field.WANTS_MORE] = self._renewals + 1 if wants_more else 0
        due.step = min(due.exit_step, due.save_step, self._total, bounds.last_step if wants_more else bounds.ask_step)
        due.ns = min(due.save_ns, bounds.last_ns if wants_more else bounds.ask_ns)
        return False

    def _bounds(self) -> _Bounds:
        self._renewals = self._numbers[RENEWALS]
        return _Bounds.read(self._numbers, self._began_at, self._began_ns)

    def _await_renewal(self, bounds: _Bounds, steps: int) -> _Bounds:
        """Wait at the bounds for an answer: a renewal, or the end of the lease."""
        numbers = self._numbers
        while bounds.reached(steps, monotonic_ns()) and not numbers[REVOKED] and not self._gang.has_messages:
            numbers[Field.WANTS_MORE] = self._renewals + 1
            sleep(_ANSWER_POLL_S)
            bounds = self._bounds()
        return bounds

    def _is_over(self, bounds: _Bounds, steps: int, now: int) -> bool:
        """Only the leader checks the bounds. A revocation counts on every worker."""
        return (self._gang.is_leader and bounds.reached(steps, now)) or bool(self._numbers[REVOKED])

    def _plan_save(self, now: int) -> None:
        every = self._saving
        if every.save is not None and self._checkpoints and (self._gang.is_leader or every.every_rank):
            self._due.save_step = (self.steps // every.every_steps + 1) * every.every_steps if every.every_steps else _NEVER
            self._due.save_ns = now + int(every.every_s * 1e9) if every.every_s else _NEVER

    def _save_now(self) -> None:
        save, checkpoints, steps = self._saving.save, self._checkpoints, self.steps
        mine = self._gang.is_leader or self._saving.every_rank
        if save is None or checkpoints is None or not mine or self._saved == steps:
            return
        self._numbers[Field.STAGE] = Stage.SAVING
        draft = checkpoints.draft(steps)
        save(draft)
        if self._saving.every_rank:
            self._wait_for_parts(draft)
        if self._gang.is_leader:
            checkpoints.complete(draft, steps, self.notes)
            self._gang.saved(steps)
        self._record_saved(steps)
        self._numbers[Field.STAGE] = Stage.RUNNING

    def _wait_for_parts(self, folder: Path) -> None:
        """Wait for all workers' parts. The leader syncs the folder it sees; followers may be on other machines."""
        if not self._gang.is_leader:
            fsync_all(folder)
        self._gang.wait_for_parts(self.steps)
