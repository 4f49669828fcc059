"""A wire that can be cut: it passes on what goes between agents and the control plane, until it does not."""

from __future__ import annotations

import contextlib
import socket
import threading


class Wire:
    """Listens on `port` and leads to another, or to a socket in the file system. While it is `cut`, bytes are swallowed and
    nobody is told, as on a network that loses everything, and whoever connects meanwhile gets nowhere. `mend` drops all of
    these."""

    def __init__(self, to: int | str) -> None:
        self._to, self._cut = to, False
        self._ends: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut = True

    def mend(self) -> None:
        self._drop()
        self._cut = False

    def close(self) -> None:
        self._listening.close()
        self._drop()

    def _drop(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self._ends.append(near)
                if self._cut:
                    continue
                try:
                    far = _connected(self._to)
                except OSError:
                    near.close()
                    continue
                self._ends.append(far)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._cut:
                    sink.sendall(data)
        if not self._cut:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)


def _connected(to: int | str) -> socket.socket:
    if isinstance(to, int):
        return socket.create_connection(("127.0.0.1", to))
    far = socket.socket(socket.AF_UNIX)
    far.connect(to)
    return far
