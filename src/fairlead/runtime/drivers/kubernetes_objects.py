"""What Fairlead reads from Kubernetes' nodes and pods, and the Pod and the Secret that it creates for one part of a launch. All
of it is pure: objects in, objects out."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.core.type_names import accelerator_type_of
from fairlead.runtime.drivers.base import (
    EngineRefused,
    EngineTask,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    Machine,
    MachineState,
    TaskState,
)
from fairlead.runtime.protocol.orders import Container

OURS = {"app.kubernetes.io/managed-by": "fairlead"}  # the label of all objects that Fairlead creates
KEY = "fairlead/key"  # the annotation with the key
CONTAINER = "agent"
TOKEN, AUTHORITY = "token", "ca.pem"  # in the Secret
ROOT, SECRETS, SHARED_MEMORY = "/var/lib/fairlead", "/etc/fairlead", "/dev/shm"
UNSTARTABLE = frozenset({"InvalidImageName", "ErrImageNeverPull"})  # no retry helps
STUCK = UNSTARTABLE | {
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}
_AWAY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service")
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")


@dataclass(frozen=True)
class PodRules:
    """What an operator sets for all pods, and what users may set."""

    namespace: str = "default"
    image: str = ""
    pull_policy: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    command: tuple[str, ...] = ("fairlead",)  # of the agent, in the image
    control: str = ""  # address at which pods reach the control plane; empty: as its arguments say
    authority: str = field(default="", repr=False)  # PEM, of the control plane's certificate
    claims: Mapping[str, str] = field(default_factory=dict)  # PersistentVolumeClaims that all pods mount, and where
    service_account: str = ""
    service_accounts: frozenset[str] = frozenset()  # further ones that users may name
    allow: frozenset[str] = frozenset()  # of `GUARDED`
    tolerate: tuple[str, ...] = ()  # keys of taints
    settle_s: float = 10.0  # from the end of a job's grace to SIGKILL, so that its agent can report


_TEXTS, _MAPPINGS = ("image", "imagePullPolicy", "serviceAccountName"), ("nodeSelector", "securityContext")
OPTIONS = (*_TEXTS, *_MAPPINGS, "imagePullSecrets", "volumes", "volumeMounts", "tolerations", "env")
"""What users may set in the `kubernetes` part of a task file, named as in a Pod."""

_GUARDED_HOST = ("hostPath", "hostNetwork", "hostPID", "hostIPC", "privileged", "capabilities")
GUARDED = (*_GUARDED_HOST, "serviceAccountName", "secrets", "fairlead")
"""What users may set only if the operator allows it; `secrets`: to read Secrets of the namespace, which others may have put
there; `fairlead`: Secrets and claims whose names begin with it."""

_SECRET_KEYS = {"secret", "secretRef", "secretKeyRef", "nodePublishSecretRef"}

_VOLUMES = {"emptyDir", "configMap", "secret", "persistentVolumeClaim", "projected", "downwardAPI", "ephemeral", "csi", "nfs"}
_SECURITY = {"runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem", "seccompProfile"}
_POD_SECURITY = {"fsGroup", "fsGroupChangePolicy", "supplementalGroups"}


def quantity(text: object) -> float:
    """The number of a resource quantity: `500m` is 0.5, `1Ki` 1024. 0 if it is none."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(text).strip())
    if not found or (found[2] and found[2] not in _UNITS):
        return 0.0
    number = float(found[1]) * _UNITS.get(found[2], 1.0)
    return number if math.isfinite(number) else 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: the machine, and its labels."""

    machine: Machine
    labels: Mapping[str, str]


def node_view(node: Mapping[str, Any], rules: PodRules, type_label: str, types: Mapping[str, str]) -> NodeView | None:
    """Return what is read from a node; None if it has no GPUs."""
    about, spec, status = node.get("metadata", {}), node.get("spec", {}), node.get("status", {})
    labels = about.get("labels") or {}
    allocatable, capacity = status.get("allocatable") or {}, status.get("capacity") or {}
    count, existing = (int(quantity(each.get(rules.gpu_resource, 0))) for each in (allocatable, capacity))
    if not (count or existing):
        return None
    label = str(labels.get(type_label, ""))
    gpu_type = types.get(label) or (accelerator_type_of(label) if label else "gpu")
    state, reason = _machine_state(spec, status, rules)
    if not count and state is not MachineState.UNREACHABLE:
        state, reason = MachineState.UNREACHABLE, f"0 of {existing} {rules.gpu_resource} can be allocated"
    machine = Machine(
        name=str(about.get("name", "")),
        type=re.sub(r"[^a-z0-9_.-]", "-", gpu_type.lower()),
        accelerators=count or existing,
        state=state,
        reason=reason,
        cpus=quantity(allocatable.get("cpu", 0)),
        memory_gb=quantity(allocatable.get("memory", 0)) / 1024**3,
        gpu_memory_gb=quantity(labels.get("nvidia.com/gpu.memory", 0)) / 1024,
    )
    return NodeView(machine, labels)


def _machine_state(spec: Mapping[str, Any], status: Mapping[str, Any], rules: PodRules) -> tuple[MachineState, str]:
    ready: Mapping[str, Any] = next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), {})
    taints = [each for each in spec.get("taints") or () if each.get("effect") in ("NoSchedule", "NoExecute")]
    if ready.get("status") != "True" or any(taint.get("key") in _AWAY for taint in taints):
        return MachineState.UNREACHABLE, _sentence("NotReady", ready.get("message") or ready.get("reason"))
    if spec.get("unschedulable"):
        return MachineState.CORDONED, "cordoned"
    for taint in taints:
        if taint.get("key") not in (*rules.tolerate, rules.gpu_resource, _UNSCHEDULABLE):
            value = f"={taint['value']}" if taint.get("value") else ""
            return MachineState.CORDONED, f"taint {taint.get('key')}{value}:{taint['effect']}"
    return MachineState.READY, ""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of Fairlead: the part of a launch, and its state."""

    uid: str
    task: EngineTask
    node: str
    stuck: bool = False  # it waits for something that may never come, such as its image
    unstartable: bool = False  # and will not come
    image: str = ""

    @property
    def key(self) -> LaunchKey:
        return self.task.key


def pod_view(pod: Mapping[str, Any]) -> PodView | None:
    """Return what is read from a pod; None if it is not Fairlead's."""
    about, spec, status = pod.get("metadata", {}), pod.get("spec", {}), pod.get("status", {})
    key = LaunchKey.parse(str((about.get("annotations") or {}).get(KEY, "")))
    if key is None or about.get("name") != key.label:
        return None
    state, code, reason = _task_state(status)
    stuck = state is TaskState.WAITING and _waiting(status).get("reason") in STUCK
    unstartable = stuck and _waiting(status).get("reason") in UNSTARTABLE
    preparing = state is TaskState.WAITING and bool(_waiting(status))
    task, node = EngineTask(key, state, code, reason, preparing=preparing), str(spec.get("nodeName", ""))
    image = next((str(each.get("image", "")) for each in spec.get("containers") or () if each.get("name") == CONTAINER), "")
    return PodView(str(about.get("uid", "")), task, node, stuck, unstartable, image)


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    states = (each.get("state") or {} for each in status.get("containerStatuses") or () if each.get("name") == CONTAINER)
    return next(states, {})


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return _container(status).get("waiting") or {}


def _task_state(status: Mapping[str, Any]) -> tuple[TaskState, int, str]:
    container, phase = _container(status), status.get("phase", "Pending")
    why = _sentence(status.get("reason"), status.get("message"))
    if (end := container.get("terminated")) is not None:
        said = "" if end.get("reason") in ("Completed", "Error") else end.get("reason")
        return TaskState.OVER, int(end.get("exitCode", 1)), _sentence(said or status.get("reason"), end.get("message"))
    given_up = any(
        each.get("type") == "DisruptionTarget" and each.get("reason") == "DeletionByPodGC"
        for each in status.get("conditions") or ()
    )
    if phase == "Unknown" or status.get("reason") == "NodeLost" or given_up:
        return TaskState.UNKNOWN, 0, why or "its node does not answer"
    if phase in ("Succeeded", "Failed"):  # without an end of its container: the node did not admit it, or evicted it
        if "running" in container:
            return TaskState.UNKNOWN, 0, why
        return TaskState.OVER, int(phase == "Failed"), why
    if "running" in container:
        return TaskState.RUNNING, 0, ""
    waiting = _waiting(status)
    if waiting.get("reason") in STUCK:
        return TaskState.WAITING, 0, _sentence(waiting["reason"], waiting.get("message"))
    return TaskState.WAITING, 0, why or str(waiting.get("reason") or "")


def _sentence(reason: object, message: object) -> str:
    words = " ".join(str(message or "").split())[:300]
    return f"{reason}: {words}" if reason and words else str(reason or words)


def launch_secret(part: LaunchPart, rules: PodRules) -> dict[str, Any]:
    """Return the Secret of a part: its token."""
    content = {TOKEN: part.token, **({AUTHORITY: rules.authority} if rules.authority else {})}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(part.key), "type": "Opaque", "stringData": content}


def launch_pod(part: LaunchPart, needs: LaunchNeeds, rules: PodRules, node_labels: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the Pod of a part, from what its job needs, what the operator set and what the user gave.

    Raises:
        EngineRefused: The user gave something that is not allowed, or that does not fit the machine.
    """
    options = _checked(needs.options, rules, part.key.machine, node_labels)
    if needs.container is not None and needs.container.mounts:
        raise EngineRefused("container.mounts: not supported for Pods; use kubernetes.volumes and volumeMounts")
    image = options.get("image") or _image_of(needs.container) or rules.image
    if not image:
        raise EngineRefused(
            "no image: set kubernetes.image in the task file (or container.image), or 'image' in --engine kubernetes:..."
        )
    security = options.get("securityContext") or {}
    count = len(part.accelerators)
    limits = {rules.gpu_resource: str(count)} if count else {}
    if needs.cpus:
        limits["cpu"] = f"{math.ceil(needs.cpus * count * 1000)}m"
    if needs.memory_gb:
        limits["memory"] = f"{math.ceil(needs.memory_gb * count * 1024)}Mi"
    mounts = [_mount("fairlead-root", ROOT), _mount("fairlead-memory", SHARED_MEMORY)]
    volumes: list[dict[str, Any]] = [
        {"name": "fairlead-root", "emptyDir": {}},
        {"name": "fairlead-memory", "emptyDir": {"medium": "Memory"}},  # lease pages, and shared memory of data loaders
    ]
    if rules.authority:
        mounts.append({**_mount("fairlead-ca", SECRETS), "readOnly": True})
        volumes.append(
            {"name": "fairlead-ca", "secret": {"secretName": part.key.label, "items": [{"key": AUTHORITY, "path": AUTHORITY}]}}
        )
    for name, path in rules.claims.items():
        mounts.append(_mount(f"fairlead-{name}"[:63], path))
        volumes.append({"name": f"fairlead-{name}"[:63], "persistentVolumeClaim": {"claimName": name}})
    account = options.get("serviceAccountName") or rules.service_account
    container = {
        "name": CONTAINER,
        "image": image,
        "command": [*rules.command, *map(_literal, _arguments(part, rules))],
        "env": [*(options.get("env") or ()), *_variables(part)],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [*mounts, *(options.get("volumeMounts") or ())],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            **{key: value for key, value in security.items() if key not in _POD_SECURITY},
        },
    }
    container["command"] = [*container["command"], "--address", "$(FAIRLEAD_POD_ADDRESS)"]  # replaced by Kubernetes
    if policy := options.get("imagePullPolicy") or rules.pull_policy:
        container["imagePullPolicy"] = policy
    spec: dict[str, Any] = {
        "nodeName": part.key.machine,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(needs.grace_s + rules.settle_s),
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(account),
        "tolerations": [
            *({"key": key, "operator": "Exists"} for key in (*rules.tolerate, rules.gpu_resource)),
            *(options.get("tolerations") or ()),
        ],
        "containers": [container],
        "volumes": [*volumes, *(options.get("volumes") or ())],
        "securityContext": {key: value for key, value in security.items() if key in _POD_SECURITY},
        **({"serviceAccountName": account} if account else {}),
        **{key: options[key] for key in ("imagePullSecrets", "hostNetwork", "hostPID", "hostIPC") if key in options},
    }
    words = {"job-name": needs.name, "user": needs.user}
    notes = {f"fairlead/{key}": value for key, value in words.items() if value}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(part.key, notes), "spec": spec}


def _image_of(container: Container | None) -> str:
    """The image of a container, for a Pod that has no other."""
    if container is None:
        return ""
    if container.is_file:
        raise EngineRefused(
            f"container.image: only Apptainer runs {container.image[:100]}; a Pod needs an image from a registry"
        )
    return container.image.removeprefix("docker://")


def _metadata(key: LaunchKey, notes: Mapping[str, str] = {}) -> dict[str, Any]:
    journal = key.journal if _LABEL.match(key.journal) else hashlib.sha256(key.journal.encode()).hexdigest()[:32]
    named = {"journal": journal, "job": str(key.job), "generation": str(key.generation)}
    labels = {**OURS, **{f"fairlead/{name}": value for name, value in named.items()}}
    return {"name": key.label, "labels": labels, "annotations": {KEY: key.text, **notes}}


def _mount(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "mountPath": path}


def _literal(word: str) -> str:
    """A word of a command in which Kubernetes replaces nothing."""
    return word.replace("$(", "$$(")


def _arguments(part: LaunchPart, rules: PodRules) -> list[str]:
    words = list(part.arguments)
    if rules.control and "--control" in words[:-1]:
        words[words.index("--control") + 1] = rules.control
    if rules.authority and "--tls-ca" in words[:-1]:
        words[words.index("--tls-ca") + 1] = f"{SECRETS}/{AUTHORITY}"
    elif rules.authority:
        words += ["--tls-ca", f"{SECRETS}/{AUTHORITY}"]
    return words


def _variables(part: LaunchPart) -> list[dict[str, Any]]:
    return [
        {"name": "FAIRLEAD_TOKEN", "valueFrom": {"secretKeyRef": {"name": part.key.label, "key": TOKEN}}},
        {"name": "FAIRLEAD_POD_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "name": "FAIRLEAD_ALLOW_ROOT_JOBS",
            "value": "true",
        },  # the pod is the border between users, and its image has the user
    ]


def _checked(
    options: Mapping[str, Any], rules: PodRules, machine: str, node_labels: Mapping[str, str] | None
) -> Mapping[str, Any]:
    for name, value in options.items():
        if name in GUARDED and name not in OPTIONS:
            _require_allowed(name, name, rules)
            right, expected = isinstance(value, bool), "true or false"
        elif name in _TEXTS:
            right, expected = isinstance(value, str), "a string"
        elif name in _MAPPINGS:
            right, expected = isinstance(value, Mapping), "a mapping"
        elif name in OPTIONS:
            listed = isinstance(value, Sequence) and not isinstance(value, str)
            right, expected = listed and all(isinstance(each, Mapping) for each in value), "a list of mappings"
        else:
            right, expected = False, f"one of {', '.join(OPTIONS)}"
        if not right:
            raise EngineRefused(f"kubernetes.{name}: expected {expected}")
    account = options.get("serviceAccountName", "")
    if account not in ("", rules.service_account, *rules.service_accounts):
        _require_allowed("serviceAccountName", f"serviceAccountName {account}", rules)
    _check_volumes(
        options.get("volumes") or (), options.get("volumeMounts") or (), rules, bool(account or rules.service_account)
    )
    _check_security(options.get("securityContext") or {}, rules)
    for variable in options.get("env") or ():
        if str(variable.get("name", "")).startswith(("FAIRLEAD_", "TMPDIR")):
            raise EngineRefused(f"kubernetes.env: {variable['name']} is set by Fairlead; choose another name")
        _check_names(variable.get("valueFrom"), rules)
    _check_names(options.get("imagePullSecrets"), rules)
    for key, value in (options.get("nodeSelector") or {}).items():
        if node_labels is not None and node_labels.get(key) != value:
            lacks = f"node {machine}, which Fairlead chose, does not have the label {key}={value}"
            raise EngineRefused(f"kubernetes.nodeSelector: {lacks}; set a GPU type that only such nodes have ('types')")
    return options


def _check_volumes(
    volumes: Sequence[Mapping[str, Any]], mounts: Sequence[Mapping[str, Any]], rules: PodRules, has_account: bool
) -> None:
    for volume in volumes:
        kinds = sorted(set(volume) - {"name"})
        name = str(volume.get("name", ""))
        if name.startswith("fairlead-"):
            raise EngineRefused(f"kubernetes.volumes: {name}: names that begin with 'fairlead-' belong to Fairlead; rename it")
        for kind in kinds:
            if kind == "hostPath":
                _require_allowed("hostPath", f"volume {name} of the type hostPath", rules)
            elif kind not in _VOLUMES:
                raise EngineRefused(f"kubernetes.volumes: {name}: expected one of {', '.join(sorted(_VOLUMES))}, found {kind}")
        _check_names(volume, rules)
        if not has_account and "serviceAccountToken" in str(volume.get("projected")):
            _require_allowed("serviceAccountName", f"volume {name} with a token of a service account", rules)
    for mount in mounts:
        path = str(mount.get("mountPath", ""))
        if any(path == own or path.startswith(f"{own}/") for own in (ROOT, SECRETS)) or path == "/":
            raise EngineRefused(f"kubernetes.volumeMounts: {path} belongs to Fairlead; mount the volume elsewhere")


def _check_names(given: object, rules: PodRules) -> None:
    """Refuse objects of the control plane, wherever they are named: tokens, keys and the journal are in the same namespace. A
    claim can also be copied, as the `dataSource` of another."""
    if isinstance(given, str) and given.startswith("fairlead-"):
        _require_allowed("fairlead", given, rules)
    elif isinstance(given, Mapping):
        _check_names(list(given.values()), rules)
        if _SECRET_KEYS & given.keys():
            _require_allowed("secrets", "a Secret of the namespace", rules)
    elif isinstance(given, list | tuple):
        for each in given:
            _check_names(each, rules)


def _check_security(context: Mapping[str, Any], rules: PodRules) -> None:
    for name, value in context.items():
        if name in _SECURITY | _POD_SECURITY or (name == "allowPrivilegeEscalation" and value is False):
            continue
        dropped = name == "capabilities" and isinstance(value, Mapping) and set(value) <= {"drop"}
        if name in ("privileged", "allowPrivilegeEscalation") and value is not False:
            _require_allowed("privileged", f"securityContext.{name}", rules)
        elif name == "capabilities" and not dropped:
            _require_allowed("capabilities", "securityContext.capabilities.add", rules)
        elif name not in ("privileged", "capabilities"):
            expected = ", ".join(sorted(_SECURITY | _POD_SECURITY))
            raise EngineRefused(f"kubernetes.securityContext.{name}: expected one of {expected}")


def _require_allowed(word: str, what: str, rules: PodRules) -> None:
    if word not in rules.allow:
        raise EngineRefused(f"kubernetes: {what} is not allowed here; an operator can allow it (--engine …,allow={word})")
