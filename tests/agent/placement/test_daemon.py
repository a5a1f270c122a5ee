"""The agent itself, as a process: asked over its socket, killed by SIGKILL, and started again on the same ledger."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.admission.test_daemon import UP_WITHIN_S, Agent
from tests.agent.placement.hosts import inventory

pytestmark = pytest.mark.slow


@pytest.fixture
def agent() -> Iterator[Agent]:
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    (directory / "pool.json").write_text(json.dumps(inventory()))
    settings = {
        "TRIMTAB_MODE": "act",
        "TRIMTAB_PLACEMENTS__main__INVENTORY_FILE": str(directory / "pool.json"),
        "TRIMTAB_LISTENER__PORT": "0",
        "TRIMTAB_TICK_INTERVAL_S": "10",
        "TRIMTAB_GRACE_S": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    made = Agent(directory, settings)
    made.start()
    yield made
    if made._process is not None:
        made.end(signal.SIGKILL)
    shutil.rmtree(directory)


def until_hosts(agent: Agent) -> None:
    """Wait for the first turn, which reads the inventory."""
    give_up = time.monotonic() + UP_WITHIN_S
    while not agent.asked("GET", "/placement/main/hosts"):
        assert time.monotonic() < give_up, "the inventory was not read"
        time.sleep(0.2)


@pytest.mark.exhaustive
def test_holds_after_a_sigkill_what_it_answered_before(agent: Agent) -> None:
    until_hosts(agent)
    body: dict[str, Any] = {"request_id": "r1", "application": "shop", "count": 5}
    first = agent.asked("POST", "/placement/main/requests", body)
    agent.asked("POST", "/placement/main/requests", {**body, "request_id": "r2"})
    agent.asked("POST", "/placement/main/requests/r1/confirm", {})
    agent.end(signal.SIGKILL)
    agent.start()
    assert agent.asked("POST", "/placement/main/requests", body) == first
    held = {one["request_id"]: one["stage"] for one in agent.asked("GET", "/placement/main/requests")}
    assert held == {"r1": "confirmed", "r2": "reserved"}
    assert agent.asked("POST", "/placement/main/requests/r1/confirm", {})["already"]
    assert agent.asked("POST", "/placement/main/requests/r2/cancel", {})["done"] == "cancelled"
    assert agent.asked("GET", "/placement/main/capacity-for/shop")["containers"] == 11
    assert agent.end(signal.SIGTERM) == 0
