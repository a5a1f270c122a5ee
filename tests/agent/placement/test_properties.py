"""Whatever is asked in whatever order, no rule is broken, and the ledger has what memory has."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ledger import Ledger
from agent.placement.fleet import FleetVms, merged
from agent.placement.records import HostRecord, HostState, Origin
from agent.placement.reserve import PlacementPool
from domain.clock import VirtualClock
from domain.errors import BadInput, ConfigurationError
from domain.rules.placement.instance import Application
from tests.agent.placement.hosts import START, app, ask, broken, held, host, inventory, kind, made

DOCUMENT = inventory(
    app("shop", 4, limit=2, excludes=["lone"]),
    app("mail", 2, limit=3),
    app("lone", 8, limit=1, excludes=["shop"]),
    app("special", 4, label="gpu"),
    hosts=[kind(count=3), kind("small", 8, count=2), kind("gpu", 12, count=2, label="gpu")],
)
TYPES = {**{f"large-{n}": "large" for n in (1, 2, 3)}, **{f"small-{n}": "small" for n in (1, 2)}}
HOSTS = {**TYPES, **{f"gpu-{n}": "gpu" for n in (1, 2)}}
POLICIES = ("ff", "oldest", "bf", "bf-cpu", "dp", "wf", "reserve:2,8,3")

REQUESTS = st.tuples(
    st.just("ask"),
    st.sampled_from(["shop", "mail", "lone", "special"]),
    st.integers(1, 5),
    st.booleans(),
)
ON_REQUESTS = st.tuples(st.sampled_from(["confirm", "cancel", "release", "part", "again"]), st.integers(0, 30))
ON_HOSTS = st.tuples(st.sampled_from(["drain", "resume", "fail", "join"]), st.sampled_from(sorted(HOSTS)))
OTHERS = st.tuples(st.sampled_from(["lapse", "restart", "what-if"]))
STEPS = st.lists(st.one_of(REQUESTS, REQUESTS, ON_REQUESTS, ON_HOSTS, OTHERS), min_size=8, max_size=24)


def act(pool: PlacementPool, clock: VirtualClock, step: tuple[object, ...], number: int) -> None:
    """Carry out one step; what may not be is refused without a trace."""
    match step:
        case ("ask", str(name), int(count), bool(partial)):
            pool.request(ask(f"r{number}", name, count, partial=partial))
        case ("again", int(n)):
            found = pool.store.decision("main", f"r{n}")
            if found is not None:
                again = ask(found.request_id, found.application, found.count, partial=found.partial)
                assert pool.request(again) == found
        case ("confirm", int(n)):
            pool.confirm(f"r{n}")
        case ("cancel", int(n)):
            pool.cancel(f"r{n}")
        case ("release", int(n)):
            pool.release(f"r{n}")
        case ("part", int(n)):
            pool.release(f"r{n}", [0, 1])
        case ("lapse",):
            clock.advance(200.0)
            pool.lapse(epoch=1)
        case ("what-if",):
            pool.what_if([ask("what-if", "mail", 4, partial=True), ask("what-if", "lone", 2)])
        case ("join", str(name)):
            pool.join(
                host(name, {"large": 16, "small": 8, "gpu": 12}[HOSTS[name]], label="gpu" * name.startswith("gpu"))
            )
        case ("drain" | "resume" | "fail" as order, str(name)):
            getattr(pool, order)(name)


def openings(pool: PlacementPool) -> list[str]:
    """The open hosts in the order in which they were opened."""
    cluster, *_ = pool.snapshot()
    order = sorted(np.flatnonzero(cluster.open), key=lambda host: int(cluster.opening[host]))
    return [cluster.hosts[host].name for host in order]


@settings(max_examples=4, deadline=None)
@given(STEPS, st.sampled_from(POLICIES))
def test_no_rule_is_broken_and_a_start_anew_finds_the_same(steps: list[tuple[object, ...]], policy: str) -> None:
    clock = VirtualClock(START)
    with TemporaryDirectory() as directory, Ledger.open(f"sqlite:///{Path(directory)}/ledger.db") as ledger:
        pool = made(ledger, clock, DOCUMENT, policy=policy)
        for number, step in enumerate(steps):
            before, closed = held(pool), {one.name for one in pool.hosts() if one.state is not HostState.UP}
            try:
                act(pool, clock, step, number)
            except BadInput:
                assert held(pool) == before
            if step == ("restart",):
                pool = made(ledger, clock, policy=policy)
            assert broken(DOCUMENT, pool.reservations(), HOSTS) == []
            added = {where for name, hosts in held(pool).items() for where in hosts if hosts != before.get(name)}
            old = {where for hosts in before.values() for where in hosts}
            assert not (added - old) & closed or step[0] in ("resume", "join")
        again = made(ledger, clock, policy=policy)
        assert (held(again), again.hosts()) == (held(pool), pool.hosts())
        assert again.view().figures == pool.view().figures
        assert openings(again) == openings(pool)


APPLICATIONS = ("shop", "mail", "lone")
KINDS = st.builds(
    kind,
    st.sampled_from(["a", "b", "a-b", "a-1"]),
    st.sampled_from([4, 8, 16]),
    st.sampled_from([0, 1, 2, 3, None]),
    label=st.sampled_from(["", "gpu"]),
)
EXCLUDED = st.lists(st.sampled_from(APPLICATIONS), max_size=1)
APPS = st.tuples(
    *(st.builds(app, st.just(name), st.just(2), st.sampled_from([1, 2, 1000]), EXCLUDED) for name in APPLICATIONS)
)
DOCUMENTS = st.builds(
    lambda apps, kinds, held: inventory(
        *apps, hosts=kinds, snapshot=[{"host_type": kinds[0]["name"], "instances": {"shop": 1}}] * held
    ),
    APPS,
    st.lists(KINDS, min_size=1, max_size=3),
    st.integers(0, 2),
)
NAMES = st.sampled_from(["a", "a-1", "a-2", "a-3", "a-1-1", "b-1", "a-b-1", "api", "i-1"])
CHANGES = st.one_of(
    st.tuples(st.just("adopt"), DOCUMENTS),
    st.tuples(st.just("ask"), st.sampled_from(APPLICATIONS), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("ask"), st.sampled_from(APPLICATIONS), st.integers(1, 6), st.booleans()),
    st.tuples(st.sampled_from(["confirm", "cancel", "release", "again"]), st.integers(0, 20)),
    st.tuples(st.sampled_from(["drain", "resume", "fail"]), NAMES),
    st.tuples(st.just("join again"), NAMES, st.sampled_from([4, 16]), st.sampled_from(["", "r1"])),
    st.tuples(st.just("put"), st.sampled_from(["new", *APPLICATIONS]), st.sampled_from([None, 1])),
    st.tuples(st.just("delete"), st.just("new")),
    st.tuples(st.just("vms"), st.sampled_from([(), ("i-1",), ("i-1", "i-2")]), st.sampled_from([2, 8])),
    st.just(("lapse",)),
)


def change(pool: PlacementPool, clock: VirtualClock, step: tuple[object, ...], number: int) -> None:
    """Carry out one step of those that change which hosts and applications there are."""
    match step:
        case ("adopt", dict(document)):
            pool.adopt(document, f"{number}", epoch=1)
        case ("join again", str(name), int(cores), str(rack)):
            pool.join(host(name, cores, rack=rack))
        case ("put", str(name), rack_limit):
            assert rack_limit is None or isinstance(rack_limit, int)
            pool.put_application(Application(name, (2, 4, 20), rack_limit=rack_limit))
        case ("delete", str(name)):
            pool.delete_application(name)
        case ("vms", tuple(ids), int(cores)):
            size = (cores, 4 * cores, 100)
            there = {str(vm): HostRecord(str(vm), size, Origin.FLEET, rack="z", rated=size) for vm in ids}
            pool.follow(*merged(FleetVms(there, set(there)), pool.host_records()), epoch=1)
        case _:
            act(pool, clock, step, number)


@settings(max_examples=4, deadline=None)
@given(st.lists(CHANGES, min_size=10, max_size=30))
def test_whatever_hosts_and_applications_there_are_a_start_anew_finds_the_same(steps: list[tuple[object, ...]]) -> None:
    clock = VirtualClock(START)
    with TemporaryDirectory() as directory, Ledger.open(f"sqlite:///{Path(directory)}/ledger.db") as ledger:
        pool = made(ledger, clock, inventory(*(app(name, 2) for name in APPLICATIONS)))
        for number, step in enumerate(steps):
            before = held(pool)
            try:
                change(pool, clock, step, number)
            except (BadInput, ConfigurationError):
                assert held(pool) == before
            pool.plan_repack(2)
            again = made(ledger, clock)
            # A type without bound has one closed host more where the pool was read anew.
            assert used(again) == used(pool)


def used(pool: PlacementPool) -> tuple[object, ...]:
    """What is held, and the hosts on which something runs or of which something is recorded."""
    records = pool.host_records()
    hosts = sorted((one for one in pool.hosts() if one.containers or one.name in records), key=lambda one: one.name)
    return held(pool), hosts, pool.applications()
