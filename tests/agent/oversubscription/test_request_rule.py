"""A rule that sets the rate of each request: the agent's choice is the simulator's, and what keeps it from deciding."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.kernel.decision import Host
from agent.ledger import codec
from agent.models.directory import read_model_file
from agent.oversubscription.choice import ChoiceInputs as Inputs
from agent.oversubscription.choice import Conditions, PolicyRates, Situation, choose, shadowed
from agent.oversubscription.decision import OversubscriptionPart
from agent.oversubscription.fold import hour_of_day
from agent.oversubscription.loads import Loads
from agent.oversubscription.memory import PoolMemory
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.rate_policies import policy_of, subject_of
from agent.oversubscription.recorded_hours import AT_RATES, read_hours
from agent.oversubscription.records import HourDecision, HourRule, RateDecision, RateRequest, ShadowRates
from agent.oversubscription.request import answer, vm_of
from agent.oversubscription.request_rule import level_again
from agent.oversubscription.settings import check_policy
from agent.oversubscription.view import pool_card, pool_lines, rate_lines
from domain.decisions import Reason
from domain.errors import BadInput
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from domain.rules.oversubscription.request_rule import RequestRule, Weights
from simulator.oversubscription.layout import Guard, guard_of, ruled, unguarded
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.weekly import Assessor
from tests.agent.oversubscription.pools import OURS, START, House, pool_of, profiles_as, rules, vm
from tests.agent.oversubscription.test_probation import on_probation
from tests.simulator.oversubscription.cases import invented
from trainer.promotion.directory import ModelsWriter

WEIGHTS = Weights(spread=2.5, margin=0.6, room=0.3, shortfall=1.5, enough=0.08, least=-0.02)
CLUSTER = {"machine_cores": 48.0, "beta": 0.6, "horizon_h": 120, "hot_hours": 3}


def rule_file(folder: Path, base: dict[str, float] | None = None, **changes: Any) -> Path:
    """A rule for `web` and `batch` that wants 0.45 of both at any hour, with rates of 0.5; base: b by subscriber."""
    base = {"web": 0.45, "batch": 0.45} if base is None else base
    given: dict[str, Any] = {
        "kind": "oversubscription-rule",
        "version": 1,
        "subscribers": list(base),
        "actions": [0.2, 0.3, 0.4, 0.5, 0.6, 1.0],
        "base": list(base.values()),
        "week": [],
        "day": [0.0] * 4,
        "weights": {"spread": 2.0, "margin": 0.1, "room": 0.0, "shortfall": 1.0, "enough": 0.05, "least": -0.05},
        "rates": [0.5] * len(base),
        "guard": None,
        "alpha": 0.95,
        "objective": "cores",
        "cluster": CLUSTER,
    }
    path = folder / "rule.json"
    path.write_text(json.dumps(given | changes))
    return path


# The same choice as the compiled twin's.

UNSHIELDED: dict[str, Any] = {"shield_budget": 24.0, "drift_spread": 0.0}
"""The largest budget refuses nothing, so that the rule alone decides."""


def agent_again(
    scenario: Scenario, week: Week, rule: RequestRule, guard: Guard, start: str, pool: PoolRules
) -> tuple[int, int, list[tuple[float, int]]]:
    """Return the number of requests, of those that agree, and the rate and machine of the others.

    The agent is asked on the machines as the simulator left them, request by request.
    """
    names = [f"s{n}" for n in range(scenario.subscribers)]
    profiles = profiles_as(scenario, names)
    pool = replace(pool, subscribers=dict.fromkeys(names, OURS))
    placed = Assessor(scenario, week, start, guard=guard).assess(np.ones(scenario.subscribers)).placement
    hour_rule = HourRule(dict(zip(names, rule.base.tolist(), strict=True)), tuple(rule.day), rule.weights._asdict())
    hours = week.arrival[week.warm :]
    same = 0
    for t in range(scenario.hours):
        loads = loads_at(scenario, week, placed.rate, placed.machine, t, profiles)
        hour = replace(an_hour(names, hour_rule, START + 3600.0 * t), config_hash=pool.config_hash)
        for row in (week.warm + np.flatnonzero(hours == t)).tolist():
            request = RateRequest(
                subscriber=names[week.subscriber[row]],
                cores=float(week.cores[row]),
                memory_gb=float(week.memory_gb[row]),
                network_gbit=float(week.network_gbps[row]),
            )
            now = START + 3600.0 * t + 120.0
            decision, k = answer(request, 1, now, pool, hour, PoolMemory(), loads, profiles, None)
            assert decision.held is None
            found, wanted = (decision.rate, k), (float(placed.rate[row]), max(int(placed.machine[row]), -1))
            if k < 0:
                found, wanted = (1.0, -1), (1.0, wanted[1])
            else:
                assert level_again(decision) == decision.base_rate
                loads.place(k, vm_of(decision), profiles.index(request.subscriber), profiles)
            same += found == wanted
            if found != wanted:
                return len(hours), same, [found, wanted]
    return len(hours), same, []


def loads_at(scenario: Scenario, week: Week, rate: Any, machine: Any, t: int, profiles: Profiles) -> Loads:
    """The machines when hour t begins, after its departures, all of them by number."""
    before = (week.arrival < t) if t else np.arange(len(week.ids)) < week.warm
    alive = np.flatnonzero(before & (machine >= 0) & (week.departure > t))
    k, n, c, count = machine[alive], week.subscriber[alive], week.cores[alive], scenario.machines

    def summed(values: Any) -> Any:
        total = np.zeros((count, *values.shape[1:]))
        np.add.at(total, k, values)
        return total

    by_owner = np.zeros((count, len(profiles.names) + 1))
    np.add.at(by_owner, (k, n), c)
    return Loads(
        names=[f"m{number}" for number in range(count)],
        free_cores=scenario.machine_cores - summed(rate[alive] * c),
        free_memory=scenario.machine_memory_gb - summed(week.memory_gb[alive]),
        free_network=scenario.machine_network_gbps - summed(week.network_gbps[alive]),
        mean=summed(c[:, None] * profiles.mean[n]),
        variance=summed(c[:, None] ** 2 * profiles.variance[n]),
        third=summed(c[:, None] ** 3 * profiles.third[n]),
        by_owner=by_owner,
        requested=summed(c),
        saved=np.zeros(len(profiles.names) + 1),
        vms=np.zeros(len(profiles.names) + 1, np.int64),
        used=count,
    )


def an_hour(names: list[str], rule: HourRule, at: float) -> HourDecision:
    """An hour in which the rule sets the rates of all requests."""
    row: Any = {"rate": 1.0, "previous_rate": 1.0, "source": "policy", "reasons": ["rate_of_policy"], "vms": 0}
    row |= {"wanted_rate": 1.0, "reporting": 0, "saved_cores": 0.0, "risk_24h": 0.0, "days": 9.0, "vm_days": 9.0}
    row |= {"lowered_at": None, "drifting": False}
    risk: Any = {"violation": 0.0, "violation_low": 0.0, "violation_high": 0.0, "expected_hot_hours": 0.0}
    risk |= {"hot_hours_seen": 0, "riskiest": [], "machines_used": 0, "peak_machines": 0, "machines_without": 0}
    risk |= {"saved_share": None, "multiplier": None}
    body: Any = {"decision_id": "main-o1", "at": at, "hour": int(at // 3600) - 1, "pool": "main", "policy": "rule:f"}
    body |= {"model": "", "config_hash": "", "state_hash": "", "risk": risk, "frozen": False, "rolled_back": False}
    body |= {"closed": [], "detail": "", "evaluation_us": 0.0, "subscribers": [row | {"subscriber": n} for n in names]}
    return replace(codec.decode(HourDecision, json.dumps(body).encode()), rule=rule)


def weekless(subscribers: int, seed: int = 0) -> RequestRule:
    draws = np.random.default_rng(seed)
    base, day = draws.uniform(0.3, 0.8, subscribers), draws.uniform(-0.1, 0.1, 4)
    return RequestRule(base, np.zeros(0), day, WEIGHTS)


@pytest.mark.parametrize("start", ["cold", "warm"])
@pytest.mark.parametrize("name", ["internal_like", pytest.param("azure_like", marks=pytest.mark.exhaustive)])
def test_a_week_of_requests_is_decided_as_the_compiled_rule_decides_it(name: str, start: str) -> None:
    scenario = scenario_of(name)
    week, rule = scenario.week("s21"), weekless(scenario.subscribers)
    pool = pool_of(scenario, {}, beta=scenario.beta, **UNSHIELDED)
    guard = ruled(unguarded(scenario), rule, scenario.hours)
    count, same, other = agent_again(scenario, week, rule, guard, start, pool)
    assert (same, other) == (count, [])
    assert count > 1000


def test_a_full_pool_refuses_what_the_compiled_rule_refuses() -> None:
    scenario, week = invented(3, requests=120, machines=2)
    rule = weekless(scenario.subscribers)
    pool = pool_of(scenario, {}, actions=scenario.actions, beta=scenario.beta, **UNSHIELDED)
    count, same, other = agent_again(scenario, week, rule, ruled(unguarded(scenario), rule, 30), "warm", pool)
    assert (same, other) == (count, [])


@pytest.mark.exhaustive
def test_behind_a_shield_too_a_week_is_decided_as_the_compiled_rule_decides_it() -> None:
    scenario = scenario_of("internal_like")
    daring = replace(weekless(scenario.subscribers), base=np.full(scenario.subscribers, 0.25))
    guard = ruled(guard_of(scenario, "shield", 0.003), daring, scenario.hours)
    pool = pool_of(scenario, {}, beta=scenario.beta, shield_budget=0.003, drift_spread=0.0)
    count, same, other = agent_again(scenario, scenario.week("s21"), daring, guard, "cold", pool)
    assert (same, other) == (count, [])


# A pool.


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., House]]:
    """A pool of twelve VMs on two machines whose policy is the rule of `rule_file`, its settings changed."""
    houses: list[House] = []

    def made(**changes: Any) -> House:
        file = changes.pop("file", None) or rule_file(tmp_path)
        vms = [vm(f"v{k}", "web" if k % 2 else "batch", f"m{k % 2 + 1}") for k in range(12)]
        houses.append(House(tmp_path, rules(policy=f"rule:{file}", **changes), vms))
        return houses[-1]

    yield made
    for house in houses:
        house.ledger.close()


def test_a_request_gets_the_rules_level_recorded_explained_and_counted(make: Callable[..., House]) -> None:
    house = make()
    house.live(100)
    early = house.ask()
    assert (early.rule, early.held, early.rate) == (None, Reason.LITTLE_HISTORY, house.rate())
    house.live(85)
    assert (house.rate(), house.reasons()) == (0.5, (Reason.RATE_OF_POLICY,))
    found = house.ask()
    assert found.rule is not None
    # The shield looks at the level that the rule took, and lets it pass.
    assert (found.rate, found.base_rate, found.held, [one.rate for one in found.tried]) == (0.4, 0.4, None, [0.4])
    assert f"rate 0.4 by the rule: {found.machine} has a need of " in found.detail
    refused, taken = found.rule.seen[-2:]
    # The margin of 0.5 and more takes 0.05 from 0.45: 0.3 is too little, 0.4 enough.
    assert (refused.level, taken.level) == (0.3, 0.4)
    assert refused.need is not None
    assert taken.need is not None
    assert 0.3 < taken.need <= 0.4
    assert taken.need == pytest.approx(0.45 - 0.1 * (taken.margin or 0.0))
    assert codec.decode(RateDecision, codec.encode(found)) == found
    assert level_again(found) == 0.4
    changed = replace(found, rule=replace(found.rule, wanted=0.65))
    assert level_again(changed) == 1.0
    lines = rate_lines(found, None)
    assert sum(line.endswith("refused") for line in lines) == 2
    assert lines[-1] == "Replayed from the record: the same rate"
    assert rate_lines(changed, None)[-1] == "Replayed from the record: ANOTHER LEVEL OF THE RULE: 1"
    counts = house.pool.memory.counts
    assert (counts.requests, counts.ruled, counts.held) == (2, 1, 1)
    assert house.pool.hour is not None
    assert codec.decode(HourDecision, codec.encode(house.pool.hour)) == house.pool.hour
    memory, store = house.pool.memory, house.pool.store
    assert "1 by the rule, 1 at the hour's rate" in "\n".join(pool_lines("main", house.pool.hour, memory, None))
    assert "requests by the rule" in str(pool_card(house.pool.view()))
    assert any("by the rule" in line for line in rate_lines(house.pool.hour, store.inputs(house.pool.hour.decision_id)))


def test_a_replay_computes_the_rules_choices_again_and_names_one_that_differs(make: Callable[..., House]) -> None:
    house = make()
    house.live(185)
    found = house.ask()
    assert found.rule is not None
    number = house.pool.next_number()
    changed = replace(found, decision_id=f"main-o{number}", rule=replace(found.rule, wanted=0.9))
    house.pool.store.write_request(number, changed)
    part = OversubscriptionPart(Host(house.ledger, None, house.clock))
    last = list(part.replay("main", None, None))[-2:]
    assert [(one.decision_id, one.same) for one in last] == [(found.decision_id, True), (changed.decision_id, False)]
    assert last[1].difference == "(0.4, 0.4) -> (1.0, 0.4)"


def test_after_a_restart_and_a_change_of_lead_the_rule_decides_at_once(make: Callable[..., House]) -> None:
    house = make()
    house.live(185)
    first = house.ask(request_id="r1")
    house.open()
    house.turn()
    assert house.ask(request_id="r1") == first
    again = house.ask()
    assert again.rule is not None
    house.epoch = house.ledger.take_epoch("other", house.clock.now())
    house.open()
    house.turn()
    assert house.ask().rule is not None
    assert (house.pool.memory.counts.ruled, house.pool.memory.counts.requests) == (3, 3)


def test_after_a_change_of_the_settings_the_rule_waits_for_an_hour_decided_by_them(make: Callable[..., House]) -> None:
    house = make()
    house.live(185)
    given = house.rules
    house.rules = replace(given, policy="static:1.0")
    house.open()
    house.turn()
    found = house.ask()
    assert (found.rate, found.rule, found.held, found.tried != ()) == (0.5, None, Reason.STALE_INPUT, True)
    assert Reason.STALE_INPUT in found.reasons
    house.hour()
    assert (house.ask().rate, house.ask().held) == (1.0, None)
    house.rules = replace(given, subscribers={"web": SubscriberRules(opt_out=True), "batch": OURS})
    house.open()
    house.turn()
    found = house.ask()
    assert (found.rate, found.source, found.reasons[0]) == (1.0, "manual", Reason.OPTED_OUT)


@pytest.mark.parametrize(("cores", "of_the_pool"), [(4.0, True), (1.0, False)])
def test_after_a_drift_the_files_rates_decide_until_another_rule_is_in_use(
    make: Callable[..., House], tmp_path: Path, cores: float, of_the_pool: bool
) -> None:
    house = make()
    house.place([replace(one, cores=cores if one.subscriber == "web" else 4.0) for one in house.vms])
    house.live(185)

    def ruled() -> list[bool]:
        return [house.ask(name).rule is not None for name in ("web", "batch")]

    def live(hours: int) -> None:
        house.live(hours, seed=1, means={"web": 0.35})

    def drifting() -> list[bool]:
        return [house.pool.memory.subscribers[name].drifting for name in ("web", "batch")]

    assert ruled() == [True, True]
    live(5)
    assert drifting() == [True, False]
    live(75)
    assert drifting() == [False, False]
    # The alarm is over, the rates are down again, and the shield is there: the rule still knows the former usage.
    house.open()
    house.turn()
    found = house.ask()
    assert (found.base_rate, found.rule, found.held, found.tried != ()) == (0.5, None, Reason.USAGE_DRIFTED, True)
    assert ruled() == [False, not of_the_pool]
    assert [*read_hours(house.ledger.database, "main")][-1].policy == f"{house.rules.policy}{AT_RATES}"
    rule_file(tmp_path, {"web": 0.46, "batch": 0.46})
    live(2)
    assert ruled() == [True, True]
    assert [*read_hours(house.ledger.database, "main")][-1].policy == house.rules.policy


def test_a_rule_that_could_not_be_read_when_the_usage_drifted_does_not_return_either(
    make: Callable[..., House], tmp_path: Path
) -> None:
    house, path = make(), tmp_path / "rule.json"
    house.live(185)
    content, hours = path.read_text(), iter(range(1, 20))
    while not house.pool.memory.subscribers["web"].drifting:
        path.write_text("{")
        house.live(1, seed=next(hours), means={"web": 0.35})
    path.write_text(content)
    house.live(75, seed=1, means={"web": 0.35})
    assert not house.pool.memory.subscribers["web"].drifting
    assert (house.ask().rule, house.ask().held) == (None, Reason.USAGE_DRIFTED)


def test_where_everything_is_reserved_the_explanation_names_no_rate_of_the_hour(make: Callable[..., House]) -> None:
    house = make()
    house.live(185)
    house.clock.advance(4 * 3600.0)
    house.pool.leads(house.clock.now())
    found = house.ask()
    assert (found.rate, found.held) == (1.0, Reason.STALE_INPUT)
    assert not any("hour's rate" in line for line in rate_lines(found, None))


def test_a_rule_whose_sum_overflows_reserves_everything_with_room_or_without(make: Callable[..., House]) -> None:
    house = make()
    house.live(185)
    turn = 2.0 * np.pi * hour_of_day(int(house.clock.now() // 3600), house.rules) / 24.0
    day = (1e308 * np.cos(turn), 1e308 * np.sin(turn), 0.0, 0.0)
    assert house.pool.hour is not None
    assert house.pool.hour.rule is not None
    huge = HourRule({"web": 1.7e308}, day, house.pool.hour.rule.weights)
    house.pool.hour = replace(house.pool.hour, rule=huge)
    with np.errstate(over="ignore"):
        found = house.ask()
        assert (found.rate, found.rule, found.reasons[0]) == (1.0, None, Reason.NOT_FINITE)
        assert house.pool.loads is not None
        house.pool.loads.free_memory[:] = 0.0
        found = house.ask()
    assert (found.rate, found.machine, found.rule) == (1.0, "", None)
    assert found.reasons == (Reason.NOT_FINITE, Reason.NO_MACHINE)


def test_a_rule_on_probation_decides_nothing_of_a_subscriber_without_a_row(make: Callable[..., House]) -> None:
    house = make()
    house.live(185)
    assert house.pool.hour is not None
    shadow = ShadowRates("m", (("batch", 0.5),), 0.003, rule=house.pool.hour.rule)
    house.pool.hour = replace(house.pool.hour, shadow=shadow)
    found = [house.ask(name).shadow for name in ("batch", "web")]
    assert [one is not None and one.rate for one in found] == [0.4, 1.0]


@pytest.mark.parametrize("field", ["alpha", "base", "rates", "day", "cluster"])
def test_a_number_too_large_for_a_float_is_a_fault_of_the_file(tmp_path: Path, field: str) -> None:
    huge: Any = {"alpha": 10**400, "base": {"web": 10**400}, "rates": [10**400] * 2, "day": [10**400] * 4}
    huge["cluster"] = {**CLUSTER, "beta": 10**400}
    path = rule_file(tmp_path, **{field: huge[field]})
    with pytest.raises(BadInput):
        policy_of(f"rule:{path}", rules())


@pytest.mark.parametrize("when", ["start", "reload"])
def test_a_damaged_file_reserves_everything_and_a_sound_one_decides_again(
    make: Callable[..., House], tmp_path: Path, when: str
) -> None:
    house = make()
    house.live(185)
    path = tmp_path / "rule.json"
    path.write_text(path.read_text()[:-20])
    if when == "start":
        house.open()
    events = house.hour(0.2)
    assert [event.reason for event in events if event.reason is Reason.POLICY_FAILED] == [Reason.POLICY_FAILED]
    found = house.ask()
    assert (found.rate, found.rule, found.reasons[0]) == (1.0, None, Reason.POLICY_FAILED)
    rule_file(tmp_path)
    house.live(12)
    assert house.ask().rule is not None


def test_a_subscriber_that_appears_later_is_reserved_in_full_and_the_others_go_by_the_rule(
    make: Callable[..., House],
) -> None:
    house = make(subscribers={"web": OURS, "batch": OURS, "late": OURS})
    house.live(150)
    assert house.ask("late").held is Reason.LITTLE_HISTORY
    house.place([*house.vms, *(vm(f"l{k}", "late", "m3") for k in range(6))])
    house.live(50)
    found = house.ask("late")
    assert (found.rate, found.rule, found.held) == (1.0, None, Reason.POLICY_FAILED)
    assert house.ask("web").rule is not None
    assert house.ask("nobody").held is Reason.UNKNOWN_SUBSCRIBER


def test_a_floor_of_the_operator_and_a_closed_machine_hold_for_the_rule(make: Callable[..., House]) -> None:
    house = make(subscribers={"web": SubscriberRules(internal=True, minimum_rate=0.55), "batch": OURS})
    house.live(190)
    found = house.ask()
    assert found.rule is not None
    assert (found.rate, [one.level for one in found.rule.seen]) == (0.6, [0.6])
    first = house.ask("batch")
    house.pool.memory = replace(house.pool.memory, closed=(first.machine,))
    other = house.ask("batch")
    assert (other.rule is not None, other.rate < 1.0, other.machine != first.machine) == (True, True, True)


def test_the_shield_after_the_rule_raises_its_level_with_the_default_settings_too(
    make: Callable[..., House], tmp_path: Path
) -> None:
    daring = rule_file(tmp_path, {"web": 0.1, "batch": 0.1}, weights=Weights(0, 0, 0, 0, 0, -9.0)._asdict())
    house = make(file=daring, machines=2)
    house.live(190, mean=0.3)

    def asked(**changes: Any) -> list[RateDecision]:
        house.pool.rules = replace(house.pool.rules, **changes)
        assert house.pool.hour is not None
        rules = house.pool.rules
        house.pool.hour = replace(house.pool.hour, config_hash=rules.config_hash, budget=rules.budget(None))
        house.pool.rebuild()
        return [house.ask(cores=8.0) for _ in range(8)]

    alone = asked(shield_budget=24.0, drift_spread=0.0)
    assert {one.rate for one in alone} == {0.2}
    house.pool.promised.clear()
    behind = asked(shield_budget=None)
    raised = [one for one in behind if one.rate > one.base_rate]
    assert raised
    assert all(one.base_rate == 0.2 and one.tried and Reason.SHIELDED in one.reasons for one in raised)
    assert all(rate_lines(one, None)[-1] == "Replayed from the record: the same rate" for one in behind)


@pytest.mark.parametrize("budget", [None, 0.003])
def test_a_number_that_is_not_finite_reserves_everything_on_a_machine_with_room(
    make: Callable[..., House], budget: float | None
) -> None:
    house = make(shield_budget=budget)
    house.live(185)
    assert house.pool.loads is not None
    assert house.ask().rule is not None
    # Of one hour alone: the margin of the worst hour would not show it.
    house.pool.loads.mean[:, 3] = np.nan
    # At 0.4 it fits the first machine, in full it does not.
    found = house.ask(cores=30.0)
    assert (found.rate, found.rule, found.reasons[0]) == (1.0, None, Reason.NOT_FINITE)
    assert house.pool.loads.free_cores[house.pool.loads.index(found.machine)] >= 0.0


def test_a_rule_on_probation_is_asked_at_each_request_and_decides_nothing(tmp_path: Path) -> None:
    body = json.loads(rule_file(tmp_path).read_text())
    one = on_probation(tmp_path, body.pop("rates"), **body)
    house = House(tmp_path, rules(policy="static:0.6"), [vm(f"v{k}", "web", f"m{k % 2 + 1}") for k in range(6)])
    house.live(185)
    found = house.ask()
    assert (found.rate, found.rule) == (0.6, None)
    assert found.shadow is not None
    assert (found.shadow.model, found.shadow.rate) == (Path(one.model).stem[:16], 0.4)
    assert house.pool.hour is not None
    assert house.pool.hour.shadow is not None
    assert (house.pool.hour.shadow.rate("web"), house.pool.hour.shadow.held) == (0.5, ("batch",))
    house.ledger.close()


def test_a_promoted_rule_decides_and_its_card_names_the_subscribers(tmp_path: Path) -> None:
    path = rule_file(tmp_path)
    place = ModelsWriter(tmp_path / "models")
    place.path.mkdir()
    given = rules(policy="learned")
    place.force(read_model_file(path), subject_of(given), "a test", "now", lambda _: None)
    policy = policy_of("learned", given, place)
    assert (policy.rule is not None, policy.forced != "") == (True, True)
    champion = place.champions()[subject_of(given)]
    summary = OversubscriptionPart.model(place.file_of(champion.model))
    assert summary.data["subscribers"] == 2
    assert "web, batch" in summary.does


# What keeps a rule from deciding.


SITUATION = Situation("web", 0.5, 0.5, True, False, 0.05, None, 400.0, 400.0, 0.0, False, False, None)
CONDITIONS = Conditions(0.0, (0.2, 0.3, 0.4, 0.5, 0.6, 1.0), 7200.0, 7200.0, False, False, False, True)
FULL = {"previous": 1.0, "wanted": 1.0}


@pytest.mark.parametrize(
    ("situation", "conditions", "held"),
    [
        ({}, {}, None),
        ({"minimum_rate": 0.6}, {}, None),
        ({"opted_out": True}, {}, Reason.OPTED_OUT),
        ({"known": False}, {}, Reason.UNKNOWN_SUBSCRIBER),
        ({"fixed_rate": 0.4}, {}, Reason.OPERATOR),
        ({"silent_s": 9000.0}, {}, Reason.STALE_INPUT),
        ({}, {"fresh": False}, Reason.STALE_INPUT),
        ({"wanted": None}, {}, Reason.POLICY_FAILED),
        ({}, {"rolled_back": True}, Reason.RATES_ROLLED_BACK),
        # A rate of 1.0 is raised by nothing, and the rule is kept from deciding all the same.
        ({"history_h": 167.0, **FULL}, {}, Reason.LITTLE_HISTORY),
        ({"vm_days": 4.0, **FULL}, {}, Reason.LITTLE_HISTORY),
        ({"drifting": True, **FULL}, {}, Reason.USAGE_DRIFTED),
        (FULL, {"drifting": True}, Reason.USAGE_DRIFTED),
        ({"pressed": True, **FULL}, {}, Reason.MACHINE_HOT),
        (FULL, {"frozen": True}, Reason.RATES_FROZEN),
        (FULL, {"paused": True}, Reason.PAUSED),
        ({"previous": 1.0}, {}, Reason.STEP_LIMIT),
        ({"previous": 0.6, "lowered_at": -10.0}, {}, Reason.COOLING_DOWN),
        ({"previous": 0.6}, {}, None),
        ({"drifted_rule": "one", **FULL}, {"rule": "one"}, Reason.USAGE_DRIFTED),
        ({"drifted_rule": "one"}, {"rule": "another"}, None),
    ],
)
def test_what_keeps_a_rule_from_deciding(situation: dict[str, Any], conditions: dict[str, Any], held: Any) -> None:
    given = Inputs(replace(CONDITIONS, **conditions), (replace(SITUATION, **situation),))
    assert choose(given)[0].excluded is held


@pytest.mark.parametrize(("model", "held"), [("one", ("web",)), ("another", ())])
def test_a_shadow_is_kept_from_deciding_by_a_drift_that_its_own_rule_met(model: str, held: tuple[str, ...]) -> None:
    given = Inputs(replace(CONDITIONS, rule="one"), (replace(SITUATION, drifted_rule="one"),))
    rule = HourRule({"web": 0.4}, (0.0,) * 4, WEIGHTS._asdict())
    assert shadowed(given, PolicyRates({"web": 0.5}, 0.003, model, rule=rule), None).held == held


@pytest.mark.parametrize(
    ("file", "settings", "named"),
    [
        ({"week": [0.1] * 7}, {}, "hour of a week.*weekly=false"),
        ({"actions": [0.25, 0.5, 1.0]}, {}, r"levels are \[0.25, 0.5, 1.0\], the pool's \[0.2"),
        ({"alpha": 0.9}, {}, "an ALPHA of 0.9, the pool promises 0.95"),
        ({}, {"alpha": 0.99}, "--alpha 0.99"),
        ({}, {"subscribers": {"web": OURS}}, "the pool has no batch"),
        ({"cluster": {**CLUSTER, "machine_cores": 96.0}}, {}, "machine_cores 96.0, not 48"),
        ({"cluster": {}}, {}, "machine_cores None, not 48; beta None, not 0.6"),
        ({}, {"beta": 0.5}, "beta 0.6, not 0.5"),
        ({}, {"hot_hours": 2}, "hot_hours 3.0, not 2"),
        ({"rates": [0.4]}, {}, "a base and a rate for each subscriber"),
        ({"alpha": None}, {}, "lacks or misstates"),
        ({"day": [0.0]}, {}, r"rule file .*rule\.json, day is"),
        ({"day": [float("nan")] * 4}, {}, r"rule file .*rule\.json, parameters is"),
        ({"objective": "watts"}, {}, "give one of cores, core-hours, machines"),
    ],
)
def test_a_rule_for_something_else_than_the_pool_is_refused(
    tmp_path: Path, file: dict[str, Any], settings: dict[str, Any], named: str
) -> None:
    path = rule_file(tmp_path, **file)
    with pytest.raises(BadInput, match=named):
        policy_of(f"rule:{path}", rules(**settings))


def test_the_sound_file_is_taken_for_the_pool_it_names(tmp_path: Path) -> None:
    policy = policy_of(f"rule:{rule_file(tmp_path, alpha=0.99)}", rules(alpha=0.95))
    assert policy.rule is not None
    assert policy.rule.base == {"web": 0.45, "batch": 0.45}


@pytest.mark.parametrize("kind", ["rule", "model"])
def test_a_path_that_cannot_be_looked_at_is_a_fault_of_the_setting(kind: str) -> None:
    text, given = f"{kind}:/{'a' * 300}", rules(subscribers={"web": replace(OURS, model_place=0)})
    check_policy(text, given)
    with pytest.raises(BadInput):
        policy_of(text, given)


def test_of_a_folder_the_rule_of_the_objective_decides(tmp_path: Path) -> None:
    for objective, base in (("cores", 0.3), ("machines", 0.6)):
        (tmp_path / objective).mkdir()
        rule_file(tmp_path / objective, {"web": base}, objective=objective)
    for objective, base in (("cores", 0.3), ("machines", 0.6)):
        policy = policy_of(f"rule:{tmp_path}", rules(objective=objective))
        assert policy.rule is not None
        assert policy.rule.base == {"web": base}
    with pytest.raises(BadInput, match=r"core-hours/rule\.json"):
        policy_of(f"rule:{tmp_path}", rules(objective="core-hours"))
    rule_file(tmp_path, {"web": 0.9}).rename(tmp_path / "rule.json")
    trained = policy_of(f"rule:{tmp_path}", rules(objective="machines"))
    assert trained.rule is not None
    assert trained.rule.base == {"web": 0.9}, "the file that training wrote"


@pytest.mark.parametrize("kind", ["rule", "rates"])
def test_a_file_that_is_missing_is_named_without_numbers_of_errors(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        policy_of(f"{kind}:{tmp_path}/none.json", rules())
    assert (refused.value.field, refused.value.value) == (f"{kind} file", f"{tmp_path}/none.json")
    assert "Errno" not in refused.value.remedy
