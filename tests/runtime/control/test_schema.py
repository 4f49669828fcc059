"""The OpenAPI document is kept: schemathesis makes requests from it, right ones and wrong ones, and a real server answers none
of them with a failure of its own or with what the document does not say."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import PATIENCE_S, Served, served

from fairlead.engine.apply import replay_events

pytestmark = pytest.mark.long

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 8  # of each operation and each kind


@pytest.fixture(scope="module")
def control() -> Served:
    with served() as one:
        yield one


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_breaks_the_server_or_the_document(control: Served, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{control.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 7
    for operation in operations:

        @given(operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        def all_is_well(case: schemathesis.Case) -> None:
            headers = {"Authorization": f"Bearer {control.token}"}
            case.call_and_validate(headers=headers, checks=CHECKS, timeout=PATIENCE_S)

        with suppress(Unsatisfiable):  # nothing can be wrong with a request that has nothing in it
            all_is_well()
    assert control.plane.failure is None
    assert replay_events(control.journal).next_number == control.plane.loop.state.next_number


def test_the_pages_of_the_server_load_nothing_from_elsewhere():
    with served("v100:1") as control:
        pages = {path: httpx.get(control.url + path, trust_env=False) for path in ("/", "/docs")}
    assert {page.status_code for page in pages.values()} == {200}
    assert 'href="/docs"' in pages["/"].text
    assert "PUT /v1/jobs/{name}/hold" in pages["/docs"].text
    assert not any("http" in page.text.replace("HTTP", "") or "<script" in page.text for page in pages.values())
