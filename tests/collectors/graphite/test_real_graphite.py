"""With a real Graphite: what a VM sends comes back from the render API unchanged, a relay's lines reach our store."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.listener import GraphiteListener
from collectors.mapping import Hosts, InputMap
from collectors.render import RenderCollector, RenderOptions
from collectors.sender import GraphiteSender, SenderOptions
from domain.fleet import Fleet, Group, VmType
from domain.samples import QueueMetric, QueueSeries, Sample, SignalSeries, VmMetric, VmSeries
from tests.collectors.graphite.real_graphite import Graphite, free_ports, running_carbon, running_relay
from tests.collectors.surroundings import map_in_the_docs
from tests.waiting import until

# The first test may have to install Graphite, whose web application needs libcairo.
pytestmark = [pytest.mark.needs_libcairo, pytest.mark.timeout(700)]

ROOT = Path(__file__).parents[3]
SMALL = VmType("m5a.large", 2, 8.0, 0.086)


def fleet(name: str) -> Fleet:
    return Fleet(name, (Group("s", f"{name}-s", SMALL, 0, 10), Group("m", f"{name}-m", SMALL, 0, 10)))


def readings(name: str, until: float, count: int = 5) -> list[Sample]:
    """Readings of two VMs and a queue for the last seconds, with values that a float holds exactly or not at all."""
    series = [
        VmSeries(name, "s", "i-1", VmMetric.CPU_PERCENT),
        VmSeries(name, "m", "i-2", VmMetric.WORK_CORE_SECONDS),
        QueueSeries(name, QueueMetric.SUBMITTED_TOTAL),
    ]
    return [Sample(one, 100.0 / (3 + n) + k, until - n) for k, one in enumerate(series) for n in range(count)]


def in_order(samples: Iterable[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: (sample.series.path, sample.at))


def collected(collector: RenderCollector, now: float, count: int) -> list[Sample]:
    """Ask until so many readings have come, as an agent does turn by turn; each comes once."""
    found: list[Sample] = []

    def complete() -> bool:
        found.extend(collector.collect(now))
        return len(found) >= count

    with closing(collector):
        until(complete)
    return found


@pytest.mark.parametrize("tagged", [False, True], ids=["dotted", "tagged"])
def test_what_our_sender_sends_comes_back_from_the_render_api_unchanged(graphite: Graphite, tagged: bool) -> None:
    name = "tagged" if tagged else "dotted"
    now = float(int(time.time()))
    sent = readings(name, now)
    sender = GraphiteSender(SenderOptions("127.0.0.1", graphite.carbon.port, tagged=tagged))
    sender.send_samples(sent)
    sender.close()
    assert (sender.counters.sent, sender.counters.dropped, sender.counters.failures) == (len(sent), 0, 0)
    collector = RenderCollector(fleet(name), RenderOptions(graphite.url, tagged=tagged, lag_s=0.0))
    assert in_order(collected(collector, now, len(sent))) == in_order(sent)


def test_a_fleet_gets_its_own_series_only_and_nothing_younger_than_the_lag(graphite: Graphite) -> None:
    now = float(int(time.time()))
    sender = GraphiteSender(SenderOptions("127.0.0.1", graphite.carbon.port, protocol="udp"))
    for name in ("ours", "theirs"):
        sender.send_samples(readings(name, now, count=8))
    sender.close()
    whole = RenderCollector(fleet("ours"), RenderOptions(graphite.url, lag_s=0.0))
    lagging = RenderCollector(fleet("ours"), RenderOptions(graphite.url, lag_s=3.0))
    everything = collected(whole, now, 24)
    assert {sample.series.fleet for sample in everything} == {"ours"}
    older = [sample for sample in readings("ours", now, count=8) if sample.at <= now - 3.0]
    assert in_order(collected(lagging, now, len(older))) == in_order(older)


def test_paths_of_other_senders_and_signals_are_found_and_become_readings(graphite: Graphite) -> None:
    """What statsd, Telegraf and collectd write, as a real Graphite keeps and finds it."""
    senders = ("statsd", "telegraf", "collectd")
    rules = InputMap(tuple(rule for sender in senders for rule in map_in_the_docs(sender).rules))
    hosts, now = Hosts(), float(int(time.time()))
    hosts.update([(("mapped", "s", "i-1"), ["ip-10-0-1-17.ec2.internal"]), (("mapped", "m", "i-2"), ["ip-10-0-1-18"])])
    lines = [
        *(f"stats.gauges.jobs.mapped.waiting 12 {now - age:.0f}" for age in (2, 1)),
        f"ip-10-0-1-17.cpu-total.cpu.usage_idle 29 {now - 1:.0f}",
        f"ip-10-0-9-9.cpu-total.cpu.usage_idle 29 {now - 1:.0f}",
        *(
            f"collectd.ip-10-0-1-18.cpu-{n}.cpu-{state} {share} {now - age:.0f}"
            for age in (3, 2, 1)
            for n in (0, 1)
            for state, share in (("idle", 40), ("user", 60))
        ),
        f"trimtab.mapped.signal.rps 310 {now - 1:.0f}",
    ]
    with socket.create_connection(("127.0.0.1", graphite.carbon.port)) as carbon:
        carbon.sendall("".join(f"{line}\n" for line in lines).encode())
    collector = RenderCollector(fleet("mapped"), RenderOptions(graphite.url, lag_s=0.0), rules, hosts)
    found = collected(collector, now, 7)
    cpu = {vm: VmSeries("mapped", group, vm, VmMetric.CPU_PERCENT) for group, vm in (("s", "i-1"), ("m", "i-2"))}
    assert in_order(found) == in_order(
        [
            *(Sample(QueueSeries("mapped", QueueMetric.WAITING), 12.0, now - age) for age in (2, 1)),
            Sample(cpu["i-1"], 71.0, now - 1),
            *(Sample(cpu["i-2"], 60.0, now - age) for age in (3, 2, 1)),
            Sample(SignalSeries("mapped", "rps"), 310.0, now - 1),
        ]
    )


def test_a_vm_that_runs_trimtab_collect_is_seen_through_graphite(graphite: Graphite, tmp_path: Path) -> None:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TRIMTAB_")}
    environ |= {
        "TRIMTAB_SAMPLE_INTERVAL_S": "1",
        "TRIMTAB_COLLECT__FLEET": "seen",
        "TRIMTAB_COLLECT__GROUP": "s",
        "TRIMTAB_COLLECT__VM": "i-77",
        "TRIMTAB_COLLECT__PORT": str(graphite.carbon.port),
    }
    command = [sys.executable, "-c", "from agent.commands.main import app; app()", "collect"]
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE)
    try:
        collector = RenderCollector(fleet("seen"), RenderOptions(graphite.url, lag_s=0.0))
        found: list[Sample] = []
        with closing(collector):
            until(lambda: found.extend(collector.collect(time.time())) or len({s.at for s in found}) >= 3)
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=60.0)
    finally:
        process.kill()
    assert process.returncode == 0, output
    expected = {VmSeries("seen", "s", "i-77", metric) for metric in (VmMetric.CPU_PERCENT, VmMetric.RAM_PERCENT)}
    assert {sample.series for sample in found} == expected
    assert all(0.0 <= sample.value <= 100.0 and sample.at == int(sample.at) for sample in found)


def test_what_a_vm_measured_while_carbon_was_down_arrives_when_it_is_back(programs: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    sender = GraphiteSender(SenderOptions("127.0.0.1", port, first_pause_s=0.1, longest_pause_s=0.3))
    now = float(int(time.time()))
    for n in range(200):
        sender.send(f"trimtab.late.s.i-{n}.cpu_percent", np.float32(n), now)
    until(lambda: sender.counters.failures >= 2)
    assert (sender.counters.sent, sender.waiting) == (0, 200)
    with running_carbon(programs, tmp_path, port=port, updates_per_s="1") as carbon:
        until(lambda: sender.counters.sent == 200)
        until(lambda: carbon.cached("trimtab.late.s.i-199.cpu_percent") == [(now, 199.0)])
        sender.close()
    assert (sender.counters.dropped, sender.counters.refused, sender.counters.last_error) == (0, 0, "")


def test_what_a_real_relay_passes_on_reaches_the_store(programs: Path, tmp_path: Path) -> None:
    store = SeriesStore()
    listener = GraphiteListener(store, time.time, port=0)
    listener.start()
    now = float(int(time.time()))
    sent = readings("relayed", now)
    try:
        with running_relay(programs, tmp_path, listener.port) as port:
            with socket.create_connection(("127.0.0.1", port)) as source:
                for sample in sent:
                    source.sendall(f"{sample.series.path} {sample.value!r} {sample.at:.0f}\n".encode())
            until(lambda: listener.counters.accepted >= len(sent))
    finally:
        listener.stop()
    row = store.queue_row("relayed", QueueMetric.SUBMITTED_TOTAL)
    arrived = [(at, pytest.approx(value, rel=1e-9)) for at, value in store.readings(row, now)]
    expected = [(s.at, s.value) for s in in_order(sent) if isinstance(s.series, QueueSeries)]
    assert expected == arrived
    assert listener.counters.rejected_total == 0
