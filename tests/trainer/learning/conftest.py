"""What every test of learning stands on."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verbs read the agent's settings: those of the tests' own run, such as TRIMTAB_EXAMPLES, are none of them."""
    for name in [name for name in os.environ if name.startswith("TRIMTAB_")]:
        monkeypatch.delenv(name)
