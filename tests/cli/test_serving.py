"""`fairlead serve` and `fairlead agent` with certificates, tokens made beside a running control plane, and what is refused."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import orjson
import pytest
from cluster_up import LOG, until
from command import environment, fairlead

from certificates import certificates
from fairlead.cli.main import app
from fairlead.core.errors import FairleadError
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest, Unreachable
from foundry import PATIENCE_S, free_port, running


def reached(plane: ControlPlaneClient) -> bool:
    try:
        return any(node["connected"] for node in plane.nodes())
    except Unreachable:
        return False


def test_people_and_agents_speak_tls_and_tokens_are_made_and_revoked_while_it_runs(tmp_path):
    ca, certificate, key = certificates(tmp_path)
    http, agents = free_port(), free_port()
    words = ("--http", f"127.0.0.1:{http}", "--agents", f"127.0.0.1:{agents}", "--tls-cert", certificate, "--tls-key", key)
    joining = ("--control", f"127.0.0.1:{agents}", "--node", "v100-0", "--accelerators", "v100:1", "--token-file")
    ending = {"log": LOG, "end": signal.SIGTERM}
    with running(tmp_path, "serve", "--cluster", "1xv100:1", "--round", "1", *words, **ending):
        until(lambda: (tmp_path / ".fairlead" / "agent.token").exists(), tmp_path)
        with running(tmp_path, "agent", *joining, ".fairlead/agent.token", "--tls-ca", ca, "--end-jobs", **ending):
            url = f"https://127.0.0.1:{http}"
            admin = (tmp_path / ".fairlead" / "admin.token").read_text()
            root = ControlPlaneClient(url, admin, authority=str(ca))
            until(lambda: reached(root), tmp_path)
            with pytest.raises(Unreachable, match="certificate"):
                ControlPlaneClient(url, admin).nodes()
            with pytest.raises(Unreachable):
                ControlPlaneClient(f"http://127.0.0.1:{http}", admin).nodes()
            made = [fairlead("token", "add", name, "--entity", "lab", cwd=tmp_path) for name in ("ann", "bob")]
            ann, bob = (ControlPlaneClient(url, one.stdout.strip(), authority=str(ca)) for one in made)
            ann.submit([{"name": "hers", "run": ["true"]}])
            assert ann.job("hers")["account"] == "lab"
            with pytest.raises(RefusedRequest, match="no job"):
                bob.cancel("hers")
            with pytest.raises(RefusedRequest, match="account"):
                bob.submit([{"run": ["true"], "account": "others"}])
            with pytest.raises(RefusedRequest, match="admin"):
                bob.drain("v100-0")
            until(lambda: ann.job("hers")["phase"] == "finished", tmp_path)
            listed = orjson.loads(fairlead("token", "list", "--json", cwd=tmp_path).stdout)["tokens"]
            assert [one["name"] for one in listed if one["role"] == "user"] == ["ann", "bob"]
            assert [one["name"] for one in listed if one["role"] == "node"] == ["v100-0"]
            assert fairlead("token", "revoke", "ann", cwd=tmp_path).returncode == 0
            with pytest.raises(RefusedRequest, match="token"):
                ann.jobs()
            assert bob.jobs() == []
            kept = (tmp_path / ".fairlead" / "tokens.json").read_bytes()
            assert bob.token.encode() not in kept
            by_environment = {**environment(), "FAIRLEAD_URL": url, "FAIRLEAD_TOKEN": bob.token, "FAIRLEAD_CA": str(ca)}
            queue = [sys.executable, "-m", "fairlead.cli.main", "queue", "--json"]
            done = subprocess.run(queue, env=by_environment, capture_output=True, timeout=PATIENCE_S, check=True)
            assert orjson.loads(done.stdout) == {"jobs": []}
            assert list(root.logs("hers")) == []
        with pytest.raises(RefusedRequest, match="v100-0"):
            list(root.logs("hers"))
        assert list(root.logs("hers", follow=True)) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--cluster", "1xv100:1", "--http", "0.0.0.0:0"), "--insecure"),
        (("serve", "--cluster", "1xv100:1", "--agents", "[::]:0"), "--tls-cert"),
        (("serve", "--cluster", "1xv100:1", "--tls-cert", "absent.pem", "--tls-key", "absent.key"), "absent.pem"),
        (("serve", "--cluster", "1xv100:1", "--tls-cert", "some.txt"), "both or neither"),
        (("serve", "--cluster", "1xv100:1", "--tls-cert", "some.txt", "--tls-key", "some.txt"), "PEM"),
        (("up", "--http", "10.0.0.1:7420"), "fairlead serve"),
        (("agent", "--control", "10.0.0.1:7421", "--accelerators", "v100:1"), "--tls-ca"),
        (("agent", "--control", "10.0.0.1:1", "--accelerators", "v100:1", "--allow-root-jobs", "--tls-ca", "some.txt"), "PEM"),
        (("token", "add", "../ann"), "letters"),
        (("token", "add", "ann", "--role", "king"), "admin or user or agent"),
        (("token", "add", "ann"), "root of a control plane"),
        (("token", "revoke", "nobody", "--root", "."), "token list"),
    ],
)
def test_what_would_not_be_safe_is_refused(tmp_path, monkeypatch, words, said):
    (tmp_path / "some.txt").write_text("no certificate")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FairleadError, match=re.escape(said)):
        app(words, standalone_mode=False)
    assert not (tmp_path / ".fairlead").exists()
