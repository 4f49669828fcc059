"""How the workers of a gang stop after the same step (Blox §7). Only the leader, worker 0, learns that the lease is over. It
asks the followers for their step (*prepare*). Each answers with the steps it has done and pauses before the step after the
current one. No worker can then be beyond the greatest answer plus one, so all leave after that step (*exit*). A thread answers,
also while the worker waits for the leader inside a step: training may be synchronous or not.

    leader to follower    go · prepare · exit n · saved n · done n · broken why
    follower to leader    ready · at n · asks · wrote n · done n

`ready`: it has loaded; `go`: all have. `asks`: its own page was revoked; stop all. `wrote`: its part of the checkpoint is on
disk. `done`: it has finished and will close the connection. A connection that ends without `done` breaks the gang: all other
workers fail at the next step, or are ended if they hang in a step for longer than the timeout. Messages are lines of JSON; both
sides prove that they know the token."""

from __future__ import annotations

from dataclasses import dataclass


class GangBroken(RuntimeError):
    """Another worker has died, or does not answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts of a gang. `start_s`: until all workers have connected and loaded. `answer_s`: until a worker answers or, when
    the gang is broken, finishes its step."""

    start_s: float = 300.0
    answer_s: float = 20.0


class Gang:
    """A worker's view of its gang; `has_messages` is read in every step and costs nothing. This class is a worker without
    coordination: there may be other workers, of which the first one saves."""

    def __init__(self, is_leader: bool = True) -> None:
        self.has_messages = False
        self.is_leader = is_leader

    def agree_on_start(self, steps: int) -> int:
        """The step at which all workers start: that of the leader's latest checkpoint."""
        return steps

    def ready(self) -> None:
        """This worker has loaded; returns when all workers have."""

    def handle_messages(self) -> int | None:
        """Handle new messages; returns the step after which to leave, if it is known."""
        return None

    def request_stop(self, steps: int) -> int | None:
        """This worker's lease is over; returns the step after which to leave, or None if the leader will send it."""
        return steps

    def wait_for_parts(self, steps: int) -> None:
        """Wait until all workers have written their parts of a checkpoint; a follower waits until it is complete."""

    def saved(self, steps: int) -> None:
        """A checkpoint is complete."""

    def done(self, steps: int) -> None:
        """This worker has finished. A follower waits until the leader has saved and finished too."""

    def detach(self) -> None:
        """The script left its loop by itself; the gang ends for this worker."""
