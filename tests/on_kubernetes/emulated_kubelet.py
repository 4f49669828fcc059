"""A kubelet with real processes and without containers, for the tests: it registers nodes, runs the command of each Pod that is
bound to one of them, reports its state, ends it when it is deleted, and serves its output to the API server.

It has no images, no namespaces and no volumes: an image whose name begins with `missing` cannot be pulled, and paths of volumes
become folders. As of the real one, processes of a force-deleted Pod end some time after it is gone."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from kubernetes_bed import ADMIN, DEADLINE_S, KubernetesBed

from certificates import certificates
from fairlead.core.errors import FairleadError
from fairlead.runtime.drivers.kubernetes_api import CONFLICT, ApiAccess, ApiStatus, KubernetesApi, Mirror

GPU = "nvidia.com/gpu"
MERGE = "application/merge-patch+json"


class EmulatedKubelet:
    """`with EmulatedKubelet(bed, {"n1": 4}) as kubelet:` for nodes with numbers of GPUs."""

    def __init__(self, bed: KubernetesBed, nodes: Mapping[str, int], product: str = "Tesla-V100-SXM2-16GB") -> None:
        self.bed, self.nodes, self.product = bed, dict(nodes), product
        self.folder = Path(tempfile.mkdtemp(prefix="kubelet-", dir=bed.folder))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}  # by uid of a Pod
        self.started: list[str] = []  # names of Pods, once for each process
        self.forced_s: Callable[[], float] = lambda: 1.0  # from the disappearance of a Pod to the end of its processes
        self._ended: set[str] = set()  # uids of Pods that were deleted: they start nothing any more
        self._pods: dict[str, dict[str, Any]] = {}  # by uid
        self._lock = threading.Lock()
        access = ApiAccess(bed.server, ssl.create_default_context(cafile=str(bed.ca)), token=ADMIN)
        self._api = KubernetesApi(access)
        self._mirror = Mirror(self._api, "/api/v1/pods", {}, self._list, self._event, lambda: None)
        self._logs = self._log_server()

    def __enter__(self) -> EmulatedKubelet:
        resources = {"cpu": "64", "memory": "256Gi", "pods": "500"}
        for name, gpus in self.nodes.items():
            labels = {"nvidia.com/gpu.product": self.product, "kubernetes.io/hostname": name}
            self.bed.ask("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
            self.node_status(
                name,
                capacity={**resources, GPU: str(gpus)},
                allocatable={**resources, GPU: str(gpus)},
                conditions=[{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                addresses=[{"type": "InternalIP", "address": "127.0.0.1"}],
                daemonEndpoints={"kubeletEndpoint": {"Port": self._logs.server_port}},
            )
            # The taint "not-ready" of new nodes; a controller removes it elsewhere.
            self.bed.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, **{"Content-Type": MERGE})
        threading.Thread(target=self._mirror.run, daemon=True).start()
        threading.Thread(target=self._logs.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._mirror.closed = True
        self._logs.shutdown()
        self._logs.server_close()
        with self._lock:
            started = list(self.processes.values())
        for process in started:
            _signal(process, 9)
            process.wait(DEADLINE_S)
        self._api.close()
        for name in self.nodes:
            with contextlib.suppress(AssertionError, OSError, httpx.HTTPError):
                self.bed.ask("DELETE", f"/api/v1/nodes/{name}")

    def node_status(self, name: str, **status: Any) -> None:
        """Change the status of a node."""
        self.bed.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, **{"Content-Type": MERGE})

    # Pods.

    def _list(self, pods: list[dict[str, Any]]) -> None:
        for pod in pods:
            self._event("MODIFIED", pod)

    def _event(self, kind: str, pod: dict[str, Any]) -> None:
        about, node = pod["metadata"], pod["spec"].get("nodeName")
        if node not in self.nodes:
            return
        with self._lock:
            known = about["uid"] in self._pods
            self._pods[about["uid"]] = pod
            if kind == "DELETED" or "deletionTimestamp" in about:
                self._ended.add(about["uid"])
            process = self.processes.get(about["uid"])
        if kind == "DELETED":
            if process is not None and process.poll() is None:
                killed = threading.Timer(self.forced_s(), _signal, (process, 9))
                killed.daemon = True
                killed.start()
        elif not known:
            threading.Thread(target=self._run, args=(pod,), daemon=True).start()
        elif "deletionTimestamp" in about:
            threading.Thread(target=self._end, args=(pod,), daemon=True).start()

    def _run(self, pod: dict[str, Any]) -> None:
        uid, [container] = pod["metadata"]["uid"], pod["spec"]["containers"]
        if pod.get("status", {}).get("phase", "Pending") != "Pending":
            return  # of a kubelet before this one
        wanted = int(container["resources"].get("limits", {}).get(GPU, 0))
        with self._lock:
            others = [each for each, process in self.processes.items() if process.poll() is None and each in self._pods]
            same = [
                self._pods[each]["spec"] for each in others if self._pods[each]["spec"]["nodeName"] == pod["spec"]["nodeName"]
            ]
            used = sum(int(spec["containers"][0]["resources"].get("limits", {}).get(GPU, 0)) for spec in same)
        if used + wanted > self.nodes[pod["spec"]["nodeName"]]:
            message = f"Pod Node didn't have enough resource: {GPU}, requested: {wanted}, used: {used}"
            self._report(pod, phase="Failed", reason=f"OutOf{GPU}", message=message)
            return
        if container["image"].startswith("missing"):
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{container["image"]}"'}
            self._report(pod, phase="Pending", containerStatuses=_statuses(container, waiting=waiting))
            return
        folders = self._volumes(pod, container)
        variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self.folder)}
        variables |= {each["name"]: self._moved(self._value(pod, each), folders) for each in container.get("env", ())}
        command = [self._moved(_expanded(word, variables), folders) for word in container["command"]]
        with open(self.folder / f"{uid}.log", "wb") as output, self._lock:
            if uid in self._ended or self._mirror.closed:
                return
            process = subprocess.Popen(
                command, env=variables, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
            self.processes[uid] = process
            self.started.append(pod["metadata"]["name"])
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._report(
            pod, phase="Running", podIP="127.0.0.1", containerStatuses=_statuses(container, running={"startedAt": now})
        )
        code = process.wait()
        _signal(process, 9)  # all processes of a container end with its first
        end = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed", "startedAt": now}
        phase = "Failed" if code else "Succeeded"
        self._report(pod, phase=phase, containerStatuses=_statuses(container, terminated=end))

    def _end(self, pod: dict[str, Any]) -> None:
        about = pod["metadata"]
        with self._lock:
            process = self.processes.get(about["uid"])
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, 15)  # the first process only
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(about.get("deletionGracePeriodSeconds", 30))
            _signal(process, 9)
            process.wait(DEADLINE_S)
            while not self._is_reported(pod):
                time.sleep(0.02)
        gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": about["uid"]}}
        self._ask("DELETE", self._path(pod), gone)

    def _is_reported(self, pod: dict[str, Any]) -> bool:
        try:
            return self._api.ask("GET", self._path(pod)).get("status", {}).get("phase") in ("Succeeded", "Failed")
        except ApiStatus:
            return True  # it is gone
        except FairleadError:
            return self._mirror.closed

    def _report(self, pod: dict[str, Any], **status: Any) -> None:
        self._ask("PATCH", f"{self._path(pod)}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status})

    def _ask(self, method: str, path: str, body: Any) -> None:
        """Send a request until it is answered; the API server may be killed meanwhile."""
        while not self._mirror.closed:
            try:
                self._api.ask(method, path, body, kind=MERGE if method == "PATCH" else "application/json")
                return
            except ApiStatus as status:
                if status.code != CONFLICT or "UID" in str(status):
                    return  # it is gone
            except FairleadError:
                pass
            time.sleep(0.1)

    def _path(self, pod: dict[str, Any]) -> str:
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    # What a container sees.

    def _secret(self, pod: dict[str, Any], name: str) -> dict[str, bytes]:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets/{name}"
        while not self._mirror.closed and pod["metadata"]["uid"] not in self._ended:
            with contextlib.suppress(FairleadError):
                return {key: base64.b64decode(value) for key, value in self._api.ask("GET", path)["data"].items()}
            time.sleep(0.1)
        return {}

    def _value(self, pod: dict[str, Any], variable: dict[str, Any]) -> str:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            wanted = source["secretKeyRef"]
            return self._secret(pod, wanted["name"]).get(wanted["key"], b"").decode()
        return "127.0.0.1" if "fieldRef" in source else str(variable.get("value", ""))

    def _volumes(self, pod: dict[str, Any], container: dict[str, Any]) -> dict[str, Path]:
        """Folders instead of volumes, by path in the container. A claim has one folder for all Pods."""
        folders: dict[str, Path] = {}
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", "")
            folder = self.bed.folder / f"claim-{claim}" if claim else self.folder / pod["metadata"]["uid"] / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            folders[mount["mountPath"]] = folder
            if "secret" in volume:
                for key, value in self._secret(pod, volume["secret"]["secretName"]).items():
                    (folder / key).write_bytes(value)
        return folders

    def _moved(self, word: str, folders: Mapping[str, Path]) -> str:
        for path, folder in folders.items():
            if word == path or word.startswith(f"{path}/"):
                return f"{folder}{word[len(path) :]}"
        return word

    # Output.

    def _log_server(self) -> ThreadingHTTPServer:
        """The part of a kubelet's API behind `kubectl logs`; the API server does not check its certificate."""
        kubelet = self

        class Logs(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = urlsplit(self.path)  # /containerLogs/NAMESPACE/POD/CONTAINER
                _, _, namespace, name, *_ = address.path.split("/")
                pods = [pod for pod in kubelet._pods.values() if pod["metadata"]["name"] == name]
                pods = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
                path = kubelet.folder / f"{pods[-1]['metadata']['uid']}.log" if pods else Path("/nonexistent")
                data = path.read_bytes() if path.exists() else b""
                limit = parse_qs(address.query).get("limitBytes")
                self.send_response(200)
                self.end_headers()
                self.wfile.write(data[: int(limit[0])] if limit else data)

            def log_message(self, *_: object) -> None:
                pass

        _, certificate, key = certificates(self.folder)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Logs)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        return server


def _statuses(container: dict[str, Any], **state: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": container["name"],
            "state": state,
            "image": container["image"],
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
        }
    ]


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """A word of a command in which $(NAME) is replaced, and $$ is a dollar."""
    known = lambda found: "$" + found[0][2:] if found[0].startswith("$$") else variables.get(found[1], found[0])  # noqa: E731
    return re.sub(r"\$\$\(?|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", known, word)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
