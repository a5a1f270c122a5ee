"""A cluster small enough for tests: some hundred cores, a deployment every ten hours."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def small(tmp_path: Path) -> str:
    """The file of a cluster in which failures happen within months."""
    file = tmp_path / "small.json"
    file.write_text(json.dumps({"preset": "K", "name": "small", "capacity": 400, "arrival_rate": 0.1, "sla": 0.05}))
    return str(file)
