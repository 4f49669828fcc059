"""Sessions of browsers: how they begin and end, and what their cookies allow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from reading import live
from serving import Served, served

from fairlead.console.web_console import LASTS_S, MAX_OF_TOKEN, Console, Sessions, page_files
from fairlead.runtime.control.http_api import create_app
from fairlead.runtime.control.tokens import Role, Tokens

PAGE = {"X-Fairlead-Console": "1"}
CHANGES = [
    ("POST", "/v1/jobs", {"jobs": [{"run": "true"}]}),
    ("DELETE", "/v1/jobs/0", None),
    ("PATCH", "/v1/jobs/0", {"priority": 1}),
    ("POST", "/v1/jobs/0/hold", {}),
    ("POST", "/v1/scheduler", {"scheduler": {"policy": "fifo"}}),
    ("PUT", "/v1/nodes/v100-0/drain", {}),
    ("DELETE", "/v1/nodes/v100-0/drain", None),
    ("PUT", "/v1/code/" + "0" * 64, {}),
    ("POST", "/console/sign-out", None),
]


@pytest.fixture(scope="module")
def control() -> Iterator[Served]:
    with served("v100:4", console=True) as one:
        yield one


def signed_in(control: Served, token: str) -> httpx.Client:
    browser = httpx.Client(base_url=control.url, timeout=60)
    answer = browser.post("/console/sign-in", json={"token": token})
    assert (answer.status_code, answer.content) == (204, b""), answer.text
    return browser


def test_a_session_takes_the_place_of_a_token(control):
    with httpx.Client(base_url=control.url) as stranger:
        assert stranger.get("/console/session").status_code == 401
    with closing(signed_in(control, control.user)) as ann:
        about = ann.get("/console/session").json()
        assert (about["user"], about["role"]) == ("ann", "user")
        assert about.keys() == {"user", "role", "cluster", "version", "features"}
        assert "when" in about["features"]
        assert ann.get("/v1/jobs").status_code == 200
        assert ann.get("/v1/digest").status_code == 403  # for admins
        assert ann.post("/v1/jobs", json={"jobs": [{"run": "true"}]}, headers=PAGE).status_code == 201
        session = ann.cookies["fairlead_session"]
        assert ann.post("/console/sign-out", headers=PAGE).status_code == 204
        assert "fairlead_session" not in ann.cookies
    with httpx.Client(base_url=control.url, cookies={"fairlead_session": session}) as late:
        assert late.get("/v1/jobs").status_code == 401


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(control):
    answer = httpx.post(f"{control.url}/console/sign-in", json={"token": control.user})
    cookie = answer.headers["set-cookie"]
    assert {part.strip() for part in cookie.split(";")[1:]} == {"Path=/", "HttpOnly", "SameSite=Strict"}  # Secure with TLS
    assert len(cookie.split(";")[0].partition("=")[2]) >= 43
    assert control.user not in cookie


def test_the_cookie_is_for_encrypted_connections_where_the_server_has_a_certificate(control):
    async def sign_in() -> str:
        app = create_app(control.plane, control.tokens, console=Console(control.plane, control.tokens))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://here") as browser:
            return (await browser.post("/console/sign-in", json={"token": control.user})).headers["set-cookie"]

    assert asyncio.run(sign_in()).endswith("; Secure")


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_a_change_with_a_cookie_needs_the_header_of_the_page_and_its_origin(control, method, path, body):
    host = control.url.removeprefix("http://")
    with closing(signed_in(control, control.token)) as root:
        before = control.plane.loop.state.next_number
        for headers in (
            {},
            {"X-Fairlead-Console": "0"},
            {**PAGE, "Origin": "http://evil.example"},
            {**PAGE, "Origin": "null"},
            {**PAGE, "Origin": f"http://{host}.evil.example"},
        ):
            answer = root.request(method, path, json=body, headers=headers)
            assert answer.status_code == 403, (headers, answer.text)
        assert control.plane.loop.state.next_number == before
        own = root.request(method, path, json=body, headers={**PAGE, "Origin": control.url})
        assert own.status_code != 403


def test_a_token_in_the_header_needs_no_other_header_and_comes_first(control):
    with closing(signed_in(control, control.token)) as root:
        headers = {"Authorization": f"Bearer {control.user}"}
        assert root.get("/console/session", headers=headers).json()["user"] == "ann"
        assert root.post("/v1/jobs", json={"jobs": [{"run": "true"}]}, headers=headers).status_code == 201
        for wrong in ("Bearer guess", "Basic cm9vdA==", "Bearer"):
            assert root.get("/console/session", headers={"Authorization": wrong}).status_code == 401


def test_another_site_cannot_sign_a_browser_in(control):
    origin = {"Origin": "http://evil.example"}
    answer = httpx.post(f"{control.url}/console/sign-in", json={"token": control.user}, headers=origin)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_session_cannot_be_chosen_or_kept_over_a_sign_in(control):
    with httpx.Client(base_url=control.url, cookies={"fairlead_session": "chosen"}) as browser:
        assert browser.get("/v1/jobs").status_code == 401
        answer = browser.post("/console/sign-in", json={"token": control.user})
        first = answer.cookies["fairlead_session"]
        assert first != "chosen"
    with httpx.Client(base_url=control.url, cookies={"fairlead_session": first}) as browser:
        second = browser.post("/console/sign-in", json={"token": control.user}).cookies["fairlead_session"]
    assert second != first
    assert [httpx.get(f"{control.url}/v1/jobs", cookies={"fairlead_session": s}).status_code for s in (first, second)] == [
        401,
        200,
    ]
    both = {"Cookie": f"fairlead_session={first}; fairlead_session={second}"}
    assert httpx.get(f"{control.url}/v1/jobs", headers=both).status_code == 401


@pytest.mark.parametrize("role", [Role.AGENT, Role.NODE, Role.METRICS, Role.LAUNCH])
def test_tokens_of_machines_cannot_sign_in(control, role):
    if role is Role.LAUNCH:
        token = control.tokens.launch_token("journal/1.1.v100-0")
    else:
        token = control.tokens.issue(role, "machine")
    answer = httpx.post(f"{control.url}/console/sign-in", json={"token": token})
    assert answer.status_code in (401, 403)
    assert "set-cookie" not in answer.headers
    live = httpx.get(f"{control.url}/v1/live", headers={"Authorization": f"Bearer {token}"})
    assert live.status_code in (401, 403)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"token": "guess"}', 401),
        ('{"token": ""}', 422),
        ("{}", 422),
        ("[", 422),
        ('{"token": "\\ud800"}', 422),
        ('{"token": "' + "x" * 5000 + '"}', 413),
        ('{"token": "a", "more": 1}', 422),
    ],
)
def test_a_wrong_sign_in_is_refused(control, body, status):
    answer = httpx.post(f"{control.url}/console/sign-in", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (status, False)


def test_a_session_ends_with_its_token(control):
    token = control.tokens.issue(Role.USER, "tim")
    with closing(signed_in(control, token)) as tim:
        assert tim.get("/v1/jobs").status_code == 200
        control.tokens.revoke("tim")
        assert tim.get("/v1/jobs").status_code == 401
        assert tim.post("/v1/jobs", json={"jobs": [{"run": "true"}]}, headers=PAGE).status_code == 401


def test_a_session_ends_some_hours_after_its_last_use_and_with_an_expired_token():
    now, tokens = [0.0], Tokens(clock=lambda: now[0])
    sessions = Sessions(tokens, clock=lambda: now[0])
    ann = tokens.bearer(tokens.issue(Role.USER, "ann"))
    short = tokens.bearer(tokens.issue(Role.USER, "bob", lasts_s=60.0))
    assert ann is not None
    assert short is not None
    one, other = sessions.open(ann), sessions.open(short)
    assert sessions.bearer(other) == short
    now[0] = LASTS_S - 1
    assert sessions.bearer(other) is None
    assert sessions.bearer(one) == ann
    now[0] = 2 * LASTS_S - 2
    assert sessions.bearer(one, use=False) == ann
    now[0] = 2 * LASTS_S
    assert sessions.bearer(one) is None
    assert sessions.bearer("guess") is None


def test_one_token_has_a_limited_number_of_sessions_and_others_keep_theirs():
    tokens = Tokens()
    sessions = Sessions(tokens)
    ann, bob = (tokens.bearer(tokens.issue(Role.USER, name)) for name in ("ann", "bob"))
    assert ann is not None
    assert bob is not None
    his = sessions.open(bob)
    hers = [sessions.open(ann) for _ in range(MAX_OF_TOKEN + 2)]
    assert len(set(hers)) == len(hers)
    assert [sessions.bearer(one) is None for one in hers[:3]] == [True, True, False]
    assert sessions.bearer(hers[-1]) == ann
    assert sessions.bearer(his) == bob


def test_the_page_and_its_files_load_nothing_from_elsewhere_and_are_cached_by_their_content(control):
    names = {"", *(f"console/{name}" for name in page_files())}
    assert "console/theme.js" in names  # of the HTML report
    for name in names:
        answer = httpx.get(f"{control.url}/{name}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = httpx.get(f"{control.url}/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"] == policy
    for wrong in ("console/nothing.js", "console/..%2Fweb_console.py", "console/report.html", "console/web_console.py"):
        assert httpx.get(f"{control.url}/{wrong}").status_code == 404
    assert httpx.get(f"{control.url}/docs").status_code == 200
    assert httpx.get(f"{control.url}/v1/health").headers["x-content-type-options"] == "nosniff"


def test_no_log_line_shows_a_token_or_a_session(control, caplog):
    caplog.set_level(logging.DEBUG)
    with closing(signed_in(control, control.user)) as ann:
        session = ann.cookies["fairlead_session"]
        with live(control.url, cookie=f"fairlead_session={session}") as found:
            next(found)
        ann.post("/v1/jobs", json={"jobs": [{"run": "true"}]})
        ann.post("/console/sign-out", headers=PAGE)
    httpx.post(f"{control.url}/console/sign-in", json={"token": control.user + "x"})
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]  # of the client
    text = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in ours)
    assert control.user not in text
    assert session not in text
