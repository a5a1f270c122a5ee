"""The agent itself, as a process: asked over its socket, killed by SIGKILL, and started again on the same ledger."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow

SETTINGS = {
    "TRIMTAB_MODE": "act",
    "TRIMTAB_CLUSTERS__main__CAPACITY_CORES": "1000",
    "TRIMTAB_CLUSTERS__main__PRESET": "K",
    "TRIMTAB_CLUSTERS__main__KAPPA": "2.2",
    "TRIMTAB_LISTENER__PORT": "0",
    "AWS_EC2_METADATA_DISABLED": "true",
}
UP_WITHIN_S = 60.0


class Agent:
    """An agent in a process of its own."""

    def __init__(self, directory: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self._socket = directory / "trimtab.sock"
        foreign = ("AWS_", "TRIMTAB_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self._environment = {**own, **settings, "TRIMTAB_STATE_DIRECTORY": str(directory)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(sys.executable).with_name("trimtab")
        self._process = subprocess.Popen([program, "run"], env=self._environment, stderr=subprocess.DEVNULL)
        give_up = time.monotonic() + UP_WITHIN_S
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
                probe.connect(str(self._socket))
                return
            assert self._process.poll() is None, "the agent ended"
            assert time.monotonic() < give_up, "the agent did not come up"
            time.sleep(0.1)

    def end(self, by: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(by)
        status = self._process.wait(30.0)
        self._process = None
        return status

    def asked(self, method: str, path: str, body: Any = None) -> Any:
        transport = httpx.HTTPTransport(uds=str(self._socket))
        with httpx.Client(transport=transport, base_url="http://localhost/api/v1", timeout=30.0) as client:
            answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def agent() -> Iterator[Agent]:
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    made = Agent(directory)
    made.start()
    yield made
    if made._process is not None:
        made.end(signal.SIGKILL)
    shutil.rmtree(directory)


@pytest.mark.exhaustive
def test_believes_after_a_sigkill_what_it_believed_before(agent: Agent) -> None:
    first = agent.asked("POST", "/admissions", {"deployment_id": "shop", "cores": 16, "request_id": "r1"})
    began = {"event_id": "e1", "kind": "started", "cores": 16, "time": first["at"]}
    assert not agent.asked("POST", "/deployments/shop/events", began)["already_seen"]
    grew = {"event_id": "e2", "kind": "scaled", "cores": 4, "time": first["at"]}
    agent.asked("POST", "/deployments/shop/events", grew)
    before = agent.asked("GET", "/clusters/main")
    agent.end(signal.SIGKILL)
    agent.start()
    after = agent.asked("GET", "/clusters/main")
    counted = ("total_cores", "live", "reserved", "decisions", "requests_month_to_date", "config_hash")
    assert {name: after[name] for name in counted} == {name: before[name] for name in counted}
    assert agent.asked("POST", "/admissions", {"deployment_id": "shop", "cores": 16, "request_id": "r1"}) == first
    assert agent.asked("POST", "/deployments/shop/events", grew)["already_seen"]
    assert agent.asked("POST", "/admissions", {"deployment_id": "next", "cores": 1})["total_cores"] == 20
    assert agent.end(signal.SIGTERM) == 0
