"""The agent's own metrics reach Graphite as plaintext lines under their own prefix, and never slow the loop."""

import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from agent.service.http import show
from agent.telemetry.telemetry import Telemetry, graphite_lines, graphite_path
from tests.agent.api.running import Running
from tests.agent.telemetry.metrics import all_metrics


def received(server: socket.socket, until: bytes) -> list[str]:
    """Lines that a sender's first connection brings, up to the one that holds `until`."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(10.0)
        data = b""
        while until not in data or not data.endswith(b"\n"):
            data += connection.recv(65_536)
    return data.decode().splitlines()


def test_a_path_is_prefix_name_and_labels() -> None:
    assert graphite_path("trimtab-agent", "trimtab_ticks_total", ()) == "trimtab-agent.ticks_total"
    assert (
        graphite_path("ops.tt", "trimtab_group_warm", ("web", "small", "m5a.large"))
        == "ops.tt.group_warm.web.small.m5a_large"
    )
    assert (
        graphite_path("p", "trimtab_rail_effects_total", ("web", "bounds", "shrunk", ""))
        == "p.rail_effects_total.web.bounds.shrunk.none"
    )


def test_every_metric_but_build_info_is_sent_and_histograms_as_count_and_sum(shared: Running) -> None:
    sent = dict(graphite_lines(Telemetry(shared.view), "p"))
    assert sent["p.group_requested.web.small.m5a_large"] == 2.0
    assert sent["p.tick_duration_seconds_count"] == 0.0
    assert sent["p.tick_duration_seconds_sum"] == 0.0
    assert not [name for name in sent if "build_info" in name or "bucket" in name]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in sent)
    heads = {name.split(".")[1] for name in sent}
    known = {metric.name.removeprefix("trimtab_") for metric in all_metrics()}
    assert {head.removesuffix("_count").removesuffix("_sum") for head in heads} <= known


def test_after_each_turn_they_are_written_to_the_receiver(running: Running, socket_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as graphite, ExitStack() as stack:
        to = {"host": "127.0.0.1", "port": graphite.getsockname()[1], "prefix": "ops.trimtab"}
        view = running.with_settings(self_metrics=to, http={"socket": socket_directory / "http.sock"})
        show(stack, view.parts)
        running.tick()
        found = received(graphite, b"ledger_size_bytes")
    names = [line.split()[0] for line in found]
    assert all(name.startswith("ops.trimtab.") for name in names)
    values = {line.split()[0]: line.split()[1:] for line in found}
    at = int(running.world.agent_clock.now())
    assert [float(text) for text in values["ops.trimtab.ticks_total"]] == [1.0, at]


def test_a_receiver_that_is_not_there_costs_the_loop_nothing(running: Running, socket_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with ExitStack() as stack:
        to = {"host": "127.0.0.1", "port": port}
        view = running.with_settings(self_metrics=to, http={"socket": socket_directory / "http.sock"})
        interface = show(stack, view.parts)
        began = time.monotonic()
        running.tick(2)
        assert time.monotonic() - began < 30.0
        assert running.board.read().turns == 5
        assert b"trimtab_self_metrics_sent_total 0.0" in interface.telemetry.exposition()
