"""The manifests of deploy/kubernetes on a real API server: they are valid, and the Role is enough and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from emulated_kubelet import EmulatedKubelet
from kubernetes_bed import KubernetesBed
from test_driver_on_kubernetes import JOURNAL, Site

from fairlead.runtime.drivers.base import EngineUnavailable, LaunchKey, TaskState
from fairlead.runtime.drivers.kubernetes_driver import KubernetesDriver

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/fairlead/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/fairlead/persistentvolumeclaims",
    "Service": "/api/v1/namespaces/fairlead/services",
    "Deployment": "/apis/apps/v1/namespaces/fairlead/deployments",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/fairlead/networkpolicies",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/fairlead/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/fairlead/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def manifests() -> list[dict[str, Any]]:
    names = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(names) == sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
    return [item for name in names for item in yaml.safe_load_all((FOLDER / name).read_text())]


@pytest.fixture(scope="module")
def installed(bed: KubernetesBed) -> KubernetesBed:
    """Everything of the folder is in the cluster; each object was checked by a dry run before."""
    for item in manifests():
        path = PLACES[item["kind"]]
        answer = bed.request("POST", f"{path}?dryRun=All", item)
        assert answer.is_success, f"{item['kind']} {item['metadata']['name']}: {answer.text}"
        created = bed.ask("POST", path, item)
        assert _contains(created, item), f"{item['kind']}: the server dropped a field"
    return bed


def _contains(found: Any, given: Any) -> bool:
    """Whether nothing of what was given is missing: the server silently drops fields that it does not know."""
    if isinstance(given, dict):
        return isinstance(found, dict) and all(key in found and _contains(found[key], value) for key, value in given.items())
    if isinstance(given, list):
        return isinstance(found, list) and len(found) == len(given) and all(map(_contains, found, given))
    return bool(found == given)


def test_the_folder_is_valid(installed: KubernetesBed):
    found = installed.ask("GET", PLACES["Deployment"])["items"]
    [container] = found[0]["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert found[0]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_patch_for_postgresql_is_valid(installed: KubernetesBed):
    overlay = yaml.safe_load((FOLDER.parent / "kubernetes-postgresql" / "kustomization.yaml").read_text())
    patch = yaml.safe_load(overlay["patches"][0]["patch"])
    kind = {"Content-Type": "application/json-patch+json"}
    changed = installed.ask("PATCH", f"{PLACES['Deployment']}/fairlead?dryRun=All", patch, **kind)
    [container] = changed["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "--journal=$(FAIRLEAD_JOURNAL)"
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "fairlead-postgresql"


@pytest.fixture
def site(installed: KubernetesBed, tmp_path: Path) -> Iterator[Site]:
    """A driver with the token of the service account, and a driver's keys as in the Deployment."""
    (tmp_path / "token").write_text(installed.account_token("fairlead", "fairlead"))
    with EmulatedKubelet(installed, {"m1": 4}) as kubelet:
        found = Site.__new__(Site)
        found.bed, found.kubelet, found.namespace = installed, kubelet, "fairlead"
        found.keys = {"server": installed.server, "ca": str(installed.ca), "token_file": str(tmp_path / "token"), "image": "i"}
        found.driver = found.another_driver(keep_s=0.0, claims="fairlead-checkpoints:/checkpoints")
        yield found
        found.driver.close()


def test_the_role_is_enough(site: Site):
    [key] = site.start("print('hello')", "m1")
    [again] = site.start("print('hello')", "m1", driver=site.another_driver())  # reads the pod, replaces the token
    assert key == again
    site.is_in(key, TaskState.OVER)
    assert site.driver.log(key, 0, 100) == b"hello\n"
    [stopped] = site.start("import time; time.sleep(600)", "m1", job=2)
    site.is_in(stopped, TaskState.RUNNING)
    site.driver.stop(stopped, 1.0)
    site.is_in(stopped, TaskState.OVER)
    for each in (key, stopped):
        site.driver.forget(each)
    site.until(lambda: not site.driver.observe(JOURNAL)[1] and not site.pods())
    assert not site.bed.ask("GET", "/api/v1/namespaces/fairlead/secrets")["items"]


FORBIDDEN = [
    ("get", "secrets", "fairlead"),
    ("list", "secrets", "fairlead"),
    ("update", "pods", "fairlead"),
    ("patch", "pods", "fairlead"),
    ("deletecollection", "pods", "fairlead"),
    ("create", "pods/exec", "fairlead"),
    ("create", "pods/binding", "fairlead"),
    ("get", "configmaps", "fairlead"),
    ("create", "serviceaccounts/token", "fairlead"),
    ("create", "pods", "default"),
    ("list", "pods", "default"),
    ("patch", "nodes", ""),
    ("delete", "nodes", ""),
    ("get", "nodes", ""),
]


def test_the_role_is_no_more_than_that(installed: KubernetesBed):
    token = installed.account_token("fairlead", "fairlead")
    allowed = []
    for verb, resource, namespace in FORBIDDEN:
        name, _, part = resource.partition("/")
        asked = {"verb": verb, "resource": name, "subresource": part, "namespace": namespace}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = installed.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, token=token)
        if answer.json()["status"]["allowed"]:
            allowed.append((verb, resource, namespace))
    assert not allowed


@pytest.mark.parametrize(
    ("kind", "name", "resource", "verb"),
    [
        *(("Role", "fairlead", "pods", verb) for verb in ("create", "list", "watch", "get", "delete")),
        ("Role", "fairlead", "pods/log", "get"),
        *(("Role", "fairlead", "secrets", verb) for verb in ("create", "patch", "delete")),
        *(("ClusterRole", "fairlead-nodes", "nodes", verb) for verb in ("list", "watch")),
    ],
)
def test_each_right_of_the_role_is_needed(site: Site, kind: str, name: str, resource: str, verb: str):
    path = f"{PLACES[kind]}/{name}"
    role = site.bed.ask("GET", path)
    fewer = [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb or rule["resources"] != [resource]]}
        for rule in role["rules"]
    ]
    site.bed.ask("PUT", path, {**role, "rules": [rule for rule in fewer if rule["verbs"]]})
    try:
        # What is cached of the role may still be used for a moment.
        site.until(lambda: f'cannot {verb} resource "{resource}"' in _problem_of(site))
    finally:
        now = site.bed.ask("GET", path)
        site.bed.ask("PUT", path, {**now, "rules": role["rules"]})


def _problem_of(site: Site) -> str:
    """Do everything that a driver does, with a new one, and return what went wrong."""
    driver: KubernetesDriver = site.another_driver(keep_s=0.0)
    key = LaunchKey(JOURNAL, 1, 1, "m1")
    try:
        driver.observe(JOURNAL)
        [key] = site.start("print('hello')", "m1", driver=driver)
        other = site.another_driver()
        site.start("print('hello')", "m1", driver=other)
        other.close()
        driver.log(key, 0, 10)
        driver.stop(key, 0.0)
        driver.forget(key)
        return next((mirror.problem for mirror in driver._mirrors if mirror.problem), "")
    except EngineUnavailable as problem:
        return str(problem)
    finally:
        driver.close()
        for kind in ("pods", "secrets"):
            site.bed.request("DELETE", f"/api/v1/namespaces/fairlead/{kind}/{key.label}", {"gracePeriodSeconds": 0})
