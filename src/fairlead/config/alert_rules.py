"""Alert files: which alerts a control plane sends, and where to. Only an administrator writes them.

rules:
  - {on: job-failed, to: ["https://chat.example.org/hook"]}
  - {on: job-ended, accounts: [vision], to: ["mailto:{user}@example.org"]}
  - {on: silent-node, bound: 2m, repeat: 12h, to: ["mailto:operators@example.org"]}
webhook: {secret_file: webhook.secret}
mail: {host: smtp.example.org, from: fairlead@example.org, user: fairlead, password_file: mail.password}
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from fairlead.config.yaml_source import Value, read_yaml
from fairlead.core.durations import EXPECTED, parse_duration
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.job import with_parents

JOB_ENDED, JOB_FAILED, DEADLINE, UNFAIRNESS, SILENT_NODE = "job-ended", "job-failed", "deadline", "unfairness", "silent-node"
KINDS = (JOB_ENDED, JOB_FAILED, DEADLINE, UNFAIRNESS, SILENT_NODE)
MAX_TARGETS, MAX_TIMEOUT_S = 32, 3600.0
TLS = ("starttls", "implicit", "none")
DEFAULT_BOUNDS = {DEADLINE: 0.0, UNFAIRNESS: 0.2, SILENT_NODE: 60.0}
_MAIL = re.compile(r"mailto:(?:[\w.+-]|\{user\})+@[\w.-]+", re.ASCII)
_TARGET = "https://… (http:// only on this machine) or mailto:NAME@HOST"


@dataclass(frozen=True)
class AlertRule:
    """When to send an alert, and to which addresses. `bound` is in seconds, or for unfairness a share of the deserved time."""

    on: str
    to: tuple[str, ...]
    users: frozenset[str] = frozenset()  # empty: all
    accounts: frozenset[str] = frozenset()
    bound: float = 0.0
    repeat_s: float = math.inf  # while the condition lasts

    def covers(self, user: str, account: str) -> bool:
        """Return whether the rule is about jobs of this user and account; an account has those below it."""
        return (not self.users or user in self.users) and (not self.accounts or self.account_for(account) in self.accounts)

    def account_for(self, account: str) -> str:
        """Return the account of the rule that this one belongs to, or itself."""
        return next((one for one in with_parents(account) if one in self.accounts), account)


@dataclass(frozen=True)
class WebhookSettings:
    """How webhooks are sent; requests are signed if there is a secret."""

    secret: bytes = field(default=b"", repr=False)
    timeout_s: float = 10.0
    ca_file: str = ""  # empty: the authorities of the system


@dataclass(frozen=True)
class MailSettings:
    """The mail server."""

    host: str
    sender: str
    port: int = 587
    user: str = ""
    password: str = field(default="", repr=False)
    tls: str = "starttls"
    timeout_s: float = 20.0
    ca_file: str = ""


@dataclass(frozen=True)
class AlertSettings:
    """The content of an alert file. `name` names the cluster in messages."""

    rules: tuple[AlertRule, ...]
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    mail: MailSettings | None = None
    name: str = field(default_factory=socket.gethostname)

    @property
    def targets(self) -> tuple[str, ...]:
        """All addresses, each once."""
        return tuple(dict.fromkeys(target for rule in self.rules for target in rule.to))


def read_alerts(path: Path) -> AlertSettings:
    """Return the alerts that a file describes, with the secrets that it names. Raises `InputError`: the file is wrong."""
    root = read_yaml(path)
    fields = root.mapping(("name", "rules", "webhook", "mail"))
    if "rules" not in fields:
        raise InputError(path, "rules: a list of alerts", field="rules")
    rules = tuple(_rule(value) for value in fields["rules"].items())
    if not rules:
        raise fields["rules"].error("at least one rule")
    webhook = _webhook(fields["webhook"], path) if "webhook" in fields else WebhookSettings()
    mail = _mail(fields["mail"], path) if "mail" in fields else None
    name = fields["name"].text("a name of the cluster") if "name" in fields else socket.gethostname()
    found = AlertSettings(rules, webhook, mail, name)
    if mail is None and any(target.startswith("mailto:") for target in found.targets):
        raise InputError(path, "mail: {host: …, from: …}, because a rule sends mail", field="mail")
    if len(found.targets) > MAX_TARGETS:
        raise fields["rules"].error(f"at most {MAX_TARGETS} addresses; mailto:{{user}}@HOST is one for all users")
    return found


def _rule(value: Value) -> AlertRule:
    fields = value.mapping(
        ("on", "to", "users", "accounts", "bound", "repeat"), renamed={"True": "on"}
    )  # YAML reads on as true
    for name in ("on", "to"):
        if name not in fields:
            raise InputError(value.source, f"'{name}' in each rule", line=value.line, field=value.field)
    kind = replace(fields["on"], field="on")
    on = kind.text("a kind of alert")
    if on not in KINDS:
        raise kind.error(f"a kind of alert ({near_or_all(on, KINDS)})")
    refused = [*(("bound", "repeat") if on in (JOB_ENDED, JOB_FAILED) else ())]
    refused += ["users", "accounts"] if on == SILENT_NODE else []
    for name in refused:
        if name in fields:
            raise InputError(value.source, f"no '{name}' in a rule on {on}", line=fields[name].line, field=name)
    targets = tuple(_target(one, per_user=on not in (SILENT_NODE, UNFAIRNESS)) for one in fields["to"].items())
    if not targets:
        raise fields["to"].error(f"at least one address: {_TARGET}")
    names = {
        key: frozenset(one.text("a name") for one in fields[key].items()) for key in ("users", "accounts") if key in fields
    }
    if on == UNFAIRNESS:
        if len(names) > 1:
            raise value.error("either 'users' or 'accounts' in a rule on unfairness")
        bound = fields["bound"].number("a share from 0 to 1, as in 0.2", most=1.0) if "bound" in fields else DEFAULT_BOUNDS[on]
    else:
        bound = _duration(fields["bound"]) if "bound" in fields else DEFAULT_BOUNDS.get(on, 0.0)
    repeat_s = _duration(fields["repeat"], least=60.0) if "repeat" in fields else math.inf
    return AlertRule(on, targets, bound=bound, repeat_s=repeat_s, **names)


def _target(value: Value, *, per_user: bool) -> str:
    target = value.text(_TARGET)
    if target.startswith("mailto:"):
        if not _MAIL.fullmatch(target):
            raise value.error("mailto:NAME@HOST, where NAME may have {user} in it")
        if "{user}" in target and not per_user:
            raise value.error("an address without {user}: this alert is not about one job")
        return target
    try:
        parts = urlsplit(target)
        valid = bool((parts.hostname or "").encode("idna")) and (parts.port is None or parts.port > 0)
        valid = valid and target.isascii() and target.isprintable()
    except ValueError:
        valid = False
    if not valid or " " in target or parts.scheme not in ("https", "http"):
        raise value.error(_TARGET)
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise value.error("https://…: http:// is only for servers on this machine")
    return target


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _timeout(value: Value) -> float:
    if (seconds := _duration(value, 0.1)) > MAX_TIMEOUT_S:
        raise value.error(f"at most {MAX_TIMEOUT_S:g} s")
    return seconds


def _duration(value: Value, least: float = 0.0) -> float:
    try:
        seconds = parse_duration(value.data)
    except ValueError:
        seconds = math.nan
    if not least <= seconds < math.inf:
        raise value.error(EXPECTED if not least else f"{EXPECTED}, of at least {least:g} s")
    return seconds


def _webhook(value: Value, path: Path) -> WebhookSettings:
    fields = value.mapping(("secret_file", "timeout", "ca_file"))
    secret = _secret(fields["secret_file"], path).encode() if "secret_file" in fields else b""
    timeout_s = _timeout(fields["timeout"]) if "timeout" in fields else WebhookSettings.timeout_s
    return WebhookSettings(secret, timeout_s, _authority(fields, path))


def _mail(value: Value, path: Path) -> MailSettings:
    fields = value.mapping(("host", "port", "from", "user", "password_file", "tls", "timeout", "ca_file"))
    for name in ("host", "from"):
        if name not in fields:
            raise InputError(value.source, f"'{name}' of the mail server", line=value.line, field="mail")
    host, sender = fields["host"].text("the name of a mail server"), fields["from"].text("a mail address")
    try:
        host.encode("idna")
    except UnicodeError:
        raise fields["host"].error("the name of a mail server") from None
    if not _MAIL.fullmatch(f"mailto:{sender}") or "{" in sender:
        raise fields["from"].error("a mail address, as in fairlead@example.org")
    tls = fields["tls"].text("how mail is encrypted") if "tls" in fields else "starttls"
    if tls not in TLS:
        raise fields["tls"].error(" or ".join(TLS))
    if tls == "none" and not _is_loopback(host):
        raise fields["tls"].error("starttls or implicit: none is only for a mail server on this machine")
    user = fields["user"].text("a user of the mail server") if "user" in fields else ""
    if ("user" in fields) != ("password_file" in fields):
        raise value.error("both 'user' and 'password_file', or none of them")
    port = fields["port"].whole("a port", 1) if "port" in fields else 465 if tls == "implicit" else MailSettings.port
    if port > 65535:
        raise fields["port"].error("a port, from 1 to 65535")
    return MailSettings(
        host,
        sender,
        port,
        user,
        _secret(fields["password_file"], path) if "password_file" in fields else "",
        tls,
        _timeout(fields["timeout"]) if "timeout" in fields else MailSettings.timeout_s,
        _authority(fields, path),
    )


def _authority(fields: dict[str, Value], path: Path) -> str:
    if "ca_file" not in fields:
        return ""
    found = path.parent / fields["ca_file"].text("a file of certificates (PEM)")
    try:
        ssl.create_default_context(cafile=str(found))
    except OSError:
        raise fields["ca_file"].error("a file of certificates (PEM)") from None
    return str(found)


def _secret(value: Value, path: Path) -> str:
    """The content of a file next to the alert file."""
    try:
        secret = (path.parent / value.text("a file with a secret")).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise value.error(f"a readable file ({getattr(problem, 'strerror', '') or 'not text'})") from None
    if not secret:
        raise value.error("a file with a secret; it is empty")
    return secret
