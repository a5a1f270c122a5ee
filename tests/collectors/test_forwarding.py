"""Forwarding over real sockets: each line reaches the agent that leads its fleet, whichever agent received it."""

import asyncio
import socket
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from collectors.base import Refusal
from collectors.forwarding import FIRST_PAUSE_S, SENDER_MARK, ForwardingSink, Peer, RelayReader
from collectors.intake import IntakeCounters
from collectors.listener import GraphiteListener, ListenerLimits
from domain.errors import RejectReason
from domain.samples import MAX_LINE_BYTES, Sample, fleet_of
from domain.subject import Subject, fleet_subject
from tests.collectors.surroundings import T0, closed_port
from tests.waiting import until

API, BATCH, WEB = (f"trimtab.{fleet}.s.i-1.cpu_percent".encode() for fleet in ("api", "batch", "web"))


@dataclass
class Readings:
    """A sink that refuses the paths in `wrong` and records the others with their senders."""

    wrong: frozenset[bytes] = frozenset()
    taken: list[tuple[bytes, float, float]] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        rows = list(zip(paths, values, times, strict=True))
        self.taken += [row for row in rows if row[0] not in self.wrong]
        self.peers.add(peer)
        return [Refusal(at, RejectReason.LATE) for at, row in enumerate(rows) if row[0] in self.wrong]

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        return ()

    def paths(self) -> list[bytes]:
        return [path for path, _, _ in self.taken]


class Agent:
    """One of several agents: its readings, its two ports, and the leaders that it knows."""

    def __init__(
        self,
        name: str,
        stack: ExitStack,
        wrong: frozenset[bytes] = frozenset(),
        relay_port: int = 0,
        limits: ListenerLimits | None = None,
    ) -> None:
        self.name, self.below = name, Readings(wrong)
        self.elsewhere: Mapping[Subject, Peer] = {}
        self.sink = ForwardingSink(self.below, _subject_of, lambda: self.elsewhere)
        self.listener = GraphiteListener(self.sink, lambda: T0, port=0, limits=limits, relay_port=relay_port)
        self.listener.start()
        stack.callback(self.listener.stop)
        self.link = stack.enter_context(socket.create_connection(("127.0.0.1", self.listener.port)))

    @property
    def peer(self) -> Peer:
        return Peer(self.name, "127.0.0.1", self.listener.relay_port)

    def send(self, *paths: bytes) -> str:
        """Send a line of each path; return the name under which the agent knows the sender."""
        before = self.listener.counters.accepted + self.listener.counters.rejected_total
        self.link.sendall(b"".join(b"%b 1.5 %d\n" % (path, T0) for path in paths))
        counters = self.listener.counters
        until(lambda: counters.accepted + counters.rejected_total >= before + len(paths))
        return "{}:{}".format(*self.link.getsockname())


def _subject_of(path: bytes) -> Subject | None:
    fleet = fleet_of(path.decode())
    return fleet_subject(fleet) if fleet else None


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def agents(stack: ExitStack) -> tuple[Agent, Agent, Agent]:
    return Agent("one", stack), Agent("two", stack), Agent("three", stack)


def _lead(agents: Sequence[Agent], **leaders: Agent) -> None:
    for agent in agents:
        agent.elsewhere = {fleet_subject(f): there.peer for f, there in leaders.items() if there is not agent}


def test_each_line_reaches_the_leader_of_its_fleet_once_from_any_agent(agents: tuple[Agent, Agent, Agent]) -> None:
    one, two, three = agents
    _lead(agents, api=one, batch=two, web=three)

    senders = {agent.send(API, BATCH, WEB) for agent in agents}

    until(lambda: [len(agent.below.taken) for agent in agents] == [3, 3, 3])
    assert [agent.below.taken for agent in agents] == [[(path, 1.5, T0)] * 3 for path in (API, BATCH, WEB)]
    assert [agent.below.peers for agent in agents] == [senders] * 3
    assert {name: each.forwarded for name, each in one.sink.counters.items()} == {"two": 1, "three": 1}


def test_two_agents_that_each_take_the_other_for_the_leader_pass_a_line_on_once(
    agents: tuple[Agent, Agent, Agent],
) -> None:
    one, two, _ = agents
    one.elsewhere = {fleet_subject("web"): two.peer}
    two.elsewhere = {fleet_subject("web"): one.peer}

    one.send(WEB)

    until(lambda: two.below.paths() == [WEB])
    assert one.below.paths() == []
    assert two.sink.counters == {}


def test_lines_for_a_leader_that_takes_none_are_refused_and_the_others_taken(stack: ExitStack) -> None:
    agent = Agent("one", stack, wrong=frozenset({API}))
    agent.elsewhere = {fleet_subject("batch"): Peer("two")}

    agent.send(API, BATCH, WEB)

    rejected = {reason: count for reason, count in agent.listener.counters.rejected.items() if count}
    assert rejected == {RejectReason.LATE: 1, RejectReason.LED_ELSEWHERE: 1}
    assert BATCH.decode() in agent.listener.counters.examples[RejectReason.LED_ELSEWHERE]
    assert agent.below.paths() == [WEB]


def test_readings_of_this_agent_and_paths_of_no_fleet_stay_here(stack: ExitStack) -> None:
    agent = Agent("one", stack)
    agent.elsewhere = {fleet_subject("web"): Peer("two", "127.0.0.1", closed_port())}

    assert agent.sink.append([WEB], [1.0], [T0], T0) == []
    agent.send(b"collectd.host.load")

    assert agent.below.paths() == [WEB, b"collectd.host.load"]


def test_a_sender_gives_its_lines_no_other_name(agents: tuple[Agent, Agent, Agent]) -> None:
    one, two, _ = agents
    one.sink._subject_of = lambda path: fleet_subject("web")
    _lead(agents, web=two)
    forged = SENDER_MARK + b"10.0.0.7:1"

    sender = one.send(forged, WEB)

    until(lambda: two.below.paths() == [WEB])
    assert (two.below.peers, one.below.paths()) == ({sender}, [forged])


def test_lines_that_wait_for_a_leader_that_is_gone_reach_the_next_one(agents: tuple[Agent, Agent, Agent]) -> None:
    one, two, _ = agents
    one.elsewhere = {fleet_subject("web"): Peer("gone", "127.0.0.1", closed_port())}
    sender = one.send(WEB, WEB, WEB)
    assert one.sink.counters["gone"].forwarded == 0

    _lead(agents, web=two)
    one.send(API)

    until(lambda: len(two.below.taken) == 3)
    assert (two.below.peers, one.below.paths()) == ({sender}, [API])


def test_lines_that_a_slow_leader_has_not_taken_wait_for_it_or_the_next_leader(
    agents: tuple[Agent, Agent, Agent], stack: ExitStack
) -> None:
    one, two, _ = agents
    slow = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    one.elsewhere = {fleet_subject("web"): Peer("slow", "127.0.0.1", slow.getsockname()[1])}
    one.send(WEB)
    stream = stack.enter_context(slow.accept()[0])
    stream.settimeout(10.0)
    (link,) = one.sink._links.values()
    until(lambda: link._transport is not None)
    assert link._transport is not None
    link._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    for _ in range(40):
        one.send(*[WEB] * 1000)

    counters = one.sink.counters["slow"]
    assert counters.forwarded < 20_000
    received, before = b"", counters.forwarded
    while received.count(WEB) < before + 1000:
        received += stream.recv(2**16)
    _lead(agents, web=two)
    one.send(WEB)
    while chunk := stream.recv(2**16):
        received += chunk

    assert received.count(WEB) == counters.forwarded < 40_001
    until(lambda: len(two.below.taken) == 40_002 - counters.forwarded)


def test_leaders_that_change_while_lines_are_routed_again_lose_none(agents: tuple[Agent, Agent, Agent]) -> None:
    one, two, _ = agents
    one.elsewhere = {
        fleet_subject(fleet): Peer(f"gone {fleet}", "127.0.0.1", closed_port()) for fleet in ("api", "batch", "web")
    }
    one.send(API, BATCH, WEB)

    def changing() -> Mapping[Subject, Peer]:
        return {fleet_subject(fleet): two.peer for fleet in ("api", "batch", "web")}

    one.sink._elsewhere = changing
    one.send(WEB)

    until(lambda: sorted(two.below.paths()) == [API, BATCH, WEB, WEB])


def test_a_leader_that_restarts_is_reached_again(agents: tuple[Agent, Agent, Agent], stack: ExitStack) -> None:
    one, two, _ = agents
    _lead(agents, web=two)
    one.send(WEB)
    until(lambda: len(two.below.taken) == 1)

    two.listener.stop()
    until(lambda: one.sink._links[two.peer]._transport is None)
    one.send(WEB)
    again = Agent("two", stack, relay_port=two.listener.relay_port)

    until(lambda: again.below.paths() == [WEB])


@pytest.mark.parametrize("host", ["a..b", 64 * "a" + ".example"])
def test_a_host_that_cannot_be_looked_up_is_tried_again(stack: ExitStack, host: str) -> None:
    agent = Agent("one", stack)
    agent.elsewhere = {fleet_subject("web"): Peer("two", host, 2103)}
    agent.send(WEB)

    (link,) = agent.sink._links.values()
    until(lambda: link._pause_s > FIRST_PAUSE_S)


def test_an_idle_connection_that_the_leader_closes_is_opened_for_the_next_line(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.forwarding.LONGEST_PAUSE_S", 0.05)
    one, two = Agent("one", stack), Agent("two", stack, limits=ListenerLimits(idle_timeout_s=0.2))
    _lead([one], web=two)
    with capture_logs() as logs:
        one.send(WEB)
        until(lambda: two.below.paths() == [WEB])
        opened = two.listener.counters.connections_total
        (link,) = one.sink._links.values()
        until(lambda: link._transport is None)

        one.send(WEB)
        until(lambda: len(two.below.taken) == 2)

    assert two.listener.counters.connections_total == opened + 1
    assert [line for line in logs if line["log_level"] == "warning"] == []


def played(steps: Coroutine[Any, Any, None], within_s: float) -> None:
    """Run steps in an event loop of a thread: a browser test before may have left one running in this thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(asyncio.wait_for(steps, within_s))).result()


def test_a_line_that_arrives_while_the_connection_closes_takes_the_next_one(stack: ExitStack) -> None:
    two = Agent("two", stack)
    leaders = {fleet_subject("web"): two.peer}

    async def play() -> None:
        sink = ForwardingSink(Readings(), _subject_of, lambda: leaders)
        for lines in (1, 2):
            sink.append([WEB], [1.5], [T0], T0, "10.0.0.7:1")
            while len(two.below.taken) < lines:
                await asyncio.sleep(0.01)
            (link,) = sink._links.values()
            assert link._transport is not None
            # As asyncio does at the end of the stream, before it says that the connection is lost.
            link._transport.close()
        sink.close()
        await asyncio.sleep(0)

    played(play(), 10.0)


def test_an_agent_that_does_not_respond_is_tried_again_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.forwarding.CONNECT_TIMEOUT_S", 0.01)
    monkeypatch.setattr("collectors.forwarding.FIRST_PAUSE_S", 0.01)
    attempts = []

    async def unanswered(*about: object, **more: object) -> None:
        attempts.append(about)
        await asyncio.Event().wait()

    async def play() -> None:
        asyncio.get_running_loop().create_connection = unanswered  # type: ignore[method-assign, assignment]
        sink = ForwardingSink(Readings(), _subject_of, lambda: {fleet_subject("web"): Peer("two", "two.example", 2103)})
        sink.append([WEB], [1.5], [T0], T0, "10.0.0.7:1")
        while len(attempts) < 3:
            await asyncio.sleep(0.01)
        sink.close()

    with capture_logs() as logs:
        played(play(), 30.0)
    assert [line["detail"] for line in logs if line["event"] == "agent_unreachable"] == ["no connection in 0.01 s"]


def test_of_a_host_with_an_address_that_does_not_respond_the_next_one_is_connected() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        connect = loop.sock_connect

        async def unanswered(sock: socket.socket, address: Any) -> None:
            await (asyncio.Event().wait() if address[0] == "127.0.0.2" else connect(sock, address))

        async def addresses(host: str, port: int, **about: Any) -> Any:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("127.0.0.2", "127.0.0.1")]

        loop.getaddrinfo, loop.sock_connect = addresses, unanswered  # type: ignore[method-assign, assignment]
        with socket.create_server(("127.0.0.1", 0)) as server:
            two = Peer("two", "two.example", server.getsockname()[1])
            sink = ForwardingSink(Readings(), _subject_of, lambda: {fleet_subject("web"): two})
            sink.append([WEB], [1.5], [T0], T0, "10.0.0.7:1")
            while sink.counters["two"].forwarded == 0:
                await asyncio.sleep(0.01)
            sink.close()
            await asyncio.sleep(0)

    played(play(), 10.0)


@pytest.mark.parametrize("closes", [False, True])
def test_other_lines_are_taken_while_those_that_waited_are_routed_again(closes: bool) -> None:
    blocks, below = 50, Readings()
    leaders: list[Mapping[Subject, Peer]] = [{fleet_subject("web"): Peer("gone", "127.0.0.1", closed_port())}]
    sink = ForwardingSink(below, _subject_of, lambda: leaders[-1])

    async def play() -> None:
        for _ in range(blocks):
            sink.append([WEB], [1.5], [T0], T0, "10.0.0.7:1")
        leaders.append({})
        for number in range(1, 11):
            sink.append([API], [1.5], [T0], T0, "10.0.0.8:1")
            # One of those that waited is routed in each turn of the event loop.
            assert below.paths().count(WEB) <= number
            await asyncio.sleep(0)
        while not closes and len(below.taken) < blocks + 10:
            await asyncio.sleep(0)
        sink.close()

    played(play(), 30.0)
    counters, taken = sink.counters["gone"], below.paths().count(WEB)
    assert counters.forwarded == 0
    assert (taken, counters.dropped) == ((blocks, 0) if not closes else (taken, blocks - taken))
    assert taken > 5


def test_a_long_name_of_a_sender_is_cut() -> None:
    below = Readings()
    reader = RelayReader(below, IntakeCounters(), lambda: T0)
    assert reader.feed(SENDER_MARK + 1000 * b"1" + b"\n%b 1.5 %d\n" % (WEB, T0)) == 1
    assert below.peers == {64 * "1"}


def test_a_leader_that_closes_each_connection_is_tried_again_after_a_pause(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def shortened(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0.01 * seconds)

    one = Agent("one", stack)
    closing = Agent("two", stack, limits=ListenerLimits(networks=[ip_network("10.0.0.0/8")]))
    monkeypatch.setattr("collectors.forwarding.LONGEST_PAUSE_S", 3.0)
    monkeypatch.setattr("collectors.forwarding.asyncio.sleep", shortened)
    _lead([one], web=closing)
    one.send(WEB)

    until(lambda: 3.0 in pauses)
    of_listeners = (0.0, 5.0)
    assert [pause for pause in pauses if pause not in of_listeners][:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0]


def test_of_too_many_waiting_lines_the_oldest_are_dropped_and_counted(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.forwarding.WAITING_BYTES", 200)
    agent = Agent("one", stack)
    agent.elsewhere = {fleet_subject("web"): Peer("gone", "127.0.0.1", closed_port())}

    for _ in range(10):
        agent.send(WEB)

    link = agent.sink._links[Peer("gone", *agent.elsewhere[fleet_subject("web")][1:])]
    assert 0 < sum(lines for _, lines in link._waiting) == 10 - agent.sink.counters["gone"].dropped < 10


LINE = st.tuples(st.sampled_from(["10.0.0.7:1", "10.0.0.8:2"]), st.integers(0, 9), st.booleans())


@given(lines=st.lists(LINE, max_size=12), cuts=st.lists(st.integers(0, 600), max_size=8))
def test_the_reader_gives_each_line_its_sender_however_the_stream_is_cut(
    lines: list[tuple[str, int, bool]], cuts: list[int]
) -> None:
    below = Readings()
    seen: list[tuple[str, float]] = []
    counters = IntakeCounters()

    class Sink(Readings):
        def append(
            self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
        ) -> Sequence[Refusal]:
            seen.extend((peer, value) for value in values)
            return ()

    reader = RelayReader(Sink(), counters, lambda: T0)
    stream = b"".join(
        SENDER_MARK
        + sender.encode()
        + b"\n"
        + (b"x" * (3 * MAX_LINE_BYTES) + b"\n" if is_long else b"")
        + b"%b %d %d\n" % (WEB, value, T0)
        for sender, value, is_long in lines
    )
    at = 0
    for cut in [*sorted(cuts), len(stream)]:
        reader.feed(stream[at:cut])
        at = max(at, cut)
    reader.close()

    assert seen == [(sender, float(value)) for sender, value, _ in lines]
    assert counters.rejected[RejectReason.TOO_LONG] == sum(is_long for _, _, is_long in lines)
    assert below.taken == []
