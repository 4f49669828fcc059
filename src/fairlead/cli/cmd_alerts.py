"""`fairlead alerts`: check an alert file, by messages to its addresses."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from fairlead.cli.output import JsonOption, out, print_json
from fairlead.core.errors import require
from fairlead.runtime.protocol.task_file import is_job_name

alerts_app = typer.Typer(help="Check an alert file and its addresses.", no_args_is_help=True, rich_markup_mode=None)
FAILED = 1


@alerts_app.callback()
def alerts_group() -> None:
    """Check an alert file and its addresses."""


@alerts_app.command("test")
def send_test(
    file: Path = typer.Argument(..., help="An alert file, as for serve --alerts."),
    user: str = typer.Option("", help="The user name for {user} in addresses.", show_default=False),
    json: JsonOption = False,
) -> None:
    """Send a test message to each address of an alert file, and print the outcome. No control plane is needed.

    Examples:

      fairlead alerts test alerts.yaml
      fairlead alerts test alerts.yaml --user ann

    Without --user, addresses with {user} are skipped. Exit codes: 0 all messages were accepted, 1 a message
    was not accepted, 2 the file is wrong.
    """
    from fairlead.config.alert_rules import read_alerts
    from fairlead.runtime.control.alert_delivery import AlertMessage, DeliveryFailed, create_channel

    require(not user or is_job_name(user), "--user", "a name of letters, digits, '.', '_' and '-'", "user", user)
    settings, results = read_alerts(file), []
    for target in settings.targets:
        if "{user}" in target and not user:
            results.append((target, "skipped", "pass --user NAME"))
            continue
        channel, now = create_channel(target, settings), time.time()
        text = f"This is a test of alerts from Fairlead, cluster {settings.name}."
        message = AlertMessage(f"test-{now:.6f}", "test", now, text, {}, user)
        try:
            refused = channel.send([message])
            results.append((channel.label, "failed" if refused else "sent", "the recipient was refused" if refused else ""))
        except DeliveryFailed as problem:
            results.append((channel.label, "failed", str(problem)))
    if json:
        print_json({"targets": [{"to": label, "outcome": outcome, "why": why} for label, outcome, why in results]})
    else:
        for label, outcome, why in results:
            out.print(f"{label}: {outcome}{f': {why}' if why else ''}", markup=False, highlight=False, soft_wrap=True)
    if any(outcome == "failed" for _, outcome, _ in results):
        raise typer.Exit(FAILED)
