"""The listener over real sockets: it takes lines, bounds its senders, and outlives whatever they send."""

import socket

import psutil
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.intake import IntakeCounters, LineReader
from collectors.listener import GraphiteListener
from domain.errors import RejectReason
from tests.collectors.surroundings import T0, Serve
from tests.waiting import until

GOOD = b"trimtab.web.s.i-1.cpu_percent 71 1795209000\n"


def connect(listener: GraphiteListener) -> socket.socket:
    return socket.create_connection((listener.host, listener.port), timeout=60.0)


def send(listener: GraphiteListener, *chunks: bytes) -> None:
    with connect(listener) as sender:
        for chunk in chunks:
            sender.sendall(chunk)


def settle(counters: IntakeCounters) -> None:
    until(lambda: counters.connections_open == 0)


def throw(listener: GraphiteListener, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for datagram in datagrams:
            sender.sendto(datagram, (listener.host, listener.port))


def closed_by_listener(sender: socket.socket) -> bool:
    try:
        return sender.recv(1) == b""
    except ConnectionResetError:
        return True


def test_lines_from_two_senders_are_taken(listener: GraphiteListener) -> None:
    with connect(listener) as one, connect(listener) as other:
        one.sendall(GOOD[:20])
        other.sendall(GOOD.replace(b"i-1", b"i-2"))
        one.sendall(GOOD[20:])
        until(lambda: listener.counters.accepted == 2)
        assert listener.counters.connections_open == 2
    settle(listener.counters)
    assert (listener.counters.connections_total, listener.counters.rejected_total) == (2, 0)


def test_a_burst_of_fifty_thousand_lines_is_taken_whole(listener: GraphiteListener) -> None:
    lines = b"".join(b"trimtab.web.s.i-%d.cpu_percent %d 1795209000\n" % (n % 400, n % 100) for n in range(50_000))
    send(listener, lines)
    until(lambda: listener.counters.accepted == 50_000)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=3000), st.just(GOOD), st.just(b"\n")), max_size=6))
def test_any_bytes_leave_the_listener_alive_and_every_line_counted(
    listener: GraphiteListener, chunks: list[bytes]
) -> None:
    counters = listener.counters
    before = counters.accepted + counters.rejected_total
    total = counters.connections_total
    send(listener, *chunks)
    stream = b"".join(chunks)
    lines = stream.count(b"\n") + (stream != b"" and not stream.endswith(b"\n"))
    until(lambda: counters.connections_total == total + 1 and counters.connections_open == 0)
    until(lambda: counters.accepted + counters.rejected_total - before >= lines)
    send(listener, GOOD)
    until(lambda: counters.connections_total == total + 2 and counters.connections_open == 0)
    until(lambda: counters.accepted + counters.rejected_total - before >= lines + 1)
    assert counters.accepted + counters.rejected_total - before == lines + 1


def test_a_connection_without_data_is_closed_after_the_idle_time(serve: Serve) -> None:
    listener = serve(idle_timeout_s=0.1)
    with connect(listener) as sender:
        sender.sendall(b"trimtab.half")
        assert closed_by_listener(sender)
    assert listener.counters.connections_idled_out == 1
    settle(listener.counters)


def test_refusals_are_reported_in_one_line_per_period(serve: Serve) -> None:
    with structlog.testing.capture_logs() as logged:
        listener = serve(report_every_s=0.05)
        send(listener, b"bad\n" * 500)
        until(lambda: sum(entry.get("new", 0) for entry in logged) == 500)
    reports = [entry for entry in logged if entry["event"] == "lines_refused"]
    assert len(reports) < 10
    assert reports[-1]["last"] == {"malformed": "bad"}


def test_stopping_closes_connections_and_frees_the_port(serve: Serve) -> None:
    listener = serve()
    with connect(listener) as sender:
        sender.sendall(GOOD)
        until(lambda: listener.counters.accepted == 1)
        listener.stop()
        assert closed_by_listener(sender)
    again = serve(port=listener.port)
    again.start()
    assert again.running
    again.stop()
    again.stop()
    assert not again.running


def test_a_sink_that_fails_costs_one_connection_not_the_listener(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(SeriesStore):
        failing = True

        def append(self, *batch):
            if self.failing:
                raise MemoryError("no room")
            return super().append(*batch)

    store = Failing()
    listener = serve(store=store)
    with connect(listener) as sender:
        sender.sendall(GOOD)
        assert closed_by_listener(sender)
    assert "data_received() call failed" in caplog.text
    store.failing = False
    send(listener, GOOD)
    until(lambda: listener.counters.accepted == 1)


def test_a_port_in_use_is_an_error_at_the_start(serve: Serve, listener: GraphiteListener) -> None:
    with pytest.raises(OSError, match="address already in use"):
        serve(port=listener.port)


def test_datagrams_and_connections_are_taken_on_one_port(serve: Serve) -> None:
    listener = serve(udp=True)
    throw(listener, GOOD + GOOD.replace(b"i-1", b"i-2"))
    send(listener, GOOD.replace(b"i-1", b"i-3"))
    until(lambda: listener.counters.accepted == 3)
    assert (listener.counters.datagrams, listener.counters.connections_total) == (1, 1)


def test_the_last_line_of_a_datagram_needs_no_newline(serve: Serve) -> None:
    listener = serve(tcp=False, udp=True)
    throw(listener, GOOD.rstrip(b"\n"), GOOD[:20], GOOD[20:])
    until(lambda: (listener.counters.accepted, listener.counters.rejected_total) == (1, 2))
    assert listener.counters.datagrams == 3


def test_what_one_datagram_leaves_open_does_not_reach_the_next(serve: Serve) -> None:
    listener = serve(tcp=False, udp=True)
    throw(listener, b"x" * 5000, GOOD)
    until(lambda: (listener.counters.accepted, listener.counters.rejected[RejectReason.TOO_LONG]) == (1, 1))


@settings(max_examples=40)
@given(st.lists(st.one_of(st.binary(max_size=3000), st.just(GOOD), st.just(b"\n")), min_size=1, max_size=6))
def test_any_datagrams_leave_the_listener_alive_and_every_line_counted(datagrams: list[bytes]) -> None:
    counters = IntakeCounters()
    reader = LineReader(SeriesStore(capacity=500), counters, lambda: T0)
    for datagram in datagrams:
        reader.whole(datagram)
    lines = sum(datagram.count(b"\n") + (not datagram.endswith(b"\n")) for datagram in datagrams)
    assert counters.accepted + counters.rejected_total == lines
    assert reader.held_bytes == 0


def test_a_sink_that_fails_costs_one_datagram(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(SeriesStore):
        failing = True

        def append(self, *batch):
            if self.failing:
                self.failing = False
                raise MemoryError("no room")
            return super().append(*batch)

    listener = serve(store=Failing(), tcp=False, udp=True)
    throw(listener, GOOD, GOOD)
    until(lambda: listener.counters.accepted == 1)
    assert "no room" in caplog.text


def test_a_datagram_port_in_use_is_an_error_at_the_start_and_leaves_no_other_open(serve: Serve) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=r"[Aa]ddress already in use"):
            serve(port=port, udp=True)
        mine = psutil.Process().net_connections("tcp")
        assert not [one for one in mine if one.laddr.port == port and one.status == psutil.CONN_LISTEN]


def test_a_listener_of_tcp_alone_takes_no_datagram(listener: GraphiteListener) -> None:
    throw(listener, GOOD)
    send(listener, GOOD)
    until(lambda: listener.counters.accepted == 1)
    assert listener.counters.datagrams == 0
