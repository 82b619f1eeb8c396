"""Fuzzing of the API with schemathesis: nothing breaks, and every answer is documented."""

from __future__ import annotations

import os

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks
from schemathesis.core.result import Ok

from tests.console.serving import serving
from tests.console.shared_server import furnish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLES = int(os.environ.get("API_FUZZ_EXAMPLES", "2"))
"""For each operation and each kind of data. More are for those who look for something: they take minutes."""
CALLS = {"render_module", "run_action", "run_command"}
"""Operations that may answer 502 and 504: an extension's own code failed, or took too long."""
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]
REFUSALS = {400, 401, 403, 404, 405, 413, 422}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A separate server, because the fuzzer decides at random."""
    folder = tmp_path_factory.mktemp("fuzzed")
    with serving(folder, furnish(folder / "more")) as found:
        yield found


@pytest.fixture(scope="module")
def schema(served):
    """The OpenAPI document of the server."""
    document = requests.get(f"{served.url}/api/v1/openapi.json", timeout=60).json()
    # Who calls is settled here: what schemathesis would make up for it is the same for all operations.
    del document["security"], document["components"]["securitySchemes"]
    found = schemathesis.openapi.from_dict(document)
    found.config.update(base_url=served.url)
    return found


@pytest.fixture(scope="module")
def known(served, admin, uma):
    """Existing objects by parameter name, because generated ids are mostly unknown."""
    request = served.stop_weather(uma, "/fuzzed")
    task = uma.post("/api/v1/modules/odd/tasks/wait", json={}).json()["id"]
    body = {"subject": "module:odd", "resource_type": "network", "operation": "send", "effect": "denial"}
    decision = admin.post("/api/v1/decisions", json={**body, "target": "https://example.com/fuzz"}).json()["decision"]
    return {
        "request_id": [request],
        "decision_id": [decision["id"]],
        "task_id": [task],
        "module": ["odd", "weather", "broken"],
        "action": ["echo", "fetch"],
        "command": ["read"],
        "task": ["wait"],
        "kind": ["module", "engine"],
        "name": ["weather", "odd", "a/b"],
        "sequence": [1],
    }


def meet(schema, served, known, mode, headers, judge):
    """Send generated data to every operation, and judge each answer."""
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        raw = operation.definition.raw
        if mode is GenerationMode.NEGATIVE and not raw.get("parameters") and "requestBody" not in raw:
            continue  # there is nothing that could be wrong
        with requests.Session() as session:
            session.trust_env = False
            _meet_one(operation, operation.as_strategy(generation_mode=mode), known, session, headers, judge)


def _meet_one(operation, cases, known, session, headers, judge):
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="API_FUZZ_EXAMPLES" not in os.environ,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases, st.data())
    def run(case, data):
        replaced = False
        for name, values in known.items():
            if name in (case.path_parameters or {}) and data.draw(st.booleans()):
                case.path_parameters[name] = data.draw(st.sampled_from(values))
                replaced = True
        answer = case.call(session=session, headers=headers, timeout=60)
        judge(operation, case, answer, as_made=not replaced)

    run()


def conforms(operation, case, answer, *, as_made):
    """The answer is documented, not an internal error, and invalid data was refused."""
    name = operation.definition.raw["operationId"]
    allowed = {502, 504} if name in CALLS else set()
    assert answer.status_code < 500 or answer.status_code in allowed, (name, answer.status_code, answer.text)
    assert answer.headers["x-request-id"]
    case.validate_response(answer, checks=[*CHECKS, checks.negative_data_rejection] if as_made else CHECKS)


def is_refused(operation, case, answer, *, as_made):
    """The call is refused without information or effect."""
    name = operation.definition.raw["operationId"]
    assert answer.status_code in REFUSALS, (name, answer.status_code, answer.text)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
def test_with_a_token(schema, served, known, mode):
    """Valid and invalid data get documented answers."""
    headers = {"Authorization": f"Bearer {served.token(served.administrator())}"}
    meet(schema, served, known, mode, headers, conforms)
    assert served.process.poll() is None
    assert requests.get(f"{served.url}/health/ready", timeout=60).status_code == 200


def test_without_a_token(schema, served, known, admin):
    """Unauthenticated callers are refused and leave no trace."""
    before = admin.get("/api/v1/audit").json()["items"][0]["sequence"]
    meet(schema, served, known, GenerationMode.POSITIVE, {"Authorization": "Bearer dsb_none"}, is_refused)
    assert admin.get("/api/v1/audit").json()["items"][0]["sequence"] == before
