"""Delivery of alerts by webhook and mail. It knows messages and addresses, and neither jobs nor rules. A call blocks until the
other side has accepted the messages, or raises `DeliveryFailed`."""

from __future__ import annotations

import hashlib
import hmac
import smtplib
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import httpx
import orjson

from fairlead.config.alert_rules import AlertSettings, MailSettings, WebhookSettings
from fairlead.core import VERSION
from fairlead.core.errors import FairleadError

SIGNATURE = "Fairlead-Signature"
NEVER = (400, 413, 415, 422)  # the receiver refuses this message: it will refuse it again
MAX_SUBJECT = 120


class AlertMessage(NamedTuple):
    """One alert. `id` stays the same if it is sent again; `facts` are further fields of the webhook."""

    id: str
    on: str
    at: float  # Unix time
    text: str
    facts: Mapping[str, Any]
    user: str = ""  # whose job it is about

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a webhook."""
        at = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds")
        return {"id": self.id, "on": self.on, "at": at, "text": self.text, **self.facts}


class DeliveryFailed(FairleadError):
    """Messages were not accepted; with `again`, they may be later."""

    def __init__(self, why: str, *, again: bool) -> None:
        self.again = again
        super().__init__(why)


class AlertChannel(Protocol):
    """Delivers messages to one address."""

    kind: str  # webhook or mail
    label: str  # for logs; a webhook's path may be a secret
    batch: int  # messages in one delivery, at most

    def send(self, messages: Sequence[AlertMessage]) -> int:
        """Deliver messages; return how many of them were refused for ever. Raises `DeliveryFailed`: none was accepted; with
        `again`, the same messages are to be sent again."""
        ...


@dataclass
class Webhook:
    """POST of a JSON object. `text` makes it readable for Slack, Mattermost and similar programs."""

    url: str
    settings: WebhookSettings
    cluster: str
    kind = "webhook"
    batch = 100

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.label = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._verify = ssl.create_default_context(cafile=self.settings.ca_file or None)

    def send(self, messages: Sequence[AlertMessage]) -> int:
        """Post messages; an answer other than 2xx is a failure, and redirects are not followed."""
        text = "\n".join(message.text for message in messages)
        alerts = [message.to_json() for message in messages]
        body = orjson.dumps({"version": 1, "cluster": self.cluster, "text": text, "alerts": alerts})
        headers = {"Content-Type": "application/json", "User-Agent": f"fairlead/{VERSION}"}
        if self.settings.secret:
            headers[SIGNATURE] = signature(self.settings.secret, int(time.time()), body)
        try:
            with (
                httpx.Client(verify=self._verify, timeout=self.settings.timeout_s, follow_redirects=False) as client,
                client.stream("POST", self.url, content=body, headers=headers) as answer,  # its body is not read
            ):
                status = answer.status_code
        except (httpx.HTTPError, OSError, UnicodeError) as problem:  # the last one: a host name that is none
            raise DeliveryFailed(f"{type(problem).__name__}: {problem}"[:300], again=True) from None
        if 300 <= status < 400:
            raise DeliveryFailed(f"status {status}: redirects are not followed; use the address that it leads to", again=True)
        if not 200 <= status < 300:
            raise DeliveryFailed(f"status {status}", again=status not in NEVER)
        return 0


def signature(secret: bytes, at: int, body: bytes) -> str:
    """Return the value of the signature header: the HMAC-SHA256 of the time, a dot, and the body."""
    return f"t={at},v1={hmac.new(secret, b'%d.%b' % (at, body), hashlib.sha256).hexdigest()}"


@dataclass
class Mail:
    """Plain text by SMTP. `{user}` in the address is the user of the job."""

    address: str
    settings: MailSettings
    cluster: str
    kind = "mail"
    batch = 500
    _done: set[str] = field(default_factory=set)  # ids of messages that were sent, if others with them have to be sent again

    def __post_init__(self) -> None:
        self.label = f"mailto:{self.address}"
        self._verify = ssl.create_default_context(cafile=self.settings.ca_file or None)

    def send(self, messages: Sequence[AlertMessage]) -> int:
        """Send one mail to each recipient, with all messages for it."""
        by_recipient: dict[str, list[AlertMessage]] = {}
        for message in (one for one in messages if one.id not in self._done):
            by_recipient.setdefault(self.address.replace("{user}", message.user), []).append(message)
        refused = 0
        try:
            server = self._connected()
            try:
                for recipient, some in by_recipient.items():
                    refused += 0 if self._sent(server, recipient, some) else len(some)
                    self._done.update(one.id for one in some)
            finally:
                with suppress(OSError, smtplib.SMTPException):  # the server has accepted the mail already
                    server.quit()
                server.close()
        except (OSError, smtplib.SMTPException) as problem:
            raise DeliveryFailed(f"{type(problem).__name__}: {problem}"[:300], again=True) from None
        self._done.clear()
        return refused

    def _connected(self) -> smtplib.SMTP:
        about = self.settings
        if about.tls == "implicit":
            server: smtplib.SMTP = smtplib.SMTP_SSL(about.host, about.port, timeout=about.timeout_s, context=self._verify)
        else:
            server = smtplib.SMTP(about.host, about.port, timeout=about.timeout_s)
        try:
            if about.tls == "starttls":
                server.starttls(context=self._verify)
            if about.user:
                server.login(about.user, about.password)
        except BaseException:
            server.close()
            raise
        return server

    def _sent(self, server: smtplib.SMTP, recipient: str, messages: Sequence[AlertMessage]) -> bool:
        """Whether the server took the mail; one that it refuses for ever is not sent again."""
        try:
            server.send_message(self._mail(recipient, messages))
        except smtplib.SMTPRecipientsRefused as problem:
            if any(code < 500 for code, _ in problem.recipients.values()):
                raise
            return False
        except smtplib.SMTPResponseException as problem:
            if problem.smtp_code < 500 or isinstance(problem, smtplib.SMTPAuthenticationError):
                raise
            return False
        return True

    def _mail(self, recipient: str, messages: Sequence[AlertMessage]) -> EmailMessage:
        mail, first = EmailMessage(), messages[0].text
        subject = first if len(messages) == 1 else f"{len(messages)} alerts: {first}"
        mail["Subject"] = " ".join(f"[{self.cluster}] {subject}".split())[:MAX_SUBJECT]
        mail["From"], mail["To"], mail["Date"] = self.settings.sender, recipient, formatdate(localtime=True)
        digest = hashlib.sha256("\n".join((recipient, *(message.id for message in messages))).encode()).hexdigest()
        mail["Message-ID"] = f"<{digest[:32]}@{self.settings.sender.rpartition('@')[2]}>"  # the same if it is sent again
        mail["Auto-Submitted"] = "auto-generated"
        lines = [f"{datetime.fromtimestamp(one.at).astimezone():%Y-%m-%d %H:%M:%S %Z}  {one.text}" for one in messages]
        mail.set_content("\n".join(lines) + f"\n\nSent by Fairlead, cluster {self.cluster}.\n")
        return mail


def create_channel(target: str, settings: AlertSettings) -> AlertChannel:
    """Return the channel of an address."""
    if target.startswith("mailto:"):
        assert settings.mail is not None, "checked when the file was read"
        return Mail(target.removeprefix("mailto:"), settings.mail, settings.name)
    return Webhook(target, settings.webhook, settings.name)
