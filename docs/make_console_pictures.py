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
    "console-job": ("job", 1024, 860, "dark"),
    "console-cluster-390": ("cluster", 390, 844, "light"),
    "console-timeline-390": ("timeline", 390, 844, "dark"),
    "console-fairness": ("fairness", 1024, 860, "light"),
}
DRAWN = {  # a forecast is simulated first
    "cluster": "document.querySelector('#queue-chart path')",
    "timeline": "document.querySelector('.canvas-box canvas').dataset.forecasts > 0",
    "queue": "[...document.querySelectorAll('#queue-table .row')].some((row) => /in [\\d.]+ \\w+ \\(/.test(row.textContent))",
    "job": "document.querySelector('#forecast dt')",
    "fairness": "document.querySelector('#ledger tbody')",
}
TRAIN = """
import sys, time
import fairlead
for step in fairlead.lease(range(int(sys.argv[1])), save=lambda folder: None, every_steps=20):
    print(f"step {step}: loss {1 / (1 + step):.4f}", flush=True)
    fairlead.report(loss=1 / (1 + step))
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
        browser.run(f"location.hash = '{f'job/{waiting}' if view == 'job' else view}'")
        browser.wait(f"document.querySelector('main').dataset.view === '{view}' && !!({DRAWN[view]})", view)
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
