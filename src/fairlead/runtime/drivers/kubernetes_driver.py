"""Kubernetes as an engine: each part of a launch is a Pod on the node that Fairlead chose. A watch follows nodes and
pods, so an observation reads a local copy and costs the API server nothing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead.core.errors import InputError, check_number, require
from fairlead.runtime.drivers.base import (
    Capabilities,
    EngineRefused,
    EngineTask,
    EngineUnavailable,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    Machine,
    MachineState,
    TaskState,
)
from fairlead.runtime.drivers.kubernetes_api import CONFLICT, NOT_FOUND, POD_FOLDER, ApiAccess, ApiStatus, KubernetesApi, Mirror
from fairlead.runtime.drivers.kubernetes_objects import (
    GUARDED,
    OURS,
    NodeView,
    PodRules,
    PodView,
    launch_pod,
    launch_secret,
    node_view,
    pod_view,
)
from fairlead.runtime.host import Host

FIRST_LIST_S = 20.0  # how long the first observation waits
END_WITHIN_S = 30.0  # from the end that an agent reports to that of its pod
MAX_GONE = 10_000  # disappeared pods that are remembered
MAX_KEPT, MAX_DELETES = 1000, 20  # pods that are kept after their end; those that are deleted in one observation
MERGE = "application/merge-patch+json"


@dataclass(eq=False)
class KubernetesDriver:
    """Runs each part of a launch as a Pod of one namespace. Lists in one value have spaces between their words."""

    namespace: str = ""  # of the pods; default: the pod's own, or `default`
    server: str = ""  # https://HOST:PORT of the API server; default: as the kubeconfig file says, or Kubernetes tells a pod
    kubeconfig: str = ""
    ca: str = ""  # file of the API server's authority
    token_file: str = ""  # file with a service account's token; it may change at any time
    image: str = ""  # for jobs that name none; it has `fairlead` in it
    pull_policy: str = ""  # Always, IfNotPresent or Never; default: as Kubernetes decides
    command: str = "fairlead"  # in the image
    gpu_resource: str = "nvidia.com/gpu"
    type_label: str = "nvidia.com/gpu.product"  # of nodes: the product name of their GPUs
    types: str = ""  # "LABEL:TYPE ...": types for values of this label; default: v100 for Tesla-V100-SXM2-16GB
    node_selector: str = ""  # "LABEL=VALUE ...": only these nodes
    tolerate: str = ""  # keys of taints
    control: str = ""  # HOST:PORT at which pods reach the control plane, if it is another for them
    control_ca: str = ""  # file of the authority of the control plane's certificate, for the pods
    claims: str = ""  # "CLAIM:/PATH ...": PersistentVolumeClaims that all pods mount, such as that of --checkpoints
    service_account: str = ""  # of pods; default: the namespace's, without a token in the pod
    service_accounts: str = ""  # further ones that users may name
    allow: str = ""  # of hostPath, hostNetwork, hostPID, hostIPC, privileged, capabilities, serviceAccountName, fairlead
    start_within_s: float = 300.0  # how long a pod may wait for its image or a Secret
    keep_s: float = 600.0  # how long a pod that has ended is kept, for `kubectl logs`
    host: Host = field(default_factory=Host, repr=False)
    transport: Any = field(default=None, repr=False)  # of httpx, for tests

    name = "kubernetes"
    capabilities = Capabilities(picks_devices=False, can_share=False, runs_images=True, poll_s=5.0, starts_per_s=50.0)

    def __post_init__(self) -> None:
        check_number("kubernetes", "start_within_s", self.start_within_s, "seconds above 0", low=1e-3)
        check_number("kubernetes", "keep_s", self.keep_s, "seconds")
        allowed = frozenset(self.allow.split())
        require(allowed <= set(GUARDED), "kubernetes", f"words of {', '.join(GUARDED)}", "allow", self.allow)
        policy, policies = self.pull_policy, ("", "Always", "IfNotPresent", "Never")
        require(policy in policies, "kubernetes", "Always, IfNotPresent or Never", "pull_policy", policy)
        self._types = dict(_pair("types", word, ":") for word in self.types.split())
        selected = dict(_pair("node_selector", word, "=") for word in self.node_selector.split())
        access = ApiAccess.find(server=self.server, kubeconfig=self.kubeconfig, ca=self.ca, token_file=self.token_file)
        self.namespace = self.namespace or _own_namespace() or "default"
        self._rules = PodRules(
            namespace=self.namespace,
            image=self.image,
            pull_policy=self.pull_policy,
            gpu_resource=self.gpu_resource,
            command=tuple(self.command.split()),
            control=self.control,
            authority=_text_of(self.control_ca),
            claims=dict(_pair("claims", word, ":") for word in self.claims.split()),
            service_account=self.service_account,
            service_accounts=frozenset(self.service_accounts.split()),
            allow=allowed,
            tolerate=tuple(self.tolerate.split()),
        )
        self._api = KubernetesApi(access, self.transport)
        self._lock = self.host.condition()
        self._pods: dict[str, PodView] = {}  # by name
        self._nodes: dict[str, NodeView] = {}
        self._gone: dict[LaunchKey, EngineTask] = {}  # pods that disappeared before their end was seen
        self._stuck_since: dict[str, float] = {}  # by uid
        self._forgotten: dict[
            LaunchKey, float
        ] = {}  # pods that are not reported any more, and when to delete those that are over
        self._unlisted: dict[str, int] = {}  # created pods that the watch has not shown: how many lists had begun
        self._changed: list[Callable[[], None]] = []
        self._begun = False
        pods = {"labelSelector": ",".join(f"{key}={value}" for key, value in OURS.items())}
        nodes = {"labelSelector": ",".join(f"{key}={value}" for key, value in selected.items())} if selected else {}
        self._mirrors = (
            Mirror(self._api, self._path(), pods, self._list_pods, self._pod_event, self._tell, self.host),
            Mirror(self._api, "/api/v1/nodes", nodes, self._list_nodes, self._node_event, self._tell, self.host),
        )

    # The contract (drivers/base.py).

    def observe(self, journal: str) -> tuple[Sequence[Machine], Sequence[EngineTask]]:
        self._begin()
        self._delete_old()
        until = self.host.monotonic() + FIRST_LIST_S
        with self._lock:
            while any(mirror.problem is None for mirror in self._mirrors) and (left_s := until - self.host.monotonic()) > 0:
                self._lock.wait(left_s)
            for mirror in self._mirrors:
                if mirror.problem is None or mirror.problem:
                    raise EngineUnavailable(mirror.problem or f"no list of {mirror.path} has arrived yet")
            now = self.host.monotonic()
            machines = [view.machine for _, view in sorted(self._nodes.items())]
            tasks = [self._task(view, now) for view in self._pods.values() if view.key not in self._forgotten]
            return machines, [task for task in (*tasks, *self._gone.values()) if task.key.journal == journal]

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)
        self._begin()

    def start(self, parts: Sequence[LaunchPart], needs: LaunchNeeds) -> None:
        with self._lock:
            labels = {part.key: self._nodes[part.key.machine].labels for part in parts if part.key.machine in self._nodes}
            known = {part.key for part in parts if part.key.label in self._pods or part.key in self._gone}
        pods = [(part, launch_pod(part, needs, self._rules, labels.get(part.key))) for part in parts if part.key not in known]
        created: list[LaunchKey] = []
        try:
            for part, pod in pods:
                created.append(part.key)
                self._create(part, pod)
        except EngineRefused:
            for key in created:
                with contextlib.suppress(EngineUnavailable):
                    self.forget(key)
            raise

    def stop(self, key: LaunchKey, grace_s: float) -> None:
        existed = self._delete("pods", key, gracePeriodSeconds=max(0, math.ceil(grace_s)))
        with self._lock:
            if not existed and (task := self._gone.get(key)) is not None and task.state is TaskState.UNKNOWN:
                del self._gone[key]  # it was given up

    def log(self, key: LaunchKey, offset: int, limit: int) -> bytes | None:
        found, skip = bytearray(), offset
        try:
            # Kubernetes has no offset, only a limit: what comes before is read and dropped.
            for piece in self._api.stream(f"{self._path(key.label)}/log", limitBytes=offset + limit):
                found += piece[skip:]
                skip = max(0, skip - len(piece))
        except ApiStatus as status:
            if status.code in (NOT_FOUND, 400):  # no pod, or its container has not started
                return None
            raise EngineUnavailable(f"the log of {key.label}: {status}") from None
        return bytes(found[:limit])

    def forget(self, key: LaunchKey) -> None:
        with self._lock:
            view = self._pods.get(key.label)
            # Its agent reports an end a moment before Kubernetes sees it.
            keep_s = {TaskState.OVER: self.keep_s, TaskState.RUNNING: END_WITHIN_S}.get(view.task.state, 0.0) if view else 0.0
            if view is not None:
                self._forgotten.setdefault(key, self.host.monotonic() + keep_s if keep_s else math.inf)
        if not keep_s:
            self._delete("pods", key)
        self._delete("secrets", key)
        with self._lock:
            self._gone.pop(key, None)

    def close(self) -> None:
        for mirror in self._mirrors:
            mirror.closed = True
        self._api.close()

    # Requests.

    def _path(self, name: str = "", kind: str = "pods") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}{'/' if name else ''}{name}"

    def _create(self, part: LaunchPart, pod: dict[str, Any]) -> None:
        """Create the Secret, then the Pod, and make the Secret go when the Pod goes."""
        key, secret = part.key, launch_secret(part, self._rules)
        try:
            try:
                self._api.ask("POST", self._path(kind="secrets"), secret)
            except ApiStatus as status:
                if status.code != CONFLICT:
                    raise
                content = {"stringData": secret["stringData"]}
                self._api.ask("PATCH", self._path(key.label, "secrets"), content, kind=MERGE)
            try:
                found = self._api.ask("POST", self._path(), pod)
            except ApiStatus as status:
                if status.reason != "AlreadyExists":
                    raise
                found = self._api.ask("GET", self._path(key.label))
            view = pod_view(found)
            if view is None or view.key != key:
                raise EngineRefused(f"the pod {key.label} exists, but does not belong to this launch: delete it")
            owner = {"apiVersion": "v1", "kind": "Pod", "name": key.label, "uid": view.uid}
            self._api.ask("PATCH", self._path(key.label, "secrets"), {"metadata": {"ownerReferences": [owner]}}, kind=MERGE)
        except ApiStatus as status:
            if status.code == CONFLICT or (status.code == NOT_FOUND and "namespaces" in str(status)):
                raise EngineUnavailable(str(status)) from None
            raise EngineRefused(f"Kubernetes refused the pod: {status}") from None
        with self._lock:
            if key.label not in self._pods and key not in self._gone:
                self._pods[key.label] = view
                self._unlisted[key.label] = self._mirrors[0].lists

    def _delete(self, kind: str, key: LaunchKey, **options: int) -> bool:
        """Delete an object, and return whether it existed."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        try:
            self._api.ask("DELETE", self._path(key.label, kind), body)
        except ApiStatus as status:
            if status.code == CONFLICT:  # it changed meanwhile
                raise EngineUnavailable(str(status)) from None
            if status.code != NOT_FOUND:
                raise EngineRefused(f"Kubernetes refused to delete {kind} {key.label}: {status}") from None
            return False
        return True

    def _delete_old(self) -> None:
        """Delete pods that ended long enough ago, some at a time, and those that do not end."""
        with self._lock:
            kept = [key for key, due in self._forgotten.items() if due < math.inf]
            due = [key for key in kept if self._forgotten[key] <= self.host.monotonic()]
            due += kept[: max(0, len(kept) - MAX_KEPT)]
            over = {view.key for view in self._pods.values() if view.task.state is TaskState.OVER}
        for key in due[:MAX_DELETES]:
            self._delete("pods", key, **({"gracePeriodSeconds": 0} if key in over else {}))
            with self._lock:
                if key in self._forgotten:
                    self._forgotten[key] = math.inf

    # The local copy. The threads of the mirrors call these.

    def _begin(self) -> None:
        with self._lock:
            begun, self._begun = self._begun, True
        if not begun:
            for mirror in self._mirrors:
                self.host.spawn(f"kubernetes {mirror.path.rsplit('/', 1)[-1]}", mirror.run)

    def _tell(self) -> None:
        with self._lock:
            self._lock.notify_all()
        for changed in self._changed:
            changed()

    def _list_pods(self, items: list[dict[str, Any]]) -> None:
        found = {view.key.label: view for view in map(pod_view, items) if view is not None}
        with self._lock:
            for name, view in tuple(self._pods.items()):
                if name not in found and self._unlisted.get(name, -1) < self._mirrors[0].lists:
                    self._disappeared(view)
            for view in found.values():
                self._seen(view)
        self._tell()

    def _pod_event(self, kind: str, item: dict[str, Any]) -> None:
        view = pod_view(item)
        if view is None:
            return
        with self._lock:
            if kind != "DELETED":
                self._seen(view)
            elif (present := self._pods.get(view.key.label)) is None or present.uid == view.uid:
                self._disappeared(view)
        self._tell()

    def _seen(self, view: PodView) -> None:
        self._unlisted.pop(view.key.label, None)
        was, self._pods[view.key.label] = self._pods.get(view.key.label, view), view
        ended = was.task.state is TaskState.RUNNING and view.task.state is TaskState.OVER
        if ended and self._forgotten.get(view.key, math.inf) < math.inf:
            self._forgotten[view.key] = self.host.monotonic() + self.keep_s
        if view.stuck:
            self._stuck_since.setdefault(view.uid, self.host.monotonic())
        elif view.task.state is not TaskState.WAITING:  # it alternates between waiting and errors
            self._stuck_since.pop(view.uid, None)

    def _disappeared(self, view: PodView) -> None:
        """Remember the end of a pod that no longer exists. That it is gone is no proof that its processes are."""
        was = self._pods.pop(view.key.label, None)
        self._unlisted.pop(view.key.label, None)
        self._stuck_since.pop(view.uid, None)
        if was is None or view.key in self._forgotten:
            self._forgotten.pop(view.key, None)
            return
        over = view.task.state is TaskState.OVER or was.task.state is TaskState.OVER
        task = view.task if view.task.state is TaskState.OVER else was.task
        reason = "the pod was deleted before Fairlead saw its end"
        self._gone[view.key] = task if over else replace(task, state=TaskState.UNKNOWN, code=0, reason=reason, preparing=False)
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def _task(self, view: PodView, now: float) -> EngineTask:
        task, node = view.task, self._nodes.get(view.node)
        if task.state not in (TaskState.WAITING, TaskState.RUNNING):
            return task
        if node is not None and node.machine.state is MachineState.UNREACHABLE:
            return replace(task, state=TaskState.UNKNOWN, reason=node.machine.reason, preparing=False)
        # An image of the job's own, or a Secret that its task names. The operator's image is no fault of the job.
        own = view.stuck and (view.image != self.image or task.reason.startswith("CreateContainerConfigError"))
        task = replace(task, own_fault=own)
        if view.unstartable or now >= self._stuck_since.get(view.uid, math.inf) + self.start_within_s:
            return replace(task, state=TaskState.OVER, code=1, preparing=False)
        return task

    def _list_nodes(self, items: list[dict[str, Any]]) -> None:
        found = {str(item["metadata"]["name"]): self._view(item) for item in items}
        with self._lock:
            self._nodes = {name: view for name, view in found.items() if view is not None}
        self._tell()

    def _node_event(self, kind: str, item: dict[str, Any]) -> None:
        name, view = str(item["metadata"]["name"]), None if kind == "DELETED" else self._view(item)
        with self._lock:
            before = self._nodes.pop(name, None)
            if view is not None:
                self._nodes[name] = view
        if view != before:  # not for each of the heartbeats that older versions write into nodes
            self._tell()

    def _view(self, node: dict[str, Any]) -> NodeView | None:
        return node_view(node, self._rules, self.type_label, self._types)


def _pair(field_name: str, word: str, mark: str) -> tuple[str, str]:
    left, found, right = word.partition(mark)
    require(left and found and right, "kubernetes", f"words such as a{mark}b, with spaces between them", field_name, word)
    return left, right


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text() if path else ""
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(path, f"a certificate authority's PEM file ({problem})") from None


def _own_namespace() -> str:
    try:
        return Path(POD_FOLDER, "namespace").read_text().strip()
    except OSError:
        return ""
