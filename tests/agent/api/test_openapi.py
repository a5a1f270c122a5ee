"""The OpenAPI description tells every route, and whatever it allows or forbids is never answered with a failure."""

import json
import string
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.settings.checks import OF_THE_API
from tests.agent.api.conftest import Serve, Stage, over_socket
from tests.agent.api.running import Running
from tests.golden import check_wording

ANSWERS = {"GET": {200, 404, 414, 422, 503}, "POST": {200, 400, 404, 422, 503}}


@pytest.fixture
def description(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/v1/openapi.json").json()
    return found


def operations(description: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]


def test_no_fleet_may_have_a_name_that_leads_elsewhere(description: dict[str, Any]) -> None:
    prefix = "/api/v1/autoscaling/"
    words = {path.removeprefix(prefix).split("/")[0] for path in description["paths"] if path.startswith(prefix)}
    assert {word for word in words if "{" not in word} == OF_THE_API


def test_every_route_is_described_with_the_roles_that_open_it(description: dict[str, Any]) -> None:
    """The roles of the description are tried in test_security."""
    lines = []
    for method, path, operation in operations(description):
        roles = [option["bearer"] for option in operation["security"] if "bearer" in option]
        if method != "HEAD":
            lines.append(f"{path} {method}: {', '.join(roles[0]) if roles else 'open'}")
    check_wording("api_routes", {"path, method and roles": "\n".join(sorted(lines))})


def test_every_part_of_what_is_sent_or_answered_is_described(description: dict[str, Any]) -> None:
    for method, path, operation in operations(description):
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (method, path, parameter["name"])
    for name, schema in description["components"]["schemas"].items():
        assert schema.get("description"), f"{name} says nothing"
        if name.endswith(("Order", "Request", "Event", "Prior")):
            for field, part in schema["properties"].items():
                assert part.get("description"), f"{name}.{field} says nothing"


def test_every_error_is_described_as_it_is_answered(description: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in json.dumps(description)
    for method, path, operation in operations(description):
        for status, answer in operation["responses"].items():
            if method == "HEAD":
                assert "content" not in answer, (path, status)
            elif status >= "400":
                (shape,) = answer["content"].values()
                assert "/Problem" in json.dumps(shape["schema"]), (method, path, status)


ANYWHERE = {"400", "401", "408", "413", "414", "421", "431", "500", "503"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("get", "/healthz", ANYWHERE - {"401"}),
        ("get", "/api/v1/status", ANYWHERE | {"403"}),
        ("get", "/api/v1/admission", ANYWHERE),
        ("head", "/api/v1/admission/{cluster}", ANYWHERE | {"404", "422"}),
        ("post", "/api/v1/pause", ANYWHERE | {"403", "404", "415", "422"}),
        ("post", "/api/v1/admission/requests", ANYWHERE | {"403", "404", "409", "415", "422"}),
        ("post", "/api/v1/oversubscription/rearm", ANYWHERE | {"403", "404", "409", "415", "422"}),
    ],
)
def test_an_operation_lists_the_refusals_that_it_can_meet(
    description: dict[str, Any], method: str, path: str, expected: set[str]
) -> None:
    listed = set(description["paths"][path][method]["responses"])
    assert listed - {"200"} == expected


def test_the_limits_of_bodies_are_reported(description: dict[str, Any]) -> None:
    told = {
        path: description["paths"][path]["post"]["responses"]["413"]["description"]
        for path in ("/api/v1/pause", "/api/v1/admission/requests/batch")
    }
    assert ["32,768" in told["/api/v1/pause"], "1,048,576" in told["/api/v1/admission/requests/batch"]] == [True, True]


def test_head_answers_as_get_without_a_body_wherever_get_is(client: httpx.Client, description: dict[str, Any]) -> None:
    paths = [
        path.replace("{", "").replace("}", "") for path, methods in description["paths"].items() if "get" in methods
    ]
    assert all("head" in methods for methods in description["paths"].values() if "get" in methods)
    for path in [*paths, "/api/v1/openapi.json", "/api/v1/decisions?limit=0", "/nothing"]:
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        for name in ("content-type", "content-encoding", "vary"):
            assert head.headers.get(name) == got.headers.get(name), path
    assert client.head("/api/v1/pause").status_code == 405
    refused = client.delete("/api/v1/status")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_a_method_that_is_not_described_is_405_whatever_it_carries(client: httpx.Client) -> None:
    assert client.post("/api/v1/status", content=b"x").status_code == 405
    assert client.put("/api/v1/pause", content=b"x").status_code == 405


@pytest.mark.parametrize("value", ["1_0", "1.0", "+1", " 1", "true", "1e1"])
def test_a_number_in_a_query_is_written_in_digits(client: httpx.Client, value: str) -> None:
    answer = client.get("/api/v1/events", params={"limit": value})
    assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (422, "query.limit")


TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["web", "small", "web-1", "0", "-1", "1e309", "NaN", "null", "\0", "../..", "%00", "a" * 5000, "'--"]
    ),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
PLAUSIBLE = {
    "owner": st.just("ada"),
    "reason": st.just("a test"),
    "fleet": st.sampled_from(["web", "blue", None]),
    "scope": st.sampled_from(["all", "in", "out", "up"]),
    "size": st.integers(-5, 50),
    "group": st.sampled_from(["small", "medium", "gpu", None]),
    "for_s": st.floats(-10, 1000),
}
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def fuzzed(stage: Stage, serve: Serve, running: Running) -> httpx.Client:
    """A client of an agent of the test's own, for a whole run of examples."""
    client = over_socket(serve())
    yield client
    client.close()


@pytest.mark.exhaustive
@FUZZ
@given(data=st.data())
def test_no_question_is_answered_with_a_failure(fuzzed: httpx.Client, data: st.DataObject) -> None:
    description = fuzzed.get("/api/v1/openapi.json").json()
    reads = [(path, op) for method, path, op in operations(description) if method == "GET"]
    path, operation = data.draw(st.sampled_from(reads))
    query = {}
    for parameter in operation.get("parameters", []):
        value = data.draw(st.one_of(TEXTS, st.integers().map(str)), label=parameter["name"])
        if parameter["in"] == "path":
            path = path.replace(
                "{" + parameter["name"] + "}", "".join(f"%{byte:02x}" for byte in value.encode("utf-8", "replace"))
            )
        elif data.draw(st.booleans()):
            query[parameter["name"]] = value.encode("utf-8", "replace").decode()
    answer = fuzzed.get(path, params=query)
    assert answer.status_code in ANSWERS["GET"], answer.text
    assert_is_clean(answer)


@FUZZ
@given(data=st.data())
def test_no_order_is_answered_with_a_failure_and_every_good_one_is_taken(
    fuzzed: httpx.Client, running: Running, data: st.DataObject
) -> None:
    verb = data.draw(st.sampled_from(["pause", "resume", "pin", "unpin"]))
    order = data.draw(
        st.one_of(
            st.fixed_dictionaries({}, optional=PLAUSIBLE),
            st.dictionaries(st.one_of(st.sampled_from(sorted(PLAUSIBLE)), TEXTS), VALUES, max_size=5),
            VALUES,
        )
    )
    body = json.dumps(order).encode("utf-8", "replace")
    answer = fuzzed.post(f"/api/v1/{verb}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in ANSWERS["POST"], answer.text
    assert_is_clean(answer)
    # Whatever was taken can be read back, by the loop and by whoever asks for the status.
    assert fuzzed.get("/api/v1/status").status_code == 200


@FUZZ
@given(body=st.binary(max_size=200), path=st.text(string.printable, max_size=30))
def test_no_bytes_are_answered_with_a_failure(fuzzed: httpx.Client, body: bytes, path: str) -> None:
    target = "/" + "".join(f"%{ord(character):02x}" for character in path)
    for answer in (
        fuzzed.post("/api/v1/pause", content=body, headers={"content-type": "application/json"}),
        fuzzed.get(target),
    ):
        assert answer.status_code in {200, 400, 404, 405, 422}, (answer.status_code, answer.text)
        assert_is_clean(answer)


def assert_is_clean(answer: httpx.Response) -> None:
    assert "Traceback" not in answer.text
    assert "site-packages" not in answer.text
    assert "ledger.db" not in answer.text
    if answer.status_code >= 400 and answer.headers["content-type"] == "application/json":
        body = answer.json()
        assert set(body) in (
            {"error", "detail", "wrong"},
            {"ready", "role", "checks"},
            {"ok", "detail", "last_turn_age_s", "limit_s"},
        )
