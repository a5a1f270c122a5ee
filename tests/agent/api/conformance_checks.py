"""Checks that schemathesis loads: a request that fits the description is refused for what it means alone."""

import re

import schemathesis

ACCEPTED = {200, 404, 409}
"""A random name is mostly unknown, a random event mostly contradicts what is recorded; 200 a refused admission too."""
BY_MEANING = {
    "owner",
    "reason",
    "cores",
    "memory_gb",
    "core_hours",
    "label",
    "time",
    "at",
    "N",
    "subscriber",
    "excludes",
    "vm",
    "earliest_at",
    "latest_at",
    "by_at",
    "expected_end",
    "payload",
    "admissions.#.cluster",
}
"""Fields whose values JSON Schema cannot tell apart: printable words, bounds of a fleet, a clock, a batch's cluster."""


@schemathesis.check
def refused_for_its_meaning_alone(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """A request made to fit the description is taken, or refused with a field that the description cannot bound."""
    if case.meta is None or case.meta.generation.mode is not schemathesis.GenerationMode.POSITIVE:
        return
    if response.status_code in ACCEPTED:
        return
    answer = response.json()
    fields = {re.sub(r"\d+", "#", wrong["field"]) for wrong in answer.get("wrong", [])}
    assert response.status_code == 422, f"{response.status_code} for a request that fits the description: {answer}"
    assert fields, answer
    assert fields <= BY_MEANING, f"refused although it fits the description: {answer['wrong']}"
