"""Expected lifetimes: requests and applications declare them, and the ledger has what became of each container."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.ledger import Ledger, codec
from agent.placement.records import Cause, Ended, HintSource, Reservation
from domain.clock import VirtualClock
from domain.errors import BadInput, ConfigurationError, StateConflict
from domain.rules.placement.instance import LONGEST_LIFETIME_S, Application
from domain.units import HOUR_S
from tests.agent.placement.hosts import START, app, ask, host, inventory, kind, made


def lives(pool: Any) -> list[Ended]:
    """What the ledger has of containers that ended."""
    found: list[Ended] = pool.store.lives_between("main", 0.0, START + 1e9)
    return found


class TestADeclaration:
    def test_is_that_of_the_request_or_else_of_its_application(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", lifetime_s=600), app("mail")))
        own, by_end = pool.request(ask("r1", lifetime_s=60.0)), pool.request(ask("r2", expected_end=START + 90.0))
        default, without = pool.request(ask("r3")), pool.request(ask("r4", "mail"))
        assert [(one.lifetime_s, one.lifetime_from) for one in (own, by_end, default, without)] == [
            (60.0, HintSource.REQUEST),
            (90.0, HintSource.REQUEST),
            (600.0, HintSource.APPLICATION),
            (None, HintSource.NONE),
        ]
        assert [one.lifetime_s for one in made(ledger, clock).reservations()] == [60.0, 90.0, 600.0, None]

    @pytest.mark.parametrize(
        ("field", "declared"),
        [
            *(("lifetime_s", {"lifetime_s": value}) for value in (0.0, -1.0, math.nan, math.inf, True, 3.2e8)),
            *(("expected_end", {"expected_end": value}) for value in (START, START - 60.0, math.nan, math.inf, -1.0)),
            ("expected_end", {"expected_end": START + LONGEST_LIFETIME_S + 1.0}),
            ("expected_end", {"lifetime_s": 60.0, "expected_end": START + 60.0}),
        ],
    )
    def test_that_cannot_be_is_refused_whole(
        self, ledger: Ledger, clock: VirtualClock, field: str, declared: dict[str, float]
    ) -> None:
        pool = made(ledger, clock, inventory())
        before = pool.store.read("main")
        with pytest.raises(BadInput) as refused:
            pool.request(ask("r1", **declared))
        assert refused.value.field == field
        assert pool.store.read("main") == before
        assert pool.request(ask("r1", lifetime_s=60.0)).containers

    def test_that_ends_before_now_is_refused_with_both_clocks(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        with pytest.raises(BadInput) as refused:
            pool.request(ask("r1", expected_end=START - 90.0))
        for at in (START, START - 90.0):
            assert datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S") in str(refused.value)

    def test_is_part_of_the_request_that_an_id_belongs_to(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", lifetime_s=600)))
        plain, first = pool.request(ask("r0")), pool.request(ask("r1", expected_end=START + 60.0))
        for other in (ask("r1"), ask("r1", lifetime_s=60.0), ask("r1", expected_end=START + 61.0)):
            with pytest.raises(StateConflict, match="r1"):
                pool.request(other)
        # Repeated after its end: the answer is the recorded one.
        clock.advance(120.0)
        assert pool.request(ask("r1", expected_end=START + 60.0)) == first
        assert pool.request(ask("r0")) == plain

    def test_without_one_a_request_has_the_fingerprint_of_earlier_versions(self) -> None:
        assert ask("r1", count=2).fingerprint == "6e10364af324390b"
        assert ask("r1", count=2, lifetime_s=60.0).fingerprint != ask("r1", count=2).fingerprint


class TestAnApplication:
    def test_has_its_default_by_file_and_over_http(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", lifetime_s=600)))
        assert pool.application("shop").lifetime_s == 600.0
        pool.put_application(Application("new", (2, 4, 20), lifetime_s=60.0))
        again = made(ledger, clock)
        assert again.application("new").lifetime_s == 60.0
        again.put_application(Application("new", (2, 4, 20)))
        assert (again.application("new").lifetime_s, again.request(ask("r1", "new")).lifetime_s) == (None, None)

    @pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 3.2e8, "60", True])
    def test_with_a_default_that_cannot_be_is_refused(self, ledger: Ledger, clock: VirtualClock, value: object) -> None:
        pool = made(ledger, clock, inventory())
        with pytest.raises(ConfigurationError) as refused:
            pool.adopt(inventory(app("shop", lifetime_s=value)), "other", epoch=1)
        assert [one.name for one in refused.value.mistakes] == ["inventory.applications[0].lifetime_s"]
        assert pool.application("shop").lifetime_s is None


class TestTheRecord:
    def test_has_begin_end_and_cause_of_each_container(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", limit=1)), confirm_within_s=60.0)
        for name in ("kept", "cancelled", "lapsed"):
            pool.request(ask(name, lifetime_s=HOUR_S))
        clock.advance(10.0)
        pool.confirm("kept")
        clock.advance(20.0)
        pool.cancel("cancelled")
        clock.advance(100.0)
        pool.lapse(epoch=1)
        pool.release("kept")
        pool.request(ask("none"))
        pool.confirm("none")
        pool.release("none")
        begin, end = START + 10.0, START + 130.0
        assert lives(pool) == [
            Ended("cancelled", "shop", (0,), 4, HOUR_S, None, START + 30.0, Cause.CANCELLED),
            Ended("lapsed", "shop", (0,), 4, HOUR_S, None, end, Cause.LAPSED),
            Ended("kept", "shop", (0,), 4, HOUR_S, begin, end, Cause.RELEASED),
            Ended("none", "shop", (0,), 4, None, end, end, Cause.RELEASED),
        ]

    def test_of_a_moved_container_keeps_its_begin(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(count=2)]))
        pool.request(ask("r1", count=4, lifetime_s=60.0))
        pool.confirm("r1")
        clock.advance(100.0)
        pool.move("r1", 0, "large-2")
        pool.fail("large-1")
        assert lives(pool) == []
        pool.request(ask("r2"))
        pool.fail("large-2")
        began, now = START, START + 100.0
        assert lives(pool) == [
            Ended("r1", "shop", (0, 1, 2, 3), 4, 60.0, began, now, Cause.HOST_FAILED),
        ]
        pool.join(host("large-2"))
        pool.request(ask("r3", count=3, lifetime_s=70.0))
        pool.confirm("r3")
        clock.advance(50.0)
        pool.release("r3", [0, 2])
        assert lives(pool)[-1] == Ended("r3", "shop", (0, 2), 4, 70.0, now, now + 50.0, Cause.RELEASED)

    def test_of_an_earlier_version_has_no_begin(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1"))
        pool.confirm("r1")
        (one,) = pool.reservations()
        old = codec.decode_mapping(codec.encode(one))
        old = {name: value for name, value in old.items() if name not in ("lifetime_s", "began")}
        read = codec.decode(Reservation, codec.encode_mapping(old))
        assert read == replace(one, began=None)
