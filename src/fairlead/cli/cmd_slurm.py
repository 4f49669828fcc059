"""`fairlead slurm up`, `status` and `down`: nodes of a Slurm cluster as nodes of a Fairlead cluster."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli import options as opt
from fairlead.cli.job_info import local_time
from fairlead.cli.output import JsonOption, note, option_error, option_seconds, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.core.errors import FairleadError, InputError, require
from fairlead.runtime.drivers.slurm_pilot import (
    FAILED,
    WITHOUT_END,
    PilotRequest,
    SlurmPrograms,
    batch_script,
    error_in_output,
    output_file,
)
from fairlead.runtime.http_client import Unreachable

_ABOUT = (
    "Use nodes of a Slurm cluster as nodes of Fairlead.\n\nA pilot is a Slurm job that runs an agent on each of its nodes. "
    "You need no administrator. The control plane runs on a login node."
)
slurm_app = typer.Typer(help=_ABOUT, no_args_is_help=True, rich_markup_mode=None)
FOLDER = typer.Option(Path(".fairlead/slurm"), help="Folder for scripts and outputs; all nodes must share it.")
CONNECT_S = 5.0


@dataclass(frozen=True)
class SlurmOptions:
    """What Slurm is asked for."""

    panel = "Slurm"

    partition: str = typer.Option("", help="Partition. [default: Slurm's]")
    account: str = typer.Option("", help="Account. [default: Slurm's]")
    qos: str = typer.Option("", help="Quality of service. [default: Slurm's]")
    constraint: str = typer.Option("", help="Features that nodes must have.")
    type_name: str = typer.Option(
        "", "--type", help="GPU type, in Slurm (gpu:TYPE:N) and in Fairlead. [default: any; detected]"
    )
    cpus: int = typer.Option(0, help="CPUs of each node. [default: whole nodes]", min=0, show_default=False)
    memory: float = typer.Option(
        0.0, help="GB of memory of each node. [default: all; with --cpus, Slurm's]", min=0.0, show_default=False
    )
    sbatch: list[str] = typer.Option([], help="Another option of sbatch, as in --sbatch=--reservation=NAME; repeatable.")


@slurm_app.command("up")
@opt.option_groups
def up_pilot(
    *,
    nodes: int = typer.Option(1, help="Number of nodes.", min=1),
    gpus: int = typer.Option(..., help="Number of GPUs of each node.", min=1),
    time: str = typer.Option(..., help="Time limit of the pilot, as in 12h."),
    slurm: SlurmOptions,
    setup: list[str] = typer.Option([], help="A shell command, or a file, to run on each node before its agent; repeatable."),
    container: str = typer.Option("", help="Run the agent in a container, as in 'apptainer exec --nv image.sif'."),
    chain: str = typer.Option("1", help="Number of pilots, one after the other, or 'always' (until 'fairlead slurm down')."),
    overlap: str = typer.Option("10m", help="How long before the end of a pilot the next may start; 0: after its end."),
    control: str = typer.Option("", help="The control plane's address for agents. [default: port 7421 of this machine]"),
    token_file: Path = typer.Option(Path(".fairlead/agent.token"), help="A file with an agent token."),
    tls_ca: Path | None = typer.Option(None, help="The CA certificate (PEM) that signed the control plane's certificate."),
    insecure: bool = typer.Option(False, "--insecure", help="Allow agents without TLS. Tokens are then sent unencrypted."),
    folder: Path = FOLDER,
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the batch script, and submit nothing."),
    json: JsonOption = False,
) -> None:
    """Submit a pilot, a Slurm job that runs an agent on each of its nodes. The nodes join the cluster.

    Examples:

      fairlead slurm up --nodes 4 --gpus 8 --time 12h --tls-ca cert.pem
      fairlead slurm up --gpus 4 --type a100 --time 2h --partition gpu --account lab --setup 'module load cuda'
      fairlead slurm up --nodes 2 --gpus 8 --time 12h --chain always

    Start the control plane first: 'fairlead serve' in this folder. Shortly before the time of the pilot ends, its nodes are
    drained: jobs save checkpoints, and resume on the next pilot or on other nodes.
    Exit codes: 0 done, 4 refused by Slurm, 5 no Slurm, or no control plane.
    """
    from fairlead.runtime.protocol.network import check_encryption

    address = control or f"{os.uname().nodename}:7421"
    for one in address.split(","):
        check_encryption("--control", one.strip(), encrypted=tls_ca is not None, insecure=insecure, mend="--tls-ca")
    place = folder.absolute()
    request = PilotRequest(
        nodes,
        gpus,
        option_seconds("time", time),
        address,
        place,
        ["fairlead"] if container else [sys.executable, "-m", "fairlead.cli.main"],
        slurm.type_name,
        slurm.cpus,
        slurm.memory,
        {name: getattr(slurm, name) for name in ("partition", "account", "qos", "constraint")},
        slurm.sbatch,
        [f"source {shlex.quote(str(Path(line).absolute()))}" if Path(line).is_file() else line for line in setup],
        container,
        [*(["--tls-ca", str(tls_ca.absolute())] if tls_ca else []), *(["--insecure"] if insecure else [])],
        _following(chain),
        option_seconds("overlap", overlap),
    )
    if dry_run:
        sys.stdout.write(batch_script(request))
        return
    token = _token(token_file)
    _check_control(address)
    job = SlurmPrograms().submit(request, token)
    output = output_file(place, job)
    if json:
        print_json({"job": job, "nodes": nodes, "gpus": gpus, "script": str(request.script), "output": str(output)})
        return
    out.print(Text(f"pilot {job}: {nodes} × {gpus} GPUs for {time}; 'fairlead slurm status' shows it"), soft_wrap=True)
    note(f"script: {request.script}   output: {output}")


@slurm_app.command("status")
def pilot_status(folder: Path = FOLDER, json: JsonOption = False) -> None:
    """List the pilots of this folder, with their state in Slurm, how many nodes have joined, and when they end.

    Example:

      fairlead slurm status

    Exit codes: 0 done, 5 no Slurm.
    """
    place = folder.absolute()
    pilots = SlurmPrograms().pilots(place)
    known: list[dict[str, Any]] | None = None
    if pilots:
        try:
            known = control_plane().nodes()
        except FairleadError as problem:
            note(f"cannot find out which nodes have joined: {problem}")
    joined = {pilot.job: None if known is None else pilot.joined(known) for pilot in pilots}
    if json:
        print_json(
            {
                "pilots": [
                    {**asdict(one), "joined": joined[one.job], "output": str(output_file(place, one.job))} for one in pilots
                ]
            }
        )
        return
    if not pilots:
        note("no pilot waits or runs in this folder; 'fairlead slurm up' submits one")
        return
    table = Table("pilot", "state", "nodes", "joined", "start", "end", "reason", box=box.SIMPLE_HEAD)
    for one in pilots:
        counts = (str(one.nodes), "?" if joined[one.job] is None else str(joined[one.job]))
        table.add_row(*map(Text, (one.job, one.state.lower(), *counts, local_time(one.start), local_time(one.end), one.reason)))
    out.print(table)
    for one in pilots:
        if one.state in FAILED and (output := output_file(place, one.job)).exists():
            note(f"pilot {one.job} failed: {error_in_output(place, one.job) or 'no agent printed why'} (output: {output})")
        if one.state == "RUNNING" and joined[one.job] is not None and (joined[one.job] or 0) < one.nodes:
            note(f"pilot {one.job}: not all nodes have joined; the agents' messages are in {output_file(place, one.job)}")


@slurm_app.command("down")
def down_pilot(
    jobs: list[str] | None = typer.Argument(
        None, metavar="[PILOT]...", help="Numbers of pilots. [default: all, and the rest of the chain]"
    ),
    folder: Path = FOLDER,
    json: JsonOption = False,
) -> None:
    """End pilots, after their jobs have saved checkpoints. The jobs wait for other nodes, and the nodes leave the cluster.

    Examples:

      fairlead slurm down
      fairlead slurm down 4711

    The command returns when the pilots have ended. Exit codes: 0 done, 3 no such pilot, 5 no Slurm.
    """
    ended = SlurmPrograms().end(folder.absolute(), jobs or (), note)
    if json:
        print_json({"ended": ended})
    else:
        out.print(Text(f"ended: {', '.join(ended)}" if ended else "no pilot waits or runs in this folder"))


def _following(chain: str) -> int:
    """How many pilots follow the first."""
    if chain == "always":
        return WITHOUT_END
    if chain.isascii() and chain.isdecimal() and 1 <= int(chain) <= 10_000:
        return int(chain) - 1
    raise option_error("chain", "a number of pilots, or 'always'", chain)


def _token(path: Path) -> str:
    wanted = "an agent token, as 'fairlead serve' writes it to ROOT/agent.token (or pass --token-file)"
    require(path.is_file(), path, wanted)
    if path.stat().st_mode & 0o077:
        raise InputError(path, f"a file that only you can read: chmod 600 {path}")
    token = path.read_text().strip()
    require(token and token.isascii() and token.isprintable() and " " not in token, path, wanted)
    return token


def _check_control(addresses: str) -> None:
    """Refuse a pilot whose agents would find no control plane."""
    problem = ""
    for address in addresses.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
            return
        except OSError as failed:
            problem = failed.strerror or str(failed)
    serve = f"fairlead serve --agents {addresses.split(',')[0]} --tls-cert cert.pem --tls-key key.pem"
    raise Unreachable(f"no control plane at {addresses} ({problem}); start one: {serve}")
