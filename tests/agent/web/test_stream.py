"""The live stream as a protocol: numbered rows, resumption without loss or repetition, bounds on readers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from agent.autoscaling.state import FleetStore
from agent.web.feed import MAX_BEHIND, FeedLimits
from domain.controls import Pause, PauseScope
from domain.decisions import Event, Reason
from domain.subject import AGENT, fleet_subject
from tests.agent.api.running import Running
from tests.agent.web.serving import QUICK, Served
from tests.faults.world import SMALL, MakeWorld, Plan, World
from tests.waiting import until


@dataclass
class Message:
    """One server-sent event as it came over the wire."""

    event: str = ""
    id: int | None = None
    retry_ms: int | None = None
    comments: list[str] = field(default_factory=list)
    data: Any = None


@contextmanager
def reading(url: str, since: int, last_event_id: str | None = None, fleet: str | None = None) -> Iterator[Any]:
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    params = {"since": since} | ({} if fleet is None else {"subject": f"autoscaling/{fleet}"})
    timeout = httpx.Timeout(60.0)
    with httpx.stream("GET", f"{url}/stream", params=params, headers=headers, timeout=timeout) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert "content-encoding" not in answer.headers
        yield messages(answer.iter_lines())


def messages(lines: Iterator[str]) -> Iterator[Message]:
    message = Message()
    for line in lines:
        if not line:
            yield message
            message = Message()
        elif line.startswith(":"):
            message.comments.append(line[1:].strip())
        else:
            name, _, value = line.partition(": ")
            if name == "event":
                message.event = value
            elif name == "id":
                message.id = int(value)
            elif name == "retry":
                message.retry_ms = int(value)
            else:
                assert name == "data"
                message.data = json.loads(value)


def until_parts(stream: Iterator[Message]) -> list[Message]:
    """Read to the end of a batch: its rows, then the parts that changed."""
    read = []
    for message in stream:
        read.append(message)
        if message.event == "parts":
            return read
    raise AssertionError("the stream ended")


def until_decision(stream: Iterator[Message]) -> list[Message]:
    """Read to the end of the batch that brings a decision: a look in the midst of a turn may see the rest first."""
    while not refs(read := until_parts(stream)):
        pass
    return read


def newest_decision(running: Running) -> str:
    return FleetStore(running.world.ledger).decisions("web", limit=1)[0].decision.decision_id


def refs(read: list[Message]) -> list[str]:
    return [message.data["ref"] for message in read if message.event == "decision"]


class TestOneAgent:
    """One agent and its page, in this order: what the tests add to its ledger stays there."""

    @pytest.fixture(scope="class")
    @classmethod
    def running(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
        agent = Running(World(tmp_path_factory.mktemp("world"), Plan()))
        agent.tick(3)
        yield agent
        agent.world.close()

    @pytest.fixture(scope="class")
    @classmethod
    def served(cls, running: Running) -> Iterator[Served]:
        with Served(running.parts) as made:
            yield made

    def test_a_stream_begins_after_the_number_asked_for(self, running: Running, served: Served) -> None:
        first, second, third = (row.seq for row in running.view.journal().events if row.kind == "decision")
        with reading(served.url, first) as stream:
            read = until_parts(stream)
        assert [message.event for message in read] == ["hello", "decision", "decision", "parts"]
        assert [message.id for message in read] == [None, second, third, running.world.ledger.newest_seq()]
        assert read[0].retry_ms == QUICK.retry_ms
        assert refs(read) == ["web-2", "web-3"]
        assert 'href="/decisions/web-3"' in read[2].data["html"]

    def test_silence_is_broken_by_heartbeats(self, running: Running, served: Served) -> None:
        with reading(served.url, running.world.ledger.newest_seq()) as stream:
            until_parts(stream)
            beats = [next(stream) for _ in range(2)]
        assert [(beat.event, beat.id, beat.comments) for beat in beats] == [("beat", None, ["heartbeat"])] * 2

    def test_a_number_from_another_ledger_means_loading_anew(self, running: Running, served: Served) -> None:
        with reading(served.url, running.world.ledger.newest_seq() + 1) as stream:
            assert [message.event for message in stream] == ["hello", "reload"]

    def test_the_last_number_a_reader_was_sent_counts_more_than_the_one_it_once_asked_for(
        self, running: Running, served: Served
    ) -> None:
        newest = running.world.ledger.newest_seq()
        with reading(served.url, 0, last_event_id=str(newest)) as stream:
            assert refs(until_parts(stream)) == []
            running.tick()
            assert refs(until_decision(stream)) == [newest_decision(running)]

    def test_routine_events_move_the_number_on_without_a_row(self, running: Running, served: Served) -> None:
        FleetStore(running.world.ledger).record(
            (), events=[Event(fleet_subject("web"), 1.0, Reason.PROTECTED, "routine")]
        )
        newest = running.world.ledger.newest_seq()
        with reading(served.url, newest - 1) as stream:
            read = until_parts(stream)
        assert [(message.event, message.id) for message in read] == [("hello", None), ("parts", newest)]

    def test_only_the_parts_that_changed_are_sent_again(self, running: Running, served: Served) -> None:
        with reading(served.url, running.world.ledger.newest_seq()) as stream:
            whole = until_parts(stream)[-1].data["parts"]
            assert set(whole) == {
                "agent",
                "alerts",
                "badges web",
                "fleet web",
                "vms",
                "inputs",
                "card Cluster main",
                "card Pool east",
                "card Placement south",
                "card Deferral night",
            }
            now = running.world.agent_clock.now()
            running.world.ledger.pause("autoscaling", "web", Pause(PauseScope.ALL, "ada", "load test", now))
            read = until_parts(stream)
        assert [message.event for message in read] == ["event", "parts"]
        assert "ada paused" in read[0].data["html"]
        assert set(read[1].data["parts"]) == {"badges web", "fleet web"}
        assert "paused" in read[1].data["parts"]["badges web"]

    def test_a_ledger_that_cannot_be_read_is_said_and_the_stream_goes_on_when_it_is_back(
        self, running: Running, served: Served
    ) -> None:
        with reading(served.url, running.world.ledger.newest_seq()) as stream:
            until_parts(stream)
            database = running.world.ledger.database.path
            assert database is not None
            away = database.with_name("away.db")
            database.rename(away)
            assert "it cannot be read now" in until_parts(stream)[-1].data["parts"]["alerts"]
            away.rename(database)
            running.tick()
            # The alert may be gone by a look before the one that finds the decision.
            read = until_parts(stream)
            while not refs(read):
                read += until_parts(stream)
            assert refs(read) == [newest_decision(running)]
            parts = [message.data["parts"] for message in read if message.event == "parts"]
            assert [each["alerts"].strip() for each in parts if "alerts" in each][-1] == ""

    def test_a_reader_far_behind_is_told_to_load_the_page_anew(self, running: Running, served: Served) -> None:
        events = [Event(fleet_subject("web"), float(n), Reason.OPERATOR, "noise") for n in range(MAX_BEHIND + 1)]
        FleetStore(running.world.ledger).record((), events=events)
        with reading(served.url, 1) as stream:
            assert [message.event for message in stream] == ["hello", "reload"]

    def test_streams_end_when_the_agent_stops(self, running: Running, served: Served) -> None:
        with reading(served.url, running.world.ledger.newest_seq()) as stream:
            until_parts(stream)
            running.board.change(stopping=True)
            assert [message.event for message in stream if message.event == "decision"] == []


def test_a_reader_cut_off_anywhere_gets_each_decision_exactly_once(running: Running, served: Served) -> None:
    got: list[str] = []
    last = "0"
    for _ in range(4):
        running.tick(2)
        with reading(served.url, 0, last_event_id=last) as stream:
            for message in stream:
                if message.id is not None:
                    last = str(message.id)
                if message.event == "decision":
                    got.append(message.data["ref"])
                    if len(got) % 3 == 0:
                        break
                if message.event == "parts":
                    break
    with reading(served.url, 0, last_event_id=last) as stream:
        got += refs(until_parts(stream))
    assert got == [f"web-{n}" for n in range(1, 12)]


def test_a_restarted_agent_goes_on_where_the_last_one_stopped(running: Running) -> None:
    world = running.world
    with Served(running.parts) as first, reading(first.url, 0) as stream:
        seen = until_parts(stream)
    last = seen[-1].id
    world.restart()
    again = Running(world)
    again.tick()
    with Served(again.parts) as second, reading(second.url, 0, last_event_id=str(last)) as stream:
        assert refs(until_parts(stream)) == ["web-4"]


def test_one_fleets_stream_carries_its_rows_and_the_agents_own(make_world: MakeWorld) -> None:
    running = Running(make_world(batch=(replace(SMALL, key="nightly", name="nightly"),)))
    running.tick()
    FleetStore(running.world.ledger).record((), events=[Event(AGENT, 1.0, Reason.STARTED, "act mode, 2 fleets")])
    with Served(running.parts) as served, reading(served.url, 0, fleet="batch") as stream:
        read = until_parts(stream)
    assert refs(read) == ["batch-1"]
    assert ["act mode, 2 fleets" in m.data["html"] for m in read if m.event == "event"] == [True]
    assert {name for name in read[-1].data["parts"] if " " in name} == {"badges batch", "fleet batch"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 422),
        ("?since=-1", 422),
        ("?since=x", 422),
        ("?since=0&subject=nobody", 422),
        ("?since=0&subject=autoscaling/nobody", 404),
    ],
)
def test_what_makes_no_sense_is_refused(served: Served, query: str, status: int) -> None:
    assert httpx.get(f"{served.url}/stream{query}").status_code == status


def test_the_page_is_compressed(served: Served) -> None:
    answer = httpx.get(served.url)
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < 0.5 * len(answer.content)


def test_head_ends_at_once_and_takes_no_place(running: Running) -> None:
    with Served(running.parts, limits=replace(QUICK, streams=1)) as served:
        for _ in range(3):
            answer = httpx.head(f"{served.url}/stream?since=0")
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.exhaustive
@pytest.mark.parametrize("header", ["", "not a number", "-4", "1e3", "٣"])
def test_a_last_event_id_that_is_no_number_is_ignored(running: Running, served: Served, header: str) -> None:
    since = running.world.ledger.newest_seq()
    request = httpx.Request("GET", f"{served.url}/stream?since={since}", headers={"Last-Event-ID": header.encode()})
    with httpx.Client() as client:
        answer = client.send(request, stream=True)
        assert refs(until_parts(messages(answer.iter_lines()))) == []
        answer.close()


def test_there_are_only_so_many_streams_and_a_place_is_free_again_when_a_reader_goes(running: Running) -> None:
    with Served(running.parts, limits=replace(QUICK, streams=2)) as served:
        with reading(served.url, 0) as one, reading(served.url, 0) as two:
            assert (next(one).event, next(two).event) == ("hello", "hello")
            refused = httpx.get(f"{served.url}/stream?since=0")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        assert_soon_free(served.url)


@pytest.mark.exhaustive
def test_a_reader_that_takes_nothing_is_dropped(running: Running) -> None:
    """Its socket holds some 4 MB; what is sent beyond that waits, and then its place is given to others."""
    with Served(running.parts, limits=replace(QUICK, streams=1, send_within_s=0.3)) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.sendall(b"GET /stream?since=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while httpx.get(f"{served.url}/stream?since=999999", timeout=60.0).status_code == 503:
                events = [Event(fleet_subject("web"), 1.0, Reason.OPERATOR, "x" * 20_000)] * 100
                FleetStore(running.world.ledger).record((), events=events)
        assert_soon_free(served.url)


def assert_soon_free(url: str) -> None:
    def is_free() -> bool:
        with httpx.stream("GET", f"{url}/stream?since=0") as answer:
            return bool(answer.status_code == 200)

    until(is_free, every_s=0.05)


def test_the_defaults_bound_readers() -> None:
    limits = FeedLimits()
    assert limits.streams < 64
    assert limits.send_within_s <= 10.0
