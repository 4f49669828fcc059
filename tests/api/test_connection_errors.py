"""A connection to something that is no control plane, or that does not answer."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import fairlead
from fairlead.api.connection import JobHandle
from fairlead.core.errors import FairleadError, InputError
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest


@pytest.fixture(params=["<html></html>", "null", "[]", "{}", "[1]"])
def other_server(request) -> Iterator[str]:
    """A web server that answers every request with the same text."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(request.param.encode())

        def do_POST(self) -> None:  # as an older version answers a request that it does not have
            self.send_response(405)
            self.end_headers()
            self.wfile.write(b'{"detail": "Method Not Allowed"}')

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_server_is_not_taken_for_a_control_plane(other_server):
    connection = fairlead.connect(other_server, token="t")
    for request in (connection.jobs, connection.nodes, lambda: connection.job("a"), JobHandle(connection.client, "a", 1).wait):
        with pytest.raises(FairleadError, match="is not a Fairlead control plane"):
            request()


def test_an_older_control_plane_is_named(other_server):
    with pytest.raises(RefusedRequest, match="upgrade it to the version of this command"):
        ControlPlaneClient(other_server, "t").change_jobs("cancel", ["a"])


def test_waiting_ends_in_time_where_nothing_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ControlPlaneClient(f"http://127.0.0.1:{silent.getsockname()[1]}", "t", timeout_s=600.0)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="does not answer"):
            JobHandle(client, "a", 1).wait(timeout_s=0.2)
        assert time.monotonic() - began < 300, "not as long as one request may take"


@pytest.mark.parametrize("wrong", [{"timeout_s": math.nan}, {"timeout_s": -1}, {"poll_s": -1}, {"poll_s": math.nan}])
def test_times_to_wait_are_checked(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        JobHandle(ControlPlaneClient("http://127.0.0.1:9", "t"), "a", 1).wait(**wrong)


def test_an_address_is_text():
    with pytest.raises(InputError, match="'url' is 5"):
        fairlead.connect(5)
