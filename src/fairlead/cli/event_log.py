"""The file that `--events` asks for: there once the run is over, and until then what was there before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairlead.core.errors import JournalError
from fairlead.engine.journal import JsonlJournal


@contextmanager
def event_log(path: Path | None) -> Iterator[JsonlJournal | None]:
    """A journal to write, or none where none is asked for. A run that fails or is interrupted leaves no half of one behind."""
    if path is None:
        yield None
        return
    if path.exists() and not path.is_file():  # a pipe or a device cannot be put in place later
        yield JsonlJournal(path, fresh=True)
        return
    place = path.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    begun = place.with_name(f"{place.name}.part")
    journal = JsonlJournal(begun, fresh=True)
    try:
        yield journal
        journal.close()
        begun.replace(place)
    except BaseException:
        with suppress(JournalError):  # it is of no use any more
            journal.close()
        begun.unlink(missing_ok=True)
        raise
