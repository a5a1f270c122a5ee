"""A tuned setting of the queue rule: which fleets follow it, whole or not at all, and what is shown of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from agent.autoscaling.fleets import ManagedFleet, managed_fleets
from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.autoscaling.tuned_rules import TunedRules
from agent.models.directory import Then, moment_text
from agent.models.queue_rule import load_rule, rule_file
from agent.settings import load_settings
from domain.decisions import Event, Reason
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject, fleet_subject
from tests.trainer.promotion.settings import promoted_rule
from trainer.promotion.directory import ModelsWriter

NOW, DAY_S = 1_772_366_400.0, 86_400.0
SHORT, LONG = RuleSetting(150.0, 30.0), RuleSetting(480.0, 0.0, 90.0)
ALL = {"horizon_s", "idle_s", "job_core_s"}


def fleets(*names: str, **own: str) -> tuple[ManagedFleet, ...]:
    """Fleets of these names, all with the same further settings."""
    environ: dict[str, str] = {}
    for name in names or ("web",):
        of_group = {
            "NAME": f"{name}-s",
            "VM_TYPE": "m5a.large",
            "CORES": "2",
            "MEMORY_GB": "8",
            "PRICE_PER_HOUR": "0.086",
            "MIN": "1",
            "MAX": "5",
        }
        given = {f"GROUPS__s__{key}": text for key, text in of_group.items()} | own
        environ |= {f"TRIMTAB_FLEETS__{name}__{key}": text for key, text in given.items()}
    return managed_fleets(load_settings(environ | {"TRIMTAB_AWS__REGION": "eu-west-1"}), {})


def rule_in(managed: ManagedFleet) -> RuleSetting:
    """The rule by which a minute is decided: its policy's, with the idle time of the fold; all say the same."""
    rule, terms = policy_from_name(managed.policy), managed.aggregation.terms
    assert isinstance(rule, QueueRulePolicy)
    assert terms is not None
    assert (terms.horizon_s, terms.job_core_s, terms.idle_s) == (
        rule.horizon_s,
        rule.job_core_s,
        managed.aggregation.idle_s,
    )
    assert managed.aggregation.job_core_s == rule.job_core_s
    return RuleSetting(rule.horizon_s, managed.aggregation.idle_s, rule.job_core_s)


@pytest.mark.parametrize(
    ("own", "follows"),
    [
        ({}, ALL),
        ({"POLICY": "learned"}, ALL),
        ({"QUEUE_RULE__SINGLE": "true"}, ALL),
        ({"QUEUE_RULE__JOB_CORE_S": "60"}, ALL - {"job_core_s"}),
        ({"QUEUE_RULE__HORIZON_S": "150"}, set()),
        ({"IDLE_S": "120"}, set()),
        ({"POLICY": "threshold"}, set()),
    ],
)
def test_a_fleet_follows_where_neither_horizon_nor_idle_time_is_set_by_hand(
    own: dict[str, str], follows: set[str]
) -> None:
    (managed,) = fleets(**own)
    assert managed.follows == follows


def test_under_a_setting_policy_fold_terms_windows_and_shadows_have_its_numbers() -> None:
    window = {"CRON": "0 18 * * *", "FOR_MINUTES": "60", "POLICY": "queue-rule"}
    own = {f"SCHEDULE__evening__{key}": text for key, text in window.items()}
    (managed,) = fleets(SHADOW="threshold", **own)
    tuned = managed.under(LONG, "why")
    assert (rule_in(tuned), tuned.tuned) == (LONG, "why")
    assert tuned.planned[0].policy == tuned.policy
    assert tuned.shadows == managed.shadows


def test_what_a_setting_leaves_open_or_the_user_has_set_stays_the_settings_own() -> None:
    (managed,), (by_hand,) = fleets(QUEUE_RULE__SINGLE="true"), fleets(QUEUE_RULE__JOB_CORE_S="60")
    tuned = managed.under(replace(LONG, job_core_s=0.0), "")
    assert rule_in(tuned) == replace(LONG, job_core_s=120.0)
    assert policy_from_name(tuned.policy) == QueueRulePolicy(480.0, 120.0, single=True)
    assert rule_in(by_hand.under(LONG, "")) == replace(LONG, job_core_s=60.0)


def test_beside_a_learned_policy_it_is_the_rule_of_the_terms() -> None:
    (managed,) = fleets(POLICY="learned", SHADOW="queue-rule")
    tuned = managed.under(LONG, "")
    assert tuned.policy == "learned"
    assert tuned.aggregation.terms is not None
    assert (tuned.aggregation.terms.horizon_s, tuned.aggregation.idle_s) == (480.0, 0.0)
    assert tuned.shadows == ("queue-rule:horizon_s=480.0,job_core_s=90.0,single=False",)


@dataclass
class Site:
    """A models directory, the settings of fleets in it, and the events so far."""

    directory: ModelsWriter
    managed: Sequence[ManagedFleet] = field(default_factory=fleets)
    rules: TunedRules = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.rules = TunedRules(self.directory.path, key=self.directory.key)

    def promote(self, rule: RuleSetting, fleet: str = "web", **report: Any) -> str:
        return promoted_rule(self.directory, rule, fleet, NOW, **report)

    def propose(self, rule: RuleSetting, **report: Any) -> None:
        promoted_rule(self.directory, rule, "web", NOW, then=Then.APPROVE, **report)

    def back(self, now: float, reason: str = "") -> None:
        self.directory.rollback(moment_text(now), Subject(QUEUE_RULE, "web"), load_rule, reason=reason)

    def turn(self) -> list[ManagedFleet]:
        return list(self.rules.take_up(self.managed))

    def events(self, now: float = NOW) -> list[Event]:
        self.turn()
        return list(self.rules.events(now, self.managed))

    def reasons(self, now: float = NOW) -> list[Reason]:
        return [event.reason for event in self.events(now)]

    def damage(self, fleet: str = "web") -> None:
        champion = self.directory.champions()[Subject(QUEUE_RULE, fleet)]
        self.directory.file_of(champion.model).write_bytes(b"{}")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(ModelsWriter(tmp_path / "models"))


def own_rule(site: Site) -> RuleSetting:
    return rule_in(site.managed[0])


def test_without_a_setting_and_for_fleets_that_follow_none_nothing_changes(site: Site) -> None:
    assert site.turn() == list(site.managed)
    site.managed = fleets(IDLE_S="10")
    site.promote(LONG)
    assert site.turn() == list(site.managed)
    assert not site.events()


def test_a_setting_is_taken_up_at_the_next_turn_and_so_is_the_way_back(site: Site) -> None:
    site.promote(SHORT)
    assert rule_in(site.turn()[0]) == replace(SHORT, job_core_s=120.0)
    site.promote(LONG)
    assert rule_in(site.turn()[0]) == LONG
    site.back(NOW)
    assert rule_in(site.turn()[0]) == replace(SHORT, job_core_s=120.0)
    site.back(NOW)
    assert rule_in(site.turn()[0]) == own_rule(site)


def test_each_fleet_follows_its_own(site: Site) -> None:
    site.managed = fleets("web", "night", "third")
    site.promote(LONG, "night")
    site.promote(SHORT, "web")
    found = {one.fleet.name: one.tuned for one in site.turn()}
    assert {name: text.partition(" since")[0] for name, text in found.items()} == {
        "web": "horizon 150 s, idle 30 s",
        "night": "horizon 480 s, idle 0 s",
        "third": "",
    }


def test_a_damaged_setting_leaves_the_one_before_and_after_a_restart_the_settings_own(site: Site) -> None:
    site.promote(SHORT)
    assert site.reasons() == [Reason.MODEL_READY]
    site.promote(LONG)
    site.damage()
    assert rule_in(site.turn()[0]) == replace(SHORT, job_core_s=120.0)
    assert site.reasons() == [Reason.MODEL_REFUSED]
    assert not site.events()
    site.restart()
    assert rule_in(site.turn()[0]) == own_rule(site)
    assert "is damaged" in site.rules.line(site.managed[0])


@pytest.mark.parametrize("field", ["model", "report"])
def test_a_pointer_with_a_damaged_name_is_refused_and_the_setting_before_stays(site: Site, field: str) -> None:
    site.promote(LONG)
    site.turn()
    name = getattr(site.directory.champions()[Subject(QUEUE_RULE, "web")], field)
    pointer = site.directory.path / "champion.json"
    pointer.write_text(pointer.read_text("utf-8").replace(name, f"a\\u0000{name}"), "utf-8")
    assert rule_in(site.turn()[0]) == LONG
    assert site.rules.refusal(site.managed[0])
    site.restart()
    assert rule_in(site.turn()[0]) == own_rule(site)


def test_by_a_fault_of_its_own_no_fleet_loses_its_turn(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.promote(LONG)
    site.turn()

    def fails(*, again: bool = False) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(site.rules.shelf, "look", fails)
    with structlog.testing.capture_logs() as logged:
        assert [rule_in(site.turn()[0]) for _ in range(2)] == [LONG, LONG]
    assert [one["event"] for one in logged] == ["tuned_rules_failed"]
    site.restart()
    monkeypatch.setattr(site.rules.shelf, "look", fails)
    assert site.turn() == list(site.managed)


def test_one_that_was_put_right_is_taken_up(site: Site) -> None:
    name = site.promote(LONG)
    site.damage()
    assert rule_in(site.turn()[0]) == own_rule(site)
    (site.directory.path / name).write_bytes(rule_file("web", LONG).content)
    assert rule_in(site.turn()[0]) == LONG
    assert not site.rules.refusal(site.managed[0])


def test_a_setting_of_another_fleet_is_refused(site: Site) -> None:
    site.promote(LONG, file_of="night")
    assert rule_in(site.turn()[0]) == own_rule(site)
    (event,) = site.events()
    assert (event.reason, event.subject) == (Reason.MODEL_REFUSED, fleet_subject("web"))


def test_with_a_key_an_unsigned_report_does_not_speak_for_a_setting(site: Site, tmp_path: Path) -> None:
    site.promote(LONG)
    site.rules = TunedRules(site.directory.path, key=b"0123456789abcdef")
    assert rule_in(site.turn()[0]) == own_rule(site)
    assert site.rules.refusal(site.managed[0])


def test_taking_up_and_the_way_back_are_events_with_figures_and_reason(site: Site) -> None:
    site.promote(LONG)
    (up,) = site.events()
    assert (up.reason, up.subject, up.about) == (Reason.MODEL_READY, fleet_subject("web"), QUEUE_RULE)
    for figure in ("480 s", "from 150 s", "12%", "3 days", "$41 a month"):
        assert figure in up.detail
    site.back(NOW + 60.0, "it cost 3 % more")
    down = site.events(NOW + 120.0)
    assert [event.reason for event in down] == [Reason.MODEL_READY, Reason.PROMOTION_ROLLED_BACK]
    assert "it cost 3 % more" in down[1].detail
    assert not site.events(NOW + 180.0)


def test_after_a_restart_a_rollback_of_the_last_day_is_still_news(site: Site) -> None:
    site.promote(LONG)
    site.back(NOW)
    assert site.reasons(NOW + DAY_S - 1.0) == [Reason.PROMOTION_ROLLED_BACK]
    site.restart()
    assert not site.events(NOW + DAY_S)


def test_the_same_setting_again_has_the_time_and_figures_of_its_second_report(site: Site) -> None:
    site.promote(LONG)
    first = site.turn()[0].tuned
    site.back(NOW + DAY_S)
    site.turn()
    promoted_rule(site.directory, LONG, "web", NOW + 2.0 * DAY_S, self_tuning=None)
    second = site.turn()[0].tuned
    assert ("2026-03-01" in first, "$41 a month" in first) == (True, True)
    assert ("2026-03-03" in second, "$41 a month" in second) == (True, False)


def test_a_history_that_cannot_be_read_loses_no_event(site: Site) -> None:
    site.promote(LONG)
    site.events()
    site.back(NOW)
    (site.directory.path / "history.jsonl").unlink()
    (site.directory.path / "history.jsonl").mkdir()
    assert site.reasons() == [Reason.MODEL_READY]


def test_a_rollback_by_a_clock_that_is_ahead_is_news(site: Site) -> None:
    site.promote(LONG)
    site.back(NOW + 60.0)
    assert site.reasons(NOW) == [Reason.PROMOTION_ROLLED_BACK]


def test_a_damaged_proposal_is_refused_by_name(site: Site) -> None:
    site.propose(LONG)
    held = site.directory.probationers()[Subject(QUEUE_RULE, "web")]
    site.directory.file_of(held.model).write_bytes(b"{}")
    assert site.reasons() == [Reason.MODEL_REFUSED]
    assert "on probation for web" in site.rules.line(site.managed[0])


@pytest.mark.parametrize(("policy", "has"), [("queue-rule", True), ("learned", True), ("threshold", False)])
def test_only_where_the_rule_decides_or_bounds_a_model_are_its_numbers_metrics(
    site: Site, policy: str, has: bool
) -> None:
    site.managed = fleets(POLICY=policy)
    names = {name for name, _, _ in site.rules.readings(site.managed)}
    assert [f"queue_rule_{one}_seconds" in names for one in ("horizon", "idle")] == [has, has]


def test_a_proposal_decides_nothing_and_is_an_event_once_a_day(site: Site) -> None:
    site.propose(LONG)
    assert rule_in(site.turn()[0]) == own_rule(site)
    (event,) = site.events()
    assert event.reason is Reason.SETTING_PROPOSED
    assert "$41 a month" in event.detail
    assert not site.events(NOW + DAY_S - 1.0)
    assert site.reasons(NOW + DAY_S) == [Reason.SETTING_PROPOSED]
    site.directory.approve(Subject(QUEUE_RULE, "web"), moment_text(NOW), load_rule)
    assert rule_in(site.turn()[0]) == LONG
    assert not site.rules.proposal(site.managed[0])


def test_metrics_have_the_numbers_in_force_and_what_waits(site: Site) -> None:
    def readings() -> dict[str, float]:
        site.turn()
        return {name: float(value) for name, labels, value in site.rules.readings(site.managed) if labels == ("web",)}

    own = own_rule(site)
    assert readings() == {
        "queue_rule_horizon_seconds": own.horizon_s,
        "queue_rule_idle_seconds": own.idle_s,
        "queue_rule_tuned": 0.0,
        "queue_rule_proposed": 0.0,
    }
    site.propose(LONG)
    assert readings()["queue_rule_proposed"] == 1.0
    site.directory.approve(Subject(QUEUE_RULE, "web"), moment_text(NOW), load_rule)
    assert readings() == {
        "queue_rule_horizon_seconds": 480.0,
        "queue_rule_idle_seconds": 0.0,
        "queue_rule_tuned": 1.0,
        "queue_rule_proposed": 0.0,
    }
