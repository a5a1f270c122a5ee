"""AWS's descriptions read once for all tests of a process, which takes longer than most of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from collectors.aws_models import SlimLoader


class OneLoader(SlimLoader):
    """The agent's own loader, with a memory."""

    @cache  # noqa: B019
    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """Return the description as the agent's own loader does."""
        return super().load_service_model(service_name, type_name, api_version)


LOADER = OneLoader()


@pytest.fixture(autouse=True)
def one_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every client be made from it; for the tests below the conftest that imports this."""
    monkeypatch.setattr("collectors.aws.SlimLoader", lambda data_path: LOADER)
