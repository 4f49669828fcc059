"""Draws docs/img/report-charts.png: the HTML report of a comparison, as headless Chromium shows it.

Run it in the repository after a change to the report: `.venv/bin/python docs/make_report_picture.py`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import fairlead

DOCS = Path(__file__).resolve().parent
sys.path.append(str(DOCS.parent / "tests"))

from browser import CHROMIUM  # noqa: E402

PICTURE = DOCS / "img" / "report-charts.png"
WIDTH, HEIGHT = 1280, 1965


def main() -> None:
    """Compare three policies on generated jobs, write the report, and take a picture of its upper part."""
    if CHROMIUM is None:
        sys.exit("no Chromium on this machine: install the package chromium")
    trace = fairlead.Generator(jobs=60, jobs_per_hour=8.0, workers="multiple", durations=(1800.0, 5400.0, 14400.0), users=4)
    result = fairlead.compare(trace, "16xv100:4", ["fifo", "las", "srtf"], processes=1)
    with tempfile.TemporaryDirectory() as folder:
        page = result.report(Path(folder) / "report.html", title="Three policies on the same 60 jobs")
        command = [CHROMIUM, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
        command += ["--virtual-time-budget=5000", f"--screenshot={PICTURE}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
