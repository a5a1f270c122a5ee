"""Yards, closed when the test is over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from collectors.aws_models import SlimLoader
from tests.admission_gate.yard import MakeYard, Plan, Yard


@pytest.fixture(autouse=True)
def _no_account_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class OneLoader(SlimLoader):
    """Reads AWS's descriptions once for all yards, which takes longer than most of them."""

    @cache  # noqa: B019
    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """Return the description as the agent's own loader does."""
        return super().load_service_model(service_name, type_name, api_version)


LOADER = OneLoader()


@pytest.fixture(autouse=True)
def _one_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.aws.SlimLoader", lambda data_path: LOADER)


@pytest.fixture
def make_yard(tmp_path: Path) -> Iterator[MakeYard]:
    """Return a maker of yards: fields of `Plan` by name."""
    made: list[Yard] = []

    def make(**plan: Any) -> Yard:
        made.append(Yard(tmp_path, Plan(**plan)))
        return made[-1]

    yield make
    for yard in made:
        yard.close()


@pytest.fixture
def yard(make_yard: MakeYard) -> Yard:
    """A cluster of 32 cores whose rule is what fits."""
    return make_yard()
