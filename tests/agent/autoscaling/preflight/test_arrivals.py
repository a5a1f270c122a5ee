"""Whether measurements arrive: from the running agent, else by listening for a while."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from threading import Thread

import pytest

from agent.autoscaling.preflight.fleets import check_arrivals
from agent.kernel.checks import State
from agent.preflight.check import arrivals_of
from agent.settings import Settings, load_settings
from domain.clock import WallClock


def settings(directory: Path, port: int = 0, **more: str) -> Settings:
    group = "TRIMTAB_FLEETS__web__GROUPS__small__"
    values = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MAX": "9"}
    given = {"TRIMTAB_STATE_DIRECTORY": str(directory), "TRIMTAB_LISTENER__PORT": str(port), **more}
    return load_settings(given | {group + name: value for name, value in values.items()})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def found(settings: Settings, wait_s: float = 0.3, sent: str = "") -> list[tuple[State, str]]:
    def wait(seconds: float) -> None:
        if sent:
            with socket.create_connection(("127.0.0.1", settings.listener.port)) as line:
                line.sendall(sent.encode())
                line.shutdown(socket.SHUT_WR)
                assert line.recv(1) == b""

    arrivals = arrivals_of(settings, WallClock(), wait_s, wait)
    return [(one.state, one.detail) for one in check_arrivals(settings, arrivals)]


class Metrics(BaseHTTPRequestHandler):
    """An agent whose newest sample of the fleet `web` is so many seconds old. measured: the fleet that it leads."""

    age = ""
    measured = "web"

    def do_GET(self) -> None:
        text = f'# TYPE trimtab_open_intents gauge\ntrimtab_open_intents{{fleet="{self.measured}"}} 0\n'
        body = f"{text}# TYPE trimtab_newest_vm_sample_age_seconds gauge\n{self.age}".encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[type[Metrics]]:
    handler = type("Handler", (Metrics,), {})
    server = UnixStreamServer(str(tmp_path / "trimtab.sock"), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("age_s", "policy", "state", "detail"),
    [
        ("7", "queue-rule", State.OK, "the running agent received the last 7 s ago"),
        ("900", "queue-rule", State.MISSING, "the running agent received the last 900 s ago"),
        (None, "threshold", State.MISSING, "the running agent has none"),
        (None, "queue-rule", State.ADVICE, "the running agent has none of VMs: the fleet can grow, scale-in waits"),
    ],
)
def test_the_running_agent_is_queried(
    agent: type[Metrics], tmp_path: Path, age_s: str | None, policy: str, state: State, detail: str
) -> None:
    if age_s is not None:
        agent.age = f'trimtab_newest_vm_sample_age_seconds{{fleet="web"}} {age_s}\n'
    assert found(
        settings(tmp_path, TRIMTAB_FLEETS__web__POLICY=policy, TRIMTAB_FLEETS__web__GROUPS__small__MIN="1")
    ) == [(state, detail)]


def test_a_fleet_of_another_agent_cannot_be_checked_here(agent: type[Metrics], tmp_path: Path) -> None:
    agent.measured = "api"
    for policy in ("threshold", "queue-rule"):
        of = settings(tmp_path, TRIMTAB_FLEETS__web__POLICY=policy, TRIMTAB_FLEETS__web__GROUPS__small__MIN="1")
        assert [state for state, _ in found(of)] == [State.UNKNOWN]


def test_without_an_agent_what_arrives_meanwhile_counts(tmp_path: Path) -> None:
    port = free_port()
    now = int(WallClock().now())
    lines = f"trimtab.web.small.i-0ab.cpu_percent 7 {now}\ntrimtab.web.queue.waiting 3 {now}\n"
    ((state, detail),) = found(settings(tmp_path, port), sent=lines)
    assert (state, "1 VMs and its queue" in detail, f":{port}" in detail) == (State.OK, True, True)


def test_arrivals_are_judged_as_the_listener_does_behind_its_map(tmp_path: Path) -> None:
    rules = tmp_path / "inputs.toml"
    rules.write_text(
        '[[series]]\nfrom = "collectd.{host}.busy"\nto = "cpu_percent"\n[hosts]\nweb-1 = "web.small.i-0ab"\n'
    )
    now = int(WallClock().now())
    lines = f"collectd.web-1.busy 7 {now}\ncollectd.web-1.busy 7 {now}000\ncollectd.web-2.busy 7 {now}\n"
    refused, arrived = found(settings(tmp_path, free_port(), TRIMTAB_INPUT_MAP=str(rules)), sent=lines)
    assert (refused[0], "1 lines" in refused[1], "future" in refused[1]) == (State.ADVICE, True, True)
    assert (arrived[0], "1 VMs reported" in arrived[1]) == (State.OK, True)


def test_a_lack_of_measurements_is_advice_and_no_failure(tmp_path: Path) -> None:
    port = free_port()
    sent = "trimtab.other.small.i-0ab.cpu_percent 7 1\n"
    (foreign, _), (state, detail) = found(settings(tmp_path, port), sent=sent)
    assert foreign is State.ADVICE
    assert (state, "none arrived" in detail) == (State.ADVICE, True)


def test_a_port_in_use_is_missing(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        ((state, _),) = found(settings(tmp_path, holder.getsockname()[1]))
    assert state is State.MISSING


def test_a_fleet_measured_elsewhere_needs_no_arrivals(tmp_path: Path) -> None:
    elsewhere = {"TRIMTAB_FLEETS__web__CPU_FROM": "cloudwatch", "TRIMTAB_AWS__REGION": "eu-west-1"}
    assert found(settings(tmp_path, **elsewhere)) == []
