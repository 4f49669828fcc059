"""A headless Chromium, driven over a pipe by its own protocol: no driver has to be installed, and no port is opened. It notes
every request, and every error of the pages, including violations of their content policy."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 120.0
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PIPE_FLAGS = [
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Browser:
    """`with Browser(profile) as browser:` has one page open; the browser is gone afterwards."""

    def __init__(self, profile: Path, width: int = 1440, height: int = 900) -> None:
        self._profile, self._size = profile, (width, height)
        self._number, self._buffer, self._session = 0, b"", ""
        self.requests: list[str] = []
        self.errors: list[str] = []

    def __enter__(self) -> Browser:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()

        def streams() -> None:
            """Chromium reads commands from 3 and answers on 4."""
            first, second = os.dup(commands), os.dup(answers)
            os.dup2(first, 3)
            os.dup2(second, 4)

        words = [str(CHROMIUM), *FLAGS, *PIPE_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(words, preexec_fn=streams, close_fds=False, **quiet)  # type: ignore[call-overload]
        os.close(commands)
        os.close(answers)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Performance.setTimeDomain", timeDomain="threadTicks")  # processor time, whatever else the machine does
        for domain in ("Page", "Runtime", "Network", "Log", "Performance"):
            self.call(f"{domain}.enable")
        self.resize(*self._size)
        return self

    def __exit__(self, *problem: object) -> None:
        with contextlib.suppress(OSError):
            os.close(self._write)  # it ends with its pipe
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer; events that come meanwhile are noted."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser does not answer: {what}"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._buffer += more
        head, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(head)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, about: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            thrown = about["exceptionDetails"]
            self.errors.append(thrown.get("exception", {}).get("description") or thrown["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert", "warning"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'", url)

    def resize(self, width: int, height: int = 900, *, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"].get("exception", {}).get("description")
        return found["result"].get("value")

    def wait(self, script: str, what: str = "", also: Callable[[], object] = lambda: None) -> Any:
        """Waits until an expression is true in the page, and returns its value. What it reads may not be there yet."""
        deadline = time.monotonic() + PATIENCE_S
        careful = (
            f"(() => {{ try {{ return {script}; }} catch (e) {{ if (e instanceof TypeError) return false; throw e; }} }})()"
        )
        while not (found := self.run(careful)):
            assert time.monotonic() < deadline, (
                f"in vain: {what or script}\n{self.errors}\n{self.run('document.body.innerText')}"
            )
            also()
            time.sleep(0.1)
        return found

    def click(self, selector: str) -> None:
        """A click with the mouse, where the element is; again if the page moved or replaced it before the button was up."""
        chosen = json.dumps(selector)
        listen = f"""(() => {{
            const element = document.querySelector({chosen});
            element.scrollIntoView({{ block: "center" }});
            const box = element.getBoundingClientRect();
            window.clickArrived = false;
            const hear = (event) => {{ window.clickArrived ||= Boolean(event.target.closest?.({chosen})); }};
            addEventListener("click", hear, {{ capture: true, once: true }});
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""

        def clicked() -> bool:
            x, y = self.wait(listen, f"there is {selector}")
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            return bool(self.run("window.clickArrived !== false"))  # it is not defined on another page

        deadline = time.monotonic() + PATIENCE_S
        while not clicked():
            assert time.monotonic() < deadline, f"no click reaches {selector}"
            time.sleep(0.1)

    def type(self, selector: str, text: str) -> None:
        """Replaces what is in a field, as typed."""
        self.run(f"(() => {{ const f = document.querySelector({json.dumps(selector)}); f.focus(); f.select?.(); }})()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40, "ArrowRight": 39, "Escape": 27, "Backspace": 8}
        text = {"text": "\r"} if key == "Enter" else {}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], **text}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **about)

    def metrics(self) -> dict[str, float]:
        """The browser's own figures, such as TaskDuration: seconds of the main thread."""
        return {one["name"]: one["value"] for one in self.call("Performance.getMetrics")["metrics"]}

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
