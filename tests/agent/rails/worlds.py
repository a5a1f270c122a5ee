"""Random worlds for the rails' properties: any fleet, minute, memory, operator's word and limits that could meet."""

from hypothesis import strategies as st

from agent.rails.base import RailContext, RailLimits
from agent.rails.state import Breaker, CapacityMark, Change, Cooldown, LoopState, Spend
from domain.controls import Controls, Pause, PauseScope, Pin, Window
from domain.decisions import Direction, Mode, Origin, Proposal, Reason
from domain.fleet import Fleet, Group
from domain.snapshot import GroupSnapshot, Snapshot
from tests.agent.rails.scenes import KEYS, NOON, TYPES

SIZES = st.integers(0, 12)
TIMES = st.sampled_from([-7200.0, -3600.0, -300.0, -0.1, 0.0, 0.1, 60.0, 299.9, 300.0, 599.0, 7200.0]).map(NOON.__add__)
NAMES = st.sampled_from(KEYS)
ZONES = ("us-east-1a", "us-east-1b")


@st.composite
def groups(draw: st.DrawFn, key: str) -> GroupSnapshot:
    requested = draw(SIZES)
    low, high = sorted((draw(SIZES), draw(SIZES)))
    if draw(st.booleans()):
        low, high = min(low, requested), max(high, requested)
    return GroupSnapshot(
        key,
        requested=requested,
        in_service=requested,
        warm=draw(st.integers(0, requested)),
        booting=draw(st.integers(0, 4)),
        overdue=draw(st.integers(0, 2)),
        draining=draw(st.integers(0, 2)),
        silent=draw(st.sampled_from([0, 0, 0, 1, 5])),
        unhealthy=draw(st.sampled_from([0, 0, 0, 1, 5])),
        idle_long=0,
        mature=draw(st.integers(0, requested)),
        minimum=low,
        maximum=high,
        suspended=draw(st.sampled_from([(), (), (), ("Launch",), ("Terminate",), ("Launch", "Terminate")])),
        zones=draw(st.sampled_from([(), ZONES, ZONES[:1]])),
        refreshing=draw(st.sampled_from([False, False, True])),
        removable=tuple(f"i-{n}" for n in range(draw(st.integers(0, requested)))),
        cooldown_out_s=draw(st.sampled_from([0.0, 0.0, 0.0, 5.0])),
        cooldown_in_s=draw(st.sampled_from([0.0, 0.0, 0.0, 5.0])),
    )


MEMORIES = st.builds(
    LoopState,
    cooldowns=st.lists(
        st.builds(Cooldown, NAMES, st.sampled_from([Direction.OUT, Direction.IN]), TIMES, st.just(300.0)), max_size=2
    ).map(tuple),
    in_streak=st.dictionaries(NAMES, st.integers(0, 5)),
    changes=st.lists(st.builds(Change, NAMES, st.sampled_from(Direction), TIMES), max_size=6).map(tuple),
    capacity=st.lists(
        st.builds(
            CapacityMark,
            st.sampled_from([t.name for t in TYPES]),
            st.sampled_from(["", *ZONES]),
            TIMES,
            st.just(600.0),
        ),
        max_size=4,
    ).map(tuple),
    breakers=st.lists(st.builds(Breaker, NAMES, st.integers(0, 6), TIMES, st.just(300.0)), max_size=2).map(tuple),
    spend=st.builds(Spend, st.sampled_from([0.0, NOON - 43_200.0]), st.floats(0.0, 30.0), TIMES),
)

CONTROLS = st.builds(
    Controls,
    st.lists(
        st.builds(Pause, st.sampled_from(PauseScope), st.just("ben"), st.just("deploying"), TIMES, st.none() | TIMES),
        max_size=1,
    ).map(tuple),
    st.none()
    | st.builds(Pin, st.dictionaries(NAMES, st.integers(0, 30)), st.just("ana"), st.just("test"), TIMES, TIMES),
)

LIMITS = st.builds(
    RailLimits,
    hold_bins=st.integers(0, 4),
    safe_floor=st.lists(SIZES, max_size=4).map(tuple),
    max_step_out=st.integers(0, 12),
    max_step_in=st.integers(0, 12),
    max_step_out_percent=st.sampled_from([0.0, 50.0]),
    max_step_in_percent=st.sampled_from([0.0, 33.3]),
    in_periods=st.integers(0, 3),
    max_reversals=st.integers(0, 3),
    budget_per_hour=st.none() | st.floats(0.0, 8.0),
    budget_per_day=st.none() | st.floats(0.0, 100.0),
    breaker_failures=st.integers(1, 4),
)


LEAST_OR_MOST = st.none() | st.integers(0, 40)
WINDOWS = st.lists(
    st.builds(Window, st.just("rush"), TIMES, TIMES, minimum=LEAST_OR_MOST, maximum=LEAST_OR_MOST), max_size=2
).map(tuple)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[RailContext, Proposal]:
    """A context and a readable proposal for it."""
    size = draw(st.integers(1, 3))
    bounds = [sorted((draw(SIZES), draw(SIZES))) for _ in range(size)]
    fleet = Fleet(
        "web",
        tuple(Group(k, f"web-{k}", t, low, high) for k, t, (low, high) in zip(KEYS, TYPES, bounds, strict=False)),
    )
    snapshot = Snapshot(
        "web",
        bin_end=NOON,
        taken_at=NOON,
        groups=tuple(draw(groups(group.key)) for group in fleet.groups),
        queue=None,
        coverage=draw(st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.2])),
        age_s=draw(st.sampled_from([10.0, 10.0, 10.0, 150.0, 999.0, None])),
        stale_bins=draw(st.sampled_from([0, 0, 0, 0, 1, 6])),
        absent=draw(st.sampled_from([(), ("queue",)])),
    )
    context = RailContext(
        now=NOON,
        fleet=fleet,
        snapshot=snapshot,
        state=draw(MEMORIES),
        controls=draw(CONTROLS),
        limits=draw(LIMITS),
        mode=draw(st.sampled_from([Mode.ACT, Mode.ACT, Mode.ACT, Mode.OBSERVE])),
        leader=draw(st.sampled_from([True, True, True, False])),
        in_flight=tuple(draw(st.sets(NAMES, max_size=1))),
        windows=draw(WINDOWS),
    )
    desired = tuple(draw(st.integers(0, 15)) for _ in fleet.groups)
    origin = draw(st.sampled_from([Origin.POLICY, Origin.POLICY, Origin.FLOOR]))
    wanted = Proposal("web", "p", desired, Reason.LOAD_HIGH, counts_pending=draw(st.booleans()), origin=origin)
    return context, wanted
