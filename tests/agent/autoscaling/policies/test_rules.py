"""The rules as policies: what each proposes from a snapshot, why, and what it remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.policies.base import InputAbsent, Policy
from agent.autoscaling.policies.rules import (
    ConstantPolicy,
    HoldPolicy,
    QueueRulePolicy,
    SignalTrackingPolicy,
    TargetTrackingPolicy,
    ThresholdPolicy,
)
from agent.rails.state import Memory
from domain.decisions import Origin, Proposal, Reason
from domain.fleet import Fleet
from domain.snapshot import OnMissing, QueueSnapshot, Signal, SignalKind, SignalSnapshot, Snapshot
from tests.agent.rails.scenes import KEYS, fleet, scene
from tests.golden import check_wording

ALL: list[Policy] = [
    HoldPolicy(),
    ConstantPolicy((1, 2, 3)),
    QueueRulePolicy(),
    QueueRulePolicy(single=True),
    ThresholdPolicy(),
    TargetTrackingPolicy(out_periods=1, in_periods=1),
]


def minute(
    requested: tuple[int, ...] = (4, 4, 4),
    groups: dict[str, dict[str, Any]] | None = None,
    waiting: int = 0,
    job_core_s: float | None = 150.0,
    **snapshot: Any,
) -> Snapshot:
    """A minute in which nothing waits, all VMs work with all their cores, and CPU stands at 60 %."""
    cores = dict(zip(KEYS, (2.0, 4.0, 8.0), strict=True))
    about = {
        key: {"busy_cores": n * cores[key], "cpu_mean": 0.6} | (groups or {}).get(key, {})
        for key, n in zip(KEYS, requested, strict=False)
    }
    queue = QueueSnapshot(waiting, 0, 0, 0, None, job_core_s)
    measured = {"cpu_mean": 0.6, "cpu_mean_warmed_up": 0.6, "queue": queue} | snapshot
    return scene(requested, about, snapshot=measured).snapshot


def ask(policy: Policy, seen: Snapshot, memory: Memory | None = None, of: Fleet | None = None) -> Proposal:
    return policy.decide(of or fleet(), seen, memory or {})[0]


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
@given(
    requested=st.tuples(*[st.integers(0, 20)] * 3),
    idle=st.integers(0, 5),
    booting=st.integers(0, 5),
    silent=st.integers(0, 5),
    waiting=st.integers(0, 10_000),
    cpu=st.floats(0.0, 1.0),
)
def test_any_minute_gives_whole_sizes_within_bounds_twice_the_same(
    policy: Policy, requested: tuple[int, ...], idle: int, booting: int, silent: int, waiting: int, cpu: float
) -> None:
    groups = {
        key: {
            "idle_long": min(idle, n),
            "booting": booting,
            "silent": min(silent, n),
            "warm": n,
            "busy_cores": float(n),
            "cpu_mean": cpu if n else 0.0,
        }
        for key, n in zip(KEYS, requested, strict=True)
    }
    seen = minute(requested, groups, waiting, cpu_mean=cpu, cpu_mean_warmed_up=cpu)
    proposal, memory = policy.decide(fleet(), seen, {})
    again, remembered = policy.decide(fleet(), seen, {})
    assert (proposal, dict(memory)) == (again, dict(remembered))
    assert all(type(size) is int and 0 <= size <= 20 for size in proposal.desired)
    assert (proposal.fleet, proposal.policy, proposal.origin) == ("web", policy.name, Origin.POLICY)
    assert all(isinstance(value, float) for values in memory.values() for value in values)


def test_hold_and_constant_look_at_nothing() -> None:
    nothing = minute(queue=None, cpu_mean=None, cpu_mean_warmed_up=None)
    assert ask(HoldPolicy(), nothing).desired == (4, 4, 4)
    assert ask(ConstantPolicy((9, 0, 1)), nothing).desired == (9, 0, 1)


# Queue rule: 150 core-seconds a job and a horizon of 150 s make a job one core.


@pytest.mark.parametrize(
    ("waiting", "desired", "reason"),
    [
        (0, (4, 4, 4), Reason.QUEUE_COVERED),
        (56, (4, 4, 4), Reason.QUEUE_COVERED),  # 56 busy cores take them up as theirs end
        (58, (5, 4, 4), Reason.QUEUE_GREW),
        (70, (5, 5, 5), Reason.QUEUE_GREW),  # 14 cores: 8 + 4 + 2
    ],
)
def test_the_queue_rule_asks_for_the_cores_that_what_waits_needs(
    waiting: int, desired: tuple[int, ...], reason: Reason
) -> None:
    proposal = ask(QueueRulePolicy(), minute(waiting=waiting))
    assert (proposal.desired, proposal.reason) == (desired, reason)
    assert proposal.counts_pending


def test_the_queue_rule_counts_booting_vms_once_and_free_cores_too() -> None:
    assert ask(QueueRulePolicy(), minute((4, 4, 5), {KEYS[2]: {"booting": 1, "warm": 4}}, 64)).desired == (4, 4, 5)
    half = minute((4, 4, 4), {KEYS[2]: {"busy_cores": 16.0}}, 56)
    assert ask(QueueRulePolicy(), half).desired == (4, 4, 4)


def test_the_queue_rule_takes_what_it_cannot_see_for_no_cover() -> None:
    silent = minute((4, 4, 4), {KEYS[2]: {"silent": 4, "busy_cores": None}}, 56)
    assert ask(QueueRulePolicy(), silent).desired == (4, 4, 8)


def test_ready_vms_that_report_no_busy_cores_count_as_busy() -> None:
    unknown = minute((4, 4, 4), {KEYS[2]: {"busy_cores": None}}, 56)
    assert ask(QueueRulePolicy(), unknown).desired == (4, 4, 4)


def test_the_queue_rule_uses_its_own_job_length_where_none_is_reported() -> None:
    assert ask(QueueRulePolicy(job_core_s=300.0), minute(waiting=32, job_core_s=None)).desired == (4, 4, 5)


def test_the_queue_rule_gives_idle_vms_back_down_to_the_minimum_when_nothing_waits() -> None:
    idle = {key: {"idle_long": 3} for key in KEYS}
    proposal = ask(QueueRulePolicy(), minute((4, 4, 4), idle), of=fleet(minimum=2))
    assert (proposal.desired, proposal.reason) == ((2, 2, 2), Reason.IDLE_CAPACITY)
    assert ask(QueueRulePolicy(), minute((4, 4, 4), idle, waiting=1)).desired == (4, 4, 4)


def test_one_vm_at_a_time_when_asked_to() -> None:
    assert ask(QueueRulePolicy(single=True), minute(waiting=200)).desired == (4, 4, 5)
    idle = {key: {"idle_long": 3} for key in KEYS}
    assert ask(QueueRulePolicy(single=True), minute((4, 4, 4), idle)).desired == (4, 4, 3)


# Threshold


@pytest.mark.parametrize(
    ("cpu", "desired", "reason"),
    [
        (0.76, (5, 5, 5), Reason.LOAD_HIGH),
        (0.75, (4, 4, 4), Reason.LOAD_IN_BAND),
        (0.74, (3, 3, 3), Reason.LOAD_LOW),
    ],
)
def test_the_published_threshold_moves_every_group_by_one(cpu: float, desired: tuple[int, ...], reason: Reason) -> None:
    proposal = ask(ThresholdPolicy(), minute(cpu_mean=0.1, cpu_mean_warmed_up=cpu))
    assert (proposal.desired, proposal.reason, proposal.counts_pending) == (desired, reason, False)
    assert proposal.detail == f"mean CPU {cpu:.1%} against 75%, {int(cpu != 0.75)} of 1 minutes"


def test_the_threshold_can_count_warming_vms_too() -> None:
    assert ask(ThresholdPolicy(exclude_warming=False), minute(cpu_mean=0.9, cpu_mean_warmed_up=0.1)).desired == (
        5,
        5,
        5,
    )


def test_the_threshold_waits_for_its_minutes_and_a_minute_in_the_band_begins_anew() -> None:
    policy, memory, moved = ThresholdPolicy(0.75, 0.25, 3), {}, []
    for cpu in (0.8, 0.8, 0.5, 0.8, 0.8, 0.8):
        proposal, memory = policy.decide(fleet(), minute(cpu_mean_warmed_up=cpu), memory)  # type: ignore[assignment]
        moved.append(proposal.desired[0] - 4)
    assert moved == [0, 0, 0, 0, 0, 1]


def test_the_threshold_keeps_to_the_bounds_of_each_group() -> None:
    low = minute((2, 4, 20), cpu_mean_warmed_up=0.1)
    assert ask(ThresholdPolicy(), low, of=fleet(minimum=2)).desired == (2, 3, 19)
    assert ask(ThresholdPolicy(), minute((20, 4, 4), cpu_mean_warmed_up=0.9)).desired == (20, 5, 5)


def test_while_no_vm_has_warmed_up_the_threshold_changes_nothing_and_counts_anew() -> None:
    seen = minute(cpu_mean=0.99, cpu_mean_warmed_up=None)
    proposal, memory = ThresholdPolicy(periods=2).decide(fleet(), seen, {"streaks": (1.0, 0.0)})
    assert (proposal.desired, proposal.reason) == ((4, 4, 4), Reason.WARMING_UP)
    assert memory == {"streaks": (0.0, 0.0)}
    assert ask(ThresholdPolicy(exclude_warming=False), seen).desired == (5, 5, 5)


def test_a_fleet_that_boots_is_not_taken_for_an_idle_one() -> None:
    booting = {key: {"warm": 0, "booting": 4} for key in KEYS}
    seen = minute(groups=booting, cpu_mean=0.0, cpu_mean_warmed_up=None)
    for policy in (ThresholdPolicy(), ThresholdPolicy(exclude_warming=False)):
        assert ask(policy, seen).desired == (4, 4, 4)


# Target tracking


def test_target_tracking_sizes_each_group_by_its_own_cpu() -> None:
    seen = minute(groups={KEYS[0]: {"cpu_mean": 0.9}, KEYS[1]: {"cpu_mean": 0.6}, KEYS[2]: {"cpu_mean": 0.3}})
    assert ask(TargetTrackingPolicy(0.6, 0.9, 1, 1), seen).desired == (6, 4, 2)


def test_target_tracking_does_not_shrink_a_group_that_warms_up_nor_ask_twice_for_what_boots() -> None:
    policy = TargetTrackingPolicy(0.6, 0.9, 1, 1)
    warming = {"booting": 2, "warm": 4}
    low = minute((6, 4, 4), {KEYS[0]: warming | {"cpu_mean": 0.1}})
    assert ask(policy, low).desired[0] == 6
    high = minute((6, 4, 4), {KEYS[0]: warming | {"cpu_mean": 0.9}})
    assert ask(policy, high).desired[0] == 6


def test_target_tracking_leaves_a_group_without_a_warm_vm_or_a_report_alone() -> None:
    groups = {KEYS[0]: {"warm": 0, "cpu_mean": 0.0}, KEYS[1]: {"cpu_mean": None}, KEYS[2]: {"cpu_mean": 0.9}}
    assert ask(TargetTrackingPolicy(0.6, 0.9, 1, 1), minute(groups=groups)).desired == (4, 4, 6)


@pytest.mark.parametrize(
    ("policy", "missing", "sentence"),
    [
        (QueueRulePolicy(), {"queue": None}, "needs the queue's length"),
        (ThresholdPolicy(), {"cpu_mean": None, "cpu_mean_warmed_up": None}, "needs the fleet's CPU"),
        (ThresholdPolicy(exclude_warming=False), {"cpu_mean": None}, "needs the fleet's CPU"),
        (TargetTrackingPolicy(), {"cpu_mean": None}, "needs the groups' CPU"),
    ],
)
def test_without_its_input_a_rule_says_so(policy: Policy, missing: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputAbsent, match=sentence):
        ask(policy, replace(minute(), **missing))


def test_what_a_rule_says_of_its_proposal() -> None:
    cpu = {KEYS[0]: {"cpu_mean": 0.9}, KEYS[1]: {"cpu_mean": 0.6}, KEYS[2]: {"cpu_mean": 0.3}}
    booting = {key: {"warm": 0, "booting": 4} for key in KEYS}
    cold = minute(cpu_mean=0.99, cpu_mean_warmed_up=None)
    empty = minute(groups=booting, cpu_mean=0.0, cpu_mean_warmed_up=None)
    texts = {
        "queue": ask(QueueRulePolicy(), minute(waiting=58)),
        "threshold, no VM warmed up": ask(ThresholdPolicy(), cold),
        "threshold, no VM reported": ask(ThresholdPolicy(), empty),
        "target": ask(TargetTrackingPolicy(0.6, 0.9, 1, 1), minute(groups=cpu)),
        "signals": ask(AT_ONCE, minute(signals=signals(latency_ms=150.0, rps=3100.0))),
        "signal of a level": ask(AT_ONCE, minute(signals=signals(rps=100.0, latency_ms=250.0))),
        "absent signal keeps": ask(AT_ONCE, minute(signals=signals(rps=100.0, latency_ms=None))),
        "absent signal left out": ask(AT_ONCE, minute(signals=signals(rps=100.0, lag=None))),
    }
    check_wording("policies", {name: proposal.detail for name, proposal in texts.items()})


# Signal tracking


def signals(**values: float | None) -> tuple[SignalSnapshot, ...]:
    """Requests per second at 50 a core, latency aimed at 200 ms, a lag at 1000 a core; 4 + 4 + 4 VMs have 56 cores."""
    known = {
        "rps": Signal("rps", 50.0),
        "latency_ms": Signal("latency_ms", 200.0, SignalKind.LEVEL, OnMissing.NO_SCALE_IN),
        "lag": Signal("lag", 1000.0, SignalKind.TOTAL, OnMissing.IGNORE),
    }
    return tuple(SignalSnapshot(known[name], value) for name, value in values.items())


AT_ONCE = SignalTrackingPolicy(0.9, 1, 1)


def test_the_signal_with_the_largest_need_decides_and_is_named_first() -> None:
    proposal = ask(AT_ONCE, minute(signals=signals(latency_ms=150.0, rps=3100.0)))
    assert proposal.desired == (5, 5, 4)
    assert proposal.reason is Reason.LOAD_HIGH
    assert proposal.detail.startswith("rps 3100 ")
    slow = ask(AT_ONCE, minute(signals=signals(rps=100.0, latency_ms=250.0)))
    assert slow.desired == (5, 5, 5)
    assert slow.detail.startswith("latency_ms 250 ")


def test_it_shrinks_when_all_signals_allow_it_and_every_vm_is_ready() -> None:
    seen = signals(rps=1500.0, latency_ms=100.0)
    assert ask(AT_ONCE, minute(signals=seen)).desired == (3, 4, 1)
    for state in ({"booting": 1, "warm": 3}, {"overdue": 1, "warm": 3}):
        assert ask(AT_ONCE, minute(groups={KEYS[0]: state}, signals=seen)).desired == (4, 4, 4)


def test_vms_that_boot_count_and_those_overdue_do_not() -> None:
    booting = {KEYS[2]: {"booting": 4, "warm": 0}}
    assert ask(AT_ONCE, minute(groups=booting, signals=signals(rps=2800.0))).desired == (4, 4, 4)
    overdue = {KEYS[2]: {"overdue": 1, "warm": 3}}
    assert ask(AT_ONCE, minute(groups=overdue, signals=signals(rps=2800.0))).desired == (4, 4, 5)


def test_it_waits_for_its_periods_and_remembers_them() -> None:
    policy, memory = SignalTrackingPolicy(0.9, 2, 2), {}
    sizes = []
    for rps in (3100.0, 3100.0, 100.0, 100.0):
        proposal, memory = policy.decide(fleet(), minute(signals=signals(rps=rps)), memory)
        sizes.append(sum(proposal.desired))
    assert sizes[0] == 12 < sizes[1]
    assert sizes[2] == 12 > sizes[3]


def test_an_absent_signal_holds_forbids_removal_or_is_left_out_as_it_is_set() -> None:
    with pytest.raises(InputAbsent, match=r"signal rps .* hold"):
        ask(AT_ONCE, minute(signals=signals(rps=None, lag=90_000.0)))
    keeping = ask(AT_ONCE, minute(signals=signals(rps=100.0, latency_ms=None)))
    assert keeping.desired == (4, 4, 4)
    assert sum(ask(AT_ONCE, minute(signals=signals(rps=3100.0, latency_ms=None))).desired) > 12
    left_out = ask(AT_ONCE, minute(signals=signals(rps=100.0, lag=None)))
    assert sum(left_out.desired) < 12
    for nothing in (signals(lag=None), signals(lag=None, latency_ms=None), ()):
        with pytest.raises(InputAbsent, match="no reading of any"):
            ask(AT_ONCE, minute(signals=nothing))
