"""A pool's hours: how rates come down and go up, who is never oversold, and what brings everything back to 1.0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.ledger import codec
from agent.oversubscription.choice import ChoiceInputs, PolicyRates, choose, decide_hour
from agent.oversubscription.fold import HourFold
from agent.oversubscription.memory import PoolMemory, SubscriberMemory, columns_of
from agent.oversubscription.profiles import profiles_of
from domain.decisions import Reason
from domain.rules.oversubscription.pool import SubscriberRules
from domain.rules.oversubscription.rates import USUAL_BUDGET
from tests.agent.oversubscription.pools import OURS, START, House, loads_as, rules, vm

Make = Callable[..., House]
AT_ONCE = {name: SubscriberRules(internal=True, fixed_rate=0.3) for name in ("web", "batch")}
"""A rate that an operator fixed is reached in nine hours; one of a policy takes a week to be trusted."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make a house of eight VMs on two machines, its rules changed as said."""
    houses: list[House] = []

    def made(vms: Any = None, **changes: Any) -> House:
        usual = [vm(f"v{k}", "web" if k % 2 else "batch", f"m{k % 2 + 1}") for k in range(12)]
        houses.append(House(tmp_path, rules(**changes), usual if vms is None else vms))
        return houses[-1]

    yield made
    for house in houses:
        house.ledger.close()


def test_nobody_is_oversold_before_a_day_and_five_vm_days_were_seen(make: Make) -> None:
    house = make()
    house.live(23)
    assert house.rate() == 1.0
    assert Reason.LITTLE_HISTORY in house.reasons()


def test_few_vms_take_longer_than_a_day(make: Make) -> None:
    house = make(vms=[vm("v1")])
    house.live(100)
    assert house.rate() == 1.0
    house.live(30)
    assert house.rate() < 1.0


def test_rates_come_down_one_level_at_a_time_and_not_twice_within_two_hours(make: Make) -> None:
    house = make()
    seen = []
    for k in range(36):
        house.live(1, seed=k)
        seen.append(house.rate())
    lowered = [k for k in range(1, 36) if seen[k] < seen[k - 1]]
    levels = [1.0, 0.6, 0.5, 0.4, 0.3]
    assert all(levels.index(seen[k]) == levels.index(seen[k - 1]) + 1 for k in lowered)
    assert all(later - earlier >= 2 for earlier, later in pairwise(lowered))


@pytest.mark.exhaustive
def test_a_weeks_trust_is_blended_in(make: Make) -> None:
    house = make()
    house.live(40)
    # After 40 of 168 hours 0.3 is trusted to a quarter: 1 - 0.7 * 0.24 = 0.83, of which the next level is 1.0.
    assert house.rate() == 1.0
    house.live(60)
    # After 100 hours: 1 - 0.7 * 100 / 168 = 0.583, the level above is 0.6.
    assert house.rate() == 0.6
    house.live(80)
    assert house.rate() == 0.3


@pytest.mark.exhaustive
def test_external_customers_are_never_oversold_unless_they_agreed(make: Make) -> None:
    subscribers = {"web": SubscriberRules(), "batch": SubscriberRules(opt_out=False)}
    house = make(subscribers=subscribers)
    house.live(180)
    assert (house.rate("web"), house.rate("batch")) == (1.0, 0.3)
    assert house.reasons("web") == (Reason.OPTED_OUT,)


@pytest.mark.exhaustive
def test_a_minimum_and_a_fixed_rate_are_kept(make: Make) -> None:
    subscribers = {
        "web": SubscriberRules(internal=True, minimum_rate=0.45),
        "batch": SubscriberRules(internal=True, fixed_rate=0.6),
    }
    house = make(subscribers=subscribers)
    house.live(8)
    assert (house.rate("web"), house.rate("batch")) == (1.0, 0.6)
    house.live(180)
    assert (house.rate("web"), house.rate("batch")) == (0.5, 0.6)
    assert Reason.MINIMUM_RATE in house.reasons("web")


def test_a_subscriber_that_no_setting_names_is_a_fallback(make: Make) -> None:
    house = make(subscribers={"web": OURS})
    house.live(30)
    assert (house.rate("batch"), house.reasons("batch")) == (1.0, (Reason.UNKNOWN_SUBSCRIBER,))
    assert house.pool.memory.counts.fallbacks >= 30


def test_silence_of_more_than_two_hours_brings_the_rate_back_to_one(make: Make) -> None:
    house = make(subscribers=AT_ONCE)
    house.live(9)
    assert house.rate() == 0.3
    for _ in range(2):
        house.hour({one.vm: 0.2 for one in house.vms if one.subscriber == "batch"})
        assert house.rate() == 0.3
    house.hour({one.vm: 0.2 for one in house.vms if one.subscriber == "batch"})
    assert (house.rate(), house.reasons()) == (1.0, (Reason.STALE_INPUT,))
    assert house.rate("batch") == 0.3


@pytest.mark.exhaustive
def test_two_hot_hours_freeze_and_three_roll_back_until_somebody_rearms(make: Make) -> None:
    house = make(beta=0.3, subscribers=AT_ONCE)
    house.live(9)
    assert house.rate() == 0.3
    # 24 cores of 48 on each machine: 0.65 of them in use are 15.6, and 14.4 are hot.
    told = [event.reason for event in house.hour(0.65)]
    assert Reason.MACHINE_HOT in told
    assert house.rate() == 0.4
    told = [event.reason for event in house.hour(0.65)]
    assert Reason.RATES_FROZEN in told
    assert house.rate() == 0.6
    told = [event.reason for event in house.hour(0.65)]
    assert Reason.RATES_ROLLED_BACK in told
    assert (house.rate(), house.reasons()) == (1.0, (Reason.RATES_ROLLED_BACK,))
    fourth = [event.detail for event in house.hour(0.65) if event.reason is Reason.MACHINE_HOT]
    assert [detail.split("; ")[1] for detail in fourth] == ["mostly by batch", "mostly by web"]
    assert all("reserved in full already" in detail for detail in fourth)
    house.live(130, seed=3)
    assert house.rate() == 1.0
    house.pool.rearm("ada", "moved the batch jobs")
    house.live(12, seed=4)
    assert house.rate() < 1.0


def test_what_was_rolled_back_stays_so_over_a_restart(make: Make) -> None:
    house = make(beta=0.3)
    house.live(30)
    for _ in range(3):
        house.hour(0.65)
    house.open()
    house.live(2)
    assert house.reasons() == (Reason.RATES_ROLLED_BACK,)


def test_a_hot_machine_takes_no_oversold_vm_until_it_was_cool_for_an_hour(make: Make) -> None:
    house = make(beta=0.3, subscribers=AT_ONCE)
    house.live(9)
    used = {one.vm: 0.65 if one.machine == "m1" else 0.1 for one in house.vms}
    events = house.hour(used)
    hot = next(event for event in events if event.reason is Reason.MACHINE_HOT)
    assert hot.about == "m1"
    assert "new VMs of batch are reserved more" in hot.detail
    assert "moving v0" in hot.detail
    assert [*house.pool.memory.closed] == ["m1"]
    assert house.ask().machine != "m1"
    house.hour(0.1)
    assert [*house.pool.memory.closed] == []


@pytest.mark.exhaustive
def test_pausing_a_pool_holds_its_rates_from_going_down(make: Make) -> None:
    house = make()
    house.live(30)
    house.paused = True
    before = house.rate()
    house.live(160)
    assert house.rate() == before
    assert Reason.PAUSED in house.reasons()


@pytest.mark.exhaustive
def test_a_rates_file_that_cannot_be_read_reserves_everything_and_says_why(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    file.write_text('{"kind": "oversubscription-rates", "subscribers": ["web", "batch"], "rates": [0.4, 0.5]}')
    house = make(policy=f"rates:{file}")
    house.live(180)
    assert (house.rate("web"), house.rate("batch")) == (0.4, 0.5)
    file.write_text('{"kind": "oversubscription-rates", "subscribers": ["web"], "rates": [0.4, 0.5]}')
    events = house.hour(0.2)
    assert [event.reason for event in events if event.reason is Reason.POLICY_FAILED] == [Reason.POLICY_FAILED]
    assert (house.rate(), house.reasons()) == (1.0, (Reason.POLICY_FAILED,))
    assert house.hour(0.2) == ()


@pytest.mark.exhaustive
def test_the_moving_average_reserves_the_last_days_peaks(make: Make) -> None:
    house = make(policy="moving-average")
    house.live(200)
    # Six VMs of 0.2 with a spread of 0.05 have peaks of about 0.26 in each hour: the level above is 0.3.
    assert house.rate() == 0.3
    house.live(24, mean=0.35, seed=9)
    assert house.rate() >= 0.5


@pytest.mark.parametrize(("cores", "pool_wide"), [(4.0, True), (3.9, False)])
def test_a_drift_of_a_quarter_of_the_cores_is_one_of_the_pool(cores: float, pool_wide: bool) -> None:
    known = SubscriberMemory(rate=0.3, history_h=500.0, vm_hours=1000.0)
    memory = PoolMemory(hour=500, subscribers={"web": replace(known, drifting=True), "batch": known})
    vms = [vm("w", "web", "m1", cores), *(vm(f"b{k}", "batch", f"m{k + 2}", 4.0) for k in range(3))]
    profiles = profiles_of(memory.subscribers, 500, None, None)
    loads = loads_as(vms, profiles, rules())
    wanted = PolicyRates({"web": 0.3, "batch": 0.3}, USUAL_BUDGET)
    folded = HourFold(memory, (), {}, (), {}, columns_of(memory.table, ()))
    decided = decide_hour(folded, loads, profiles, rules(), wanted, START, 1, paused=False, fresh=True)
    # It is not waited for the alarm of the others.
    rates = {row.subscriber: (row.rate, Reason.USAGE_DRIFTED in row.reasons) for row in decided.decision.subscribers}
    assert rates == {"web": (1.0, True), "batch": (1.0, True) if pool_wide else (0.3, False)}
    assert choose(decided.inputs) == choose(codec.decode(ChoiceInputs, codec.encode(decided.inputs)))
