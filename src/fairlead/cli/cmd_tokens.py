"""`fairlead token`: API tokens, in the root of a control plane, or in the database of its journal. A running control plane sees
changes at once, or within a second."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.core.durations import parse_duration
from fairlead.core.errors import InputError, NotFound, require
from fairlead.core.job import is_account
from fairlead.runtime.protocol.task_file import is_job_name

if TYPE_CHECKING:
    from fairlead.runtime.control.tokens import Tokens

token_app = typer.Typer(help="Manage API tokens.", no_args_is_help=True, rich_markup_mode=None)
DEFAULT_ROOT = Path(".fairlead")
ROOT = typer.Option(
    DEFAULT_ROOT, help="The root folder of the control plane (--root of up or serve), here or in a folder above."
)
JOURNAL = typer.Option("", help="The URL of a PostgreSQL journal: its database has the tokens.")
NameOfToken = Annotated[str, typer.Argument(help="The name of the user, or of the node with --role node; any name for agents.")]


@token_app.command()
def add(
    name: NameOfToken,
    role: str = typer.Option("user", help="user (own jobs), admin (all), agent (any node), node (only NAME) or metrics."),
    account: str = typer.Option("", "--account", "--entity", help="The account of the user's jobs; '*': any."),
    expires: str = typer.Option("", help="How long the token is valid, as in 24h. [default: until it is revoked]"),
    uses: int | None = typer.Option(
        None, help="With --role agent: how many agents can get a credential with it. [default: any number]", min=1
    ),
    root: Path = ROOT,
    journal: str = JOURNAL,
    json: JsonOption = False,
) -> None:
    """Create a token and print it. Only its digest is stored.

    Examples:

      export FAIRLEAD_TOKEN=$(fairlead token add ann)
      fairlead token add rack-7 --role agent --expires 24h --uses 40
      fairlead token add prometheus --role metrics

    A user can have several tokens, such as one for each machine.
    """
    from fairlead.runtime.control.tokens import ANY, Role

    require(is_job_name(name), "token", "letters, digits, '.', '_' and '-'", "name", name)
    if role not in list(Role):
        raise InputError("token", " or ".join(Role), field="role", value=role)
    if account and account != ANY and not (is_account(account) and all(map(is_job_name, account.split("/")))):
        allowed = "letters, digits, '.', '_' and '-', as in research/vision; or '*' for any"
        raise InputError("token", allowed, field="account", value=account)
    require(uses is None or role == Role.AGENT, "token", "no --uses: only agent tokens are used up", "uses", uses)
    try:
        lasts_s = parse_duration(expires) if expires else None
    except ValueError as problem:
        raise InputError("token", str(problem), field="expires", value=expires) from None
    token = _tokens(root, journal).issue(Role(role), name, account, lasts_s=lasts_s, uses=uses)
    if json:
        print_json({"name": name, "role": role, "account": account, "token": token})
    else:
        typer.echo(token)


@token_app.command("list")
def list_tokens(root: Path = ROOT, journal: str = JOURNAL, json: JsonOption = False) -> None:
    """List all tokens with their users. An id is the beginning of the digest; tokens themselves are not stored."""
    found = _tokens(root, journal).listed()
    if json:
        keys = {"id": "id", "name": "user", "role": "role", "account": "account", "uses_left": "uses"}
        ends = [{"expires": one.expires or None} for one in found]
        print_json({"tokens": [{key: getattr(one, of) for key, of in keys.items()} | end for one, end in zip(found, ends)]})
        return
    limited = any(one.expires or one.uses is not None for one in found)
    table = Table("id", "name", "role", "account", *(("expires", "uses left") if limited else ()), box=box.SIMPLE)
    for one in found:
        expires = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.expires)) if one.expires else ""
        more = (expires, "" if one.uses is None else str(one.uses)) if limited else ()
        table.add_row(one.id, one.user, one.role, one.account, *more)
    out.print(table)


@token_app.command()
def revoke(
    name: str = typer.Argument(..., help="The name of a user or a node (all its tokens), or the id of a token."),
    role: str = typer.Option("", help="Revoke only tokens of this role. [default: of all roles]"),
    root: Path = ROOT,
    journal: str = JOURNAL,
    json: JsonOption = False,
) -> None:
    """Revoke tokens. They stop working at once, with --journal within two seconds; jobs of their user keep running.

    Examples:

      fairlead token revoke ann
      fairlead token revoke node-7     # its agent ends within a lease

    A revoked node can join again: remove the file 'credential' in its agent's --root, and start the agent with an agent token.
    """
    from fairlead.runtime.control.tokens import Role

    require(role in ("", *Role), "token", " or ".join(Role), "role", role)
    count = _tokens(root, journal).revoke(name, Role(role) if role else None)
    if not count:
        raise NotFound(f"no token of '{name}', or with this id: 'fairlead token list' shows them")
    if json:
        print_json({"revoked": count})
    else:
        note(f"{count} revoked")


def _tokens(root: Path, journal: str) -> Tokens:
    from fairlead.journal.recovery import control_files, is_postgres
    from fairlead.runtime.control.tokens import Tokens

    if journal and not is_postgres(journal):
        raise InputError("--journal", "postgresql://…; with other journals, pass --root", value=journal)
    if not journal and root == DEFAULT_ROOT:  # as other commands find a cluster
        above = (folder / root for folder in (Path.cwd(), *Path.cwd().parents))
        root = next((one for one in above if one.is_dir() and one.stat().st_uid == os.geteuid()), root)
    require(journal or root.is_dir(), root, "the root of a control plane that was started before", "root")
    return Tokens(control_files(root, journal))
