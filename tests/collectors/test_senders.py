"""The senders and connections that the listener accepts, and those it keeps under pressure: over real sockets."""

import contextlib
import socket
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from collectors.listener import REMEMBERED_ADDRESSES, Admittance, GraphiteListener
from tests.collectors.surroundings import Serve
from tests.waiting import until

GOOD = b"trimtab.web.s.i-1.cpu_percent 71 1795209000\n"
MINE, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as held:
        yield held


def connect(listener: GraphiteListener, source: str = MINE) -> socket.socket:
    return socket.create_connection((listener.host, listener.port), 5.0, source_address=(source, 0))


def is_closed(sender: socket.socket) -> bool:
    try:
        return sender.recv(1) == b""
    except ConnectionResetError:
        return True


def is_open(sender: socket.socket) -> bool:
    sender.setblocking(False)
    try:
        return sender.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        sender.settimeout(5.0)


def throw(listener: GraphiteListener, source: str, family: int = socket.AF_INET) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.bind((source, 0))
        where = "127.0.0.1" if family == socket.AF_INET else "::1"
        sender.sendto(GOOD, (where, listener.port))


def test_a_connection_from_outside_the_networks_is_closed_counted_and_named(serve: Serve) -> None:
    listener = serve(networks=f"{MINE}/32,10.0.0.0/8")
    with connect(listener, OTHER) as sender:
        assert is_closed(sender)
    until(lambda: (listener.counters.connections_foreign, listener.counters.last_foreign) == (1, OTHER))
    assert listener.counters.accepted == 0
    with connect(listener, MINE) as sender:
        sender.sendall(GOOD)
        until(lambda: listener.counters.accepted == 1)


def test_a_datagram_from_outside_the_networks_is_not_read(serve: Serve) -> None:
    listener = serve(tcp=False, udp=True, networks=f"{MINE}/32")
    throw(listener, OTHER)
    throw(listener, MINE)
    until(lambda: (listener.counters.datagrams_foreign, listener.counters.accepted) == (1, 1))
    assert listener.counters.rejected_total == 0


def test_an_ipv4_sender_counts_as_ipv4_on_a_socket_of_both_families(serve: Serve) -> None:
    listener = serve("::", tcp=False, udp=True, networks="127.0.0.2/32")
    throw(listener, MINE)
    throw(listener, OTHER)
    throw(listener, "::1", socket.AF_INET6)
    until(lambda: (listener.counters.datagrams_foreign, listener.counters.accepted) == (2, 1))


def test_ipv6_senders_are_judged_by_ipv6_networks(serve: Serve) -> None:
    inside, outside = serve("::1", networks="::1/128"), serve("::1", networks="fd00::/8")
    for listener, counted in ((inside, (1, 0)), (outside, (0, 1))):
        with socket.create_connection(("::1", listener.port), 5.0) as sender, contextlib.suppress(OSError):
            sender.sendall(GOOD)
            until(lambda: (listener.counters.accepted, listener.counters.connections_foreign) == counted)  # noqa: B023


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("::ffff:11.1.2.3", False),
        ("fd00:12::7", True),
        ("fd00:12::7%eth0", True),
        ("fd00:13::7", False),
        ("", False),
        ("/run/some.sock", False),
    ],
)
def test_an_address_is_within_the_networks_or_not(address: str, allowed: bool) -> None:
    admittance = Admittance([ip_network("10.0.0.0/8"), ip_network("fd00:12::/64")])
    assert [admittance.allows(address) for _ in range(2)] == [allowed, allowed]


def test_addresses_without_end_do_not_grow_what_is_remembered() -> None:
    admittance = Admittance([ip_network("10.0.0.0/8")])
    for number in range(20_000):
        admittance.allows(f"11.0.{number // 250}.{number % 250}")
    assert admittance._known.cache_info().currsize <= REMEMBERED_ADDRESSES


def test_silent_connections_that_hold_every_slot_give_way_to_one_that_has_something_to_say(
    serve: Serve, stack: contextlib.ExitStack
) -> None:
    listener = serve(max_connections=40, unused_s=0.0)
    silent = [stack.enter_context(connect(listener)) for _ in range(60)]
    until(lambda: listener.counters.connections_total == 60)
    honest = stack.enter_context(connect(listener, OTHER))
    honest.sendall(GOOD)
    until(lambda: listener.counters.accepted == 1)
    assert listener.counters.connections_open == 40
    assert listener.counters.connections_displaced == 21
    until(lambda: [is_open(one) for one in silent] == [False] * 21 + [True] * 39)
    assert is_open(honest)


def test_a_connection_that_sends_bytes_and_no_line_gives_way_before_one_that_reports(
    serve: Serve, stack: contextlib.ExitStack
) -> None:
    listener = serve(max_connections=2, unused_s=0.0, unproductive_s=0.0)
    honest = stack.enter_context(connect(listener))
    honest.sendall(GOOD)
    until(lambda: listener.counters.accepted == 1)
    dribbling = stack.enter_context(connect(listener))
    dribbling.sendall(b"trimtab.web")
    until(lambda: listener.counters.connections_open == 2)
    stack.enter_context(connect(listener)).sendall(GOOD)
    assert is_closed(dribbling)
    assert is_open(honest)


def test_no_reporting_sender_loses_a_connection_to_newcomers(serve: Serve, stack: contextlib.ExitStack) -> None:
    listener = serve(max_connections=3)
    honest = [stack.enter_context(connect(listener)) for _ in range(3)]
    for one in honest:
        one.sendall(GOOD)
    until(lambda: listener.counters.accepted == 3)
    assert is_closed(stack.enter_context(connect(listener, OTHER)))
    assert (listener.counters.connections_refused, listener.counters.last_crowded) == (1, OTHER)
    assert all(is_open(one) for one in honest)
    honest[0].close()
    until(lambda: listener.counters.connections_open == 2)
    stack.enter_context(connect(listener, OTHER)).sendall(GOOD)
    until(lambda: listener.counters.accepted == 4)


def test_one_address_cannot_take_the_slots_of_the_others(serve: Serve, stack: contextlib.ExitStack) -> None:
    listener = serve(max_connections=10, per_peer=4, unused_s=0.0)
    honest = stack.enter_context(connect(listener, OTHER))
    until(lambda: listener.counters.connections_open == 1)
    greedy = [stack.enter_context(connect(listener, MINE)) for _ in range(9)]
    until(lambda: listener.counters.connections_total == 10)
    until(lambda: listener.counters.connections_open == 5)
    until(lambda: [is_open(one) for one in greedy] == [False] * 5 + [True] * 4)
    assert (listener.counters.connections_displaced, listener.counters.last_crowded) == (5, MINE)
    assert is_open(honest)


def test_where_all_have_reported_the_idlest_is_closed(serve: Serve, stack: contextlib.ExitStack) -> None:
    listener = serve(max_connections=3, unproductive_s=0.0)
    first, second = (stack.enter_context(connect(listener, MINE)) for _ in range(2))
    only = stack.enter_context(connect(listener, OTHER))
    for number, one in enumerate((second, only, first), start=1):
        one.sendall(GOOD)
        until(lambda: listener.counters.accepted == number)  # noqa: B023
    stack.enter_context(connect(listener, OTHER)).sendall(GOOD)
    assert is_closed(second)
    assert is_open(first)
    assert is_open(only)
    until(lambda: listener.counters.accepted == 4)


def test_slots_never_take_the_descriptors_of_the_rest_of_the_agent(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.listener.resource.getrlimit", lambda what: (1024, 4096))
    assert serve(max_connections=4096)._slots.most == 512
