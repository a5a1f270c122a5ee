"""The suite: the same cases every time, held out, one of each kind of shift, in a named world."""

import numpy as np
import pytest

from domain.errors import BadInput
from domain.workload import make_trace
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_text
from trainer.autoscaling.evaluation.suite import (
    GROUPS,
    World,
    boot_twice_as_long,
    burst,
    dearer_type,
    idle_day,
    longer_jobs,
    suite,
)


def test_the_full_suite_has_the_numbers_of_the_specification() -> None:
    cases = suite()
    count = {group: sum(case.group == group for case in cases) for group in GROUPS}
    assert (count["T3"], count["T4"]) == (100, 30)
    assert min(count.values()) >= 9
    assert all(0 <= case.seed <= 999 for case in cases)
    assert len({case.key for case in cases}) == len(cases)


def test_asked_for_twice_it_is_the_same() -> None:
    assert [case.key for case in suite(short=True)] == [case.key for case in suite(short=True)]


def test_the_first_groups_keep_the_published_worlds_and_the_rest_follow_the_choice() -> None:
    worlds = {case.group: case.world for case in suite(short=True)}
    training = {case.group: case.world for case in suite(short=True, world=World.TRAINING)}
    assert worlds == {
        "T1": "training",
        "T2": "training",
        "T3": "live-like",
        "T4": "paper-live",
        "T5": "live-like",
        "T6": "live-like",
    }
    assert {group for group in GROUPS if training[group] == "training"} == {"T1", "T2", "T3", "T5", "T6"}
    assert suite(["T4"], short=True)[0].config == preset("paper-live")


def test_more_cases_of_the_shifts_begin_with_those_of_the_suite() -> None:
    more = suite(["T6"], shifted=12)
    assert {family: sum(case.family == family for case in more) for family in {case.family for case in more}} == (
        dict.fromkeys({case.family for case in suite(["T6"])}, 12)
    )
    assert {case.name for case in suite(["T6"])} < {case.name for case in more}


def test_seeds_limits_each_family() -> None:
    families = [case.family for case in suite(short=True, seeds=1)]
    assert len(families) == len(set(families))


@pytest.mark.parametrize(("groups", "seeds", "field"), [(["T9"], None, "--traces"), (["T1"], 0, "--seeds")])
def test_what_is_not_there_is_refused(groups: list[str], seeds: int | None, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        suite(groups, seeds=seeds)
    assert refused.value.field == field


def test_a_burst_brings_ten_times_the_jobs_of_one_batch() -> None:
    calm, struck = train_text(), burst(train_text())
    before = np.unique(calm.arrival_s, return_counts=True)[1]
    after = np.unique(struck.arrival_s, return_counts=True)[1]
    assert sorted((after / before).tolist()) == [1.0] * (before.size - 1) + [10.0]


def test_an_idle_day_ends_after_24_hours_and_has_long_empty_stretches() -> None:
    day = idle_day(train_text())
    assert day.arrival_s.max() == 86_400.0
    later = day.arrival_s[day.arrival_s >= 3600.0]
    assert later.size == 8
    assert np.diff(later).min() >= 3600.0


def test_longer_jobs_dearer_types_and_slower_boots_change_nothing_else() -> None:
    trace, config = train_text(), preset("train-text")
    longer = longer_jobs(trace)
    assert longer.work_core_s == 2 * trace.work_core_s
    assert np.array_equal(longer.arrival_s, trace.arrival_s)
    dearer = dearer_type(config, 1)
    assert [kind.price_per_hour for kind in dearer.types] == pytest.approx([0.2, 0.6, 0.8])
    slower = boot_twice_as_long(config)
    assert (slower.boot_low_s, slower.boot_high_s) == (90.0, 194.0)


@pytest.mark.parametrize("shift", [idle_day, burst])
def test_shifts_of_arrivals_refuse_a_closed_loop(shift: object) -> None:
    with pytest.raises(BadInput, match="fixed times"):
        shift(coevolution(0, generations=1))  # type: ignore[operator]


def test_a_case_is_known_by_world_trace_and_seed() -> None:
    first = suite(["T1"], short=True)
    assert first[0].key != first[1].key
    other = make_trace("same columns under another name", [0.0], [1.0])
    assert other.digest == make_trace("x", [0.0], [1.0]).digest
