"""Forwarding over real sockets: each line reaches the agent that leads its fleet, whichever agent received it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from collectors.base import Refusal
from collectors.forwarding import ForwardingSink, Peer
from collectors.listener import GraphiteListener
from domain.errors import RejectReason
from domain.samples import Sample
from domain.subject import Subject, fleet_subject
from tests.collectors.surroundings import T0, closed_port
from tests.waiting import until

SENDER = "10.0.0.7:40112"
PATHS = [b"trimtab.%b.s.i-1.cpu_percent" % fleet for fleet in (b"api", b"batch", b"web")]


@dataclass
class Readings:
    """A sink that refuses the paths in `wrong` and remembers the others."""

    taken: list[tuple[bytes, float, float]] = field(default_factory=list)
    wrong: frozenset[bytes] = frozenset()

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        rows = list(zip(paths, values, times, strict=True))
        self.taken += [row for row in rows if row[0] not in self.wrong]
        return [Refusal(at, RejectReason.LATE) for at, row in enumerate(rows) if row[0] in self.wrong]

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        return ()


def _fleet_of(path: bytes) -> Subject | None:
    parts = path.decode().split(".")
    return fleet_subject(parts[1]) if parts[0] == "trimtab" else None


@dataclass
class Agent:
    """An agent of a few: its readings, the port for forwarded lines, and what it knows of other leaders."""

    name: str
    below: Readings = field(default_factory=Readings)
    elsewhere: Mapping[Subject, Peer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sink = ForwardingSink(self.below, _fleet_of, lambda: self.elsewhere)
        self.relayed = GraphiteListener(self.below, lambda: T0, port=0)

    @property
    def peer(self) -> Peer:
        return Peer(self.name, "127.0.0.1", self.relayed.port)

    def paths(self) -> list[bytes]:
        return [path for path, _, _ in self.below.taken]


@pytest.fixture
def agents() -> Iterator[tuple[Agent, Agent, Agent]]:
    made = Agent("one"), Agent("two"), Agent("three")
    with ExitStack() as stack:
        for agent in made:
            agent.relayed.start()
            stack.callback(agent.relayed.stop)
            stack.callback(agent.sink.close)
        yield made


def _lead(agents: Sequence[Agent], **leaders: Agent) -> None:
    for agent in agents:
        agent.elsewhere = {fleet_subject(f): there.peer for f, there in leaders.items() if there is not agent}


def _send(agent: Agent, paths: Sequence[bytes], peer: str = SENDER) -> Sequence[Refusal]:
    return agent.sink.append(paths, [float(n) for n in range(len(paths))], [T0] * len(paths), T0, peer)


def test_each_line_reaches_the_leader_of_its_fleet_once_from_any_agent(agents: tuple[Agent, Agent, Agent]) -> None:
    one, two, three = agents
    _lead(agents, api=one, batch=two, web=three)

    assert [_send(agent, PATHS) for agent in agents] == [[], [], []]

    until(lambda: [len(agent.below.taken) for agent in agents] == [3, 3, 3])
    assert [sorted(set(agent.paths())) for agent in agents] == [[path] for path in PATHS]
    assert one.below.taken == [(PATHS[0], 0.0, T0)] * 3
    assert {name: each.sent for name, each in one.sink.counters.items()} == {"two": 1, "three": 1}


def test_two_agents_that_each_take_the_other_for_the_leader_pass_a_line_on_once(
    agents: tuple[Agent, Agent, Agent],
) -> None:
    one, two, _ = agents
    one.elsewhere = {fleet_subject("web"): two.peer}
    two.elsewhere = {fleet_subject("web"): one.peer}

    _send(one, PATHS[2:])

    until(lambda: two.paths() == PATHS[2:])
    assert one.paths() == []
    assert two.sink.counters == {}


def test_lines_for_a_leader_that_takes_none_are_refused_and_the_others_taken() -> None:
    agent = Agent("one", Readings(wrong=frozenset(PATHS[:1])), {fleet_subject("batch"): Peer("two")})

    refused = _send(agent, PATHS)

    assert sorted(refused) == [Refusal(0, RejectReason.LATE), Refusal(1, RejectReason.LED_ELSEWHERE)]
    assert agent.paths() == PATHS[2:]


@pytest.mark.parametrize("peer", ["", SENDER])
def test_what_this_agent_measured_and_paths_of_no_fleet_stay_here(peer: str) -> None:
    agent = Agent("one", elsewhere={fleet_subject("web"): Peer("two", "127.0.0.1", closed_port())})
    paths = PATHS if not peer else [b"collectd.host.load", *PATHS[:2]]

    assert _send(agent, paths, peer) == []

    assert agent.paths() == paths


def test_lines_that_wait_for_a_leader_that_is_gone_reach_the_next_one(agents: tuple[Agent, Agent, Agent]) -> None:
    one, two, _ = agents
    gone = Peer("gone", "127.0.0.1", closed_port())
    one.elsewhere = {fleet_subject("web"): gone}
    _send(one, PATHS[2:])
    until(lambda: one.sink.counters["gone"].failures > 0)
    _send(one, PATHS[2:] * 3)

    _lead(agents, web=two)
    _send(one, PATHS[:1])

    until(lambda: len(two.below.taken) >= 3)
    assert set(two.paths()) == {PATHS[2]}
    assert one.paths() == PATHS[:1]
