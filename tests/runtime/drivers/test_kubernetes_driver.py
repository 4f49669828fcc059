"""The Kubernetes driver against an API server in memory: what it reads, what it creates, and every kind of error."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fake_kubernetes import NODES, PODS, SECRETS, FakeKubernetes, container_state, gpu_node

from fairlead.core.errors import InputError
from fairlead.runtime.drivers.base import (
    EngineRefused,
    EngineTask,
    EngineUnavailable,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    MachineState,
    TaskState,
)
from fairlead.runtime.drivers.kubernetes_api import ApiAccess, KubernetesApi
from fairlead.runtime.drivers.kubernetes_driver import KubernetesDriver
from fairlead.runtime.drivers.kubernetes_objects import quantity
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.orders import Container, Mount

JOURNAL = "journal-1"


class Clock(Host):
    """A real machine whose clock stands still and can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return self.ahead_s


class World:
    """A fake API server with one node, and a driver of it."""

    def __init__(self, **keys: Any) -> None:
        self.fake, self.clock = FakeKubernetes(), Clock()
        self.fake.put(NODES, gpu_node("n1"))
        given = {"server": "http://fake", "namespace": "jobs", "image": "train:1", **keys}
        self.driver = KubernetesDriver(**given, host=self.clock, transport=httpx.MockTransport(self.fake))

    def start(self, job: int = 1, machines: tuple[str, ...] = ("n1",), gpus: int = 2, **needs: Any) -> list[LaunchKey]:
        keys = [LaunchKey(JOURNAL, job, 1, machine) for machine in machines]
        words = ("agent", "--launch", f"{job}.1", "--control", "head:7421")
        parts = [LaunchPart(key, tuple(range(gpus)), words, f"token of {key.machine}") for key in keys]
        self.driver.start(parts, LaunchNeeds("train", **needs))
        return keys

    def task(self, key: LaunchKey) -> EngineTask | None:
        return {task.key: task for task in self.driver.observe(key.journal)[1]}.get(key)

    def waits_for(self, holds: Callable[[], Any]) -> None:
        """Until a condition holds; the watch is another thread."""
        deadline = time.monotonic() + 60.0
        while True:
            try:
                if holds():
                    return
            except EngineUnavailable:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def follows(self) -> None:
        """Until both watches are open."""
        self.driver.observe(JOURNAL)
        self.waits_for(lambda: self.fake.watching(PODS) and self.fake.watching(NODES))


@pytest.fixture
def worlds() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**keys: Any) -> World:
        made.append(World(**keys))
        return made[-1]

    yield make
    for each in made:
        each.fake.closed = True
        each.driver.close()


@pytest.fixture
def world(worlds: Callable[..., World]) -> World:
    return worlds()


class TestMachines:
    def test_a_node_with_gpus_is_a_machine(self, world: World):
        world.fake.put(NODES, gpu_node("cpu-only", 0))
        [machine], tasks = world.driver.observe(JOURNAL)
        assert (machine.name, machine.type, machine.accelerators, machine.state) == ("n1", "v100", 4, MachineState.READY)
        assert (machine.cpus, machine.memory_gb, machine.gpu_memory_gb, machine.address) == (15.5, 64.0, 16.0, "")
        assert not tasks

    @pytest.mark.parametrize(
        ("node", "state", "reason"),
        [
            (gpu_node("n1", unschedulable=True), MachineState.CORDONED, "cordoned"),
            (gpu_node("n1", ready="Unknown"), MachineState.UNREACHABLE, "NotReady: kubelet stopped posting"),
            (gpu_node("n1", ready="False", unschedulable=True), MachineState.UNREACHABLE, "NotReady: kubelet stopped posting"),
            (
                gpu_node("n1", taints=[{"key": "team", "value": "web", "effect": "NoSchedule"}]),
                MachineState.CORDONED,
                "taint team=web:NoSchedule",
            ),
            (gpu_node("n1", taints=[{"key": "team", "effect": "PreferNoSchedule"}]), MachineState.READY, ""),
            (gpu_node("n1", taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]), MachineState.READY, ""),
            (gpu_node("n1", taints=[{"key": "gpu-pool", "effect": "NoExecute"}]), MachineState.READY, ""),
        ],
    )
    def test_the_state_of_a_node(self, worlds: Callable[..., World], node: dict[str, Any], state: MachineState, reason: str):
        world = worlds(tolerate="gpu-pool")
        world.fake.put(NODES, node)
        [machine], _ = world.driver.observe(JOURNAL)
        assert (machine.state, machine.reason) == (state, reason)

    def test_a_node_whose_gpus_cannot_be_allocated_keeps_its_size(self, world: World):
        node = gpu_node("n1")
        node["status"]["allocatable"] = {"nvidia.com/gpu": "0"}
        world.fake.put(NODES, node)
        [machine], _ = world.driver.observe(JOURNAL)
        assert (machine.accelerators, machine.state) == (4, MachineState.UNREACHABLE)
        assert machine.reason == "0 of 4 nvidia.com/gpu can be allocated"

    def test_types_from_a_mapping_and_another_resource(self, worlds: Callable[..., World]):
        world = worlds(types="Gaudi-2:gaudi2", type_label="habana/product", gpu_resource="habana.ai/gaudi", node_selector="a=b")
        node = gpu_node("n2")
        node["metadata"]["labels"] = {"habana/product": "Gaudi-2"}
        node["status"]["allocatable"] = {"habana.ai/gaudi": "8"}
        world.fake.put(NODES, node)
        [machine], _ = world.driver.observe(JOURNAL)
        assert (machine.name, machine.type, machine.accelerators) == ("n2", "gaudi2", 8)

    def test_nodes_come_change_and_go(self, world: World):
        told = threading.Event()
        world.driver.watch(told.set)
        world.follows()
        told.clear()
        world.fake.put(NODES, gpu_node("n2", unschedulable=True))
        world.waits_for(lambda: len(world.driver.observe(JOURNAL)[0]) == 2)
        assert told.wait(60)
        world.fake.remove(NODES, "n2")
        world.waits_for(lambda: len(world.driver.observe(JOURNAL)[0]) == 1)

    def test_quantities(self):
        assert [quantity(text) for text in ("4", "500m", "2Ki", "1.5Gi", "3e3", "1k", "", "x", "1Q", "9e999")] == [
            *(4, 0.5, 2048, 1.5 * 2**30, 3000, 1000),
            *(0, 0, 0, 0),
        ]


class TestPods:
    def test_a_pod_of_a_launch(self, worlds: Callable[..., World]):
        world = worlds(control="fairlead.fairlead:7421", pull_policy="Never", tolerate="pool")
        [key] = world.start(user="ann", cpus=3.5, memory_gb=8.0, grace_s=20.0)
        pod, secret = world.fake.objects[PODS][key.label], world.fake.objects[SECRETS][key.label]
        [container] = pod["spec"]["containers"]
        assert pod["metadata"]["annotations"] == {
            "fairlead/key": key.text,
            "fairlead/job-name": "train",
            "fairlead/user": "ann",
        }
        assert pod["metadata"]["labels"] == {
            "app.kubernetes.io/managed-by": "fairlead",
            "fairlead/journal": JOURNAL,
            "fairlead/job": "1",
            "fairlead/generation": "1",
        }
        assert container["command"] == [
            *("fairlead", "agent", "--launch", "1.1", "--control", "fairlead.fairlead:7421"),
            *("--address", "$(FAIRLEAD_POD_ADDRESS)"),
        ]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", "cpu": "7000m", "memory": "16384Mi"}
        assert (container["image"], container["imagePullPolicy"]) == ("train:1", "Never")
        spec = pod["spec"]
        assert (spec["nodeName"], spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("n1", "Never", 30)
        assert spec["automountServiceAccountToken"] is False
        assert {"name": "fairlead-memory", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
        assert [each["key"] for each in spec["tolerations"]] == ["pool", "nvidia.com/gpu"]
        assert secret["stringData"] == {"token": "token of n1"}
        assert secret["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        assert "token of n1" not in str(pod)

    def test_the_users_part_is_in_the_pod(self, worlds: Callable[..., World]):
        world = worlds(service_accounts="reader")
        given = {
            "image": "mine:2",
            "imagePullPolicy": "Always",
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "serviceAccountName": "reader",
            "env": [{"name": "A", "value": "$(b)"}],
            "securityContext": {"runAsUser": 1000, "fsGroup": 100, "capabilities": {"drop": ["ALL"]}},
        }
        world.driver.observe(JOURNAL)  # the labels of nodes
        [key] = world.start(options=given)
        spec = world.fake.objects[PODS][key.label]["spec"]
        [container] = spec["containers"]
        assert (container["image"], container["imagePullPolicy"]) == ("mine:2", "Always")
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "runAsUser": 1000,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["securityContext"] == {"fsGroup": 100}
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("reader", True)
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["tolerations"][-1] == {"key": "spot", "operator": "Exists"}
        assert container["env"][0] == {"name": "A", "value": "$(b)"}

    def test_a_jobs_container_is_the_pods_image_unless_kubernetes_has_its_own(self, worlds: Callable[..., World]):
        world = worlds()
        [key] = world.start(container=Container("docker://mine:2", "podman"))
        [other] = world.start(2, container=Container("mine:2"), options={"image": "for-pods:1"})
        images = [world.fake.objects[PODS][one.label]["spec"]["containers"][0]["image"] for one in (key, other)]
        assert images == ["mine:2", "for-pods:1"]

    def test_mounts_are_refused_where_kubernetes_has_its_own_image_too(self, worlds: Callable[..., World]):
        with pytest.raises(EngineRefused, match="mounts: not supported for Pods"):
            worlds().start(container=Container("mine:2", mounts=(Mount("/etc", "/x"),)), options={"image": "for-pods:1"})

    @pytest.mark.parametrize(
        ("container", "why"),
        [
            (Container("mine", mounts=(Mount("/etc", "/x"),)), "container.mounts: not supported for Pods"),
            (Container("/images/mine.sif"), "only Apptainer runs /images/mine.sif; a Pod needs an image from a registry"),
        ],
    )
    def test_what_no_pod_can_have_is_refused(self, worlds: Callable[..., World], container: Container, why: str):
        with pytest.raises(EngineRefused, match=why):
            worlds().start(container=container)

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "volume v of the type hostPath is not allowed"),
            ({"volumes": [{"name": "v", "flexVolume": {}}]}, "found flexVolume"),
            ({"volumes": [{"name": "fairlead-root", "emptyDir": {}}]}, "belong to Fairlead"),
            ({"volumes": [{"name": "v", "secret": {"secretName": "fairlead-1-1-a"}}]}, "fairlead-1-1-a is not allowed"),
            (
                {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "fairlead-1-1-a"}}]}}]},
                "fairlead-1-1-a is not allowed",
            ),
            (
                {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "fairlead-state"}}]},
                "fairlead-state is not allowed",
            ),
            (
                {"volumes": [{"name": "v", "csi": {"nodePublishSecretRef": {"name": "fairlead-tls"}}}]},
                "fairlead-tls is not allowed",
            ),
            (
                {
                    "volumes": [
                        {
                            "name": "v",
                            "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSource": {"name": "fairlead-state"}}}},
                        }
                    ]
                },
                "fairlead-state is not allowed",
            ),
            (
                {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
                "volume v with a token of a service account is not allowed",
            ),
            ({"volumes": [{"name": "v", "secret": "fairlead-tls"}]}, "fairlead-tls is not allowed"),
            ({"volumes": [{"name": "v", "secret": {"secretName": "bob"}}]}, "a Secret of the namespace is not allowed here"),
            (
                {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "bob", "key": "key"}}}]},
                "an operator can allow it (--engine …,allow=secrets)",
            ),
            (
                {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "bob"}}]}}]},
                "a Secret of the namespace is not allowed here",
            ),
            ({"imagePullSecrets": [{"name": "fairlead-tls"}]}, "fairlead-tls is not allowed"),
            ({"volumeMounts": [{"name": "v", "mountPath": "/etc/fairlead/x"}]}, "belongs to Fairlead"),
            ({"env": [{"name": "FAIRLEAD_TOKEN", "value": "x"}]}, "FAIRLEAD_TOKEN is set by Fairlead"),
            (
                {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "fairlead-2-1-b", "key": "token"}}}]},
                "fairlead-2-1-b is not allowed",
            ),
            ({"hostNetwork": True}, "hostNetwork is not allowed here; an operator can allow it (--engine …,allow=hostNetwork)"),
            ({"hostPID": True}, "hostPID is not allowed"),
            ({"securityContext": {"privileged": True}}, "securityContext.privileged is not allowed"),
            (
                {"securityContext": {"allowPrivilegeEscalation": True}},
                "securityContext.allowPrivilegeEscalation is not allowed",
            ),
            ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "capabilities.add is not allowed"),
            ({"securityContext": {"procMount": "Unmasked"}}, "kubernetes.securityContext.procMount: expected one of"),
            ({"serviceAccountName": "admin"}, "serviceAccountName admin is not allowed"),
            ({"nodeName": "n2"}, "kubernetes.nodeName: expected one of"),
            ({"command": ["sh"]}, "kubernetes.command: expected one of"),
            ({"image": 3}, "kubernetes.image: expected a string"),
            ({"env": {"A": "b"}}, "kubernetes.env: expected a list of mappings"),
            ({"nodeSelector": {"disk": "hdd"}}, "node n1, which Fairlead chose, does not have the label disk=hdd"),
        ],
    )
    def test_what_users_must_not_set_is_refused(self, world: World, given: dict[str, Any], why: str):
        world.driver.observe(JOURNAL)
        with pytest.raises(EngineRefused) as refused:
            world.start(options=given)
        assert why in str(refused.value)
        assert not world.fake.objects[PODS]
        assert not world.fake.objects[SECRETS]

    def test_an_operator_can_allow_it(self, worlds: Callable[..., World]):
        words = "hostPath hostNetwork hostPID privileged capabilities serviceAccountName"
        world = worlds(allow=words)
        security = {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}}
        given = {
            "volumes": [{"name": "v", "hostPath": {"path": "/scratch"}}],
            "hostNetwork": True,
            "hostPID": True,
            "securityContext": security,
            "serviceAccountName": "any",
        }
        [key] = world.start(options=given)
        spec = world.fake.objects[PODS][key.label]["spec"]
        assert (spec["hostNetwork"], spec["hostPID"], spec["serviceAccountName"]) == (True, True, "any")
        assert spec["containers"][0]["securityContext"]["privileged"] is True

    def test_no_image_is_refused(self, worlds: Callable[..., World]):
        with pytest.raises(EngineRefused, match=r"no image: set kubernetes\.image in the task file"):
            worlds(image="").start()

    def test_the_authority_of_the_control_plane_is_in_the_secret(self, worlds: Callable[..., World], tmp_path: Path):
        (tmp_path / "ca.pem").write_text("PEM")
        world = worlds(control_ca=str(tmp_path / "ca.pem"))
        [key] = world.start()
        assert world.fake.objects[SECRETS][key.label]["stringData"]["ca.pem"] == "PEM"
        command = world.fake.objects[PODS][key.label]["spec"]["containers"][0]["command"]
        assert command[command.index("--tls-ca") + 1] == "/etc/fairlead/ca.pem"

    def test_a_claim_that_all_pods_mount(self, worlds: Callable[..., World]):
        world = worlds(claims="fairlead-checkpoints:/checkpoints")
        [key] = world.start()
        spec = world.fake.objects[PODS][key.label]["spec"]
        [volume] = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
        assert volume["persistentVolumeClaim"] == {"claimName": "fairlead-checkpoints"}
        assert {"name": volume["name"], "mountPath": "/checkpoints"} in spec["containers"][0]["volumeMounts"]

    def test_kubernetes_replaces_nothing_in_a_command(self, world: World):
        key = LaunchKey(JOURNAL, 1, 1, "n1")
        world.driver.start([LaunchPart(key, (0,), ("agent", "$(HOME)"), "t")], LaunchNeeds("train"))
        assert "$$(HOME)" in world.fake.objects[PODS][key.label]["spec"]["containers"][0]["command"]


RUNNING = {"phase": "Running", "containerStatuses": container_state(running={})}


class TestStates:
    @pytest.mark.parametrize(
        ("status", "state", "code", "reason"),
        [
            ({}, TaskState.WAITING, 0, ""),
            (
                {"phase": "Pending", "containerStatuses": container_state(waiting={"reason": "ContainerCreating"})},
                *(TaskState.WAITING, 0, "ContainerCreating"),
            ),
            (RUNNING, TaskState.RUNNING, 0, ""),
            (
                {"phase": "Succeeded", "containerStatuses": container_state(terminated={"exitCode": 0, "reason": "Completed"})},
                *(TaskState.OVER, 0, ""),
            ),
            (
                {"phase": "Failed", "containerStatuses": container_state(terminated={"exitCode": 3, "reason": "Error"})},
                *(TaskState.OVER, 3, ""),
            ),
            (  # a sidecar goes on
                {"phase": "Running", "containerStatuses": container_state(terminated={"exitCode": 137, "reason": "OOMKilled"})},
                *(TaskState.OVER, 137, "OOMKilled"),
            ),
            (
                {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "Pod Node didn't have\nenough resource"},
                *(TaskState.OVER, 1, "OutOfnvidia.com/gpu: Pod Node didn't have enough resource"),
            ),
            ({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}, TaskState.OVER, 1, "Evicted: disk pressure"),
            ({"phase": "Unknown"}, TaskState.UNKNOWN, 0, "its node does not answer"),
            ({**RUNNING, "reason": "NodeLost"}, TaskState.UNKNOWN, 0, "NodeLost"),
            ({**RUNNING, "phase": "Failed"}, TaskState.UNKNOWN, 0, ""),
            (
                {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "reason": "DeletionByPodGC"}]},
                *(TaskState.UNKNOWN, 0, "its node does not answer"),
            ),
        ],
    )
    def test_a_pods_status(self, world: World, status: dict[str, Any], state: TaskState, code: int, reason: str):
        [key] = world.start()
        world.fake.set_status(key.label, **status)
        assert world.task(key) == EngineTask(key, state, code, reason, preparing=reason == "ContainerCreating")

    @pytest.mark.parametrize("why", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError"])
    def test_a_pod_that_cannot_start_is_over_after_a_bounded_time(self, worlds: Callable[..., World], why: str):
        world = worlds(start_within_s=120)
        [key] = world.start()
        waiting = {
            "phase": "Pending",
            "containerStatuses": container_state(waiting={"reason": why, "message": "no such thing"}),
        }
        world.fake.set_status(key.label, **waiting)
        own = why == "CreateContainerConfigError"  # the image is the operator's
        assert world.task(key) == EngineTask(key, TaskState.WAITING, 0, f"{why}: no such thing", own, preparing=True)
        world.clock.ahead_s += 119
        state = world.task(key)
        assert state is not None
        assert state.state is TaskState.WAITING
        world.clock.ahead_s += 2
        assert world.task(key) == EngineTask(key, TaskState.OVER, 1, f"{why}: no such thing", own)

    def test_a_wrong_image_that_the_job_names_is_its_own_fault(self, worlds: Callable[..., World]):
        world = worlds(start_within_s=120)
        [key] = world.start(options={"image": "typo:1"})
        waiting = container_state(waiting={"reason": "ImagePullBackOff", "message": "not found"})
        world.fake.set_status(key.label, containerStatuses=waiting)
        assert world.task(key) == EngineTask(key, TaskState.WAITING, 0, "ImagePullBackOff: not found", True, preparing=True)
        world.clock.ahead_s += 121
        assert world.task(key) == EngineTask(key, TaskState.OVER, 1, "ImagePullBackOff: not found", own_fault=True)

    def test_an_image_with_an_invalid_name_is_over_at_once(self, world: World):
        [key] = world.start()
        world.fake.set_status(key.label, containerStatuses=container_state(waiting={"reason": "InvalidImageName"}))
        assert world.task(key) == EngineTask(key, TaskState.OVER, 1, "InvalidImageName")

    def test_tasks_on_a_node_that_does_not_answer_are_unknown(self, world: World):
        ended, running = world.start(1)[0], world.start(2)[0]
        world.fake.set_status(running.label, **RUNNING)
        world.fake.set_status(ended.label, containerStatuses=container_state(terminated={"exitCode": 0}))
        world.fake.put(NODES, gpu_node("n1", ready="Unknown"))
        assert world.task(running) == EngineTask(running, TaskState.UNKNOWN, 0, "NotReady: kubelet stopped posting")
        assert world.task(ended) == EngineTask(ended, TaskState.OVER, 0, "")

    def test_a_pod_that_disappears_may_still_run(self, world: World):
        [key] = world.start()
        world.fake.set_status(key.label, **RUNNING)
        world.follows()
        world.fake.remove(PODS, key.label)
        gone = EngineTask(key, TaskState.UNKNOWN, 0, "the pod was deleted before Fairlead saw its end")
        world.waits_for(lambda: world.task(key) == gone)
        world.start()  # again, after a crash
        assert not world.fake.objects[PODS]
        world.driver.stop(key, 0.0)  # it is given up, and not asked for again
        assert world.task(key) is None

    def test_a_pod_that_ended_before_it_was_deleted_is_over(self, world: World):
        [key] = world.start()
        world.follows()
        world.fake.set_status(key.label, containerStatuses=container_state(terminated={"exitCode": 143}))
        world.fake.remove(PODS, key.label)
        world.waits_for(lambda: world.task(key) == EngineTask(key, TaskState.OVER, 143, ""))
        world.driver.forget(key)
        assert world.task(key) is None

    def test_only_pods_of_the_journal_are_reported(self, world: World):
        [key] = world.start()
        world.fake.put(PODS, {"metadata": {"name": "other", "annotations": {"fairlead/key": key.text}}})  # a copy of a user
        world.fake.put(PODS, {"metadata": {"name": "stranger"}})
        assert [task.key for task in world.driver.observe(JOURNAL)[1]] == [key]
        assert not world.driver.observe("journal-2")[1]


class TestRequests:
    def test_a_start_that_is_repeated_creates_nothing(self, worlds: Callable[..., World]):
        world = worlds()
        [key] = world.start()
        world.start()
        other = KubernetesDriver(
            server="http://fake", namespace="jobs", image="train:1", transport=httpx.MockTransport(world.fake)
        )  # after a crash of the control plane; it has not listed pods yet
        other.start([LaunchPart(key, (0, 1), (), "a newer token")], LaunchNeeds("train"))
        other.close()
        assert list(world.fake.objects[PODS]) == [key.label]
        assert [path for method, path, _ in world.fake.requests if method == "POST"] == [SECRETS, PODS, SECRETS, PODS]

    def test_a_gang_is_started_in_one_call(self, world: World):
        keys = world.start(machines=("n1", "n2", "n3"))
        assert sorted(world.fake.objects[PODS]) == sorted(key.label for key in keys)
        assert {pod["spec"]["nodeName"] for pod in world.fake.objects[PODS].values()} == {"n1", "n2", "n3"}

    def test_a_gang_that_is_refused_in_part_leaves_nothing(self, world: World):
        world.fake.put(PODS, {"metadata": {"name": LaunchKey(JOURNAL, 1, 1, "n2").label}})
        with pytest.raises(EngineRefused, match="exists, but does not belong to this launch"):
            world.start(machines=("n1", "n2"))
        first = world.fake.objects[PODS].get(LaunchKey(JOURNAL, 1, 1, "n1").label)
        assert first is None or "deletionTimestamp" in first["metadata"]
        assert not world.fake.objects[SECRETS]

    @pytest.mark.parametrize(
        ("code", "reason", "message", "error"),
        [
            (422, "Invalid", 'Pod "x" is invalid: spec.volumes[0]: Required value', EngineRefused),
            (400, "BadRequest", "Pod in version v1 cannot be handled", EngineRefused),
            (403, "Forbidden", 'pods "x" is forbidden: exceeded quota: gpus', EngineRefused),
            (403, "Forbidden", 'pods is forbidden: User "u" cannot create resource "pods"', EngineUnavailable),
            (401, "Unauthorized", "Unauthorized", EngineUnavailable),
            (404, "NotFound", 'namespaces "jobs" not found', EngineUnavailable),
            (409, "Conflict", "Operation cannot be fulfilled on resourcequotas", EngineUnavailable),
            (429, "TooManyRequests", "retry later", EngineUnavailable),
            (500, "InternalError", "etcdserver: request timed out", EngineUnavailable),
        ],
    )
    def test_what_the_server_refuses(self, world: World, code: int, reason: str, message: str, error: type[Exception]):
        world.fake.errors["POST", PODS] = (code, reason, message)
        with pytest.raises(error) as raised:
            world.start()
        assert "\n" not in str(raised.value)
        assert message in str(raised.value) or "does not accept the token" in str(raised.value)
        assert bool(world.fake.objects[SECRETS]) is (error is EngineUnavailable)  # it is repeated with the same Secret

    def test_stop_and_forget(self, world: World):
        [key] = world.start()
        world.follows()
        world.driver.stop(key, 7.2)
        assert world.fake.requests[-1][2]["gracePeriodSeconds"] == 8
        world.fake.set_status(key.label, containerStatuses=container_state(terminated={"exitCode": 143}))
        world.waits_for(lambda: world.task(key) == EngineTask(key, TaskState.OVER, 143, ""))
        world.driver.forget(key)
        assert not world.fake.objects[SECRETS]
        assert world.task(key) is None
        assert list(world.fake.objects[PODS]) == [key.label]  # kubectl shows its output for a while
        world.clock.ahead_s += 601
        assert world.task(key) is None
        assert not world.fake.objects[PODS]
        world.driver.forget(key)
        world.driver.stop(key, 1.0)
        world.driver.forget(key)

    def test_a_pod_whose_end_was_reported_before_kubernetes_saw_it_is_kept(self, world: World):
        [key] = world.start()
        world.follows()
        world.fake.set_status(key.label, **RUNNING)
        world.waits_for(lambda: world.task(key) == EngineTask(key, TaskState.RUNNING))
        world.driver.forget(key)
        world.fake.set_status(key.label, containerStatuses=container_state(terminated={"exitCode": 0}))
        world.waits_for(lambda: world.driver._pods[key.label].task.state is TaskState.OVER)
        world.clock.ahead_s += 599
        assert world.task(key) is None
        assert "deletionTimestamp" not in world.fake.objects[PODS][key.label]["metadata"]
        world.clock.ahead_s += 2
        assert world.task(key) is None
        assert not world.fake.objects[PODS]

    def test_a_pod_whose_agent_does_not_end_is_deleted(self, world: World):
        [key] = world.start()
        world.follows()
        world.fake.set_status(key.label, **RUNNING)
        world.waits_for(lambda: world.task(key) == EngineTask(key, TaskState.RUNNING))
        world.driver.forget(key)
        world.clock.ahead_s += 31
        assert world.task(key) is None
        assert "deletionTimestamp" in world.fake.objects[PODS][key.label]["metadata"]  # with its grace

    def test_a_pod_that_never_started_is_deleted_at_once(self, world: World):
        [key] = world.start()
        world.follows()
        world.fake.set_status(key.label, containerStatuses=container_state(waiting={"reason": "InvalidImageName"}))
        world.waits_for(lambda: world.task(key) == EngineTask(key, TaskState.OVER, 1, "InvalidImageName"))
        world.driver.forget(key)
        assert "deletionTimestamp" in world.fake.objects[PODS][key.label]["metadata"]
        assert world.task(key) is None
        world.fake.remove(PODS, key.label)
        world.waits_for(lambda: not world.driver._pods)
        assert world.task(key) is None

    def test_pieces_of_a_log(self, world: World):
        [key] = world.start()
        assert world.driver.log(key, 0, 100) is None
        world.fake.logs[key.label] = bytes(range(100))
        assert world.driver.log(key, 0, 10) == bytes(range(10))
        assert world.driver.log(key, 90, 50) == bytes(range(90, 100))
        assert world.driver.log(key, 100, 50) == b""
        world.fake.errors["GET", f"{PODS}/{key.label}/log"] = (400, "BadRequest", "container is waiting to start")
        assert world.driver.log(key, 0, 10) is None

    def test_a_token_is_read_again_when_it_changes(self, worlds: Callable[..., World], tmp_path: Path):
        token = tmp_path / "token"
        token.write_text("first\n")
        world = worlds(token_file=str(token))
        world.fake.tokens = {"first"}
        world.start(1)
        world.fake.tokens = {"second"}
        with pytest.raises(EngineUnavailable, match=f"does not accept the token of {token}: it may have expired"):
            world.start(2)
        token.write_text("second\n")
        world.start(2)
        token.unlink()
        with pytest.raises(EngineUnavailable, match="the token cannot be read"):
            world.start(3)


class TestTheWatch:
    def test_an_api_server_that_is_away_is_unavailable_until_it_is_back(self, world: World):
        [key] = world.start()
        world.follows()
        world.fake.away = True
        world.fake.break_watches()

        def raises() -> bool:
            try:
                world.driver.observe(JOURNAL)
            except EngineUnavailable as problem:
                return "http://fake does not answer" in str(problem)
            return False

        world.waits_for(raises)
        with pytest.raises(EngineUnavailable, match="does not answer"):
            world.start(2)
        world.fake.remove(PODS, key.label)  # nothing is seen of it
        world.fake.oldest = 10**6
        world.fake.away = False
        world.waits_for(
            lambda: world.task(key) == EngineTask(key, TaskState.UNKNOWN, 0, "the pod was deleted before Fairlead saw its end")
        )

    def test_a_version_that_is_gone_leads_to_a_new_list(self, world: World):
        world.follows()

        def lists() -> int:
            return sum(request[:2] == ("GET", PODS) for request in world.fake.requests)

        before = lists()
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "metadata": {}}
        world.fake.send(PODS, "ERROR", status)
        world.fake.send(PODS, "BOOKMARK", {"metadata": {"resourceVersion": "1"}})
        world.waits_for(lambda: lists() >= before + 2)  # a list and a watch
        [key] = world.start()
        world.fake.set_status(key.label, **RUNNING)
        world.waits_for(lambda: world.task(key) == EngineTask(key, TaskState.RUNNING))

    def test_an_object_that_cannot_be_read_ends_no_watch(self, world: World):
        world.follows()
        for node in ({"metadata": {"name": "n2", "resourceVersion": "2"}, "status": []}, {"metadata": {}}):
            world.fake.send(NODES, "ADDED", node)
        world.fake.put(NODES, gpu_node("n3"))
        world.waits_for(lambda: "n3" in [machine.name for machine in world.driver.observe(JOURNAL)[0]])

    def test_what_was_started_is_seen_before_the_watch_shows_it(self, world: World):
        world.follows()
        world.fake._watches.clear()  # events do not come
        [key] = world.start()
        assert world.task(key) == EngineTask(key, TaskState.WAITING)

    def test_a_first_list_that_is_forbidden(self, world: World):
        world.fake.errors["GET", NODES] = (403, "Forbidden", 'nodes is forbidden: User "u" cannot list resource "nodes"')
        with pytest.raises(EngineUnavailable, match='User "u" cannot list resource "nodes"; grant it by a Role'):
            world.driver.observe(JOURNAL)

    def test_something_else_than_an_api_server(self, worlds: Callable[..., World]):
        world = worlds()
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>"))
        driver = KubernetesDriver(server="http://fake", namespace="jobs", transport=transport, host=world.clock)
        with pytest.raises(EngineUnavailable, match="does not answer as a Kubernetes API server"):
            driver.observe(JOURNAL)
        driver.close()


class TestAccess:
    def test_a_kubeconfig_file(self, tmp_path: Path):
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "http://host:1/", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": "abc"}}],
        }
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump(config))
        access = ApiAccess.find(kubeconfig=str(path))
        assert (access.server, access.headers()) == ("http://host:1", {"Authorization": "Bearer abc"})
        assert "abc" not in repr(access)
        config["users"] = [{"name": "u", "user": {"exec": {"command": "login"}}}]
        path.write_text(yaml.safe_dump(config))
        with pytest.raises(InputError, match="for other log-ins pass server, ca and token_file"):
            ApiAccess.find(kubeconfig=str(path))
        path.write_text("a: b")
        with pytest.raises(InputError, match="a kubeconfig file with a current context"):
            ApiAccess.find(kubeconfig=str(path))
        bad = base64.b64encode(b"no certificate").decode()
        config["users"] = [{"name": "u", "user": None}]
        config["clusters"] = [{"name": "k", "cluster": {"server": "https://host", "certificate-authority-data": bad}}]
        path.write_text(yaml.safe_dump(config))
        with pytest.raises(InputError, match="PEM file"):
            ApiAccess.find(kubeconfig=str(path))

    def test_without_an_address(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(InputError, match="'server' or 'kubeconfig'; only a pod needs neither"):
            KubernetesDriver()

    @pytest.mark.parametrize(
        ("keys", "why"),
        [
            ({"server": "host:1"}, "https://HOST:PORT"),
            ({"allow": "everything"}, "words of hostPath"),
            ({"pull_policy": "Sometimes"}, "Always, IfNotPresent or Never"),
            ({"types": "a"}, "words such as a:b"),
            ({"node_selector": "a"}, "words such as a=b"),
            ({"start_within_s": 0}, "seconds above 0"),
            ({"control_ca": "/nonexistent/ca.pem"}, "PEM file"),
        ],
    )
    def test_wrong_keys(self, keys: dict[str, Any], why: str):
        with pytest.raises(InputError, match=why):
            KubernetesDriver(**{"server": "http://host", **keys})


def test_no_folder_of_manifests_is_inside_one_that_it_uses():
    """`kubectl apply -k` refuses that as a cycle."""
    for path in (Path(__file__).resolve().parents[3] / "deploy").rglob("kustomization.yaml"):
        used = [(path.parent / each).resolve() for each in yaml.safe_load(path.read_text())["resources"]]
        assert all(each.exists() and each not in path.parents for each in used), path


def test_a_connection_is_closed_by_the_thread_that_reads_from_it():
    # Closed by another thread, its file descriptor may belong to a new connection while the first one still reads from it.
    closed_by: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        api = KubernetesApi(ApiAccess(f"http://127.0.0.1:{server.getsockname()[1]}"))
        close_client, answers = api._client.close, threading.Event()

        def closed() -> None:
            closed_by.append(threading.get_ident())
            close_client()

        def follow() -> None:
            with contextlib.suppress(EngineUnavailable):
                for _ in api.stream("/watch", read_s=120):
                    answers.set()

        api._client.close = closed  # type: ignore[method-assign]
        reader = threading.Thread(target=follow)
        reader.start()
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert answers.wait(120)
            api.close()
            reader.join(120)
        assert closed_by == [reader.ident]
    with pytest.raises(EngineUnavailable, match="closed"):
        api.ask("GET", "/api/v1/pods")
