"""A server with the console's contract and an invented cluster, to see the page at sizes that no test machine has."""

from __future__ import annotations

import json
import random
import threading
import time
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fairlead

PAGES = [Path(fairlead.__file__).parent / part / "page" for part in ("console", "reporting")]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)
KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
JOB_COLUMNS = [
    "number",
    "name",
    "user",
    "account",
    "job_type",
    "state",
    "gpus",
    "gpu_type",
    "devices",
    "submitted",
    "started",
    "ended",
    "priority",
    "weight",
    "reason",
    "progress",
    "launches",
    "preemptions",
]
NODE_COLUMNS = ["index", "name", "type", "gpus", "first", "state", "drain", "utilization", "memory_gb", "rack", "host"]
FEATURES = ["when", "fix", "whatif"]
USERS = ("ann", "bob", "cat", "dan", "eva")
REASONS = ("waiting-for-resources", "behind-head", "not-admitted", "next-decision")


PREDICTION = {
    "type": "v100",
    "memory_gb": {"predicted": 11.4, "measured": 12.5},
    "utilization": {"predicted": 38.0, "low": 31.0, "high": 44.0, "measured": 40.0},
    "steps_per_s": {"predicted": 9.7, "low": 8.1, "high": 11.6, "measured": None},
    "note": "it uses more memory",
}


class InventedCluster:
    """Nodes of three types with running, waiting and ended jobs; `step` changes a part of them."""

    def __init__(self, nodes: int, jobs: int, gpus: int = 8, seed: int = 0) -> None:
        self.draw, self.second, self.origin = random.Random(seed), 7200.0, time.time() - 7200.0
        self.types = ["v100", "p100", "a100-80g"]
        share = [nodes // 2, nodes // 2 + nodes // 4, nodes]
        self.nodes = [self._node(i, next(t for t, end in enumerate(share) if i < end), gpus) for i in range(nodes)]
        self.jobs: list[list[Any]] = []
        self.runs: list[dict[str, Any]] = []
        self.free: list[list[int]] = []  # GPUs of jobs that were stopped
        free = [place for node in self.nodes if node[5] == "up" for place in range(node[4], node[4] + gpus)]
        for number in range(jobs):
            self.jobs.append(self._job(number, free))
        if nodes < 100 and self.jobs:  # two jobs on the same GPUs
            running = [job for job in self.jobs if job[5] == "running"]
            running[1][8] = list(running[0][8])
        self.decisions = [self._decision(second) for second in (7100.0, 7160.0, 7190.0)]

    def _node(self, index: int, kind: int, gpus: int) -> list[Any]:
        state = {3: "drained", 17: "unreachable"}.get(index % 97, "up")
        use = [self.draw.choice((0.0, 35.0, 72.0, 96.0)) for _ in range(gpus)]
        drain = "memory errors" if state == "drained" else ""
        memory = [round(0.3 * one, 1) for one in use]
        host, rack = [50, 40, 30], f"rack-{index // 8}"
        return [index, f"node-{index:05d}", kind, gpus, index * gpus, state, drain, use, memory, rack, host]

    def _job(self, number: int, free: list[int]) -> list[Any]:
        now, wide = self.origin + self.second, self.draw.choice((1, 1, 2, 4, 8))
        submitted = now - self.draw.uniform(60, 7000)
        about = [number, f"train-{number:05d}", self.draw.choice(USERS), self.draw.choice(("vision", "speech")), "resnet50"]
        chance = self.draw.random()
        if chance < 0.55 and len(free) >= wide:
            devices, started = [free.pop(0) for _ in range(wide)], submitted + (now - submitted) * self.draw.random()
            if chance < 0.1:  # preempted once before
                self._run(number, about, wide, submitted + 10, submitted + (started - submitted) * 0.6)
            kind = self.nodes[devices[0] // self.nodes[0][3]][2]
            return [
                *about,
                "running",
                wide,
                kind,
                devices,
                submitted,
                started,
                None,
                0,
                1.0,
                "",
                self.draw.random(),
                1,
                int(chance < 0.1),
            ]
        if chance < 0.85:
            state = "held" if chance < 0.57 else "waiting"
            return [*about, state, wide, -1, [], submitted, None, None, 0, 1.0, self.draw.choice(REASONS), None, 0, 0]
        ended, state = submitted + (now - submitted) * 0.8, "failed" if chance > 0.98 else "finished"
        self._run(number, about, wide, submitted + 30, ended)
        return [*about, state, wide, -1, [], submitted, None, ended, 0, 1.0, "", 1.0, 1, 0]

    def _run(self, number: int, about: list[Any], gpus: int, start: float, end: float) -> None:
        names = dict(zip(("number", "name", "user", "account", "job_type"), about))
        self.runs.append(
            {**names, "number": number, "gpu_type": "v100", "gpus": gpus, "start": start, "end": max(end, start + 5)}
        )

    def _decision(self, second: float) -> dict[str, Any]:
        names = [job[1] for job in self.draw.sample(self.jobs, min(3, len(self.jobs)))]
        return {
            "second": second,
            "launched": {names[0]: ["node-00000"]},
            "suspended": names[1:2],
            "refused": [],
            "ended": names[2:],
        }

    def reset(self) -> dict[str, Any]:
        return {
            "epoch": "fake",
            "revision": 1,
            "second": self.second,
            "origin": self.origin,
            "types": self.types,
            "scheduler": {"label": "las", "parameters": {}},
            "job_columns": JOB_COLUMNS,
            "node_columns": NODE_COLUMNS,
            "jobs": self.jobs,
            "nodes": self.nodes,
            "decisions": self.decisions[::-1],
        }

    def step(self, seconds: float, jobs: int, nodes: int) -> dict[str, Any]:
        """As a busy cluster: some jobs progress, a few start and stop, some nodes report other loads."""
        self.second += seconds
        now, changed = self.origin + self.second, []
        for job in self.draw.sample(self.jobs, min(jobs, len(self.jobs))):
            if job[5] == "running" and self.draw.random() < 0.1:
                self.free.append(job[8])
                job[5:12] = ["waiting", job[6], -1, [], job[9], None, None]
            elif job[5] == "waiting" and (fit := next((some for some in self.free if len(some) == job[6]), None)):
                self.free.remove(fit)
                job[5:12] = ["running", job[6], self.nodes[fit[0] // self.nodes[0][3]][2], fit, job[9], now, None]
            elif job[5] == "running":
                job[15] = min(1.0, (job[15] or 0.0) + 0.01)
            changed.append(job)
        loads = self.draw.sample(self.nodes, min(nodes, len(self.nodes)))
        for node in loads:
            node[7] = [self.draw.choice((10.0, 50.0, 90.0)) for _ in range(node[3])]
        return {"second": self.second, "jobs": changed, "nodes": loads, "decisions": [self._decision(self.second)]}

    @cached_property
    def forecast(self) -> dict[str, Any]:
        def times(job: list[Any], stretch: float) -> list[float]:
            start = 0.0 if job[5] == "running" else stretch * (60 + 11 * (job[0] % 120))
            return [start, start + stretch * (120 + 7 * (job[0] % 60))]

        live = [job for job in self.jobs if job[5] in ("running", "waiting")]
        found = [
            {
                "number": job[0],
                "name": job[1],
                "running": job[5] == "running",
                "horizon_s": 1e6,
                "blocked": False,
                "without_arrivals": times(job, 1.0),
                "with_arrivals": [times(job, s) for s in (0.8, 1.1, 1.3, 1.6)],
            }
            for job in live
        ]
        return {"jobs": found, "completed": 5, "simulations": 4}

    def job(self, number: int) -> dict[str, Any]:
        """One job, in full: it was preempted, moved and resized, if it runs."""
        row = dict(zip(JOB_COLUMNS, self.jobs[number]))
        waits = row["state"] in ("waiting", "held")
        reason = {"code": row["reason"], "by": "las", "text": "Waiting for resources: needs 4 GPUs", "facts": {"needs": 4}}
        times = {"submitted_at": row["submitted"], "started_at": row["started"], "ended_at": row["ended"], "run_s": 600.0}
        return {
            **{name: row[name] for name in ("number", "name", "user", "account", "priority", "weight", "preemptions")},
            "kind": row["job_type"],
            "phase": row["state"],
            "workers": row["gpus"],
            "type": "v100",
            "nodes": ["node-00000"],
            "starts": 0 if waits else 4,
            "reason": reason if waits else None,
            "metrics": {"loss": 0.5},
            "prediction": None if waits else PREDICTION,
            **times,
        }

    def launches(self, number: int) -> list[dict[str, Any]]:
        if self.jobs[number][5] != "running":
            return []
        now, about = self.origin + self.second, {"number": number, "gpu_type": "v100", "nodes": ["node-00000"]}
        ends = [(4, 0.7, "preempted"), (4, 0.5, "moved"), (4, 0.3, "moved"), (2, 0.0, "")]
        begin, found = now - 3600, []
        for gpus, before, outcome in ends:
            end = now - 3600 * before
            run = {"gpus": gpus, "start": begin, "end": end, "outcome": outcome, "exit_code": None}
            found.append({**about, **run})
            begin = end + (300 if outcome == "preempted" else 0)
        return found

    def metrics(self, number: int) -> dict[str, Any]:
        """Curves with a gap while it was preempted, and steps that were done again afterwards."""
        if self.jobs[number][5] != "running":
            return {}
        now, draw = self.origin + self.second, random.Random(number)
        curves: dict[str, dict[str, list[Any]]] = {
            name: {"time": [], "step": [], "value": []}
            for name in ("accelerator_busy", "accuracy", "batch_size", "learning_rate", "loss")
        }

        def add(name: str, time: float, step: float, value: float | None) -> None:
            for key, one in (("time", time), ("step", step), ("value", value)):
                curves[name][key].append(one)

        step = 0.0
        for minute in range(60):
            at = now - 3600 + 60 * minute
            if 18 <= minute < 23:
                continue
            step = step - 120 if minute == 23 else step + 40
            add("loss", at, step, 0.4 + 6 / (1 + step / 150) + draw.gauss(0, 0.08))
            add("accuracy", at, step, None if minute == 40 else 0.8 - 0.7 / (1 + step / 400))
            add("learning_rate", at, step, 3e-4 * (1 - minute / 70))
            add("accelerator_busy", at, step, min(1.0, 0.86 + draw.gauss(0, 0.03)))
            if minute in (0, 31, 44):
                add("batch_size", at, step, {0: 64.0, 31: 128.0, 44: 256.0}[minute])
        return curves


FIX = {
    "starts": False,
    "changes": [
        {"kind": "fewer GPUs", "size": 2, "text": "submit it again with 2 GPUs instead of 4", "delays": []},
        {
            "kind": "priority",
            "size": 1,
            "text": "give it priority 1 instead of 0",
            "delays": [{"name": f"train-{n}", "user": "bob", "seconds": 60.0 * n if n < 7 else None} for n in range(1, 8)],
        },
        {"kind": "more GPUs", "size": 4, "text": "add a node with 4 × v100", "delays": None},
    ],
    "unsearched": ["jobs that would have to end"],
}


def what_if(cluster: InventedCluster, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """As the control plane answers: names that are not known are refused."""
    policy = request.get("scheduler", {}).get("policy", "")
    if policy == "lass":
        return 422, {"detail": "unknown policy 'lass'; did you mean 'las'?"}
    if "ghost" in request.get("remove", []):
        return 422, {"detail": "unknown node 'ghost'; there are: node-00000"}
    if request.get("add", "").startswith("x"):
        return 422, {"detail": f"what-if: field 'add' is '{request['add']}': expected nodes such as 16xh200:8"}
    draw = random.Random(1)

    def differs(name: str, gain: float, **more: Any) -> dict[str, Any]:
        difference = {"difference": -gain, "low": -gain - 40, "high": -gain + 40}
        return {"name": name, "jobs": 3, "control_s": 1800.0, "changed_s": 1800.0 - gain, **difference, **more}

    def side(label: str, stretch: float) -> dict[str, Any]:
        jobs = []
        for job in cluster.jobs[:24]:
            begin = 0.0 if job[5] == "running" else stretch * draw.uniform(60, 1500)
            end = begin + draw.uniform(200, 1500)
            runs = [{"start_s": begin, "end_s": end, "gpus": job[6], "nodes": ["node-00001"]}]
            if job[0] % 7 == 1:
                again = end + (300 if job[0] % 2 else 0)
                runs.append({"start_s": again, "end_s": again + 400, "gpus": job[6], "nodes": ["node-00002"]})
            jobs.append({"number": job[0], "name": job[1], "user": job[2], "runs": runs})
        later = [{"start_s": 900.0, "end_s": 1700.0, "gpus": 2, "nodes": ["node-00003"]}]
        jobs.append({"number": None, "name": "arrival-1", "user": "bob", "runs": later})
        return {"label": label, "jobs": jobs, "left_out": {"jobs": 0, "runs": 0}}

    def metric(control: float, changed: float, width: float) -> dict[str, Any]:
        ends = {"low": changed - control - width, "high": changed - control + width}
        return {"control": control, "changed": changed, "difference": changed - control, **ends}

    jobs = [differs(job[1], 200.0 - 25 * n, number=job[0], user=job[2]) for n, job in enumerate(cluster.jobs[:24])]
    return 200, {
        "metrics": {
            "average_jct_s": metric(2700.0, 2100.0, 300.0),
            "average_wait_s": metric(900.0, 840.0, 120.0),
            "utilization": metric(0.71, 0.78, 0.02),
            "preemptions": metric(4.0, 9.0, 2.0),
            "unfinished": metric(0.0, 0.0, 0.0),
        },
        "users": [differs(user, 300.0 - 150 * n) for n, user in enumerate(USERS)],
        "jobs": jobs,
        "starts_s": {"train-00002": [600.0, 60.0], "train-00004": [None, 30.0]},
        "scenarios": request.get("scenarios", 5),
        "guesses": ["the rate of 'bert' on h200 is assumed"],
        **({"timelines": [side("as it is", 1.0), side("changed", 0.6)]} if request.get("timelines") else {}),
    }


class FakeConsole(ThreadingHTTPServer):
    """`with FakeConsole(cluster) as server:` answers at `server.url`; each open page gets `rate` changes a second."""

    daemon_threads = True

    def __init__(self, cluster: InventedCluster, jobs: int = 100, nodes: int = 50) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cluster, self.changes, self.signed_in, self.stopping = cluster, (jobs, nodes), True, False
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.changed: list[tuple[str, str, bytes]] = []
        self.resumed: list[str] = []  # from where pages asked the stream to go on
        self.streams = 0
        self.cut = threading.Event()  # ends the streams that are open
        self.may_answer = threading.Event()  # what-ifs wait for it
        self.may_answer.set()

    def __enter__(self) -> FakeConsole:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.stopping = True
        self.may_answer.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """The routes that the page asks."""

    server: FakeConsole
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _send(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": POLICY}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        path, cluster = self.path.partition("?")[0], self.server.cluster
        if path == "/" or (path.startswith("/console/") and "." in path):
            name = path.rpartition("/")[2] or "index.html"
            file = next(folder / name for folder in PAGES if (folder / name).exists())
            return self._send(file.read_bytes(), KINDS[file.suffix[1:]])
        if not self.server.signed_in:
            return self._send(b'{"detail": "sign in"}', status=401)
        if path == "/v1/live":
            return self._send(b"", status=503) if self.server.cut.is_set() else self._stream()
        now = cluster.origin + cluster.second
        answers: dict[str, Any] = {
            "/console/session": {"user": "ann", "role": "admin", "cluster": "lab", "version": "1", "features": FEATURES},
            "/v1/runs": {"known_since": cluster.origin, "now": now, "runs": cluster.runs},
            "/v1/when": cluster.forecast if path == "/v1/when" else None,
            "/v1/usage": {
                "usage": [
                    {"user": u, "account": "vision", "jobs": 9, "accelerator_hours": 7.5 * n} for n, u in enumerate(USERS, 1)
                ]
            },
            "/v1/jobs": {"jobs": []},
            "/v1/scheduler": {
                "scheduler": {"policy": {"name": "las"}, "round_s": 60.0},
                "decision_error": "",
                "decisions": 120,
                "missed": 0,
                "preempting_policy": "las",
                "interference": {
                    "slow": [{"number": 7, "name": "slow", "slowdown": 1.8, "max_slowdown": 1.5, "for_s": 42.0}],
                    "pairs": [[{"number": 3, "name": "near"}, {"number": 4, "name": ""}]],
                    "slow_count": 1,
                    "pair_count": 1,
                    "separations": 2,
                    "last_took_s": 61.0,
                },
            },
        }
        if path == "/metrics":
            return self._send(
                b'fairlead_decision_seconds_bucket{le="0.1"} 90\nfairlead_decision_seconds_bucket{le="+Inf"} 100\n',
                "text/plain",
            )
        if path.startswith("/v1/jobs/"):
            answers[path] = self._job(cluster, *path.split("/")[3:])
        elif path == "/v1/runs" and "job=" in self.path:
            answers[path]["runs"] = cluster.launches(int(self.path.rpartition("=")[2]))
        found = answers.get(path)
        return self._send(json.dumps(found or {"detail": "none here"}).encode(), status=200 if found else 404)

    def _job(self, cluster: InventedCluster, number: str, part: str = "") -> dict[str, Any]:
        if part == "metrics":
            return {"number": int(number), "known_since": cluster.origin, "metrics": cluster.metrics(int(number))}
        log = {"text": "" if "offset=7" in self.path else "step 1\n", "next": 7, "over": True, "launch": 1, "launches": 4}
        return {"": cluster.job(int(number)), "fix": FIX, "logs": log}[part]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.changed.append((self.command, self.path, body))
        if self.path == "/v1/whatif":
            self.server.may_answer.wait()
            status, found = what_if(self.server.cluster, json.loads(body))
            return self._send(json.dumps(found).encode(), status=status)
        self.server.signed_in = self.path == "/console/sign-in" or self.server.signed_in
        self._send(b"{}")

    do_PUT = do_DELETE = do_PATCH = do_POST

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        cluster, revision, since = self.server.cluster, 1, self.path.partition("since=")[2]
        try:
            if since:
                self.server.resumed.append(since)
                revision = int(since.rpartition("%3A")[2])
            else:
                self._event("reset", revision, cluster.reset())
            self.server.streams += 1
            while not self.server.stopping and not self.server.cut.is_set():
                time.sleep(0.5)
                revision += 1
                self._event("change", revision, cluster.step(0.5, *self.server.changes))
        except OSError:
            pass  # the page has gone
        self.close_connection = True

    def _event(self, name: str, revision: int, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {name}\nid: fake:{revision}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()
