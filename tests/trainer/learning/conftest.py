"""What the tests of learning share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the run of the tests, such as TRIMTAB_EXAMPLES: the verbs read settings of that prefix."""
    for name in [name for name in os.environ if name.startswith("TRIMTAB_")]:
        monkeypatch.delenv(name)
