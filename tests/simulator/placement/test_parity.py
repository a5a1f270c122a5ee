"""The compiled simulator and the agent's book place every container on the same host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.rules.placement.cluster import hosts_of
from domain.rules.placement.instance import MOST, Application, HostType, Instance, Request, symmetric
from domain.rules.placement.policies import FAMILIES, LIFETIME, NAMED, Policy, box
from simulator.placement import engine
from simulator.placement.engine import (
    DRAIN,
    ENDED,
    FAIL,
    JOIN,
    PLACE,
    REJECTED,
    RELEASE,
    RESUME,
    WAITING,
    arrays_of,
    events_of,
    play,
    play_orders,
)
from simulator.placement.instances import churn, instance_of, s1, shuffle_order
from tests.oracles.plain_placement import play_plainly, twin_of
from tests.simulator.placement.vectors import FIRST, SECOND

LEARNED = [name for name, family in FAMILIES.items() if family.learned]
SUMS = ["tiers17+potential17", "linear14+tiers17a", "potential17+linear14", "linear14+places1"]
KINDS = (
    HostType("big", (96, 512, 3000)),
    HostType("small", (64, 256, 1000), label="ssd"),
    HostType("odd", (10, 40, 300), 3),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    if draw(st.booleans()):
        return draw(st.sampled_from(list(NAMED.values())))
    family = draw(st.sampled_from([*LEARNED, *SUMS]))
    size = box(family)[0].size
    # Few values make ties, which the lowest index must break in both.
    value = draw(st.sampled_from([st.floats(-1, 1), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])]))
    return Policy(
        "drawn", family, tuple(draw(st.lists(value, min_size=size, max_size=size))), draw(st.integers(8, 128))
    )


LIFETIMES = st.one_of(st.none(), st.sampled_from([60.0, 3600.0, 90_000.0]), st.floats(1.0, 1e6))


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    cores, limits = st.sampled_from([1, 2, 3, 4, 8, 10]), st.sampled_from([1, 1, 2, 4, 1000])
    apps = [
        Application(
            f"a{k}",
            (draw(cores), draw(st.integers(1, 40)), draw(st.integers(1, 300))),
            draw(limits),
            frozenset(f"a{other}" for other in draw(st.sets(st.integers(0, 7), max_size=2)) if other != k),
            draw(st.sampled_from([None, None, 1, 2])),
            draw(st.sampled_from(["", "", "ssd"])),
        )
        for k in range(8)
    ]
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True))
    if draw(st.booleans()):
        kinds = [replace(kind, count=kind.count or draw(st.integers(0, 4))) for kind in kinds]
    requests = draw(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 12)), min_size=1, max_size=25))
    return Instance(
        "drawn",
        tuple(kinds),
        symmetric(apps)[0],
        tuple(Request(f"r{k}", f"a{app}", count, float(k), draw(LIFETIMES)) for k, (app, count) in enumerate(requests)),
        snapshot=((kinds[0].name, {"a0": 1, "a3": 1}),) if draw(st.booleans()) else (),
    )


@given(instances(), policies(), st.data())
def test_any_history_is_the_same_compiled_and_plain(instance: Instance, policy: Policy, data: st.DataObject) -> None:
    most = instance.containers * len(instance.hosts) + 10
    hosts = len(hosts_of(instance, most))
    events = [(PLACE, request) for request in range(len(instance.requests))]
    if hosts:
        on_host = st.tuples(st.sampled_from([DRAIN, RESUME, FAIL, JOIN]), st.integers(0, min(hosts, 6) - 1))
        ends = st.tuples(st.just(RELEASE), st.integers(0, instance.containers - 1))
        for event in data.draw(st.lists(st.one_of(on_host, ends), max_size=20)):
            events.insert(data.draw(st.integers(0, len(events))), event)
    stream = np.array(events, dtype=np.int64)
    times = np.cumsum(
        data.draw(st.lists(st.sampled_from([0.0, 7.0, 61.0, 5000.0]), min_size=len(events), max_size=len(events)))
    )
    played = play(instance, policy, events=(stream, times), arrays=arrays_of(instance, most))
    twin = play_plainly(instance, policy, stream, most, times)
    assert played.host.tolist() == twin.where.tolist()
    assert (played.hosts, played.opened) == (twin.cluster.open_hosts, twin.cluster.opened)
    assert (played.rejected, played.obstacles) == (twin.rejected, twin.obstacles)
    assert played.headroom == tuple(twin.cluster.headroom.values())


@st.composite
def policies_of_ties(draw: st.DrawFn) -> Policy:
    """Of vectors that score many hosts alike: no slope, and mostly no price of a tier or of a new host."""
    family = draw(st.sampled_from(["tiers17", "tiers17a", "tiers18a", "potential17", "linear14"]))
    size = box(family)[0].size
    if family.startswith("tiers"):
        # A new host costs 1 + bias, a tier that is crossed 4 * (1 + weight): with -1 neither costs anything.
        costs = st.sampled_from([-1.0, -1.0, -1.0, 0.0])
        one = [0.0, draw(costs), *draw(st.lists(costs, min_size=4, max_size=4))]
        theta = [*(draw(st.sampled_from([-1.0, 0.0])) for _ in range(4)), *one, *one, 0.0, 1.0][:size]
    else:
        theta = [0.0] * size
        if family == "potential17":
            theta[12] = draw(st.sampled_from([-1.0 / 3.0, 0.0]))
    return Policy("ties", family, tuple(theta))


@given(st.data(), policies_of_ties())
def test_among_equal_hosts_the_lowest_is_taken_compiled_and_plain(data: st.DataObject, policy: Policy) -> None:
    """Many hosts of two kinds, few sizes of containers, and releases that leave closed hosts among open ones."""
    apps = [Application(f"a{k}", (1 + k % 3, 1, 1), (1, 2, 1000)[k % 2]) for k in range(6)]
    kinds = (HostType("one", (6, 40, 300)), HostType("other", (8, 40, 300)))[: data.draw(st.integers(1, 2))]
    counts = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), min_size=4, max_size=12))
    requests = tuple(Request(f"r{k}", f"a{app}", count) for k, (app, count) in enumerate(counts))
    instance = Instance("ties", kinds, tuple(apps), requests)
    events = [(PLACE, request) for request in range(len(requests))]
    for k, number in enumerate(data.draw(st.lists(st.integers(0, instance.containers - 1), max_size=30))):
        events.insert(len(events) - k % 3 - (len(events) > 4), (RELEASE, number))
    stream = np.array(events, dtype=np.int64)
    most = instance.containers * len(kinds) + 4
    played = play(instance, policy, events=(stream, np.zeros(len(stream))), arrays=arrays_of(instance, most))
    np.testing.assert_array_equal(played.host, play_plainly(instance, policy, stream, most).where)


@pytest.mark.parametrize(
    "policy", [*NAMED.values(), FIRST, SECOND, replace(FIRST, family="tiers17a")], ids=lambda policy: policy.name
)
@pytest.mark.parametrize("name", ["S1", pytest.param("hetero-219", marks=pytest.mark.exhaustive)])
def test_whole_instances_are_the_same_container_by_container(name: str, policy: Policy) -> None:
    instance = instance_of(name)
    events, _ = events_of(instance)
    assert play(instance, policy).host.tolist() == play_plainly(instance, policy, events, 1600).where.tolist()


@pytest.mark.parametrize("name", ["hetero-219", "balanced2d-219"])
def test_what_is_kept_of_scores_and_levels_changes_no_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instance, order = instance_of(name), shuffle_order(3000, 10_003)
    potential = Policy("p", "potential17", tuple(np.random.default_rng(5).uniform(-1, 1, 17).tolist()))
    # Of zeros every level has the same score, and the lowest host is taken.
    alike = replace(FIRST, name="alike", theta=(0.0,) * len(FIRST.theta))
    tried = [*NAMED.values(), FIRST, replace(SECOND, family="tiers17a"), potential, alike]
    kept = [play(instance, policy, order).host for policy in tried]
    monkeypatch.setattr(engine, "MOST_KEPT", 0)
    arrays = arrays_of(instance)
    assert arrays.level.size == arrays.classes.size == 0
    for policy, host in zip(tried, kept, strict=True):
        assert np.array_equal(play(instance, policy, order, arrays=arrays).host, host), policy.name


def test_a_month_with_departures_is_the_same() -> None:
    whole = churn(1)
    instance = replace(whole, requests=whole.requests[:300], releases=())
    known = {request.name for request in instance.requests}
    instance = replace(instance, releases=tuple(end for end in whole.releases if end.request in known))
    events, times = events_of(instance)
    assert (np.diff(times) >= 0).all()
    played, twin = play(instance, SECOND), play_plainly(instance, SECOND, events, 200)
    assert played.host.tolist() == twin.where.tolist()
    assert (played.host == ENDED).sum() == len(instance.releases)
    assert (played.hosts, played.opened) == (twin.cluster.open_hosts, twin.cluster.opened)


@pytest.mark.parametrize("hints", ["0", "0.5"])
def test_moves_are_those_of_the_largest_gain_found_plainly(hints: str) -> None:
    made = instance_of("alibaba-openb:200+300@3", hints)
    events, times = events_of(made)
    played, twin = play(made, LIFETIME, between=4), twin_of(made, LIFETIME, 60)
    moved = 0
    for k, ((kind, subject), at_s) in enumerate(zip(events.tolist(), times.tolist(), strict=True)):
        twin.turn(kind, subject, at_s)
        if kind == PLACE and np.count_nonzero(events[: k + 1, 0] == PLACE) % 4 == 0:
            moved += twin.migrate()
    assert played.host.tolist() == twin.where.tolist()
    assert played.migrated == moved > 20


def test_arrays_that_are_too_small_grow() -> None:
    instance = s1()
    assert play(instance, NAMED["bf"], arrays=arrays_of(instance, 2)).hosts == 20
    orders = np.stack([shuffle_order(30, k) for k in range(3)])
    small, usual = (play_orders(instance, NAMED["bf"], orders, arrays_of(instance, most)) for most in (2, None))
    assert small.tolist() == usual.tolist()


def test_orders_at_once_are_those_played_one_by_one() -> None:
    instance = s1()
    orders = np.stack([shuffle_order(30, k) for k in range(6)])
    for policy in (NAMED["wf"], FIRST):
        single = [play(instance, policy, order) for order in orders]
        assert play_orders(instance, policy, orders).tolist() == [[one.hosts, one.rejected] for one in single]


def test_host_hours_are_counted_between_two_moments() -> None:
    app = Application("a", (96, 1, 1))
    requests = tuple(Request(f"r{k}", "a", 1, at_s) for k, at_s in enumerate((0.0, 3600.0, 7200.0)))
    instance = Instance("i", (HostType("h", (96, 512, 3000)),), (app,), requests)
    assert play(instance, NAMED["bf"]).host_hours == 3.0, "one host for an hour, two for another"
    assert play(instance, NAMED["bf"], until_s=10_800.0).host_hours == 6.0
    measured = play(instance, NAMED["bf"], measured_from_s=1800.0, until_s=5400.0)
    assert (measured.host_hours, measured.peak) == (1.5, 3)


def test_an_unlimited_application_stops_where_16_bits_end() -> None:
    app = Application("tiny", (1, 1, 1))
    hosts = (HostType("huge", (100_000, 100_000, 100_000), 1),)
    outcome = play(Instance("i", hosts, (app,), (Request("r", "tiny", MOST + 2),)), NAMED["bf"])
    assert (outcome.hosts, outcome.rejected, outcome.obstacles) == (1, 2, {"limit": 2})


def test_containers_without_a_host_say_why() -> None:
    app = Application("a", (96, 1, 1))
    instance = Instance("i", (HostType("h", (96, 512, 3000), 1),), (app,), (Request("r", "a", 2), Request("s", "a", 1)))
    outcome = play(instance, NAMED["bf"], events=(np.array([(PLACE, 0)]), np.zeros(1)))
    assert outcome.host.tolist() == [0, REJECTED, WAITING]
    assert outcome.obstacles == {"cpu": 1}
