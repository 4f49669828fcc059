"""Sessions of browsers: how they begin and end, and what their cookies allow."""

from __future__ import annotations

from contextlib import closing

import httpx
import pytest
from reading import fresh  # noqa: F401  (it finds the modules of the control plane's tests)
from serving import Served, served

from fairlead.runtime.control.tokens import Role


@pytest.fixture(scope="module")
def control() -> Served:
    with served("v100:4", console=True) as one:
        yield one


PAGE = {"X-Fairlead-Console": "1"}


def signed_in(control: Served, token: str) -> httpx.Client:
    browser = httpx.Client(base_url=control.url)
    answer = browser.post("/console/sign-in", json={"token": token})
    assert answer.status_code == 204, answer.text
    return browser


def test_a_session_takes_the_place_of_a_token(control):
    with httpx.Client(base_url=control.url) as stranger:
        assert stranger.get("/console/session").status_code == 401
    with closing(signed_in(control, control.user)) as ann:
        about = ann.get("/console/session").json()
        assert (about["user"], about["role"]) == ("ann", "user")
        assert about.keys() == {"user", "role", "cluster", "version", "features"}
        assert ann.get("/v1/jobs").status_code == 200
        assert ann.post("/v1/jobs", json={"jobs": [{"run": "true"}]}, headers=PAGE).status_code == 201
        session = ann.cookies["fairlead_session"]
        assert ann.post("/console/sign-out", headers=PAGE).status_code == 204
        assert "fairlead_session" not in ann.cookies
    with httpx.Client(base_url=control.url, cookies={"fairlead_session": session}) as late:
        assert late.get("/v1/jobs").status_code == 401


@pytest.mark.parametrize("role", [Role.AGENT, Role.NODE, Role.METRICS])
def test_tokens_of_machines_cannot_sign_in(control, role):
    token = control.tokens.issue(role, "machine")
    answer = httpx.post(f"{control.url}/console/sign-in", json={"token": token})
    assert answer.status_code in (401, 403)
    assert "set-cookie" not in answer.headers
