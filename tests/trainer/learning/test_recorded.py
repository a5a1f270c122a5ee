"""A recording as traces and as a world: gaps, changed fleets, clock steps, restarts, boots, lengths and cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.minutes import CLOCK_SET, Boot, JobLengths
from domain.errors import BadInput, LedgerUnavailable
from domain.fleet import Fleet, Group, VmType
from domain.units import DAY_S, HOUR_S
from simulator.autoscaling.world_file import preset
from tests.trainer.learning.recordings import (
    CONTEXT,
    FLEET,
    GROUPS,
    START_S,
    TERMS,
    minute,
    recording,
    traces,
    without,
    world_of,
    written,
)
from trainer.learning.jobs import lengths_at
from trainer.learning.recorded import measured_world, read_recorded, windows


def test_minutes_become_jobs_spread_over_them_with_the_length_known_then() -> None:
    (found,) = traces(recording([minute(0, 2), minute(1), minute(2, 3, 90.0), minute(3, 1, 120.0)]))
    assert found.trace.arrival_s.tolist() == [15.0, 45.0, 130.0, 150.0, 170.0, 210.0]
    # Nothing had finished in the first minute: its jobs take the first length that was known.
    assert found.trace.service_s == pytest.approx([90.0] * 5 + [120.0])
    assert (found.start, found.duration_s, found.gaps_s, found.has_quantiles) == (START_S, 240.0, (), False)


def test_each_day_is_a_trace_and_a_day_without_jobs_is_none() -> None:
    day = 24 * 60
    found = traces(recording([minute(0, 4, 60.0), minute(day, 0, 60.0), minute(2 * day + 5, 1, 60.0)]))
    assert [(one.trace.name, one.trace.jobs) for one in found] == [("web day 0", 4), ("web day 2", 1)]
    assert found[1].start == START_S + 2 * DAY_S
    assert np.all((found[1].trace.arrival_s >= 0.0) & (found[1].trace.arrival_s < 360.0))


def test_where_no_length_is_reported_the_work_done_over_the_jobs_finished_stands_for_it() -> None:
    work = {"busy_cores": (4.0, 0.0)}
    (found,) = traces(recording([minute(0, 6), minute(1, 0, finished=2, **work), minute(2, 0, finished=2, **work)]))
    assert found.trace.service_s == pytest.approx([120.0] * 6)


def test_without_a_known_length_there_is_no_trace() -> None:
    assert traces(recording([minute(0, 5), minute(1, 5)])) == []


def test_a_minute_that_is_missing_or_without_a_queue_is_a_gap_and_its_jobs_are_spread_over_it() -> None:
    minutes = [minute(0, 1, 60.0), without(minute(1), "queue"), minute(4, 4), minute(5, 1)]
    (found,) = traces(recording(minutes))
    assert found.gaps_s == ((60.0, 240.0),)
    # The counter of the job source went on: four jobs came between minute 1 and the end of minute 4.
    assert found.trace.arrival_s.tolist() == [30.0, 90.0, 150.0, 210.0, 270.0, 330.0]


def test_a_gap_at_the_end_of_a_window_is_of_that_window_and_one_at_its_start_of_the_next() -> None:
    found = traces(recording([minute(0, 1, 60.0), without(minute(1), "queue"), minute(3, 2)]), window_s=120.0)
    assert [one.gaps_s for one in found] == [((60.0, 120.0),), ((0.0, 60.0),)]
    assert found[1].trace.arrival_s.tolist() == [30.0, 90.0]


def test_windows_before_a_change_of_the_groups_end_there() -> None:
    renamed = replace(CONTEXT, fleet=Fleet("web", (GROUPS[0], replace(GROUPS[1], key="large"))))
    added = replace(CONTEXT, fleet=Fleet("web", (*GROUPS, Group("x", "asg-x", VmType("c5.large", 2, 4.0, 0.1), 0, 1))))
    more = {"requested": (1, 0, 2), "warm": (1, 0, 2), "draining": (0, 0, 0), "busy_cores": (0.0, 0.0, 0.0)}
    minutes = [minute(0, 1, 60.0), minute(1, 1, context=renamed), minute(2, 1, context=added, **more), minute(3, 1)]
    found = traces(recording(replace(m) for m in minutes))
    assert [one.fleet.groups for one in found] == [GROUPS, renamed.fleet.groups, added.fleet.groups, GROUPS]
    assert [one.start - START_S for one in found] == [0.0, 60.0, 120.0, 180.0]
    assert [one.initial for one in found] == [(1, 0), (1, 0), (1, 0, 2), (1, 0)]
    assert len({one.trace.name for one in found}) == 4


@pytest.mark.parametrize("shift_s", [-7200.0, 7200.0])
def test_a_step_of_the_clock_ends_the_window_and_is_no_gap(shift_s: float) -> None:
    after = [replace(minute(n, 1), end_s=minute(n).end_s + shift_s) for n in (2, 3)]
    after[0] = replace(after[0], absent=(CLOCK_SET,))
    found = traces(recording([minute(0, 1, 60.0), minute(1, 1), *after]))
    assert [one.start - START_S for one in found] == [0.0, 120.0 + shift_s]
    assert [one.gaps_s for one in found] == [(), ()]
    assert [one.trace.jobs for one in found] == [2, 2]


def test_a_clock_set_back_while_no_agent_ran_ends_the_window_too() -> None:
    back = replace(minute(60, 1), end_s=minute(10).end_s)
    found = traces(recording([minute(50, 1, 60.0), back]))
    assert [one.start for one in found] == [minute(49).end_s, minute(9).end_s]


def test_a_minute_that_two_agents_decided_counts_once_and_what_happened_in_it_twice() -> None:
    """The second agent took the lead in the same minute: it saw the same jobs, and a spot notice of its own."""
    again = replace(minute(1, 3), epoch=2, interrupted={0: 1}, boots=(Boot(1, 70.0),), lost_core_s=5.0)
    (found,) = traces(recording([minute(0, 1, 60.0), minute(1, 3), again, minute(2, 1)]))
    assert (found.trace.jobs, found.interrupted, found.boots, found.lost_core_s) == (5, (1, 0), ((), (70.0,)), 5.0)
    assert found.gaps_s == ()


def test_a_restart_of_the_agent_and_of_the_job_sources_counter_loses_no_window() -> None:
    minutes = [minute(0, 2, 60.0), replace(minute(3, 1), epoch=2, finished=None), replace(minute(4, 0), epoch=2)]
    (found,) = traces(recording(minutes))
    assert (found.trace.jobs, found.gaps_s) == (3, ((60.0, 180.0),))


def test_the_cost_is_rent_of_what_is_requested_or_drains_and_the_price_of_waiting() -> None:
    busy = minute(0, 1, 60.0, requested=(2, 1), draining=(1, 0), waiting=5.0)
    (found,) = traces(recording([busy, replace(busy, end_s=busy.end_s + 60.0)]))
    assert found.rent == pytest.approx(2 * (3 * 0.086 + 0.344) / 60.0)
    assert found.waiting_cost == pytest.approx(2 * 5.0 * 0.36 / 60.0)
    assert found.cost == found.rent + found.waiting_cost
    assert (found.policy, found.initial) == ("queue-rule", (2, 1))


def test_the_policy_of_a_window_is_that_of_most_minutes() -> None:
    other = replace(CONTEXT, policy="hold")
    minutes = [minute(0, 1, 60.0), minute(1), replace(minute(2), context=other)]
    (found,) = traces(recording(minutes))
    assert (found.policy, found.policies) == ("queue-rule", ("hold", "queue-rule"))


def test_a_boot_that_was_not_watched_throughout_does_not_count() -> None:
    boots = {"boots": (Boot(0, 70.0),)}
    lost = minute(3, 1)
    minutes = [
        minute(0, 1, 60.0),
        minute(2, 1, **boots),
        replace(lost, absent=("cpu",)),
        minute(4, 1, **boots),
        minute(5, 1, **boots),
        minute(6, 1, **boots),
    ]
    (found,) = traces(recording(minutes))
    # Reports were missing until minute 2 began, and in minute 3: the boots of minutes 2, 4 and 5 began before.
    assert found.boots == ((70.0,), ())


def test_lengths_follow_the_quantiles_reported_and_not_a_mean_of_other_jobs() -> None:
    lengths = JobLengths(1000.0, 20.0, 60.0, 200.0, 600.0)
    (found,) = traces(recording([minute(0, 5000, lengths=lengths), minute(1, 5000)]))
    assert found.has_quantiles
    served = np.quantile(found.trace.service_s, [0.1, 0.5, 0.9, 0.99])
    assert served == pytest.approx([20.0, 60.0, 200.0, 600.0], rel=0.02)


def test_jobs_have_the_lengths_that_were_reported_when_they_had_finished() -> None:
    """Two hundred short jobs, then two hundred long ones: of these a report tells ten minutes later."""
    short, long = JobLengths(10.0, 10.0, 10.0, 10.0, 10.0), JobLengths(90.0, 90.0, 90.0, 90.0, 90.0)
    minutes = [minute(n, lengths=short) for n in range(30)]
    minutes[0] = replace(minutes[0], submitted=200, running=200)
    minutes[3] = replace(minutes[3], finished=200, submitted=200, running=200)
    minutes[13] = replace(minutes[13], finished=200)
    minutes[13:] = [replace(one, lengths=long) for one in minutes[13:]]
    (found,) = traces(recording(minutes))
    assert np.unique(found.trace.service_s[:200]) == pytest.approx([10.0])
    assert np.unique(found.trace.service_s[200:]) == pytest.approx([90.0])


@given(st.lists(st.floats(0.1, 1e5), min_size=4, max_size=4).map(sorted))
def test_any_lengths_in_order_are_positive_and_finite_and_have_these_quantiles(points: list[float]) -> None:
    found = lengths_at([JobLengths(1.0, *points)], np.zeros(4000, np.int64), (np.arange(4000) + 0.5) / 4000)
    assert np.all(np.isfinite(found) & (found > 0.0))
    assert np.all(np.diff(found) >= -1e-9 * found[1:])
    assert found[[400, 2000, 3600]] == pytest.approx(points[:3], rel=0.05)


def test_lengths_that_miss_the_work_done_are_corrected_by_it() -> None:
    """A source that reports the mean since it began says too little when jobs become three times as long."""
    day = [minute(n, 2, 60.0, busy_cores=(2.0, 4.0)) for n in range(200)]
    (found,) = traces(recording(day))
    assert found.work_scale == pytest.approx(3.0)
    assert found.trace.work_core_s == pytest.approx(found.busy_core_s)
    agrees = [minute(n, 2, 60.0, busy_cores=(2.02, 0.0)) for n in range(200)]
    assert traces(recording(agrees))[0].work_scale == 1.0
    unknown = [minute(n, 2, 60.0, busy_cores=(2.0, None)) for n in range(200)]
    assert traces(recording(unknown))[0].work_scale == 1.0


def test_the_world_has_the_measured_boots_and_the_settings_of_the_fleet() -> None:
    measured = [minute(n, 1, 60.0, boots=(Boot(0, 60.0 + n),)) for n in range(41)]
    limits = replace(CONTEXT.limits, cooldown_out_s=120.0, cooldown_in_s=240.0)
    context = replace(CONTEXT, limits=limits)
    made_of = measured_world(recording(replace(m, context=context) for m in measured), preset("live-like"))
    world = made_of.config
    assert (world.types, world.limits, world.minimum) == (tuple(g.vm_type for g in GROUPS), (4, 3), (1, 0))
    # Less half of the ten seconds between two reports; the group without boots has those of the other.
    assert world.boot_quantiles_s == ((55.0, 59.0, 63.0, 67.0, 71.0, 75.0, 79.0, 83.0, 87.0, 91.0, 95.0),) * 2
    assert (world.cooldown_s, world.waiting_price_per_hour) == (120.0, TERMS.waiting_price_per_hour)
    assert any("s: measured, of 41 boots" in note for note in made_of.notes)
    assert any("41 boots: it has 0" in note for note in made_of.notes)
    assert any("for which 240 s are set" in note for note in made_of.notes)


def test_too_few_boots_are_no_distribution_the_settings_stand_for_them() -> None:
    few = recording(minute(n, 1, 60.0, boots=(Boot(0, 66.0),)) for n in range(5))
    assert world_of(few, preset("live-like")).boot_quantiles_s == ((50.0, 90.0), (60.0, 110.0))
    unknown = recording(replace(minute(n, 1, 60.0), context=replace(CONTEXT, terms=None)) for n in range(5))
    assert world_of(unknown, preset("live-like")).boot_quantiles_s == ((45.0, 97.0),) * 2


def test_spot_notices_over_the_hours_of_vms_are_the_rate_of_reclaims() -> None:
    minutes = [minute(n, 1, 60.0, requested=(2, 0), interrupted={0: 1} if n == 7 else {}) for n in range(60)]
    assert world_of(recording(minutes), preset("live-like")).reclaims_per_hour == (pytest.approx(0.5), 0.0)
    assert world_of(recording(minutes[:7]), preset("live-like")).reclaims_per_hour == ()


def test_boots_of_another_fleet_are_not_those_of_this_one() -> None:
    old = replace(CONTEXT, fleet=Fleet("web", (replace(GROUPS[0], key="old"), GROUPS[1])))
    before = [minute(n, 1, 60.0, context=old, boots=(Boot(0, 300.0),)) for n in range(30)]
    after = [minute(n, 1, 60.0, boots=(Boot(0, 60.0),)) for n in range(30, 60)]
    assert world_of(recording([*before, *after]), preset("live-like")).boot_ranges_s[0] == (55.0, 55.0)


def test_a_ledger_is_read_in_a_span_and_several_times(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.db", (minute(n, 1, 60.0) for n in range(9000)))
    recorded = read_recorded(str(path), "web", START_S + 60.0, START_S + 60.0 * 8500)
    for _ in range(2):
        ends = [found.end_s for found in recorded.minutes]
        assert (len(ends), ends[0], ends[-1]) == (8499, START_S + 60.0, START_S + 60.0 * 8499)
    assert recorded.fleet == FLEET


def test_what_is_not_there_is_refused_with_what_is(tmp_path: Path) -> None:
    path = str(written(tmp_path / "ledger.db", [minute(0, 1, 60.0)]))
    with pytest.raises(BadInput, match=r"is 'api': .* has web"):
        read_recorded(path, "api")
    with pytest.raises(BadInput, match="widen --since"):
        read_recorded(path, "web", START_S + HOUR_S)
    with pytest.raises(LedgerUnavailable):
        read_recorded(str(tmp_path / "none.db"), "web")
    with pytest.raises(BadInput, match="window_s is 1"):
        traces(read_recorded(path, "web"), window_s=1.0)
    assert len(list(windows(read_recorded(path, "web")))) == 1
