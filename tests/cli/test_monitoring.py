"""The files of deploy/monitoring in a real Prometheus, which scrapes a real cluster: its rules load, and each query of the
dashboard has an answer."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cluster_up import cluster_up, until
from command import fairlead

from fairlead.files import atomic_write
from foundry import PATIENCE_S, free_port

pytestmark = pytest.mark.long

FILES = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
RULES, DASHBOARD = FILES / "alert-rules.yml", json.loads((FILES / "grafana-dashboard.json").read_text())
MISSING = "Prometheus is not installed (Debian: apt-get install prometheus)"
needs_prometheus = pytest.mark.skipif(not (shutil.which("prometheus") and shutil.which("promtool")), reason=MISSING)


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def queries() -> dict[str, str]:
    """The queries of the dashboard by panel and letter, as Grafana sends them."""
    found = {f"{one['title']} {target['refId']}": target["expr"] for one in panels() for target in one["targets"]}
    return {name: expr.replace("$job", "fairlead").replace("$__rate_interval", "1m") for name, expr in found.items()}


def test_the_dashboard_is_one_that_grafana_10_reads():
    assert DASHBOARD["schemaVersion"] >= 38
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used <= known, "every variable is defined"
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", "no data source of one installation"
        assert panel["targets"], panel["title"]
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    assert len(set(places)) == len(places), "panels that lie on each other"


@needs_prometheus
@pytest.mark.parametrize(
    "words", [("check", "rules", RULES), ("test", "rules", Path(__file__).with_name("alert-rules-test.yml"))]
)
def test_promtool_accepts_the_rules(words):
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_prometheus_scrapes_a_cluster_and_answers_every_query_of_the_dashboard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with cluster_up(tmp_path):
        token = fairlead("token", "add", "prometheus", "--role", "metrics")
        assert token.returncode == 0, token.stderr
        atomic_write(tmp_path / "fairlead.token", token.stdout.encode(), private=True)
        control_plane = json.loads((tmp_path / ".fairlead" / "connection.json").read_text())["url"].removeprefix("http://")
        config = yaml.safe_load((FILES / "prometheus.yml").read_text())
        shutil.copy(RULES, tmp_path)
        config["scrape_configs"][0]["static_configs"] = [{"targets": [control_plane]}]
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        options = (
            "--config.file=prometheus.yml",
            f"--web.listen-address={address}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
        )
        with (tmp_path / "prometheus.log").open("wb") as log:
            server = subprocess.Popen(["prometheus", *options], stdout=log, stderr=log)
        try:
            follow(tmp_path, server, f"http://{address}/api/v1")
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def follow(folder: Path, server: subprocess.Popen[bytes], api: str) -> None:
    def get(path: str, **query: str) -> Any:
        assert server.poll() is None, (folder / "prometheus.log").read_text()[-2000:]
        try:
            answer = httpx.get(f"{api}/{path}", params=query, timeout=PATIENCE_S)
        except httpx.TransportError:  # it has not started yet
            return None
        if answer.status_code == 503:
            return None
        assert answer.json()["status"] == "success", f"{query}: {answer.text}"
        return answer.json()["data"]

    def value(expr: str) -> float:
        """The sum of an expression that has a value; NaN if it has none yet."""
        found = get("query", query=expr)
        values = [float(one["value"][1]) for one in found["result"]] if found else []
        return sum(values) if values else math.nan

    until(lambda: value('up{job="fairlead"}') == 1, folder)
    for round_ in (1, 2):  # a series begins with its first job; Prometheus needs a second one to see a rate
        assert fairlead("submit", "--array", "0-3", "--", "true").returncode == 0
        until(lambda so_far=4 * round_: value("sum(fairlead_job_rho_count)") >= so_far, folder)
    unanswered = queries()

    def answered() -> bool:
        for name, expr in list(unanswered.items()):
            found = get("query", query=expr)
            if found and any(not math.isnan(float(one["value"][1])) for one in found["result"]):
                del unanswered[name]
        return not unanswered

    until(answered, folder)
    rules = [rule for group in get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(yaml.safe_load(RULES.read_text())["groups"][0]["rules"])
    until(lambda: all(rule["health"] == "ok" for group in get("rules")["groups"] for rule in group["rules"]), folder)
    # Rounds of one second may be late on a busy machine; then these alerts are right.
    others = "alertstate='firing',alertname!='FairleadRoundsMissed',reason!='late'"
    assert value(f"count(ALERTS{{{others}}}) or vector(0)") == 0, get("query", query="ALERTS")
