"""The sender over real sockets: it never makes its caller wait, keeps what it can, and counts what it cannot."""

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from collectors.sender import GraphiteSender, SenderOptions
from domain.samples import QueueMetric, QueueSeries, Sample, VmMetric, VmSeries, parse_path
from tests.collectors.surroundings import T0, Serve, closed_port, tcp_server
from tests.waiting import until

CPU = VmSeries("web", "s", "i-1", VmMetric.CPU_PERCENT)
QUICK = {"timeout_s": 0.3, "first_pause_s": 0.05, "longest_pause_s": 0.2}


@dataclass
class Graphite:
    """The port of a TCP server, and what each connection brought."""

    port: int
    batches: list[bytes] = field(default_factory=list)


@contextmanager
def graphite(*, reading: bool = True, port: int = 0) -> Iterator[Graphite]:
    """Take what comes; `reading` False accepts and never reads."""
    ended = threading.Event()

    def serve(link: socket.socket) -> None:
        if reading:
            there.batches.append(b"".join(iter(lambda: link.recv(65_536), b"")))
        else:
            ended.wait()

    with tcp_server(serve, port) as taken:
        there = Graphite(taken)
        try:
            yield there
        finally:
            ended.set()


@pytest.fixture
def sending() -> Iterator[Callable[..., GraphiteSender]]:
    made: list[GraphiteSender] = []

    def make(port: int, **options: object) -> GraphiteSender:
        made.append(GraphiteSender(SenderOptions("127.0.0.1", port, **{**QUICK, **options})))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for sender in made:
        sender.close(0.0)


def test_readings_arrive_in_order_and_a_batch_shares_one_connection(sending: Callable[..., GraphiteSender]) -> None:
    port = closed_port()
    sender = sending(port)
    for n in range(300):
        assert sender.send(CPU.path, n, T0 + n)
    until(lambda: sender.counters.failures > 0)
    with graphite(port=port) as there:
        until(lambda: sender.counters.sent == 300)
        sender.close()
        until(lambda: len(there.batches) == 1)
        lines = there.batches[0].decode().splitlines()
    assert lines == [f"{CPU.path} {float(n)} {T0 + n:.0f}" for n in range(300)]
    assert (sender.counters.batches, sender.counters.dropped) == (1, 0)


@pytest.mark.parametrize(
    "value", [np.float32(1.5), np.float64(1.5), np.array(1.5), 1.5], ids=["float32", "float64", "array", "float"]
)
def test_numbers_of_any_kind_are_sent_as_numbers(sending: Callable[..., GraphiteSender], value: float) -> None:
    with graphite() as there:
        sender = sending(there.port)
        assert sender.send(CPU.path, value, np.float64(T0))
        assert sender.send(CPU.path, np.int64(3), T0)
        assert sender.send(CPU.path, True, T0)
        sender.close()
        until(lambda: b"".join(there.batches).count(b"\n") == 3)
        assert [line.split()[1] for line in b"".join(there.batches).splitlines()] == [b"1.5", b"3.0", b"1.0"]


@pytest.mark.parametrize(
    ("name", "value", "at"),
    [
        (CPU.path, float("nan"), T0),
        (CPU.path, np.float32("inf"), T0),
        (CPU.path, float("-inf"), T0),
        (CPU.path, "71", T0),
        (CPU.path, b"71", T0),
        (CPU.path, None, T0),
        (CPU.path, 10**400, T0),
        (CPU.path, 71.0, float("nan")),
        ("trimtab web", 71.0, T0),
        ("x 1 2\ny", 71.0, T0),
        ("", 71.0, T0),
    ],
)
def test_what_is_no_number_or_no_name_is_refused_and_counted(name: str, value: float, at: float) -> None:
    sender = GraphiteSender(SenderOptions("127.0.0.1", closed_port(), **QUICK))
    assert not sender.send(name, value, at)
    assert (sender.counters.refused, sender.waiting) == (1, 0)
    sender.close()
    assert sender.counters.failures == 0


def test_tagged_samples_name_the_same_series(sending: Callable[..., GraphiteSender]) -> None:
    waiting = QueueSeries("web", QueueMetric.WAITING)
    with graphite() as there:
        sender = sending(there.port, tagged=True)
        sender.send_samples([Sample(CPU, 71.0, T0), Sample(waiting, 3.0, T0)])
        sender.close()
        until(lambda: b"".join(there.batches).count(b"\n") == 2)
        names = [line.split()[0].decode() for line in b"".join(there.batches).splitlines()]
    assert names == ["trimtab.cpu_percent;fleet=web;group=s;vm=i-1", "trimtab.waiting;fleet=web;queue=yes"]
    assert [parse_path(name) for name in names] == [CPU, waiting]


def test_datagrams_hold_whole_lines_and_stay_small(serve: Serve, sending: Callable[..., GraphiteSender]) -> None:
    listener = serve(tcp=False, udp=True)
    sender = sending(listener.port, protocol="udp")
    for n in range(200):
        sender.send(CPU.path.replace("i-1", f"i-{n}"), 50.0, T0)
    sender.close()
    until(lambda: listener.counters.accepted == 200)
    assert listener.counters.rejected_total == 0
    assert listener.counters.datagrams >= 200 * 45 / 1400


# Row 19 of the fault plan: Graphite slow, refusing, or accepting and never reading.


def test_while_graphite_refuses_the_newest_readings_wait_and_the_oldest_are_dropped(
    sending: Callable[..., GraphiteSender],
) -> None:
    port = closed_port()
    sender = sending(port, capacity=100)
    with structlog.testing.capture_logs() as logged:
        for n in range(5000):
            sender.send(CPU.path, n, T0 + n)
        until(lambda: sender.counters.failures >= 3)
        assert sender.waiting <= 100
        with graphite(port=port) as there:
            until(lambda: sender.counters.sent + sender.counters.dropped == 5000)
            until(lambda: b"".join(there.batches).count(b"\n") == sender.counters.sent)
            until(lambda: len(logged) == 2)
            lines = b"".join(there.batches).splitlines()
    assert len(lines) <= 100
    assert lines[-1].split()[1] == b"4999.0"
    assert [entry["event"] for entry in logged] == ["graphite_unreachable", "graphite_reachable"]
    assert "ConnectionRefusedError" in logged[0]["error"]


def test_a_graphite_that_accepts_and_never_reads_costs_the_caller_nothing(
    sending: Callable[..., GraphiteSender],
) -> None:
    # One batch is more than the buffers of a connection take: what fits in there counts as sent, read or not.
    port, capacity = closed_port(), 6000
    tags = {f"tag{n}": "x" * 300 for n in range(10)}
    sender = sending(port, capacity=capacity, batch_lines=capacity)
    for n in range(capacity):
        sender.send(CPU.path, n, T0 + n, tags)
    until(lambda: sender.counters.failures >= 1 and sender.waiting == capacity)
    with graphite(reading=False, port=port):
        until(lambda: "timed out" in sender.counters.last_error)
        for n in range(2000):
            sender.send(CPU.path, n, T0 + n, tags)
            assert sender.waiting <= capacity
        sender.close(0.5)
        until(lambda: sender.counters.dropped == capacity + 2000)
        assert sender.counters.sent == 0


def test_failures_are_tried_again_with_growing_pauses(sending: Callable[..., GraphiteSender]) -> None:
    tried: list[float] = []
    sender = sending(closed_port(), first_pause_s=0.1, longest_pause_s=0.4, seed=7)
    before = 0
    sender.send(CPU.path, 1.0, T0)
    while len(tried) < 5:
        if sender.counters.failures > before:
            before = sender.counters.failures
            tried.append(time.monotonic())
        time.sleep(0.002)
    pauses = [after - at for at, after in itertools.pairwise(tried)]
    dice = random.Random(7)
    expected = [pause * dice.uniform(0.5, 1.0) for pause in (0.1, 0.2, 0.4, 0.4)]
    assert all(pause >= wanted - 0.02 for pause, wanted in zip(pauses, expected, strict=True))


def test_closing_sends_what_waits_and_ends_the_thread(sending: Callable[..., GraphiteSender]) -> None:
    with graphite() as there:
        sender = sending(there.port, batch_lines=10)
        for n in range(95):
            sender.send(CPU.path, n, T0 + n)
        sender.close(60.0)
        sender.close()
        assert not sender.send(CPU.path, 1.0, T0)
        assert (sender.counters.sent, sender.counters.dropped) == (95, 1)
        until(lambda: b"".join(there.batches).count(b"\n") == 95)
    assert not [thread for thread in threading.enumerate() if thread.name.endswith(f":{there.port}")]


def test_closing_while_graphite_refuses_ends_at_once_and_counts_the_rest(
    sending: Callable[..., GraphiteSender],
) -> None:
    sender = sending(closed_port(), longest_pause_s=60.0, first_pause_s=60.0)
    for n in range(50):
        sender.send(CPU.path, n, T0 + n)
    until(lambda: sender.counters.failures == 1)
    sender.close(59.0)
    # It tries once more, which waiting out the pause would not let it.
    assert (sender.counters.failures, sender.counters.dropped) == (2, 50)


@given(st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_a_value_is_written_so_that_it_reads_back_as_itself(value: float) -> None:
    sender = GraphiteSender(SenderOptions("127.0.0.1", 1, **QUICK))
    line = sender._wire.build_message(CPU.path, float(value), T0)
    sender.close(0.0)
    assert float(line.split()[1]) == value
