"""A real statsd: what a job source counts with it reaches our store by the map of docs/operate/inputs.md."""

import json
import shutil
import socket
import time
from pathlib import Path

import pytest

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.intake import IntakeLimits
from collectors.listener import GraphiteListener
from collectors.mapping import Hosts, MappedSink
from domain.errors import RejectReason
from domain.samples import QueueMetric
from tests.collectors.graphite.real_graphite import child, free_ports, wait_until
from tests.collectors.surroundings import map_in_the_docs
from tests.real.cache import cached, run

pytestmark = [pytest.mark.needs_npm, pytest.mark.timeout(700)]

STATSD = "0.9.0"


def installed() -> Path:
    """Return the program, installed from npm where it is not kept yet."""

    def install(place: Path) -> None:
        run("npm", "install", "--prefix", place, "--no-audit", "--no-fund", "--omit=optional", f"statsd@{STATSD}")

    return cached(f"statsd-{STATSD}", install) / "node_modules" / "statsd" / "stats.js"


def test_gauges_of_a_job_source_become_readings_of_its_fleet(tmp_path: Path) -> None:
    store = SeriesStore(capacity=500)
    sink = MappedSink(store, map_in_the_docs("statsd"), Hosts(), IntakeLimits())
    listener = GraphiteListener(sink, time.time, port=0)
    listener.start()
    port, managing = free_ports(2)
    config = {
        "address": "127.0.0.1",
        "port": port,
        "mgmt_address": "127.0.0.1",
        "mgmt_port": managing,
        "graphiteHost": "127.0.0.1",
        "graphitePort": listener.port,
        "flushInterval": 1000,
    }
    (tmp_path / "config.js").write_text(json.dumps(config))
    program, log = [shutil.which("node") or "node", str(installed()), str(tmp_path / "config.js")], tmp_path / "log"

    def latest(metric: QueueMetric) -> float | None:
        readings = list(store.readings(store.queue_row("web", metric), time.time()))
        return readings[-1][1] if readings else None

    def sent_until_read() -> bool:
        counted = b"jobs.web.waiting:12|g\njobs.web.running:3|g\njobs.web.submitted:1|c\nlogin:320|ms"
        source.sendto(counted, ("127.0.0.1", port))
        return (latest(QueueMetric.WAITING), latest(QueueMetric.RUNNING)) == (12.0, 3.0)

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source, child(program, log, {}) as process:
            wait_until(sent_until_read, process, log)
    finally:
        listener.stop()
    # Counters, timers and what statsd says of itself are in no rule; nothing else is refused.
    refused = {reason for reason, count in listener.counters.rejected.items() if count}
    assert refused == {RejectReason.FOREIGN_PATH}
