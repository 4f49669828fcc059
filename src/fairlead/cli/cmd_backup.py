"""`fairlead backup` and `fairlead restore`: copies of an SQLite journal with its tokens and code."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from fairlead.cli.output import JsonOption, note, print_json
from fairlead.core.durations import parse_duration
from fairlead.core.errors import FairleadError, require

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def backup_command(
    target: Path = typer.Argument(..., help="A file; or a folder, where each backup gets a name with the time."),
    root: Path = typer.Option(Path(".fairlead"), help="The root folder of the control plane (--root of up or serve)."),
    journal: str = typer.Option("", help="The journal of the control plane. [default: ROOT/journal.sqlite]"),
    every: str = typer.Option("", help="Repeat the backup at this interval, as in 10m or 1h; TARGET is then a folder."),
    keep: int = typer.Option(24, help="With --every: how many backups to keep.", min=1),
    json: JsonOption = False,
) -> None:
    """Copy the journal with tokens and code into one file, also while the control plane runs.

    Examples:

      fairlead backup /backups/fairlead.tar
      fairlead backup /backups --every 10m --keep 24

    The command reads the copy again, to make sure that 'fairlead restore' can restore it. An existing file is replaced.
    Checkpoints and logs are not part of a backup. The file contains tokens: keep it private.
    """
    from fairlead.journal.backup import NAME, backup_record, remove_old_backups, write_backup

    interval_s = _interval_s(every) if every else 0.0
    require(not every or target.is_dir(), "backup", "a folder, with --every", "target", str(target))
    while True:
        begun = time.monotonic()
        stamp = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
        try:
            made = write_backup(root, journal, target / NAME.format(stamp) if target.is_dir() else target)
            if every:
                remove_old_backups(target, keep)
        except (FairleadError, OSError) as problem:
            if not every:
                raise
            note(f"backup failed: {problem}")
        else:
            age_s = time.time() - made.last_event
            if json:
                print_json(backup_record(made, age_s))
            else:
                typer.echo(f"{made.path}: {made.events:,} events, the last {_age(age_s)} old, and {made.files} files")
        if not every:
            return
        time.sleep(max(0.0, begun + interval_s - time.monotonic()))


def restore_command(
    backup: Path = typer.Argument(..., help="A file of 'fairlead backup'."),
    root: Path = typer.Option(Path(".fairlead"), help="The root folder to create; it must be empty."),
    json: JsonOption = False,
) -> None:
    """Restore a backup into a new root folder. Then start the control plane with this --root.

    Example:

      fairlead restore /backups/fairlead.tar --root /var/lib/fairlead
    """
    from fairlead.journal.backup import backup_record, restore_backup

    found = restore_backup(backup, root)
    age_s = time.time() - found.last_event
    if json:
        print_json(backup_record(found, age_s))
    else:
        typer.echo(f"{root}: restored {found.events:,} events, the last {_age(age_s)} old, and {found.files} files")


def _interval_s(text: str) -> float:
    try:
        interval_s = parse_duration(text)
    except ValueError:
        interval_s = 0.0
    require(interval_s > 0, "--every", "a duration, as in 10m or 1h", value=text)
    return interval_s


def _age(seconds: float) -> str:
    unit = next((name for name in ("d", "h", "m") if seconds >= 2 * _UNITS[name]), "s")
    return f"{max(0.0, seconds) / _UNITS[unit]:.0f} {unit}"
