"""Receivers of alerts on this machine: an HTTP server and a mail server, as threads. Both keep what they get, and can be slow,
refuse, or be away for a while."""

from __future__ import annotations

import base64
import contextlib
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0


def until(reached: Callable[[], Any]) -> Any:
    """What `reached` comes to say, once it says something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := reached()):
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.02)
    return found


class HookServer:
    """`with HookServer() as hook:` answers POST requests at `hook.url`."""

    def __init__(self, port: int = 0, certificate: tuple[Path, Path] | None = None) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []  # headers and bodies that were accepted
        self.statuses: list[int] = []  # of the next answers; then 204
        self.asked = 0
        self.open = threading.Event()  # cleared: requests are not answered
        self.open.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.asked += 1
                hook.open.wait(PATIENCE_S)
                status = hook.statuses.pop(0) if hook.statuses else 204
                if status < 300:
                    hook.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Location", "/elsewhere")
                    self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self._server.server_address[1]}/hook?secret=1"

    def __enter__(self) -> HookServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def alerts(self) -> list[dict[str, Any]]:
        return [alert for _, body in list(self.requests) for alert in json.loads(body)["alerts"]]


class MailServer:
    """`with MailServer() as server:` takes mail at `server.port`; with a certificate only after STARTTLS, with a login only
    after AUTH."""

    def __init__(self, certificate: tuple[Path, Path] | None = None, login: tuple[str, str] | None = None) -> None:
        self.mails: list[tuple[str, EmailMessage]] = []  # recipient and mail
        self.codes: list[int] = []  # of the next answers to RCPT; then 250
        self.hangs_up = False  # instead of an answer to QUIT
        mails, server = self.mails, self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                secured, known = certificate is None, login is None
                recipient = ""
                self.say("220 here")
                while line := self.rfile.readline():  # another file after STARTTLS
                    verb = line.split()[0].upper() if line.split() else b""
                    if verb == b"EHLO":
                        more = [] if secured else ["STARTTLS"]
                        self.say(*(f"250-{name}" for name in ("here", *more, "AUTH PLAIN")), "250 8BITMIME")
                    elif verb == b"STARTTLS" and certificate is not None:
                        self.say("220 go on")
                        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                        context.load_cert_chain(*certificate)
                        self.connection = context.wrap_socket(self.connection, server_side=True)
                        self.rfile, self.wfile, secured = (
                            self.connection.makefile("rb"),
                            self.connection.makefile("wb", 0),
                            True,
                        )
                    elif not secured:
                        self.say("530 STARTTLS first")
                    elif verb == b"AUTH":
                        given = base64.b64decode(line.split()[2]).decode().split("\0")[1:]
                        known = tuple(given) == login
                        self.say("235 welcome" if known else "535 no")
                    elif verb == b"QUIT":
                        if not server.hangs_up:
                            self.say("221 bye")
                        return
                    elif not known:
                        self.say("530 AUTH first")
                    elif verb == b"RCPT":
                        code = server.codes.pop(0) if server.codes else 250
                        recipient = line.partition(b"<")[2].partition(b">")[0].decode()
                        self.say(f"{code} so be it")
                    elif verb == b"DATA":
                        self.say("354 speak")
                        text = b""
                        while (one := self.rfile.readline()) != b".\r\n":
                            text += one.removeprefix(b".")
                        mails.append((recipient, message_from_bytes(text, policy=policy.default)))  # type: ignore[arg-type]
                        self.say("250 taken")
                    else:
                        self.say("250 fine")

            def say(self, *lines: str) -> None:
                self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    def __enter__(self) -> MailServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def texts(self) -> Iterator[str]:
        yield from (mail.get_content() for _, mail in self.mails)
