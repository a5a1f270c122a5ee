"""Recent production as cases: trace files as they are, ledgers turned into traces minute by minute."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.rails.base import RailLimits
from domain.decisions import Mode
from domain.errors import BadInput, LedgerUnavailable
from domain.fleet import Fleet, Group, VmType
from domain.snapshot import Terms
from domain.workload import make_trace
from simulator.autoscaling.world_file import preset
from simulator.workloads.named import save_trace
from simulator.workloads.synthetic import train_rand
from tests.faults.world import Plan, World
from trainer.learning.recent import FAMILY, recent_cases, windows_of
from trainer.learning.recorded import FleetFacts, fitted_world


def test_a_saved_trace_is_replayed_under_several_boot_times_in_the_live_world(tmp_path: Path) -> None:
    path = tmp_path / "monday.csv"
    save_trace(train_rand(1), path, generator="test", version="1", seed=1, parameters={})
    cases = recent_cases([str(path)])
    assert [case.seed for case in cases] == [0, 1, 2]
    assert {case.family for case in cases} == {FAMILY}
    assert {case.trace.digest for case in cases} == {train_rand(1).digest}
    assert {case.config for case in cases} == {preset("live-like")}


@pytest.mark.parametrize(("hours", "parts"), [(3.0, 1), (8.0, 4), (72.0, 4), (150.0, 7)])
def test_a_trace_is_cut_into_days_or_quarters_which_are_the_cases(hours: float, parts: int) -> None:
    trace = make_trace("week", np.arange(0.0, hours * 3600.0, 600.0), np.full(round(hours * 6), 60.0))
    found = windows_of(trace)
    assert len(found) == parts
    assert sum(part.jobs for part in found) == trace.jobs


def test_what_the_loop_recorded_becomes_a_trace_of_its_fleet(tmp_path: Path) -> None:
    world = World(tmp_path, Plan(mode=Mode.OBSERVE))
    try:
        world.tick()
        world.submit(8)
        for done in (0, 4, 4):
            (vm,) = world.in_service("small")
            world.busy = {vm: 2.0}
            world.waiting -= done
            world.tick()
        types = [group.vm_type for group in world.fleet.groups]
    finally:
        world.close()
    cases = recent_cases([str(tmp_path / "ledger.db")])
    assert len(cases) == 3
    assert list(cases[0].config.types) == types
    assert cases[0].trace.jobs == 8
    assert np.all((cases[0].trace.arrival_s > 60.0) & (cases[0].trace.arrival_s < 120.0))
    assert cases[0].trace.service_s.tolist() == [45.0] * 8


def test_a_ledgers_fleet_decides_types_and_limits() -> None:
    groups = (
        Group("s", "asg-s", VmType("m5a.large", 2, 8.0, 0.086), 1, 4),
        Group("l", "asg-l", VmType("m5a.2xlarge", 8, 32.0, 0.344), 0, 3),
    )
    limits = RailLimits(cooldown_out_s=420.0)
    world = fitted_world(preset("live-like"), Fleet("web", groups), limits, None)
    assert (world.limits, world.minimum, world.initial, world.cores) == ((4, 3), (1, 0), (1, 0), (2, 8))
    assert (world.cooldown_s, world.waiting_price_per_hour) == (420.0, preset("live-like").waiting_price_per_hour)
    terms = Terms(0.3, 150.0, 120.0, 420.0, (), ())
    assert fitted_world(preset("live-like"), Fleet("web", groups), limits, terms).waiting_price_per_hour == 0.3


def test_each_fact_that_differs_from_the_ledger_is_named_with_both_values() -> None:
    kinds = (VmType("m5a.large", 2, 8.0, 0.086), VmType("m5a.2xlarge", 8, 32.0, 0.344))
    ledger = FleetFacts(kinds, (4, 3), (1, 0), 0.1, 300.0)
    assert ledger.unlike(ledger) == ""
    dear = (kinds[0], replace(kinds[1], price_per_hour=0.688))
    assert replace(ledger, types=dear).unlike(ledger) == "price of m5a.2xlarge 0.688 $ an hour (0.344 $ an hour)"
    others = (
        replace(ledger, maximum=(4, 2)),
        replace(ledger, minimum=(0, 0)),
        replace(ledger, waiting_price_per_hour=0.2),
        replace(ledger, cooldown_s=60.0),
        replace(ledger, types=(kinds[0], replace(kinds[1], cores=4))),
    )
    assert [one.unlike(ledger).count("(") for one in others] == [1] * len(others)
    assert replace(ledger, types=kinds[:1], maximum=(4,), minimum=(1,)).unlike(ledger) == "VM types 1 (2)"
    assert replace(ledger, waiting_price_per_hour=None).unlike(ledger) == ""


def test_what_a_world_says_by_type_holds_for_a_fleet_with_as_many_types() -> None:
    live = preset("live-like")
    said = {"speed": (1.0, 1.0, 2.0), "reclaims_per_hour": (0.0, 0.0, 1.0), "boot_lows_s": (1.0, 2.0, 3.0)}
    world = replace(live, **said, boot_highs_s=(4.0, 5.0, 6.0))
    groups = tuple(Group(f"g{k}", f"asg-{k}", kind, 0, 4) for k, kind in enumerate(live.types))
    same, fewer = (fitted_world(world, Fleet("web", some), RailLimits(), None) for some in (groups, groups[:2]))
    assert {name: getattr(same, name) for name in said} == said
    assert (fewer.speed, fewer.reclaims_per_hour, fewer.boot_lows_s) == ((), (), ())


def test_what_is_neither_trace_nor_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        recent_cases(["something"])
    with pytest.raises(LedgerUnavailable):
        recent_cases([str(tmp_path / "none.db")])
