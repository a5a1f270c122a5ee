"""IAM policy documents as the tests read them: which actions they allow, on what, under which condition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.architecture.product import ROOT

PERMISSIONS = {
    ("sqs", "DeleteMessageBatch"): "sqs:DeleteMessage",
    ("sqs", "SendMessageBatch"): "sqs:SendMessage",
}
"""Operations whose permission bears another name; every other operation is its own permission."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One action that a statement allows."""

    action: str
    resources: tuple[str, ...]
    condition: dict[str, Any]


def permission(service: str, operation: str) -> str:
    """Return the IAM action that a call needs."""
    return PERMISSIONS.get((service, operation), f"{service}:{operation}")


def grants_of(document: dict[str, Any]) -> Iterator[Grant]:
    """Yield every action that the document allows; it must hold nothing but allowing statements."""
    assert document["Version"] == "2012-10-17"
    for statement in document["Statement"]:
        assert statement["Effect"] == "Allow"
        assert set(statement) <= {"Sid", "Effect", "Action", "Resource", "Condition"}
        for action in listed(statement["Action"]):
            yield Grant(action, tuple(listed(statement["Resource"])), statement.get("Condition", {}))


def grants(mode: str) -> list[Grant]:
    """Return what deploy/iam/<mode>.json allows."""
    return list(grants_of(json.loads((ROOT / "deploy" / "iam" / f"{mode}.json").read_text("utf-8"))))


def listed(value: str | list[str]) -> list[str]:
    """Return the value as a list, as IAM takes one or many."""
    return [value] if isinstance(value, str) else value
