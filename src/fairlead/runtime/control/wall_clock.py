"""Wall time that only goes forward: seconds since the start of the journal, by the monotonic clock; and a mark of when the
control plane last ran."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping

from fairlead.core.errors import InputError, JournalError
from fairlead.journal.control_files import ALIVE, ORIGIN, ControlFiles

SAME_ORIGIN_S = 60.0  # a smaller difference is the correction of the system time by NTP, which must not move recorded times


class WallClock:
    """Second 0 is `origin` in Unix time. It is set once from the system time, then follows the monotonic clock, so that
    changes of the system time have no effect. After a restart it begins no earlier than `not_before`."""

    def __init__(
        self,
        origin: float,
        not_before: float = 0.0,
        system_time: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._offset = max(system_time() - origin, not_before) - monotonic()

    def now(self) -> float:
        return self._offset + self._monotonic()


class AliveMark:
    """A file whose time says when a control plane last ran: after a crash, jobs of a node that never returns count as running
    until then. It contains the unreachable nodes. Without files nothing is marked."""

    def __init__(self, files: ControlFiles | None = None) -> None:
        self._files = files
        self._heard: dict[str, float] | None = None  # as last written: when each unreachable node was heard

    def last_s(self, origin: float) -> float:
        """The second of the last mark; 0 without one."""
        mark = self._files.listed().get(ALIVE) if self._files is not None else None
        return max(0.0, mark.used_s - origin) if mark is not None else 0.0

    def silent_s(self) -> dict[str, float]:
        """For how long each node has been silent that was unreachable at the last mark. A node is missing where that is not
        known, such as after a reboot of the machine: the time must not depend on when the system time is set."""
        if self._files is None:
            return {}
        name, now = self._files.clock()
        try:
            found = json.loads(self._files.read(ALIVE) or b"{}")
        except ValueError:
            return {}
        if not isinstance(found, dict) or not name or found.get("boot") != name or not isinstance(found.get("heard"), dict):
            return {}
        return {node: max(0.0, now - at) for node, at in found["heard"].items() if isinstance(at, (int, float))}

    async def keep(self, silent_s: Callable[[], Mapping[str, float]] = dict) -> None:
        """Mark every second, until cancelled, and list the unreachable nodes. A slow disk delays no agent: a thread writes."""
        if self._files is not None and self._files.version(ALIVE) is None:
            await asyncio.sleep(1.0)  # not before the journal begins: see `check_journal`
        while self._files is not None:
            await asyncio.to_thread(self.mark, silent_s())
            await asyncio.sleep(1.0)

    def mark(self, silent_s: Mapping[str, float]) -> None:
        """Mark now. A full disk or an unreachable database only makes the mark older."""
        if self._files is None:
            return
        with contextlib.suppress(OSError, JournalError):
            name, now = self._files.clock()
            heard = {node: round(now - seconds, 1) for node, seconds in silent_s.items()}
            if heard != self._heard or self._files.touch(ALIVE) is None:
                self._files.write(ALIVE, json.dumps({"boot": name, "heard": heard}).encode())
                self._heard = heard


def check_journal(files: ControlFiles, *, new: bool) -> None:
    """Refuse a new journal where a control plane has run before: the journal is lost."""
    if new and files.version(ALIVE) is not None:
        expected = "the journal of the control plane that ran here: restore a backup, or remove this file to begin anew"
        raise InputError(f"{files.where}/{ALIVE}", expected)


def origin_of(files: ControlFiles, journaled: float = 0.0, system_time: Callable[[], float] = time.time) -> float:
    """Return the Unix time of second 0: exactly the time in the journal, or in a file if that is 0. If the file is missing, it
    is created with that time or the present time. Until the machine reboots, a change of the system time by more than
    `SAME_ORIGIN_S` between two runs of a control plane moves second 0 along."""
    name, now = files.clock()
    content = files.read(ORIGIN)
    if content is None:
        age_s = system_time() - journaled if journaled else 0.0
        content = f"{system_time() - age_s!r} {name} {now - age_s!r}\n".encode()
        files.write(ORIGIN, content)
    text = content.decode(errors="replace")
    try:
        origin, *rest = text.split()
        found = system_time() - (now - float(rest[1])) if name and rest[:1] == [name] else float(origin)
        recorded = journaled or float(origin)
    except (ValueError, IndexError):
        found = recorded = math.nan
    if not math.isfinite(found):
        expected = "the start of the cluster's clock in Unix time; remove the file to use the time in the journal"
        raise InputError(f"{files.where}/{ORIGIN}", expected, field="origin", value=text[:80])
    return recorded if abs(found - recorded) < SAME_ORIGIN_S else found
