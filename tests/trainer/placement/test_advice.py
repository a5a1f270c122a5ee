"""The rules of advice: a gain in each third of three days, fewer hosts over two fillings, one change a day."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agent.placement.choosing import SHIPPED, read_policy
from agent.placement.settings import BUNDLED
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import BF, NAMED, WF
from domain.units import DAY_S
from simulator.placement.choosing import Floats, Ints
from simulator.placement.engine import events_of, play
from simulator.placement.instances import small
from simulator.placement.traces import trace_of
from trainer.placement.advice import (
    Replayed,
    better_by_days,
    better_by_fillings,
    bundled,
    kept_a_day,
    replayed_days,
    replayed_fillings,
)

NOW = Replayed((100.0, 100.0, 100.0), 0)


@pytest.mark.parametrize(
    ("costs", "rejected", "days", "advised"),
    [
        ((98.0, 97.0, 90.0), 0, 3.0, "other"),
        ((98.0, 97.0, 90.0), 0, 2.999, ""),
        ((98.1, 50.0, 50.0), 0, 9.0, ""),
        ((50.0, 98.1, 50.0), 0, 9.0, ""),
        ((50.0, 50.0, 98.1), 0, 9.0, ""),
        ((50.0, 50.0, 50.0), 1, 9.0, ""),
    ],
)
def test_three_days_and_a_gain_in_each_third_are_needed(
    costs: tuple[float, ...], rejected: int, days: float, advised: str
) -> None:
    found = {"now": NOW, "other": Replayed(costs, rejected)}
    assert better_by_days(found, "now", days * DAY_S) == advised


def test_of_several_the_one_with_the_lowest_cost_in_all_is_advised() -> None:
    found = {"now": NOW, "a": Replayed((90.0, 90.0, 90.0), 0), "b": Replayed((97.0, 80.0, 80.0), 0)}
    assert better_by_days(found, "now", 9.0 * DAY_S) == "b"
    assert better_by_days({"now": Replayed((0.0, 0.0, 0.0), 0), **dict.fromkeys("ab", NOW)}, "now", 9.0 * DAY_S) == ""


@pytest.mark.parametrize(
    ("now", "other", "advised"),
    [
        ((20.0, 20.0), Replayed((17.0, 22.0), 0), "other"),
        ((20.0, 20.0), Replayed((19.7, 19.6), 0), ""),
        ((20.0, 20.0), Replayed((17.0, 17.0), 1), ""),
        ((20.0,), Replayed((10.0,), 0), ""),
    ],
)
def test_two_fillings_and_fewer_hosts_in_all_are_needed(now: tuple[float, ...], other: Replayed, advised: str) -> None:
    assert better_by_fillings({"now": Replayed(now, 0), "other": other}, "now") == advised


def test_advice_changes_at_most_once_a_day() -> None:
    assert kept_a_day("wf", "", 0.0, 5.0 * DAY_S) == ("wf", 5.0 * DAY_S)
    assert kept_a_day("bf", "wf", 5.0 * DAY_S, 5.5 * DAY_S) == ("wf", 5.0 * DAY_S)
    assert kept_a_day("", "wf", 5.0 * DAY_S, 5.5 * DAY_S) == ("wf", 5.0 * DAY_S)
    assert kept_a_day("bf", "wf", 5.0 * DAY_S, 6.0 * DAY_S) == ("bf", 6.0 * DAY_S)
    # A clock that was set back does not hold it.
    assert kept_a_day("bf", "wf", 5.0 * DAY_S, 4.0 * DAY_S) == ("bf", 4.0 * DAY_S)


def test_the_thirds_of_a_replay_sum_to_its_host_hours() -> None:
    one = trace_of("alibaba-openb:0+300@3", "0.5")
    assert one is not None
    last = one.requests[-1].at_s
    found = replayed_days(one, {"lifetime": NAMED["lifetime"], "wf": WF}, last)
    for name, row in found.items():
        assert sum(row.costs) == pytest.approx(play(one, NAMED[name], until_s=last).host_hours)
        assert len(row.costs) == 3
    marks = [last * k / 3.0 for k in range(4)]
    thirds = [
        play(one, WF, measured_from_s=begin, until_s=end, events=_until(one, end)) for begin, end in pairwise(marks)
    ]
    assert found["wf"].costs == pytest.approx([third.host_hours for third in thirds])


def _until(one: Instance, end: float) -> tuple[Ints, Floats]:
    events, times = events_of(one)
    return events[times <= end], times[times <= end]


def test_fillings_are_replayed_in_their_order_and_in_others() -> None:
    one = small(7)
    (found,) = replayed_fillings([one], {"bf": BF}).values()
    given = play(one, BF).hosts
    assert found.rejected == 0
    # Ten other orders and the given one.
    assert (11.0 * found.costs[0]) == pytest.approx(round(11.0 * found.costs[0]))
    assert abs(found.costs[0] - given) < 10.0


def test_every_bundled_policy_has_a_word() -> None:
    found = bundled(read_policy(SHIPPED))
    assert tuple(found) == BUNDLED
    assert len({one.digest for one in found.values()}) == len(BUNDLED)
