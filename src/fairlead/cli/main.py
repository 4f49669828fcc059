"""The `fairlead` command. Every command is a thin layer over a study; names become objects here and nowhere below."""

from __future__ import annotations

import gc
import os
import select
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import typer

from fairlead import __version__
from fairlead.cli.command_classes import PanelCommand, PanelGroup, complete_values, usage_errors, write_help_text, write_panels
from fairlead.core.errors import FairleadError, NotInstalled, install, near_names

STYLE: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
}


class Entry(NamedTuple):
    """A command in the list of commands: its panel, its function or group, and the first sentence of its help."""

    panel: str
    target: str
    summary: str


_JOBS, _CLUSTER, _SIMULATE, _PROFILE = "Jobs", "Cluster", "Simulate", "Profile"
PANELS = (_JOBS, _CLUSTER, _SIMULATE, _PROFILE, "Other commands")

COMMANDS = {
    "submit": Entry(_JOBS, "fairlead.cli.cmd_submit:submit_command", "Submit jobs."),
    "queue": Entry(_JOBS, "fairlead.cli.cmd_jobs:queue_command", "List the jobs that have not ended."),
    "info": Entry(_JOBS, "fairlead.cli.cmd_jobs:info_command", "Show everything about jobs."),
    "logs": Entry(_JOBS, "fairlead.cli.cmd_jobs:logs_command", "Print the log of a job."),
    "why": Entry(_JOBS, "fairlead.cli.cmd_jobs:why_command", "Explain why a job waits, or why it failed."),
    "when": Entry(_JOBS, "fairlead.cli.cmd_when:when_command", "Forecast when jobs start and end."),
    "forecast-quality": Entry(
        _JOBS, "fairlead.cli.cmd_when:forecast_quality_command", "Compare past forecasts with what happened."
    ),
    "wait": Entry(_JOBS, "fairlead.cli.cmd_wait:wait_command", "Wait until jobs have ended; the exit code is their result."),
    "fetch": Entry(_JOBS, "fairlead.cli.cmd_wait:fetch_command", "Copy the declared outputs of jobs to this machine."),
    "cancel": Entry(_JOBS, "fairlead.cli.cmd_jobs:cancel_command", "Cancel jobs."),
    "hold": Entry(_JOBS, "fairlead.cli.cmd_control:hold_command", "Hold waiting jobs."),
    "release": Entry(_JOBS, "fairlead.cli.cmd_control:release_command", "Release held jobs."),
    "requeue": Entry(_JOBS, "fairlead.cli.cmd_control:requeue_command", "Put running or ended jobs back into the queue."),
    "update": Entry(
        _JOBS, "fairlead.cli.cmd_control:update_command", "Change the priority, time limit or other fields of jobs."
    ),
    "up": Entry(_CLUSTER, "fairlead.cli.cmd_cluster:up_command", "Run a cluster on this machine."),
    "serve": Entry(_CLUSTER, "fairlead.cli.cmd_cluster:serve_command", "Run the control plane of a cluster."),
    "agent": Entry(_CLUSTER, "fairlead.cli.cmd_cluster:agent_command", "Run the agent of this node."),
    "slurm": Entry(_CLUSTER, "fairlead.cli.cmd_slurm:slurm_app", "Use nodes of a Slurm cluster as nodes of Fairlead."),
    "ray": Entry(_CLUSTER, "fairlead.cli.cmd_ray:ray_app", "Use nodes of a Ray cluster as nodes of Fairlead."),
    "nodes": Entry(_CLUSTER, "fairlead.cli.cmd_nodes:nodes_app", "List, add and remove the nodes of the cluster."),
    "drain": Entry(_CLUSTER, "fairlead.cli.cmd_nodes:drain_command", "Drain nodes; their jobs resume on other nodes."),
    "undrain": Entry(_CLUSTER, "fairlead.cli.cmd_nodes:undrain_command", "Use drained nodes again."),
    "top": Entry(_CLUSTER, "fairlead.cli.cmd_top:top_command", "Show a live view of nodes, jobs and decisions."),
    "usage": Entry(_CLUSTER, "fairlead.cli.cmd_accounting:usage_command", "Show GPU time by user and account."),
    "history": Entry(_CLUSTER, "fairlead.cli.cmd_accounting:history_command", "List jobs that have ended."),
    "scheduler": Entry(_CLUSTER, "fairlead.cli.cmd_scheduler:scheduler_app", "Show or change the scheduler of a cluster."),
    "advise": Entry(_CLUSTER, "fairlead.cli.cmd_synthesize:advise_command", "Recommend a scheduler for a running cluster."),
    "rates": Entry(_CLUSTER, "fairlead.cli.cmd_trace:rates_app", "Export the throughputs that a cluster has measured."),
    "token": Entry(_CLUSTER, "fairlead.cli.cmd_tokens:token_app", "Manage API tokens."),
    "alerts": Entry(_CLUSTER, "fairlead.cli.cmd_alerts:alerts_app", "Check an alert file and its addresses."),
    "backup": Entry(
        _CLUSTER, "fairlead.cli.cmd_backup:backup_command", "Copy the journal of a control plane, with tokens and code."
    ),
    "restore": Entry(_CLUSTER, "fairlead.cli.cmd_backup:restore_command", "Restore a backup into a new root folder."),
    "demo": Entry(_SIMULATE, "fairlead.cli.cmd_demo:demo_command", "Show what Fairlead does, in under two minutes."),
    "simulate": Entry(_SIMULATE, "fairlead.cli.cmd_simulate:simulate_command", "Simulate one scheduler on one trace."),
    "compare": Entry(_SIMULATE, "fairlead.cli.cmd_compare:compare_command", "Compare schedulers on the same jobs."),
    "resimulate": Entry(
        _SIMULATE, "fairlead.cli.cmd_resimulate:resimulate_command", "Simulate a recorded run under other policies."
    ),
    "whatif": Entry(_SIMULATE, "fairlead.cli.cmd_whatif:whatif_command", "Simulate a cluster from now on with changes."),
    "shadow": Entry(
        _SIMULATE, "fairlead.cli.cmd_shadow:shadow_command", "Let a second scheduler decide next to the one in use."
    ),
    "synthesize": Entry(
        _SIMULATE, "fairlead.cli.cmd_synthesize:synthesize_command", "Choose the best scheduler every few rounds."
    ),
    "inference": Entry(_SIMULATE, "fairlead.cli.cmd_inference:inference_app", "Simulate inference with latency objectives."),
    "trace": Entry(_SIMULATE, "fairlead.cli.cmd_trace:trace_app", "Generate, convert, transform and check traces."),
    "report": Entry(_SIMULATE, "fairlead.cli.cmd_resimulate:report_command", "Write an HTML report of event logs."),
    "policies": Entry(
        _SIMULATE, "fairlead.cli.cmd_scheduler:policies_command", "List policies and other parts, or describe one."
    ),
    "presets": Entry(_SIMULATE, "fairlead.cli.cmd_scheduler:presets_app", "List the schedulers that ship with Fairlead."),
    "profile": Entry(_PROFILE, "fairlead.cli.cmd_profile:profile_app", "Measure training jobs on this machine's GPU."),
    "predict": Entry(_PROFILE, "fairlead.cli.cmd_predict:predict_app", "Predict GPU utilization, memory and co-location."),
}
"""The built-in commands by name, in the order of `--help`. A command's module is imported when the command is used."""

IN_PAPERS = {
    "reproduce": Entry(_SIMULATE, "", "Reproduce the evaluation of a paper."),
    "predict evaluate": Entry(_PROFILE, "", ""),
    "predict pairs": Entry(_PROFILE, "", ""),
    "inference mixes": Entry(_SIMULATE, "", ""),
}
"""Commands of the package fairlead-papers."""


def _added() -> dict[str, str]:
    """Return the commands of installed packages (entry points `fairlead.commands`); "predict pairs" is `pairs` of `predict`."""
    from importlib.metadata import entry_points  # slow to import

    return {entry.name: entry.value for entry in sorted(entry_points(group="fairlead.commands"), key=lambda entry: entry.name)}


def documentation_url() -> str:
    """Return the address of the documentation, or of the project, from the metadata of the package; empty without one."""
    from importlib.metadata import PackageNotFoundError, metadata  # slow to import

    with suppress(PackageNotFoundError):
        given = (line.partition(", ") for line in metadata("fairlead").get_all("Project-URL") or ())
        urls = {label.lower(): url for label, _, url in given}
        return urls.get("documentation") or next(iter(urls.values()), "")
    return ""


def commands() -> dict[str, Entry]:
    """Return all commands: the built-in ones, then those that installed packages add."""
    added = {name: target for name, target in _added().items() if name not in COMMANDS and " " not in name}
    known = {name: IN_PAPERS.get(name) or Entry(PANELS[-1], "", "") for name in added}
    return {**COMMANDS, **{name: known[name]._replace(target=target) for name, target in added.items()}}


class OnDemand(PanelGroup):
    """The group of all commands. A command is imported when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands())

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if url := documentation_url():
            write_help_text(f"Documentation: {url}", formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        for name, entry in commands().items():
            summary = entry.summary or self.get_command(ctx, name).get_short_help_str(80)
            rows.setdefault(entry.panel, []).append((name, summary))
        write_panels(rows.items(), formatter)

    def make_context(self, *args: Any, **how: Any) -> Any:
        with usage_errors():
            return super().make_context(*args, **how)

    def main(self, *args: Any, **how: Any) -> Any:
        try:
            return super().main(*args, **how)
        except SystemExit as end:  # typer ends with 1 where standard output was closed
            if isinstance(end.__context__, BrokenPipeError) and _reader_gone():
                _discard_output()
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            with usage_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would print nothing
            interrupted()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            near = " or ".join(f"'{name}'" for name in near_names(args[0], commands()))
            ctx.fail(f"no command '{args[0]}'. " + (f"Did you mean {near}?" if near else "'fairlead --help' lists them."))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in IN_PAPERS and cmd_name not in commands():
            return _in_papers(cmd_name)
        if cmd_name not in COMMANDS and cmd_name not in commands():
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _loaded(cmd_name, (COMMANDS.get(cmd_name) or commands()[cmd_name]).target)
        return self.commands[cmd_name]


DEFAULT_COMMANDS = {"nodes": "list"}
"""Groups in which one command needs no name: `fairlead nodes 'v100-*'` is `fairlead nodes list 'v100-*'`."""


class ExtensibleGroup(PanelGroup):
    """A group of commands to which installed packages add some."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        default = DEFAULT_COMMANDS.get(self.name or "")
        if default and (not args or args[0] not in (*self.list_commands(ctx), *ctx.help_option_names)):
            args = [default, *args]
        return list(super().parse_args(ctx, args))

    def list_commands(self, ctx: Any) -> list[str]:
        added = (name.removeprefix(f"{self.name} ") for name in _added() if name.startswith(f"{self.name} "))
        return [*super().list_commands(ctx), *(name for name in added if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        full = f"{self.name} {cmd_name}"
        if cmd_name not in self.commands and full in (added := _added()):
            return _loaded(cmd_name, added[full])
        if cmd_name not in self.commands and full in IN_PAPERS:
            return _in_papers(full)
        return super().get_command(ctx, cmd_name)


def _in_papers(name: str) -> Any:
    """Return a command that says how to install itself."""

    def missing(_: list[str] | None = typer.Argument(None)) -> None:
        raise NotInstalled(
            f"'fairlead {name}' needs the package fairlead-papers, which is not installed;"
            " run 'pip install ./papers' in a clone of Fairlead's repository"
        )

    alone = typer.Typer(add_completion=False)
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    alone.command(name.split()[-1], context_settings=settings)(missing)
    return typer.main.get_command(alone)


def interrupted() -> NoReturn:
    """End a command after Ctrl-C."""
    sys.stderr.write("fairlead: interrupted\n")
    sys.exit(130)


def _loaded(name: str, target: str) -> Any:
    """Import a command; its help has panels, and the shell completes its values."""
    module, _, attribute = target.partition(":")
    found = getattr(import_module(module), attribute)
    command: Any
    if isinstance(found, typer.Typer):
        found.rich_markup_mode, found.info.cls = None, ExtensibleGroup
        for each in found.registered_commands:
            each.cls = PanelCommand
        command = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False, **STYLE)
        alone.command(name, cls=PanelCommand)(found)
        command = typer.main.get_command(alone)
    command.name = name
    for each in (command, *getattr(command, "commands", {}).values()):
        complete_values(each)
    return command


app = typer.Typer(name="fairlead", cls=OnDemand, no_args_is_help=True, **STYLE)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


@app.callback()
def main(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version.")) -> None:
    """Fairlead schedules GPU clusters. Simulate a scheduler on a trace, then run the same scheduler on real nodes.

    Examples:

      fairlead simulate --policy las --report las.html     # simulate 200 jobs and write a report
      fairlead compare --policies fifo,srtf,las            # compare policies on the same jobs
      fairlead up                                          # run a cluster here; then: fairlead submit -- python train.py

    'fairlead COMMAND --help' shows the options of a command.

    Exit codes: 0 done, 1 the job or the check failed, 2 wrong usage or input, 3 not found, 4 refused or conflict,
    5 unreachable, 130 interrupted.
    """


_EXTRA = ("grpc", "fastapi", "uvicorn", "httpx", "starlette", "prometheus_client")
"""Modules of the extra `cluster`."""


_YOUNG = 50_000
"""New objects before Python searches for reference cycles. Jobs and events are many, live long and form no cycles: with the
default of 700, the search runs hundreds of times while a long trace is read, and throughout a simulation."""


def run() -> None:
    """Run the console script. An error that Fairlead raises is one line on standard error and the exit code of its class."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    try:
        try:
            app()
        finally:
            _flush()
    except FairleadError as error:
        _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        _fail(f"this command needs the module {error.name}: {install('cluster')}")
    except KeyboardInterrupt:
        interrupted()
    except BrokenPipeError as error:
        if not _reader_gone():
            _fail(str(error))
        _discard_output()
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}")
    except MemoryError:
        _fail("out of memory")


def _fail(problem: str, code: int = 2) -> NoReturn:
    """Print an error on one line and end with an exit code."""
    with suppress(BrokenPipeError):
        sys.stderr.write(f"fairlead: error: {one_line(problem)}\n")
        sys.stderr.flush()
    sys.exit(code)


def one_line(text: str) -> str:
    """Return a text on one line, without control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))


def _flush() -> None:
    """Write what is buffered while an error can still be handled."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _reader_gone() -> bool:
    """Return whether the reader of standard output or error has ended, as in `fairlead queue | head -1`."""
    poll = select.poll()
    for stream in (1, 2):
        poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard_output() -> NoReturn:
    """End without an error after the reader of the output has ended."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with suppress(OSError):
            os.dup2(nowhere, stream)
    sys.exit(0)


if __name__ == "__main__":
    run()
