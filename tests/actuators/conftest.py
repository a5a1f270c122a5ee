"""A cloud over HTTP on a virtual clock and an actuator that may be killed and started again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.actuators.shift import Shift, running_shift


@pytest.fixture(autouse=True)
def _no_account_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def shift() -> Iterator[Shift]:
    """A fleet `web` of three groups in service, two VMs each, and an actuator in act mode."""
    with running_shift() as made:
        yield made
