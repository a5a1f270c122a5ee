"""Answers of a running agent over TCP and over its unix socket: GET and POST, kept alive, one client and sixteen.

A real `trimtab run` with one placement pool is asked GET /healthz and POST .../what-if. For each way of asking: p50_ms
and p99_ms, from the first byte sent to the last byte read; cpu_ms, the agent's processor time per answer. The two ways
take turns, so that both meet the same machine. tcp_p50_ms and unix_p50_ms are those of GET by one client;
tcp_over_unix, their ratio, is the target: what TCP costs beyond a socket file is microseconds, unless answers wait.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path

import psutil

from agent.api.unix_socket import connected
from benchmarks.footprint import notify_socket, tail, wait_ready
from benchmarks.report import Figures, Target, arguments, progress, repeat, report

MOST_TCP_OVER_UNIX = 3.0
RUN = "from agent.commands.main import app; app()"
CLIENTS = (1, 16)
WARM_UP = 20
INVENTORY = {
    "version": 1,
    "name": "answers",
    "host_types": [{"name": "large", "cores": 16, "memory_gib": 64, "disk_gb": 1600, "count": 50}],
    "applications": [{"id": "shop", "cores": 4, "memory_gib": 8, "disk_gb": 40, "limit": 1000, "excludes": []}],
}
ASKS: dict[str, tuple[str, str, bytes | None]] = {
    "get": ("GET", "/healthz", None),
    "post": (
        "POST",
        "/api/v1/placement/main/what-if",
        json.dumps({"requests": [{"application": "shop", "count": 2}]}).encode(),
    ),
}


class RunningAgent:
    """The agent as a process, with a socket and a TCP port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "log"
        self.token = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (directory / "pool.json").write_text(json.dumps(INVENTORY))

    def __enter__(self) -> RunningAgent:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMTAB_", "AWS_"))}
        settings = {
            "AWS_EC2_METADATA_DISABLED": "true",
            "NOTIFY_SOCKET": str(self._directory / "notify"),
            "TRIMTAB_STATE_DIRECTORY": str(self._directory),
            "TRIMTAB_LISTENER__PORT": "0",
            "TRIMTAB_TICK_INTERVAL_S": "10",
            "TRIMTAB_GRACE_S": "0",
            "TRIMTAB_HTTP__SOCKET": str(self._directory / "http.sock"),
            "TRIMTAB_HTTP__PORT": str(self.port),
            "TRIMTAB_HTTP__TOKEN": self.token,
            "TRIMTAB_HTTP__ASK_TOKEN": self.token[::-1],
            "TRIMTAB_PLACEMENTS__main__INVENTORY_FILE": str(self._directory / "pool.json"),
        }
        with notify_socket(self._directory / "notify") as events, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", RUN, "run"], env=kept | settings, stderr=log, stdout=log
            )
            try:
                wait_ready(events, self._process, self._log)
                self._wait_hosts()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_hosts(self) -> None:
        """Wait for the first turn, which reads the inventory."""
        method, route, body = ASKS["post"]
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            connection = self.connect("unix")
            connection.request(method, route, body, self.headers(route))
            answer = connection.getresponse()
            said = answer.read()
            connection.close()
            if answer.status == 200 and b"large" in said:
                return
            time.sleep(0.2)
        raise RuntimeError(f"the pool has no hosts: {said!r}: {tail(self._log)}")

    def connect(self, way: str) -> HTTPConnection:
        """Return an open connection, "tcp" or "unix"."""
        if way == "unix":
            return connected(self._directory / "http.sock")
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30.0)
        connection.connect()
        return connection

    def headers(self, route: str) -> dict[str, str]:
        """Return what a request carries."""
        token = self.token if route == ASKS["get"][1] else self.token[::-1]
        return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def cpu_s(self) -> float:
        """Return the processor time that the agent has used."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)


def answer_times(agent: RunningAgent, way: str, ask: str, requests: int) -> list[float]:
    """Return the seconds that each answer took, asked one after the other on one connection."""
    method, route, body = ASKS[ask]
    headers = agent.headers(route)
    connection = agent.connect(way)
    took: list[float] = []
    for number in range(WARM_UP + requests):
        begin = time.perf_counter()
        connection.request(method, route, body, headers)
        answer = connection.getresponse()
        answer.read()
        if number >= WARM_UP:
            took.append(time.perf_counter() - begin)
        if answer.status != 200:
            raise RuntimeError(f"{method} {route} over {way}: status {answer.status}")
    connection.close()
    return took


def of_clients(agent: RunningAgent, way: str, ask: str, clients: int, requests: int) -> Figures:
    """Return the figures of so many clients at once, each with a connection."""
    took: list[float] = []
    failures: list[BaseException] = []

    def client() -> None:
        try:
            took.extend(answer_times(agent, way, ask, requests))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    cpu_s, begin = agent.cpu_s(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - begin
    if failures:
        raise failures[0]
    answers = clients * (WARM_UP + requests)
    name = f"{way}_{ask}_{clients}"
    return {
        f"{name}_p50_ms": 1000.0 * statistics.median(took),
        f"{name}_p99_ms": 1000.0 * statistics.quantiles(took, n=100)[98],
        f"{name}_cpu_ms": 1000.0 * (agent.cpu_s() - cpu_s) / answers,
        f"{name}_per_s": answers / wall_s,
    }


def measured(requests: int, place: Path | None) -> Figures:
    """Return the figures of one agent."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="answers-", dir=place) as directory, RunningAgent(Path(directory)) as agent:
        for ask in ASKS:
            for clients in CLIENTS:
                for way in ("unix", "tcp"):
                    progress(f"{ask} over {way}, {clients} at a time")
                    figures |= of_clients(agent, way, ask, clients, max(10, requests // clients))
    tcp, unix = figures["tcp_get_1_p50_ms"], figures["unix_get_1_p50_ms"]
    return {**figures, "tcp_p50_ms": tcp, "unix_p50_ms": unix, "tcp_over_unix": tcp / unix}


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when the target is missed."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--requests", type=int, default=400, help="answers of each kind and run (default 400)")
    asked = parser.parse_args(given)
    return report(
        "answers",
        repeat(lambda: measured(asked.requests, asked.directory), asked.runs),
        as_json=asked.json,
        packages=("uvicorn", "h11", "fastapi"),
        targets=[Target("tcp_over_unix", MOST_TCP_OVER_UNIX)],
        notes={"requests": asked.requests, "clients": list(CLIENTS)},
    )


if __name__ == "__main__":
    raise SystemExit(main())
