"""Draws docs/img/console-*.png: the console on a cluster of real processes with simulated GPUs, as headless Chromium shows it.

Run it in the repository after a change to the console: `.venv/bin/python docs/make_console_pictures.py`; it takes minutes."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from fairlead.runtime.embedded import embedded
from fairlead.runtime.http_client import ControlPlaneClient

DOCS = Path(__file__).resolve().parent
sys.path.append(str(DOCS.parent / "tests"))

from browser import Browser  # noqa: E402

CLUSTER = "8xv100:4,4xk80:4"
PICTURES = {  # by name: the view, its width and height, and the theme
    "console-cluster": ("cluster", 1440, 920, "light"),
    "console-timeline": ("timeline", 1440, 600, "light"),
    "console-queue": ("queue", 1024, 360, "light"),
    "console-job": ("job", 1024, 900, "dark"),
    "console-curves": ("curves", 1024, 640, "light"),
    "console-curves-390": ("curves", 390, 844, "light"),
    "console-whatif": ("whatif", 1440, 2100, "light"),
    "console-whatif-390": ("whatif", 390, 844, "dark"),
    "console-cluster-390": ("cluster", 390, 844, "light"),
    "console-timeline-390": ("timeline", 390, 844, "dark"),
    "console-fairness": ("fairness", 1024, 860, "light"),
}
DRAWN = {  # a forecast is simulated first
    "cluster": "document.querySelector('#queue-chart path')",
    "timeline": "document.querySelector('.canvas-box canvas').dataset.forecasts > 0",
    "queue": "[...document.querySelectorAll('#queue-table .row')].some((row) => /in [\\d.]+ \\w+ \\(/.test(row.textContent))",
    "job": "document.querySelector('#forecast dt') && document.querySelector('#fix tbody').textContent.includes(' by ')",
    "curves": "document.querySelector('#metrics path.line')",
    "whatif": "document.querySelector('#whatif-timelines canvas').dataset.bars > 0",
    "fairness": "document.querySelector('#ledger tbody')",
}
DONE = {  # before a picture, until it is drawn
    "job": "(() => { const b = document.querySelector('#fix button'); if (!b.disabled) b.click(); })()",
    "whatif": "(() => { const b = document.querySelector('#simulate'); if (!b.disabled) b.click(); })()",
}
SCROLLED = {"curves": "#metrics", "whatif": "#whatif-timelines"}
TRAIN = """
import random, sys, time
import fairlead
for step in fairlead.lease(range(int(sys.argv[1])), save=lambda folder: None, every_steps=20):
    loss = 0.4 + 2 / (1 + step / 40) + random.gauss(0, 0.03)
    print(f"step {step}: loss {loss:.4f}", flush=True)
    fairlead.report(loss=loss, accuracy=0.9 - 0.8 / (1 + step / 60), learning_rate=3e-4 * (1 - step / int(sys.argv[1])))
    time.sleep(0.25)
"""
JOBS = [  # name, user, account, steps, workers, job type
    ("bert-large", "ann", "nlp", 900, 2, "bert"),
    ("resnet50-a", "bob", "vision", 260, 1, "resnet50"),
    ("resnet50-b", "bob", "vision", 520, 1, "resnet50"),
    ("whisper", "cat", "speech", 700, 2, "whisper"),
    ("gpt-small", "ann", "nlp", 800, 2, "gpt"),
    ("vit-base", "dan", "vision", 700, 1, "vit"),
    ("unet", "dan", "vision", 300, 1, "unet"),
    ("t5-finetune", "ann", "nlp", 600, 2, "t5"),
    ("diffusion", "eva", "vision", 360, 4, "unet"),
    ("resnet50-c", "bob", "vision", 500, 1, "resnet50"),
    ("lm-sweep-1", "cat", "nlp", 400, 1, "gpt"),
    ("lm-sweep-2", "cat", "nlp", 160, 1, "gpt"),
    ("gpt-large", "eva", "nlp", 240, 8, "gpt"),
]


def main() -> None:
    """Run some users' jobs for a while, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "cluster"
        with embedded(root, "--cluster", CLUSTER, "--policy", "las", "--round", "20") as plane:
            users = {user: ControlPlaneClient(plane.url, token_of(user, root)) for user in sorted({job[1] for job in JOBS})}
            for name, user, account, steps, workers, kind in JOBS:
                task = {"name": name, "run": [sys.executable, "-c", TRAIN, str(steps)], "steps": steps, "workers": workers}
                users[user].submit([{**task, "kind": kind, "account": account, "directory": folder}])
                time.sleep(1.5)
            time.sleep(75)
            with Browser(Path(folder) / "profile") as browser:
                take(browser, plane, root / "admin.token")


def token_of(user: str, root: Path) -> str:
    """A token of a user."""
    command = [sys.executable, "-m", "fairlead.cli.main", "token", "add", user, "--account", "*", "--root", str(root)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def take(browser: Browser, plane: ControlPlaneClient, token: Path) -> None:
    """Sign in, and take each picture."""
    for name, (view, width, height, theme) in PICTURES.items():
        browser.resize(width, height, mobile=width < 500)
        browser.open(f"{plane.url}/?theme={theme}")
        browser.wait("['sign-in', 'cluster'].includes(document.querySelector('main').dataset.view)")
        if browser.run("document.querySelector('main').dataset.view") == "sign-in":
            browser.type("#token", token.read_text())
            browser.click("#sign-in button")
            browser.wait("document.querySelector('main').dataset.view === 'cluster'")
        live = [job for job in plane.jobs(all_users=True) if job["phase"] in ("running", "waiting")]
        waiting = max(live, key=lambda job: (job["phase"] == "waiting", job["workers"]))["number"]
        eventful = max(live, key=lambda job: (job["starts"], job["steps_done"] or 0))["number"]
        page = {"job": f"job/{waiting}", "curves": f"job/{eventful}"}.get(view, view)
        browser.run(f"location.hash = '{page}'")
        browser.wait(f"document.querySelector('main').dataset.view === '{page.partition('/')[0]}'")
        if view == "whatif":
            browser.run("document.querySelector('#whatif-kind').value = 'policy'")
            browser.run("document.querySelector('#whatif-kind').dispatchEvent(new Event('input'))")
            for field, value in {"policy": "srtf", "add": "8xv100:4", "scenarios": "3"}.items():
                browser.type(f"#whatif-{field}", value)
        browser.wait(f"!!({DRAWN[view]})", view, also=lambda view=view: view in DONE and browser.run(DONE[view]))  # type: ignore[misc]
        if view in SCROLLED and (width < 500 or view == "curves"):
            top = "document.querySelector('header').clientHeight + 10"
            browser.run(
                f"scrollTo(0, document.querySelector('{SCROLLED[view]}').getBoundingClientRect().top + scrollY - {top})"
            )
        elif view == "whatif":
            browser.run("scrollTo(0, 0)")
        time.sleep(1.5)
        path = DOCS / "img" / f"{name}.png"
        browser.picture(path)
        shrink(path)


def shrink(path: Path) -> None:
    """Store a picture with a palette: the pages have few colours."""
    buffer = io.BytesIO()
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    path.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    main()
