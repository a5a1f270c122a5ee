"""Fleets that are folded together have the minutes that each has alone, and one fleet's trouble is that fleet's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator, FleetInputs, FoldedMinute
from agent.autoscaling.snapshot.series import SeriesStore
from agent.rails.base import RailLimits
from agent.rails.state import LoopState
from domain.errors import BadInput
from domain.fleet import Fleet, Group
from domain.observed import DrainHook, GroupObserved, Instance, Lifecycle, Observed
from domain.samples import VmMetric
from tests.agent.autoscaling.snapshot.scene import LARGE, SMALL, T0

FLEETS = tuple(
    Fleet(name, tuple(Group(key, f"{name}-{key}", types[key], 0, 60) for key in keys))
    for types in [{"a": SMALL.vm_type, "b": LARGE.vm_type}]
    for name, keys in (("web", "ab"), ("batch", "a"), ("empty", "ab"), ("tests", "ab"))
)
SETTINGS = {
    "web": AggregationSettings(idle_s=60.0),
    "batch": AggregationSettings(RailLimits(min_lifetime_s=0.0), 20.0, idle_s=60.0, removes_newest=True),
    "empty": AggregationSettings(),
    "tests": AggregationSettings(RailLimits(boot_deadline_s=60.0), warm_up_s=60.0, needed=("queue",)),
}
STATES = (Lifecycle.PENDING, Lifecycle.IN_SERVICE, Lifecycle.IN_SERVICE, Lifecycle.IN_SERVICE, Lifecycle.DRAINING)


def some_vms(dice: np.random.Generator, group: Group, minute: int) -> tuple[Instance, ...]:
    """Return VMs of a group: some leave and some come from minute to minute, one in ten never reports."""
    if group.name.startswith("empty"):
        return ()
    most = 58 if group.name == "web-a" else 9
    return tuple(
        Instance(
            f"i-{group.name}-{number}",
            "a",
            STATES[dice.integers(len(STATES))],
            healthy=dice.random() < 0.9,
            protected=dice.random() < 0.1,
            launched_at=None if dice.random() < 0.2 else T0 - 7200.0 + 900.0 * number,
        )
        for number in range(minute // 2, minute // 2 + most)
        if dice.random() < 0.95
    )


def observed(dice: np.random.Generator, minute: int, at: float) -> Observed:
    groups = {}
    for group in (group for fleet in FLEETS for group in fleet.groups):
        vms = some_vms(dice, group, minute)
        hook = DrainHook("drain", 300.0, 1800.0) if group.key == "a" else None
        groups[group.name] = GroupObserved(group.name, len(vms) + 1, 0, 60, vms, drain_hook=hook)
    return Observed(at, groups)


def report(dice: np.random.Generator, store: SeriesStore, seen: Observed, end: float) -> None:
    for fleet in FLEETS:
        for group in fleet.groups:
            for number, one in enumerate(seen.groups[group.name].instances):
                if number % 10 == 9:
                    continue
                paths = [f"trimtab.{fleet.name}.{group.key}.{one.vm}.{metric}".encode() for metric in VmMetric]
                for at in end - np.arange(50.0, -1.0, -10.0):
                    busy = float(dice.integers(0, 3)) if number % 3 else 0.0
                    values = [dice.uniform(0.0, 100.0), dice.uniform(0.0, 100.0), busy, busy * dice.uniform(0.0, 50.0)]
                    refused = store.append(paths, values, [float(at)] * len(values), end)
                    assert not refused


def test_together_each_fleet_has_the_minute_that_it_has_alone() -> None:
    dice, store = np.random.default_rng(7), SeriesStore(watched=FLEETS)
    together, alone = Aggregator(store), Aggregator(store)
    states = {fleet.name: LoopState() for fleet in FLEETS}
    removable = 0
    for minute in range(1, 13):
        end = T0 + 60.0 * minute
        seen = observed(dice, minute, end)
        report(dice, store, seen, end)
        asked = [(fleet, seen, states[fleet.name], SETTINGS[fleet.name]) for fleet in FLEETS]
        found = together.snapshots(asked, end + 5.0)
        wanted = [alone.snapshot(*one, end + 5.0) for one in asked]
        assert found == wanted
        states = {one.snapshot.fleet: one.state for one in wanted}
        removable = max(removable, len(wanted[0].snapshot.groups[0].removable))
    assert removable > 9


def test_minutes_in_which_another_fleet_fails_late_in_the_fold_change_nothing() -> None:
    """The memory of boots, lost work and ended VMs is that of one fold, though the fold of all was begun before."""
    dice, store = np.random.default_rng(7), SeriesStore(watched=FLEETS)
    together, alone = Aggregator(store), Aggregator(store)
    fleets = [fleet for fleet in FLEETS if fleet.name != "batch"]
    states = {fleet.name: LoopState() for fleet in fleets}
    boots, lost = 0, 0.0
    for minute in range(1, 13):
        end = T0 + 60.0 * minute
        seen = observed(dice, minute, end)
        report(dice, store, seen, end)
        asked = [(fleet, seen, states[fleet.name], SETTINGS[fleet.name]) for fleet in fleets]
        # Cool-downs are read last, when all memory is written.
        broken = replace(LoopState(), cooldowns=("none",))
        batch = (FLEETS[1], seen, broken, SETTINGS["batch"])
        failed, *found = together.snapshots([batch, *asked], end + 5.0)
        assert isinstance(failed, AttributeError)
        wanted = [alone.snapshot(*one, end + 5.0) for one in asked]
        assert found == wanted
        states = {one.snapshot.fleet: one.state for one in wanted}
        boots += sum(len(one.measured.boots) for one in wanted)
        lost += sum(one.measured.lost_core_s for one in wanted)
    assert boots > 0
    assert lost > 0.0


def test_a_minute_that_cannot_be_closed_is_the_error_of_each_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    store = SeriesStore(watched=FLEETS)
    monkeypatch.setattr(store, "close_bin", fails)
    seen = observed(np.random.default_rng(7), 1, T0 + 60.0)
    asked = [(fleet, seen, LoopState(), SETTINGS[fleet.name]) for fleet in FLEETS]
    assert [type(one) for one in Aggregator(store).snapshots(asked, T0 + 65.0)] == [ZeroDivisionError] * len(FLEETS)


@pytest.mark.parametrize("trouble", ["a group that was not read", "a launch time that is no number"])
def test_a_fleet_that_cannot_be_folded_costs_the_others_nothing(trouble: str) -> None:
    dice, store = np.random.default_rng(7), SeriesStore(watched=FLEETS)
    seen = observed(dice, 1, T0 + 60.0)
    report(dice, store, seen, T0 + 60.0)
    wrong = dict(seen.groups)
    if trouble == "a group that was not read":
        del wrong["batch-a"]
    else:
        instances = (replace(one, launched_at="noon") for one in wrong["batch-a"].instances)  # type: ignore[arg-type]
        wrong["batch-a"] = replace(wrong["batch-a"], instances=tuple(instances))
    asked: list[FleetInputs] = [
        (fleet, replace(seen, groups=wrong), LoopState(), SETTINGS[fleet.name]) for fleet in FLEETS
    ]
    web, batch, *others = Aggregator(store).snapshots(asked, T0 + 65.0)
    assert isinstance(batch, BadInput if trouble == "a group that was not read" else ValueError)
    alone = Aggregator(store)
    assert [web, *others] == [alone.snapshot(*one, T0 + 65.0) for one in asked if one[0].name != "batch"]
    assert isinstance(web, FoldedMinute)
    assert Aggregator(store).snapshots([], T0 + 65.0) == []
