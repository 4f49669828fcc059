"""How the workers of a gang stop after one and the same step (Blox §7). Only the first worker is told that the lease is over.
It asks the others where they are (*prepare*); each answers with the steps it has done and holds before it would begin the
step after the one under way. Nobody can then be beyond the greatest answer plus one, so that is the step after which all
leave (*exit*). A worker that waits inside step i + 1 for the first one answers too, because a thread answers: training may be
synchronous or not.

    first to other    go · prepare · exit n · saved n · done n · broken why
    other to first    ready · at n · asks · wrote n · done n

`ready`: it has loaded; `go`: all have. `asks`: this worker's own page was revoked; please stop all. `wrote`: its part of the
checkpoint is on disk. `done`: it is through and will close the connection. A connection that ends without it breaks the gang,
and everybody else fails at the next step, or is ended where it hangs in a step for longer than the time-out. Messages are
lines of JSON; both sides prove that they know the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class GangBroken(RuntimeError):
    """Another worker has died, or does not answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """`start_s`: until all workers have come and loaded. `answer_s`: until a worker answers or, when the gang is broken, gets
    to the end of its step."""

    start_s: float = 300.0
    answer_s: float = 20.0


class Gang(Protocol):
    """`calls`: there is something to attend to. It is read in every step and costs nothing."""

    calls: bool
    first: bool

    def agree(self, steps: int) -> int:
        """Where all begin: where the first worker's latest checkpoint stands."""

    def ready(self) -> None:
        """This worker has loaded. Returns when all have."""

    def attend(self) -> int | None:
        """After `calls`: the step after which to leave, where that is known now."""

    def end_after(self, steps: int) -> int | None:
        """This worker's lease is over: the step after which to leave, or none where the first worker will tell."""

    def gather(self, steps: int) -> None:
        """All workers have written their parts of a checkpoint. Others than the first wait until it is whole."""

    def saved(self, steps: int) -> None:
        """There is a whole checkpoint."""

    def done(self, steps: int) -> None:
        """This worker is through. Others than the first wait until that one has saved and is through too."""

    def detach(self) -> None:
        """The script left its loop by itself: from now on no business of ours."""


class SingleWorker:
    """Nobody to tell. There may be others all the same, of whom the first one saves."""

    def __init__(self, first: bool = True) -> None:
        self.calls = False
        self.first = first

    def agree(self, steps: int) -> int:
        return steps

    def ready(self) -> None: ...

    def attend(self) -> int | None:
        return None

    def end_after(self, steps: int) -> int | None:
        return steps

    def gather(self, steps: int) -> None: ...

    def saved(self, steps: int) -> None: ...

    def done(self, steps: int) -> None: ...

    def detach(self) -> None: ...
