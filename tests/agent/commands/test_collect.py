"""`trimtab collect`: a VM reports to a real listener until it is told to stop; --once shows what a collector gives."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.autoscaling.snapshot.series import VM_COLUMNS, SeriesStore
from collectors.listener import GraphiteListener
from tests.agent.commands.conftest import Trimtab
from tests.waiting import until

ROOT = Path(__file__).parents[3]
CODE = "from agent.commands.main import app; app()"


@pytest.fixture
def listener() -> Iterator[tuple[GraphiteListener, SeriesStore]]:
    store = SeriesStore()
    running = GraphiteListener(store, time.time, port=0)
    running.start()
    yield running, store
    running.stop()


def started(**settings: str) -> subprocess.Popen[str]:
    settings = {"FLEET": "web", "GROUP": "s", "VM": "i-77", **settings}
    environ = {
        **{name: text for name, text in os.environ.items() if not name.startswith("TRIMTAB_")},
        **{f"TRIMTAB_COLLECT__{name}": text for name, text in settings.items()},
        "TRIMTAB_SAMPLE_INTERVAL_S": "1",
    }
    command = [sys.executable, "-c", CODE, "collect"]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)


def stopped(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    process.send_signal(signal.SIGTERM)
    try:
        _, told = process.communicate(timeout=60.0)
    finally:
        process.kill()
    assert process.returncode == 0, told
    return [json.loads(line) for line in told.splitlines()]


def reported(store: SeriesStore) -> set[str]:
    rows = store.vm_rows("web", "s").get("i-77", [])
    return {metric for metric, row in zip(VM_COLUMNS, rows, strict=False) if row >= 0}


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["dotted", "tagged"])
def test_a_vm_reports_until_it_is_told_to_stop(listener: tuple[GraphiteListener, SeriesStore], form: str) -> None:
    server, store = listener
    process = started(PORT=str(server.port), FORM=form)
    try:
        until(lambda: server.counters.accepted >= 8)
    finally:
        events = stopped(process)
    assert reported(store) == {"cpu_percent", "ram_percent"}
    assert [event["event"] for event in events] == ["reporting", "stopped"]
    assert (events[-1]["dropped"], events[-1]["refused"]) == (0, 0)
    assert server.counters.rejected_total == 0
    # A batch is cut in two where the sender wakes between its lines, as it does on a busy machine.
    assert server.counters.connections_total < server.counters.accepted, "one connection for each line"


def test_a_worker_on_the_vm_is_seen_by_the_agent_and_learns_to_drain(
    listener: tuple[GraphiteListener, SeriesStore], tmp_path: Path
) -> None:
    server, store = listener
    run = tmp_path / "run"
    process = started(PORT=str(server.port), RUN_DIRECTORY=str(run), METADATA_URL="http://127.0.0.1:9")
    try:
        until((run / "workers").is_dir)
        (run / "workers" / "w").write_text("busy_cores 2\nwork_core_seconds 31\n")
        until(lambda: "busy_cores" in reported(store))
    finally:
        events = stopped(process)
    assert reported(store) == set(VM_COLUMNS)
    assert "drain_not_known" in [event["event"] for event in events]
    assert not (run / "drain").exists()


def test_with_graphite_away_it_ends_in_time_and_says_what_was_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = started(PORT=str(port))
    assert process.stderr is not None
    first = [json.loads(process.stderr.readline())["event"] for _ in range(2)]
    assert first == ["reporting", "graphite_unreachable"]
    began = time.monotonic()
    events = stopped(process)
    assert time.monotonic() - began < 30.0
    assert events[-1]["event"] == "stopped"
    assert isinstance(events[-1]["dropped"], int)
    assert events[-1]["dropped"] >= 2
    assert events[-1]["sent"] == 0


def test_one_measurement_of_this_machine_as_data_and_as_text(trimtab: Trimtab) -> None:
    shown = json.loads(trimtab("collect", "--once", "--json").stdout)
    assert shown["collector"] == "host"
    paths = ["trimtab.fleet.group.vm.cpu_percent", "trimtab.fleet.group.vm.ram_percent"]
    assert [sample["path"] for sample in shown["samples"]] == paths
    assert all(0.0 <= sample["value"] <= 100.0 for sample in shown["samples"])
    text = trimtab("collect", "host", "--once")
    assert [line.split()[0] for line in text.stdout.splitlines()] == paths
    assert "host: 2 samples in " in text.stderr


def test_one_collection_of_a_collector_of_the_agent(trimtab: Trimtab, monkeypatch: pytest.MonkeyPatch) -> None:
    below = "TRIMTAB_FLEETS__web__GROUPS__s__"
    group = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MAX": "3"}
    for name, text in group.items():
        monkeypatch.setenv(below + name, text)
    monkeypatch.setenv("TRIMTAB_RENDER__URL", "http://127.0.0.1:9")
    result = trimtab("collect", "render:web", "--once")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9: ConnectError" in result.stderr
    assert "host, render:web" in trimtab("collect", "render:x", "--once").stderr
