"""Graphite's pickle protocol: what relays send is read, and nothing that a message holds is ever called."""

import contextlib
import pickle
import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.intake import IntakeCounters
from collectors.listener import GraphiteListener
from collectors.pickled import MAX_MESSAGE_BYTES, NotReadings, PickleReader, readings_of
from domain.errors import RejectReason
from tests.collectors.surroundings import T0, Serve
from tests.waiting import until

PATH = "trimtab.web.s.i-1.cpu_percent"
VALUES = st.floats(allow_nan=False) | st.integers(-(10**12), 10**12)
MESSAGES = st.lists(st.tuples(st.text(max_size=30), st.tuples(st.integers(0, 2**40), VALUES)), max_size=20)


def framed(message: bytes) -> bytes:
    return struct.pack("!I", len(message)) + message


def reader() -> tuple[PickleReader, SeriesStore]:
    store = SeriesStore(capacity=500)
    return PickleReader(store, IntakeCounters(), lambda: T0), store


@given(MESSAGES, st.integers(1, 5))
def test_what_pythons_own_pickle_writes_is_read_in_every_protocol(held: list, protocol: int) -> None:
    expected = [(path.encode("utf-8", "surrogatepass"), float(value), float(at)) for path, (at, value) in held]
    assert readings_of(pickle.dumps(held, protocol=protocol)) == expected


def test_the_oldest_protocol_and_python_2_are_read_too() -> None:
    held = [(PATH, (1795209000, 71.5)), (PATH, (1795209001, 72))]
    assert readings_of(pickle.dumps(held, protocol=0)) == [(PATH.encode(), 71.5, T0), (PATH.encode(), 72.0, T0 + 1)]
    # As Python 2.7 writes it: str as SHORT_BINSTRING.
    old = b"\x80\x02]q\x00"
    old += b"U\x1dtrimtab.web.s.i-1.cpu_percentq\x01J\x28\xc0\x00\x6bG@Q\xe0\x00\x00\x00\x00\x00\x86q\x02\x86q\x03a."
    assert readings_of(old) == [(PATH.encode(), 71.5, float(0x6B00C028))]


class Called:
    """Writes a pickle that calls something when it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__("os").system, ("touch /tmp/called-by-a-pickle",)


@pytest.mark.parametrize(
    "message",
    [
        *(pickle.dumps([Called()], protocol=protocol) for protocol in range(6)),
        pickle.dumps({"a": 1}),
        pickle.dumps([(PATH, (1, 1, 1))]),
        pickle.dumps([(PATH, (True, None))]),
        pickle.dumps([(PATH, (1, "x"))]),
        pickle.dumps([(PATH, (1, 10**400))]),
        pickle.dumps([("p" * 2000, (1, 1))]),
        pickle.dumps(PATH),
        b"",
        b".",
        b"(.",
        b"a.",
        b"e.",
        b"h\x05.",
        b"X\xff\xff\xff\xffabc.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"]" + b"(" * 1000 + b".",
    ],
)
def test_anything_but_readings_is_refused_whole(message: bytes) -> None:
    with pytest.raises(NotReadings):
        readings_of(message)


def test_a_place_of_the_memo_far_away_takes_no_memory_and_a_text_repeated_is_not_copied() -> None:
    assert readings_of(b"\x80\x02]r\xff\xff\xff\xff.") == []
    long_path = b"X" + struct.pack("<I", 500_000) + b"p" * 500_000 + b"q\x00"
    many = b"\x80\x02](" + long_path + b"K\x01K\x01\x86\x86" + b"h\x00K\x01K\x01\x86\x86" * 50_000 + b"e."
    began = time.process_time()
    with pytest.raises(NotReadings, match="too long"):
        readings_of(many)
    assert time.process_time() - began < 30.0


def test_a_message_takes_no_more_memory_than_a_few_times_its_length() -> None:
    text = ("\N{MOUNTAIN}" * 250).encode()
    first = b"X" + struct.pack("<I", len(text)) + text + b"K\x01K\x01\x86\x86q\x00"
    found = readings_of(b"\x80\x02](" + first + b"h\x00" * 5_000 + b"e.")
    assert len(found) == 5_001
    assert {id(path) for path, _, _ in found} == {id(found[0][0])}, "half a million copies would be gigabytes"


def test_a_message_has_no_more_readings_than_real_ones_would_fill() -> None:
    with pytest.raises(NotReadings, match="100001 readings, more than 65536"):
        readings_of(b"\x80\x02](" + b"X\x01\x00\x00\x00pK\x01K\x01\x86\x86q\x00" + b"h\x00" * 100_000 + b"e.")


def test_refusals_are_made_readable_only_when_they_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(line: bytes) -> str:
        raise AssertionError(line)

    taking, _ = reader()
    with monkeypatch.context() as patched:
        patched.setattr("collectors.intake.printable", made)
        taking.feed(framed(pickle.dumps([("foreign", (T0, 5))] * 1_000)))
    assert taking._counters.rejected_total == 1_000
    assert taking._counters.examples[RejectReason.FOREIGN_PATH] == f"foreign 5.0 {T0}"


@given(st.binary(max_size=200))
def test_no_message_raises_anything_else(message: bytes) -> None:
    with contextlib.suppress(NotReadings):
        readings_of(message)


@given(st.integers(1, 40))
def test_messages_come_in_pieces_of_any_size(size: int) -> None:
    taking, store = reader()
    stream = b"".join(framed(pickle.dumps([(PATH, (T0 - 60.0 + k, 10.0 + k))])) for k in range(5))
    assert sum(taking.feed(stream[k : k + size]) for k in range(0, len(stream), size)) == 5
    assert taking.held_bytes == 0
    assert len(store) == 1


def test_a_path_that_no_line_could_hold_is_refused_and_the_rest_is_taken() -> None:
    taking, _ = reader()
    held = [(PATH, (T0, 5)), ("trimtab.web.s.i 2.cpu_percent", (T0, 5)), ("foreign", (T0, 5))]
    assert taking.feed(framed(pickle.dumps(held))) == 1
    assert taking._counters.rejected[RejectReason.MALFORMED] == 1
    assert taking._counters.rejected[RejectReason.FOREIGN_PATH] == 1
    assert not taking.broken


@pytest.mark.parametrize("stream", [framed(b"garbage"), struct.pack("!I", MAX_MESSAGE_BYTES + 1)])
def test_after_a_message_that_cannot_be_read_the_stream_is_broken(stream: bytes) -> None:
    taking, _ = reader()
    assert taking.feed(stream) == 0
    assert taking.broken
    assert taking.feed(framed(pickle.dumps([(PATH, (T0, 5))]))) == 0
    assert taking.held_bytes == 0


@pytest.fixture
def listener(serve: Serve) -> GraphiteListener:
    return serve(pickle_port=0)


def test_a_second_port_takes_messages_and_closes_what_sends_others(listener: GraphiteListener) -> None:
    assert listener.pickle_port not in (None, 0, listener.port)
    with socket.create_connection((listener.host, listener.pickle_port), timeout=30.0) as sender:
        sender.sendall(framed(pickle.dumps([(PATH, (T0, 5))], protocol=2)))
        sender.sendall(framed(b"garbage"))
        assert sender.recv(1) == b""
    assert listener.counters.accepted == 1
    assert listener.counters.rejected[RejectReason.MALFORMED] == 1


def test_unfinished_messages_of_many_connections_take_little_memory_together(
    listener: GraphiteListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.listener.MOST_HELD_BYTES", 100_000)
    unfinished = struct.pack("!I", MAX_MESSAGE_BYTES) + b"x" * 60_000
    with contextlib.ExitStack() as stack:
        address = (listener.host, listener.pickle_port)
        heavy, light, other = (stack.enter_context(socket.create_connection(address, timeout=60.0)) for _ in range(3))
        heavy.sendall(unfinished)
        light.sendall(framed(pickle.dumps([(PATH, (T0, 5))]))[:-1])
        other.sendall(unfinished[:50_000])
        assert heavy.recv(1) == b"", "the one that holds most is closed"
        light.sendall(b".")
        until(lambda: listener.counters.accepted)
    assert listener.counters.connections_displaced == 1
