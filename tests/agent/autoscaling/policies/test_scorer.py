"""A scorer weighs whole-fleet targets beside the queue rule's choice, for any fleet, and says what each would save."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.autoscaling.policies.base import InputAbsent
from agent.autoscaling.policies.ppo_lstm import outside_training
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.autoscaling.policies.scorer import ScorerPolicy, _sight
from agent.models.card import ScorerCard
from agent.models.file import ModelRefused, load_model
from domain.announcements import Announcement
from domain.decisions import Reason
from domain.errors import PolicyFailure
from domain.fleet import Fleet, Group, VmType
from domain.observations.autoscaling_scorer import MEMORY
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot, Terms
from tests.agent.models.making import scorer
from tests.agent.rails.scenes import NOON
from tests.golden import check_wording

TYPES = (
    VmType("m5a.large", 2, 8.0, 0.086),
    VmType("m5a.xlarge", 4, 16.0, 0.172),
    VmType("m5a.2xlarge", 8, 32.0, 0.344),
)
FLEET = Fleet("web", tuple(Group(k, f"web-{k}", t, int(k == "s"), 10) for k, t in zip("sml", TYPES, strict=True)))
HORIZON_S = 300.0


def terms(kinds: int) -> Terms:
    return Terms(0.036, HORIZON_S, 120.0, 300.0, (45.0,) * kinds, (97.0,) * kinds)


def group(key: str, warm: int, cores: int, *, busy: float | None = None, **other: Any) -> GroupSnapshot:
    counts = dict.fromkeys(("overdue", "draining", "silent", "unhealthy", "idle_long", "booting"), 0)
    calm = {"requested": warm, "in_service": warm, "warm": warm, "mature": warm, "minimum": 0, "maximum": 10}
    full = float(warm * cores) if busy is None else busy
    return GroupSnapshot(key=key, busy_cores=full, **(counts | calm | other))


def snapshot(*groups: GroupSnapshot, waiting: int = 0, submitted: int = 0, **other: Any) -> Snapshot:
    queue = QueueSnapshot(waiting, 0, submitted, submitted, oldest_wait_s=60.0 if waiting else None, job_core_s=120.0)
    given_: dict[str, Any] = {"queue": queue, "terms": terms(len(groups))} | other
    return Snapshot("web", NOON, NOON, groups, coverage=1.0, age_s=0.0, **given_)


def busy_fleet(**other: Any) -> Snapshot:
    """Two small VMs at work and 40 jobs of 120 core-seconds, for which the rule adds 12 cores: a large and a medium."""
    groups = [group("s", 2, 2), group("m", 0, 4), group("l", 0, 8)]
    changed = [replace(one, **other.pop(one.key, {})) for one in groups]
    return snapshot(*changed, **({"waiting": 40, "submitted": 40} | other))


def policy_of(path: Path) -> ScorerPolicy:
    model = load_model(path)
    assert isinstance(model.card, ScorerCard)
    return ScorerPolicy(model)


def test_the_best_candidate_is_proposed_beside_the_rule_s_with_what_it_saves(tmp_path: Path) -> None:
    policy = policy_of(scorer(tmp_path, {"added_log": 1.0}, gains={"is_rule": -0.5}))
    proposal, _ = policy.decide(FLEET, busy_fleet(), {})
    # The most cores of all candidates: those of a fifth of the horizon, 80 less the 4 that are busy.
    assert proposal.desired == (2, 1, 9)
    assert proposal.reason is Reason.LEARNED
    assert proposal.policy == policy.name == f"learned:{policy.model.name}"
    # Half of what 16 cores, the need, cost in 25 minutes at 0.043 $ a core and hour.
    check_wording("policy-scorer", {"the best candidate, the rule's, the others, what was seen": proposal.detail})


def test_where_nothing_beats_the_rule_by_the_margin_the_rule_decides_and_it_says_so(tmp_path: Path) -> None:
    shy = policy_of(scorer(tmp_path, {"added_log": 1.0}, margin=5.0))
    proposal, _ = shy.decide(FLEET, busy_fleet(), {})
    rule, _ = QueueRulePolicy(HORIZON_S).decide(FLEET, busy_fleet(), {})
    assert proposal.desired == rule.desired == (2, 1, 1)
    assert "better by the margin" in proposal.detail


def test_an_lstm_takes_one_step_a_minute_from_the_memory_of_the_minute_before(tmp_path: Path) -> None:
    policy = policy_of(scorer(tmp_path, {"is_hold": 1.0}, cells=3))
    calm = snapshot(group("s", 1, 2), group("m", 0, 4), group("l", 0, 8))
    memory: Any = {}
    for minute in (busy_fleet(), calm, busy_fleet()):
        sight, remembered = _sight(FLEET, minute), list(memory.get(policy._key("scorer"), [0.0] * MEMORY))
        before = {name: np.array([memory.get(policy._key(name), [0.0] * 3)], np.float32) for name in ("hidden", "cell")}
        sight.remember(remembered)
        targets = sight.candidates()[:1]
        state, rows = sight.features(remembered, sight.folded(remembered), targets)
        inputs = {"state": np.array([state], np.float32), "candidates": np.array(rows, np.float32)}
        wanted = policy.model.run({**inputs, **before})
        _, memory = policy.decide(FLEET, minute, memory)
        for name in ("hidden", "cell"):
            np.testing.assert_allclose(memory[policy._key(name)], wanted[f"{name}_next"][0], rtol=1e-5)
            assert np.abs(wanted[f"{name}_next"] - before[name]).max() > 1e-3


def test_after_minutes_of_idle_vms_beyond_the_minimum_the_rule_decides(tmp_path: Path) -> None:
    policy = policy_of(scorer(tmp_path, {"is_hold": 1.0}))
    idle = snapshot(
        group("s", 3, 2, busy=0.0, idle=3, idle_long=3),
        group("m", 0, 4),
        group("l", 1, 8, busy=0.0, idle=1, idle_long=1),
    )
    memory: Any = {}
    sizes = []
    for _ in range(9):
        proposal, memory = policy.decide(FLEET, idle, memory)
        sizes.append(proposal.desired)
    assert sizes == [(3, 0, 1)] * 7 + [(1, 0, 0)] * 2
    assert "idled for 9 minutes" in proposal.detail


def idle_fleet(**other: Any) -> Snapshot:
    groups = group("s", 3, 2, busy=0.0, idle=3, idle_long=3), group("m", 0, 4), group("l", 0, 8)
    return snapshot(*groups, **other)


@pytest.mark.parametrize(
    ("in_s", "desired"),
    # 60 % of 12,000 core-seconds within 300 s need 24 cores, and 6 are free.
    [(100.0, (4, 0, 2)), (102.0, (1, 0, 0)), (0.0, (1, 0, 0))],
)
def test_the_rule_prepares_for_work_that_is_announced_for_the_time_of_a_boot(
    tmp_path: Path, in_s: float, desired: tuple[int, ...]
) -> None:
    shy = policy_of(scorer(tmp_path, {"is_hold": 1.0}, margin=5.0))
    told = idle_fleet(announced=(Announcement(NOON + in_s, 100, 120.0),))
    proposal, _ = shy.decide(FLEET, told, {})
    assert proposal.desired == desired
    assert ("12000 core-s announced" in proposal.detail) is (sum(desired) > 3)


@pytest.mark.parametrize(("in_min", "held"), [(20.5, 12), (60.0, 7)])
def test_the_guard_leaves_a_fleet_that_waits_for_work_within_a_quarter_of_an_hour(
    tmp_path: Path, in_min: float, held: int
) -> None:
    policy, told = policy_of(scorer(tmp_path, {"is_hold": 1.0})), (Announcement(NOON + 60.0 * in_min, 100, 120.0),)
    memory: Any = {}
    sizes = []
    for minute in range(12):
        at = NOON + 60.0 * minute
        seen = replace(idle_fleet(announced=told), taken_at=at, bin_end=at)
        proposal, memory = policy.decide(FLEET, seen, memory)
        sizes.append(proposal.desired)
    assert sizes == [(3, 0, 0)] * held + [(1, 0, 0)] * (12 - held)


def test_a_minute_outside_training_is_named_and_one_far_outside_is_the_rule_s(tmp_path: Path) -> None:
    near = policy_of(scorer(tmp_path, {"added_log": 1.0}, high={"waiting_jobs": 0.5}, far=1e9))
    proposal, memory = near.decide(FLEET, busy_fleet(), {})
    assert proposal.desired == (2, 1, 9)
    assert "waiting_jobs 0.531" in proposal.detail
    assert outside_training(memory) == {0}
    far = policy_of(scorer(tmp_path, {"added_log": 1.0}, high={"waiting_jobs": 0.5}, far=0.0))
    proposal, _ = far.decide(FLEET, busy_fleet(), {})
    assert proposal.desired == (2, 1, 1)
    assert "too far outside" in proposal.detail


@pytest.mark.parametrize(("lack", "words"), [("queue", "needs the queue's length"), ("terms", "needs the terms")])
def test_a_minute_without_an_input_is_absent_input_and_no_failure(tmp_path: Path, lack: str, words: str) -> None:
    with pytest.raises(InputAbsent, match=words):
        policy_of(scorer(tmp_path, {"added": 1.0})).decide(FLEET, busy_fleet(**{lack: None}), {})


def test_an_answer_that_is_no_number_is_a_failure(tmp_path: Path) -> None:
    policy = policy_of(scorer(tmp_path, {"added": 1e38}, sees={"waiting_jobs": 3e38}))
    with pytest.raises(PolicyFailure, match="gain with no number"):
        policy.decide(FLEET, busy_fleet(waiting=100_000), {})


def test_what_is_barred_now_is_part_of_no_candidate(tmp_path: Path) -> None:
    policy = policy_of(scorer(tmp_path, {"added_log": 1.0}))
    barred = busy_fleet(l={"cannot_add": "cooling down"})
    assert policy.decide(FLEET, barred, {})[0].desired == (10, 10, 0)
    shut = [replace(one, cannot_add="x", cannot_remove="x") for one in busy_fleet().groups]
    proposal, memory = policy.decide(FLEET, snapshot(*shut, waiting=40), {})
    assert proposal.desired == (2, 0, 0)
    assert memory != policy.decide(FLEET, snapshot(*shut, waiting=40), memory)[1], "the memory still takes its step"


def test_arrivals_are_remembered_under_the_name_of_the_model(tmp_path: Path) -> None:
    # What arrived in the last minutes decides here, not what waits now.
    policy = policy_of(scorer(tmp_path, {"is_hold": 0.5, "added_log": -0.001}, sees={"jobs_3": 1.0}))
    other = policy_of(scorer(tmp_path, {"is_hold": 0.25}))
    _, once = policy.decide(FLEET, busy_fleet(), {})
    _, twice = policy.decide(FLEET, busy_fleet(), once)
    (key,) = once
    assert key == f"{policy.model.name[:12]}.scorer"
    assert twice[key][1] > once[key][1] > 0.0
    assert other.decide(FLEET, busy_fleet(), once)[1] == {f"{other.model.name[:12]}.scorer": once[key]}


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fleet, Snapshot]:
    """Return a fleet of one to twelve groups in some state of load, change and rest."""
    kinds = draw(st.integers(1, 12))
    groups, seen = [], []
    for k in range(kinds):
        cores, most = draw(st.sampled_from((1, 2, 4, 8, 16, 48, 96))), draw(st.integers(0, 200))
        least = draw(st.integers(0, min(2, most)))
        kind = VmType(f"t{k}", cores, 4.0 * cores, 0.01 + cores * draw(st.integers(1, 9)) / 100.0)
        groups.append(Group(f"g{k}", f"web-{k}", kind, least, most))
        warm, booting = draw(st.integers(0, 20)), draw(st.integers(0, 5))
        idle = draw(st.integers(0, warm))
        bars = {name: draw(st.sampled_from(("", "cooling down"))) for name in ("cannot_add", "cannot_remove")}
        changed = {
            "requested": warm + booting,
            "booting": booting,
            "idle": idle,
            "idle_long": draw(st.integers(0, idle)),
        }
        seen.append(group(f"g{k}", warm, cores, busy=float((warm - idle) * cores), **changed, **bars))
    waiting = draw(st.sampled_from((0, 1, 7, 300, 20_000)))
    return Fleet("web", tuple(groups)), snapshot(*seen, waiting=waiting, submitted=draw(st.integers(0, waiting)))


@pytest.fixture(scope="module")
def eager_policy(tmp_path_factory: pytest.TempPathFactory) -> ScorerPolicy:
    return policy_of(scorer(tmp_path_factory.mktemp("models"), {"changed": 3.0, "is_hold": -9.0, "vms_added": 0.1}))


@settings(max_examples=30)
@given(fleets())
def test_no_fleet_is_sized_beyond_its_limits_nor_changed_where_it_is_barred(
    eager_policy: ScorerPolicy, case: tuple[Fleet, Snapshot]
) -> None:
    fleet, seen = case
    proposal, memory = eager_policy.decide(fleet, seen, {})
    for one, now, size in zip(fleet.groups, seen.groups, proposal.desired, strict=True):
        assert size <= max(one.maximum, now.requested)
        assert size >= min(one.minimum, now.requested)
        assert not (now.cannot_add and size > now.requested)
        assert not (now.cannot_remove and size < now.requested)
    assert eager_policy.decide(fleet, seen, {}) == (proposal, memory)


@settings(max_examples=30)
@given(fleets(), st.randoms(use_true_random=False))
def test_the_order_of_the_groups_changes_nothing(
    eager_policy: ScorerPolicy, case: tuple[Fleet, Snapshot], random: Any
) -> None:
    fleet, seen = case
    cores = [one.vm_type.cores for one in fleet.groups]
    if len(set(cores)) < len(cores):
        return  # of two types with as many cores the first is taken
    order = list(range(len(fleet.groups)))
    random.shuffle(order)
    other = replace(fleet, groups=tuple(fleet.groups[k] for k in order))
    shuffled = replace(seen, groups=tuple(seen.groups[k] for k in order))
    sizes, mixed = (eager_policy.decide(f, s, {})[0].desired for f, s in ((fleet, seen), (other, shuffled)))
    assert sum(n * c for n, c in zip(sizes, cores, strict=True)) == sum(
        n * g.vm_type.cores for n, g in zip(mixed, other.groups, strict=True)
    )


def test_more_types_than_candidates_are_made_for_are_a_failure(tmp_path: Path) -> None:
    groups = tuple(Group(f"g{k}", f"web-{k}", VmType("m5a.large", 2, 8.0, 0.086), 0, 1) for k in range(13))
    seen = snapshot(*(group(f"g{k}", 1, 2) for k in range(13)))
    with pytest.raises(PolicyFailure, match="12 types; web has 13"):
        policy_of(scorer(tmp_path, {"added": 1.0})).decide(Fleet("web", groups), seen, {})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_hash": "0" * 64}, "it was trained on features 000000000000"),
        ({"features": ["a"]}, "its features are not those of scorer/"),
        ({"feature_low": [0.0]}, "features and ranges of different number"),
        ({"margin": -1.0}, "margin: input should be greater than or equal to 0"),
        ({"form": "guesser"}, "form: input should be 'scorer'"),
    ],
)
def test_a_file_that_is_no_scorer_of_this_version_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelRefused, match=words):
        load_model(scorer(tmp_path, {"added": 1.0}, **changes))
