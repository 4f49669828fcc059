"""What the console costs a browser: first paint, and processor time of the page's main thread, in each view, at a real HTTP
server with a state of many nodes and jobs, of which so many change each second. Needs chromium.

    python benchmarks/console_page.py --nodes 5000 --jobs 10000 --changed 500

It prints JSON. Milliseconds of the main thread are processor time, so that other programs of the machine do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from console_feed import ManyJobs

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from browser import Browser

VIEWS = ("cluster", "timeline", "queue", "fairness", "scheduler", "whatif", "nodes")
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def measured(browser: Browser, seconds: float) -> dict[str, float]:
    """Milliseconds of the main thread in each second, and elements of the page."""
    before, began = browser.metrics()["TaskDuration"], time.monotonic()
    time.sleep(seconds)
    spent = browser.metrics()["TaskDuration"] - before
    elements = browser.run("document.querySelectorAll('*').length")
    return {"main_thread_ms_per_s": round(1000 * spent / (time.monotonic() - began), 1), "elements": elements}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=5000, help="of eight GPUs")
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--changed", type=int, default=500, help="jobs that start, stop, finish or arrive each second")
    options.add_argument("--seconds", type=float, default=15.0, help="that are measured in each view")
    given = options.parse_args()
    many, over = ManyJobs(given.nodes, given.jobs), threading.Event()

    def work() -> None:
        while not over.wait(1.0):
            many.change(given.changed)

    told: dict[str, Any] = {**vars(given), "load_average": os.getloadavg()[0]}
    with (
        many.serving(what_if=True) as (port, _, tokens),
        tempfile.TemporaryDirectory() as folder,
        Browser(Path(folder)) as browser,
    ):
        browser.open(f"http://127.0.0.1:{port}/")
        told["first_paint_ms"] = browser.wait(PAINT)
        browser.wait("!!document.querySelector('#token')")
        browser.type("#token", tokens[0])
        before, began = browser.metrics()["TaskDuration"], browser.run("performance.now()")
        browser.click("#sign-in button")
        browser.wait("document.querySelector('.tiles-box canvas')?.dataset.gpus > 0")
        told["signed_in_to_drawn_ms"] = round(browser.run("performance.now()") - began)
        told["signed_in_to_drawn_main_thread_ms"] = round(1000 * (browser.metrics()["TaskDuration"] - before))
        browser.open(f"http://127.0.0.1:{port}/?again")
        told["first_paint_again_ms"] = browser.wait(PAINT)
        browser.wait("document.querySelector('.tiles-box canvas')?.dataset.gpus > 0")
        thread, told["views"] = threading.Thread(target=work), {}
        thread.start()
        try:
            for view in VIEWS:
                browser.run(f"location.hash = '{view}'")
                browser.wait(f"document.querySelector('main').dataset.view === '{view}'")
                time.sleep(3.0)
                told["views"][view] = measured(browser, given.seconds)
        finally:
            over.set()
            thread.join()
        told["errors"] = [one for one in browser.errors if not one.startswith("Failed to load resource")]
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
