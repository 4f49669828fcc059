"""`fairlead scheduler show` and `set`: which scheduler decides on a running cluster, and another one without a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.cli.people import control_plane
from fairlead.config.scheduler import SchedulerConfig, parse_part
from fairlead.config.wall_time import read_scheduler, scheduler_of
from fairlead.core.errors import InputError
from fairlead.runtime.control.keepable import check_keepable

scheduler_app = typer.Typer(help="Show or change which scheduler decides on a cluster.", no_args_is_help=True)


@scheduler_app.command()
def show(json: JsonOption = False) -> None:
    """The scheduler that decides now. As the scheduler file that it is; and what keeps it from deciding, if anything does.

    Examples:

      fairlead scheduler show

      fairlead scheduler show > mine.yaml
    """
    plane = control_plane()
    _tell(scheduler_of(plane.scheduler()), json, plane.trouble())


@scheduler_app.command(name="set")
def set_(
    file: Annotated[Path | None, typer.Argument(help="A scheduler as YAML.")] = None,
    preset: Annotated[
        str, typer.Option("--preset", help="A scheduler that ships with Fairlead, in place of a file; see `fairlead presets`.")
    ] = "",
    policy: Annotated[str, typer.Option("--policy", help="Only another policy; see `fairlead policies`.")] = "",
    round_s: Annotated[
        float | None, typer.Option("--round", help="Only another length of rounds, in seconds.", min=0.1)
    ] = None,
    why: Annotated[str, typer.Option("--why", help="For the journal.")] = "",
    json: JsonOption = False,
) -> None:
    """Let another scheduler decide from the next round on. As in: fairlead scheduler set scheduler.yaml, or --policy srtf.

    Jobs go on; what the old policy remembered of them is forgotten, throughputs that were measured stay. A scheduler that
    cannot be made is refused with the reason, and the old one stays. With --policy or --round alone, everything else stays as
    it is.
    """
    from fairlead.cli.options import tell_unseen  # with what it brings; nobody else here needs it

    if file is None and not preset and not policy and round_s is None:
        raise InputError("scheduler set", "a scheduler file, --preset, --policy or --round")
    if file is not None and preset:
        raise InputError("scheduler set", "either a scheduler file or --preset", field="preset", value=preset)
    plane = control_plane()
    present = None if file is not None or preset else plane.scheduler()  # of which the rest stays
    asked = {"preset": preset} if preset else present or {}
    config = read_scheduler(file) if file is not None else scheduler_of(asked, "--preset" if preset else "scheduler")
    if policy:
        config = replace(config, policy=parse_part(policy), name="")
    if round_s is not None:
        config = config.with_rounds(round_s)
    check_keepable(config.to_data())
    tell_unseen(config)
    _tell(scheduler_of(plane.switch(config.to_data(), why, instead_of=present)), json)


def _tell(config: SchedulerConfig, json: bool, trouble: str = "") -> None:
    if json:
        print_json({"scheduler": config.to_data(), "trouble": trouble})
        return
    out.print(config.to_yaml(), end="", highlight=False, markup=False, soft_wrap=True)
    if trouble:
        note(f"it does not decide at present, what was decided last stands: {trouble}")
