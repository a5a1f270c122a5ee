"""Expected lifetimes: requests and applications declare them, and the ledger has what became of each container."""

from __future__ import annotations

import math
from collections.abc import ValuesView
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ledger import Ledger, codec, state
from agent.placement.curves import CURVE_DAYS_S, CURVES_EVERY_S, LifeCurve, curves_of, drawing
from agent.placement.records import Cause, Ended, HintSource, HostEnd, MoveDecision, PlacementDecision, Reservation
from agent.placement.reserve import PlacementPool
from agent.placement.state import HEADS
from agent.placement.turn import Shadow
from agent.placement.view import pool_card, pool_lines, request_lines
from domain.clock import VirtualClock
from domain.errors import BadInput, ConfigurationError, StateConflict
from domain.rules.placement.instance import LONGEST_LIFETIME_S, Application
from domain.rules.placement.lifetimes import LifetimeRule, first_sums, learn
from domain.units import HOUR_S
from tests.agent.placement.hosts import START, app, ask, broken, host, inventory, kind, made
from tests.agent.placement.test_properties import DOCUMENT, HOSTS, STEPS, act


def lives(pool: PlacementPool) -> list[Ended]:
    """What the ledger has of containers that ended."""
    return pool.store.lives_between("main", 0.0, START + 1e9)[0]


class TestASurvivalCurve:
    def test_is_of_released_containers_and_counts_the_living(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", 1), app("mail", 1)))
        assert pool.curves() == {}
        for number in range(8):
            pool.request(ask(f"r{number}", count=2))
            pool.confirm(f"r{number}")
        pool.request(ask("never", "mail"))
        clock.advance(HOUR_S)
        pool.cancel("never")
        for number in range(4):
            pool.release(f"r{number}")
        clock.advance(CURVES_EVERY_S)
        curve = pool.application("shop").survival
        assert curve is not None
        assert (curve.ended, curve.living) == (8, 8)
        assert pool.application("mail").survival is None
        assert pool.explained("shop").survival == curve
        # Sixteen were followed to the age at which half of them ended: of the pool, shrunk to itself.
        assert [share for age, share in zip(curve.ages_s, curve.shares, strict=True) if age < HOUR_S] == [1.0] * 16
        assert curve.shares[16] == pytest.approx(0.5)
        assert curve.half_s == curve.ages_s[16] == pytest.approx(60.0 * 1.3**16)
        assert drawing(curve).startswith("█" * 14)
        lines = pool_lines(pool.view(), [], pool.curves())
        assert f"  lifetimes of shop: {drawing(curve)}" in lines
        assert ("lifetimes of shop", drawing(curve)) in pool_card(
            pool.view(), None, paused=False, curves=pool.curves()
        ).rows

    def test_leaves_out_containers_that_began_before_its_days(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", 1)))
        for name in ("old", "living"):
            pool.request(ask(name))
            pool.confirm(name)
        clock.advance(CURVE_DAYS_S + 1.0)
        pool.release("old")
        assert pool.curves() == {}
        pool.request(ask("new"))
        pool.confirm("new")
        clock.advance(CURVES_EVERY_S)
        pool.release("new")
        (curve,) = pool.curves().values()
        assert (curve.ended, curve.living) == (1, 0)

    def test_counts_from_the_oldest_event_that_is_read(
        self, ledger: Ledger, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else the short lives of the events before would be missing, and the long ones be there."""
        monkeypatch.setattr("agent.placement.look.MOST_ENDS", 3)
        pool = made(ledger, clock, inventory(app("shop", 1)))
        for name in ("long", "short", "lasting"):
            pool.request(ask(name))
            pool.confirm(name)
        clock.advance(60.0)
        pool.release("short")
        clock.advance(60.0)
        # It ends no container, and is an event.
        pool.fail("large-4")
        pool.request(ask("new"))
        pool.confirm("new")
        clock.advance(60.0)
        pool.release("long")
        pool.release("new")
        (curve,) = pool.curves().values()
        assert (curve.ended, curve.living) == (1, 0)


def test_one_thread_makes_the_curves_and_the_others_get_those_of_before(
    ledger: Ledger, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = made(ledger, clock, inventory())
    pool.request(ask("r1"))
    pool.confirm("r1")
    clock.advance(60.0)
    pool.release("r1")
    meanwhile: list[object] = []

    def slow(*given: Any) -> dict[str, LifeCurve]:
        if not meanwhile:
            other = Thread(target=lambda: meanwhile.append(pool.curves()), daemon=True)
            other.start()
            other.join(10.0)
        return curves_of(*given)

    monkeypatch.setattr("agent.placement.look.curves_of", slow)
    assert list(pool.curves()) == ["shop"]
    assert meanwhile == [{}]
    # A ledger that cannot be read leaves the next call to make them.
    clock.advance(CURVES_EVERY_S)
    monkeypatch.setattr(pool.store, "lives_between", None)
    with pytest.raises(TypeError):
        pool.curves()
    monkeypatch.undo()
    clock.advance(60.0)
    assert list(pool.curves()) == ["shop"]


def test_the_containers_of_all_applications_are_counted_in_one_pass(ledger: Ledger, clock: VirtualClock) -> None:
    """5,000 passes over 150,000 reservations would keep requests waiting for a minute."""

    class Counted(dict[str, Reservation]):
        passes = 0

        def values(self) -> ValuesView[Reservation]:
            self.passes += 1
            return super().values()

    pool = made(ledger, clock, inventory(*(app(f"a{number}", 1) for number in range(5))))
    pool.request(ask("r1", "a1", count=2))
    pool.request(ask("r2", "a3"))
    pool.curves()
    book = pool.current()
    book.reservations = held = Counted(book.reservations)
    assert [one.containers for one in pool.applications()] == [0, 2, 0, 1, 0]
    assert held.passes == 1


def test_no_request_waits_for_the_file_of_an_advice(
    ledger: Ledger, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = made(ledger, clock, inventory())
    placed = []

    def slow(_: Path, name: str) -> None:
        other = Thread(target=lambda: placed.append(pool.request(ask("r1"))), daemon=True)
        other.start()
        other.join(10.0)

    monkeypatch.setattr("agent.placement.choosing.read_advice", slow)
    assert pool.view().advice is None
    assert len(placed) == 1


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


class TestTheCalibration:
    def test_learns_from_released_containers_alone(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(cores=32, count=3)]), confirm_within_s=60.0)
        for name in ("lapsed", "cancelled", "failed", "moved", "released", "none"):
            pool.request(ask(name, lifetime_s=None if name == "none" else HOUR_S))
        clock.advance(10.0)
        pool.cancel("cancelled")
        for name in ("failed", "moved", "released", "none"):
            pool.confirm(name)
        clock.advance(61.0)
        pool.lapse(epoch=1)
        pool.move("moved", 0, "large-3")
        pool.move("failed", 0, "large-2")
        pool.drain("large-1")
        pool.drain("large-3")
        pool.fail("large-2")
        assert pool.view().head.sums == ()
        assert lives(pool)[-1].cause is Cause.HOST_FAILED
        clock.advance(39.0)
        for name in ("none", "moved", "released"):
            pool.release(name)
        sums = first_sums()
        for _ in range(2):
            learn(sums, math.log(HOUR_S), math.log(100.0))
        assert pool.view().head.sums == tuple(sums)

    def test_is_kept_through_a_restart_and_a_change_of_lead(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool, other = calibrated(ledger, clock, sigma=0.3), made(ledger, clock)
        assert other.view().lifetimes == pool.view().lifetimes
        other.request(ask("r", lifetime_s=HOUR_S))
        other.confirm("r")
        clock.advance(HOUR_S)
        other.release("r")
        assert pool.view().lifetimes == made(ledger, clock).view().lifetimes == other.view().lifetimes

    @pytest.mark.parametrize(
        ("unit", "rule"),
        [
            (1.0, LifetimeRule.GAP),
            *((unit, LifetimeRule.WEIGHTS) for unit in (1 / 60, 60.0, 1 / HOUR_S)),
        ],
    )
    def test_repairs_hints_in_another_unit(
        self, ledger: Ledger, clock: VirtualClock, unit: float, rule: LifetimeRule
    ) -> None:
        """The pseudo-observations stay at the seconds, so that a unit further away takes more ends."""
        pool = calibrated(ledger, clock, sigma=0.1, unit=unit, requests=150)
        known = pool.view().lifetimes
        assert known.r2 > 0.8
        assert known.rule is rule
        clock.advance(60.0)
        reason = pool.request(ask("one", lifetime_s=2 * HOUR_S * unit)).lifetime
        assert reason is not None
        assert reason.life_s == pytest.approx(2 * HOUR_S, rel=0.2)

    def test_survives_an_absurd_hint(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = calibrated(ledger, clock, sigma=0.1)
        before = pool.view().lifetimes
        for n, hint in enumerate((5e-324, LONGEST_LIFETIME_S)):
            pool.request(ask(f"r{n}", lifetime_s=hint))
            pool.confirm(f"r{n}")
            clock.advance(HOUR_S)
            pool.release(f"r{n}")
        assert (before.r2, pool.view().lifetimes.r2) == (pytest.approx(0.95, abs=0.05), pytest.approx(0.75, abs=0.1))

    def test_is_shown_as_assumed_until_containers_ended(self, ledger: Ledger, clock: VirtualClock) -> None:
        def words(pool: PlacementPool) -> str:
            return next(line for line in pool_lines(pool.view(), [], {}) if "expected lifetimes" in line)

        assert "assumed" in words(made(ledger, clock, inventory(), policy="lifetime"))
        assert "assumed" not in words(calibrated(ledger, clock, sigma=0.1))

    def test_finds_useless_hints_useless(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = calibrated(ledger, clock, sigma=6.0)
        assert pool.view().lifetimes.rule is LifetimeRule.OLDEST

    def test_is_made_again_from_the_record_where_an_earlier_version_dropped_it(
        self, ledger: Ledger, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pool = calibrated(ledger, clock, sigma=0.3)
        for name, ends in (("cancelled", pool.cancel), ("without", pool.confirm)):
            pool.request(ask(name, lifetime_s=HOUR_S if name == "cancelled" else None))
            ends(name)
        pool.release("without")
        head = pool.view().head
        with ledger.database.write() as connection:
            state.put(connection, [("main", HEADS.key, codec.encode(replace(head, sums=())))])
        assert made(ledger, clock).view().lifetimes == pool.view().lifetimes
        assert pool.store.read("main").head.sums == pytest.approx(head.sums, rel=1e-12)
        # Not from all of a long record, while requests wait; the newest end has no expectation.
        monkeypatch.setattr("agent.placement.state.TEACHING", 1)
        assert pool.store.read("main").head.sums == ()

    def test_is_not_taught_by_a_clock_that_was_set_back(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = calibrated(ledger, clock, sigma=0.3)
        before = pool.view().head.sums
        pool.request(ask("r", lifetime_s=HOUR_S))
        pool.confirm("r")
        clock.step(-2 * HOUR_S)
        pool.release("r")
        assert pool.view().head.sums == before


def calibrated(
    ledger: Ledger, clock: VirtualClock, *, sigma: float, unit: float = 1.0, requests: int = 40
) -> PlacementPool:
    """A pool in which many containers ended: hints are in this unit, and off by a normal logarithm."""
    draws = np.random.default_rng(3)
    pool = made(ledger, clock, inventory(hosts=[kind(cores=64, count=4)]))
    for n in range(requests):
        life_s = float(np.exp(draws.normal(8.0, 1.5)))
        hint = max(min(life_s * unit * float(np.exp(sigma * draws.standard_normal())), 1e8), 1e-6)
        pool.request(ask(f"c{n}", count=20, lifetime_s=hint))
        pool.confirm(f"c{n}")
        clock.advance(life_s)
        pool.release(f"c{n}")
    return pool


def exact(ledger: Ledger, clock: VirtualClock) -> None:
    """A pool whose record has 8,000 ends at the expected times."""
    head, sums = made(ledger, clock, inventory()).head, first_sums()
    for x in np.random.default_rng(3).normal(8.0, 1.5, 8000).tolist():
        learn(sums, x, x)
    with ledger.database.write() as connection:
        state.put(connection, [("main", HEADS.key, codec.encode(replace(head, sums=tuple(sums.tolist()))))])


class TestADecision:
    def test_knows_no_end_of_a_host_without_an_expectation(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(cores=4, count=3)]), policy="lifetime")
        pool.request(ask("without"))
        pool.request(ask("with", lifetime_s=HOUR_S))
        pool.confirm("with")
        pool = made(ledger, clock, inventory(hosts=[kind(cores=8, count=3)]), policy="lifetime")
        asked = pool.request(ask("next"))
        assert asked.lifetime is not None
        ends = {one.host: one.left_s is None for one in asked.lifetime.hosts}
        assert ends == {"large-1": True, "large-2": False}
        assert any("not known" in line for line in request_lines(asked))

    def test_follows_the_rule_of_its_calibration(self, ledger: Ledger, clock: VirtualClock) -> None:
        """The second host ends soon after the container, the first late; so the second one is better."""
        exact(ledger, clock)
        pool = made(ledger, clock, inventory(app("shop"), app("wide", 60), hosts=[kind(cores=64, count=4)]))
        for name, life_s in (("late", 64 * HOUR_S), ("soon", 2.2 * HOUR_S)):
            pool.request(ask(name, "wide", lifetime_s=life_s))
            pool.confirm(name)
        made_now = pool.request(ask("one", lifetime_s=2 * HOUR_S))
        assert [one.host for one in made_now.containers] == ["large-2"]
        reason = made_now.lifetime
        assert reason is not None
        assert (reason.rule, reason.r2) == (LifetimeRule.GAP, pool.view().lifetimes.r2)
        assert reason.life_s == pytest.approx(2 * HOUR_S, rel=0.1)
        chosen, second = reason.hosts
        assert (chosen.host, chosen.extension, chosen.opening) == ("large-2", 0, second.opening + 1)
        assert (second.host, second.extension) == ("large-1", 0)
        assert chosen.gap < second.gap
        assert chosen.left_s == pytest.approx(2.2 * HOUR_S, rel=0.1)
        # The same by the questions that change nothing, and by another process after a minute.
        clock.advance(60.0)
        asked = ask("what-if", lifetime_s=64 * HOUR_S)
        for one in (pool, made(ledger, clock)):
            assert one.what_if([asked]).requests[0].hosts == ("large-1",)
            assert one.explained("shop", lifetime_s=64 * HOUR_S).best[0].host == "large-1"
        assert pool.request(ask("two", lifetime_s=64 * HOUR_S)).containers[0].host == "large-1"

    def test_of_fair_expectations_is_by_the_weighted_sum(self, ledger: Ledger, clock: VirtualClock) -> None:
        """Neither host is held longer; the first one ends later and has more room."""
        calibrated(ledger, clock, sigma=0.5)
        pool = made(ledger, clock, inventory(app("shop"), app("wide", 50), hosts=[kind(cores=64, count=4)]))
        for name, application, life_s in (("late", "wide", 640 * HOUR_S), ("soon", "wide", 64 * HOUR_S)):
            pool.request(ask(name, application, lifetime_s=life_s))
            pool.confirm(name)
        asked = pool.request(ask("one", lifetime_s=0.1 * HOUR_S))
        assert asked.lifetime is not None
        assert asked.lifetime.rule is pool.view().lifetimes.rule is LifetimeRule.WEIGHTS
        chosen, second = asked.lifetime.hosts
        assert (chosen.host, second.host) == ("large-2", "large-1")
        assert 0.0 <= chosen.extension < 0.1
        assert 0.0 < chosen.gap < second.gap
        assert (chosen.residual, chosen.cores) == (second.residual, second.cores)
        assert chosen.age > second.age
        costs = [one.extension + one.gap + one.residual + one.cores + one.age for one in asked.lifetime.hosts]
        scores = [one.score for one in asked.best[:2]]
        assert scores == [-cost * 2.0**40 - one.opening for cost, one in zip(costs, asked.lifetime.hosts, strict=True)]
        assert "residual" in next(line for line in request_lines(asked) if "ends in" in line)

    def test_of_an_earlier_version_is_read(self, ledger: Ledger, clock: VirtualClock) -> None:
        """Its hosts have classes and gaps in whole numbers, and no other terms."""
        calibrated(ledger, clock, sigma=0.1)
        asked = made(ledger, clock).request(ask("one", lifetime_s=HOUR_S))
        body = dict(codec.decode_mapping(codec.encode(asked)))
        host = {"host": "large-1", "left_s": 60.0, "extension": 2, "gap": 0, "opening": 1}
        for rule in ("extension, gap, oldest", "extension, oldest", "oldest"):
            body["lifetime"] = {"rule": rule, "r2": 0.9, "life_s": 60.0, "hosts": [host]}
            found = codec.decode(PlacementDecision, codec.encode_mapping(body))
            assert found.lifetime is not None
            assert found.lifetime.hosts == (HostEnd("large-1", 60.0, 2.0, 0.0, 1),)
            assert "residual" not in "".join(request_lines(found))

    def test_of_a_moved_container_is_by_the_rest_of_its_life(self, ledger: Ledger, clock: VirtualClock) -> None:
        exact(ledger, clock)
        pool = made(ledger, clock, inventory(app("shop"), app("wide", 60), hosts=[kind(cores=64, count=4)]))
        for name, application, life_s in (("late", "wide", 64), ("soon", "wide", 5.3), ("one", "shop", 5)):
            pool.request(ask(name, application, lifetime_s=life_s * HOUR_S))
            pool.confirm(name)
        pool.move("one", 0, "large-3")
        clock.advance(3 * HOUR_S)
        # Two hours are left of five, which a new container of five hours would not be.
        assert pool.explained("shop", lifetime_s=5 * HOUR_S).best[0].host == "large-1"
        (moved,) = pool.fail("large-3").moves
        assert moved.host == "large-2"
        sums = np.array(pool.view().head.sums)
        clock.advance(HOUR_S)
        pool.release("one")
        learn(sums, math.log(5 * HOUR_S), math.log(4 * HOUR_S))
        assert pool.view().head.sums == tuple(sums.tolist())

    @settings(max_examples=4, deadline=None)
    @given(STEPS)
    def test_without_hints_is_that_of_oldest_one_by_one(self, steps: list[tuple[object, ...]]) -> None:
        with TemporaryDirectory() as directory:
            found = [played(Path(directory) / policy, policy, steps) for policy in ("oldest", "lifetime")]
        assert found[0] == found[1]

    @settings(max_examples=4, deadline=None)
    @given(STEPS, st.integers(0, 2**32 - 1))
    def test_with_hints_breaks_no_rule_and_a_restart_decides_alike(
        self, steps: list[tuple[object, ...]], seed: int
    ) -> None:
        draws, clock = np.random.default_rng(seed), VirtualClock(START)
        with TemporaryDirectory() as directory, Ledger.open(f"sqlite:///{Path(directory)}/ledger.db") as ledger:
            pool = made(ledger, clock, DOCUMENT)
            for number, step in enumerate(steps):
                with suppress(BadInput):
                    match step:
                        case ("ask", str(name), int(count), bool(partial)):
                            hint = float(np.exp(draws.normal(7.0, 3.0))) if draws.random() < 0.7 else None
                            pool.request(ask(f"r{number}", name, count, partial=partial, lifetime_s=hint))
                        case _:
                            act(pool, clock, step, number)
                clock.advance(float(draws.exponential(2000.0)))
                assert broken(DOCUMENT, pool.reservations(), HOSTS) == []
            clock.advance(60.0)
            again = made(ledger, clock)
            assert again.view().lifetimes == pool.view().lifetimes
            asked = [ask("what-if", name, 2, partial=True, lifetime_s=3000.0) for name in ("shop", "mail", "special")]
            assert again.what_if(asked) == pool.what_if(asked)


def played(folder: Path, policy: str, steps: list[tuple[object, ...]]) -> list[object]:
    """Play steps of a pool without declared lifetimes; return what was decided each time."""
    folder.mkdir()
    clock = VirtualClock(START)
    with Ledger.open(f"sqlite:///{folder}/ledger.db") as ledger:
        pool = made(ledger, clock, DOCUMENT, policy=policy)
        for number, step in enumerate(steps):
            with suppress(BadInput):
                act(pool, clock, step, number)
            if step == ("restart",):
                pool = made(ledger, clock, policy=policy)
        return [
            one.moves
            if isinstance(one, MoveDecision)
            else [(each.host, each.runner_up, each.feasible) for each in one.containers]
            for one in pool.store.newest("main", 1000)
            if isinstance(one, MoveDecision | PlacementDecision)
        ]


class TestTheDefault:
    def test_of_a_new_pool_is_lifetime_and_stays(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        assert pool.request(ask("r1")).policy == "lifetime"
        assert made(ledger, clock).view().policy == "lifetime"
        assert made(ledger, clock, policy="bf").view().policy == "BF"

    def test_of_a_pool_of_an_earlier_version_is_best_fit(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        old = codec.decode_mapping(codec.encode(pool.head))
        new = ("default_policy", "sums", "requests", "hinted", "open_hosts", "as_written", "host_s")
        body = codec.pack(codec.encode_mapping({name: value for name, value in old.items() if name not in new}))
        with ledger.database.write() as connection:
            state.put(connection, [("main", HEADS.key, codec.unpack(body))])
        again = made(ledger, clock)
        assert again.request(ask("r1")).policy == "BF"
        assert made(ledger, clock).view().policy == "BF"
        again.switch("lifetime", "ada", "try")
        assert again.request(ask("r2")).policy == "lifetime"
        again.switch("", "ada", "enough")
        assert again.request(ask("r3")).policy == "BF"


def test_host_hours_are_those_of_open_hosts(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, inventory(app("shop", limit=1)))
    clock.advance(HOUR_S)
    pool.request(ask("r1", count=3))
    pool.confirm("r1")
    clock.advance(2 * HOUR_S)
    assert pool.view().host_hours == pytest.approx(6.0)
    pool.release("r1", [0, 1])
    clock.advance(HOUR_S)
    assert made(ledger, clock).view().host_hours == pytest.approx(7.0)
    pool.release("r1")
    clock.advance(HOUR_S)
    assert pool.view().host_hours == pytest.approx(7.0)
    clock.step(-10 * HOUR_S)
    pool.request(ask("r2"))
    assert pool.view().host_hours == pytest.approx(7.0)
    assert (pool.head.requests, pool.head.hinted) == (2, 0)


def test_host_hours_are_those_of_hosts_that_the_inventory_has_open_too(ledger: Ledger, clock: VirtualClock) -> None:
    held = [{"host_type": "large", "instances": {"shop": 1}}]
    pool = made(ledger, clock, inventory(snapshot=held))
    clock.advance(2 * HOUR_S)
    assert pool.view().host_hours == pytest.approx(2.0)
    pool.adopt(inventory(), "empty", epoch=1)
    clock.advance(HOUR_S)
    assert pool.view().host_hours == pytest.approx(2.0)


def test_a_shadow_by_the_same_policy_has_the_same_lives(ledger: Ledger, clock: VirtualClock) -> None:
    calibrated(ledger, clock, sigma=0.1)
    pool = made(ledger, clock, inventory(app("shop"), app("wide", 60), hosts=[kind(cores=64, count=4)]))
    shadow = Shadow(pool, pool.chooser)
    shadow.follow(clock.now(), *pool.snapshot())

    def alike() -> bool:
        clock.advance(60.0)
        real = pool.snapshot()
        shadow.follow(clock.now(), *real)
        cluster = shadow._cluster
        assert cluster is not None
        real[0].declare(None, clock.now())
        hosts = np.arange(4)
        ends = [one.lives.left_s(hosts, clock.now()).tolist() for one in (real[0], cluster)]
        return ends[0] == ends[1] and cluster.lives.sums.tolist() == real[0].lives.sums.tolist()

    for name, application, life_s in (
        ("late", "wide", 64),
        ("soon", "wide", 5),
        ("one", "shop", 5),
        ("two", "shop", 6),
    ):
        pool.request(ask(name, application, lifetime_s=life_s * HOUR_S))
        pool.confirm(name)
    assert alike()
    pool.release("two")
    assert alike()
    pool.release("late")
    assert alike()
    pool.fail("large-2")
    assert alike()
