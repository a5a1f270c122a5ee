"""A tuned setting goes through decision, record, replay, explanation, status and restart."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import structlog.testing

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.autoscaling.self_tuning import SelfTuning
from agent.kernel.leads import Leads
from agent.kernel.store import Record
from agent.ledger import codec
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.service.daemon import Loop
from agent.settings import Settings
from agent.view.board import ServiceBoard
from domain.clock import VirtualClock
from domain.decisions import Mode, Reason
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject, fleet_subject
from tests.architecture.product import ROOT
from tests.simulator.aws.world import START, World
from tests.trainer.promotion.settings import promoted_rule
from tests.waiting import until
from tests.without_training import WITHOUT_TRAINING
from trainer.promotion.directory import ModelsWriter

NOTHING: Mapping[str, object] = {}
LONG = RuleSetting(480.0, 30.0, 90.0)
Started = Callable[..., AbstractContextManager[Agent]]


@pytest.fixture
def started(cloud: World, tmp_path: Path) -> Started:
    """Starts the agent of one fleet; each start is a minute after the one before."""
    cloud.group("web-s", size=(0, 1, 5))
    cloud.control.ready_now()
    clock = VirtualClock(START + 5.0)
    group = {"name": "web-s", "vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}

    def start(own: Mapping[str, object] = NOTHING, mode: Mode = Mode.ACT) -> AbstractContextManager[Agent]:
        settings = Settings(
            mode=mode,
            state_directory=tmp_path,
            listener={"port": 0},
            aws={"region": "us-east-1", "endpoint_url": cloud.running.endpoint},
            fleets={"web": {"groups": {"workers": group}, **own}},
        )
        clock.sleep(60.0)
        return assembled(settings, clock, AwsKeys("agent", "simulated"))

    return start


def turned(agent: Agent) -> tuple[Record, DecisionInputs]:
    """The record of the agent's next minute, with its inputs."""
    agent.clock.sleep(60.0)
    part = agent.part(AutoscalingPart)
    board = ServiceBoard(START)
    Loop(agent, board).turn()
    record = part.decisions.get(part.minute.decisions[-1].decision_id)
    return record, codec.decode(DecisionInputs, record.inputs)


def setting_of(inputs: DecisionInputs) -> RuleSetting:
    assert inputs.snapshot is not None
    terms = inputs.snapshot.terms
    assert terms is not None
    assert terms.idle_s is not None
    assert policy_from_name(inputs.policy) == QueueRulePolicy(terms.horizon_s, terms.job_core_s)
    return RuleSetting(terms.horizon_s, terms.idle_s, terms.job_core_s)


def own(agent: Agent) -> RuleSetting:
    terms = agent.settings.fleets["web"].terms
    assert terms.idle_s is not None
    return RuleSetting(terms.horizon_s, terms.idle_s, terms.job_core_s)


def test_the_next_decision_is_recorded_under_it_and_replayed_the_same(started: Started, tmp_path: Path) -> None:
    directory = ModelsWriter(tmp_path / "models")
    with started() as agent:
        part = agent.part(AutoscalingPart)
        _, before = turned(agent)
        assert (setting_of(before), before.tuned) == (own(agent), "")
        promoted_rule(directory, LONG, "web", START)
        record, after = turned(agent)
        assert setting_of(after) == LONG
        explained = part.explain(record)
        assert any("$41 a month" in line and "480 s" in line for line in explained.lines)
        assert "$41 a month" in "\n".join(part.status("web", agent.clock.now()).lines)
        replayed = list(part.replay("web", None, None))
        assert [one.same for one in replayed] == [True, True]
        ready = [one for one in agent.ledger.journal() if one.reason == Reason.MODEL_READY]
        assert [(one.subject, one.body.get("about")) for one in ready] == [(fleet_subject("web"), QUEUE_RULE)]
    # In a new process it decides from the first minute on; without it the settings do.
    with started() as agent:
        assert setting_of(turned(agent)[1]) == LONG
        part = agent.part(AutoscalingPart)
        assert ("queue_rule_horizon_seconds", ("web",), 480.0) in set(part.readings())
        assert sum(one.reason == Reason.MODEL_READY for one in agent.ledger.journal()) == 1
        directory.rollback("2026-03-01T12:00:00Z", Subject(QUEUE_RULE, "web"), lambda _: None)
        assert setting_of(turned(agent)[1]) == own(agent)


def test_a_standby_that_takes_over_repeats_no_event_of_the_leader(started: Started, tmp_path: Path) -> None:
    promoted_rule(ModelsWriter(tmp_path / "models"), LONG, "web", START)
    with started() as agent:
        part = agent.part(AutoscalingPart)
        turned(agent)
        count = sum(one.reason == Reason.MODEL_READY for one in agent.ledger.journal())
        # As one that has started before the setting, and leads now.
        part._rules.decided({"web": ""})
        part.loop.leads = Leads(every=0)
        turned(agent)
        assert count == sum(one.reason == Reason.MODEL_READY for one in agent.ledger.journal()) == 1


def test_after_a_restart_only_a_model_counts_as_one_that_decided(started: Started) -> None:
    with started() as agent:
        turned(agent)
    with started() as agent:
        watch = agent.part(AutoscalingPart)._watch
        assert watch is not None
        assert watch.decided == {}


def test_a_refused_setting_is_named_where_people_look_and_the_settings_decide(started: Started, tmp_path: Path) -> None:
    directory = ModelsWriter(tmp_path / "models")
    (directory.path / promoted_rule(directory, LONG, "web", START)).write_bytes(b"{}")
    with started() as agent:
        assert setting_of(turned(agent)[1]) == own(agent)
        part = agent.part(AutoscalingPart)
        assert "is damaged" in "\n".join(part.status("web", agent.clock.now()).lines)
        assert "is damaged" in part.problems()[QUEUE_RULE]


def test_it_measures_as_a_standby_under_the_setting_that_the_leader_has(started: Started, tmp_path: Path) -> None:
    promoted_rule(ModelsWriter(tmp_path / "models"), LONG, "web", START)
    with started() as agent:
        part = agent.part(AutoscalingPart)
        part.loop.leads = Leads()
        part.loop.measure(agent.clock.now() + 60.0)
        (snapshot,) = part.loop.measure(agent.clock.now() + 60.0).snapshots
        assert snapshot.terms is not None
        assert (snapshot.terms.horizon_s, snapshot.terms.idle_s) == (480.0, 30.0)


@pytest.mark.parametrize(
    ("own", "mode", "tunable"),
    [
        ({}, Mode.ACT, ("web",)),
        ({}, Mode.OBSERVE, ()),
        ({"self_tune": "off"}, Mode.ACT, ()),
        ({"self_tune": "on"}, Mode.ACT, ("web",)),
        ({"idle_s": 60.0}, Mode.ACT, ()),
        ({"policy": "learned"}, Mode.ACT, ()),
    ],
)
def test_a_rule_is_tuned_in_act_mode_where_it_may_be_and_while_the_agent_leads(
    started: Started, own: dict[str, object], mode: Mode, tunable: tuple[str, ...]
) -> None:
    with started(own, mode) as agent:
        part = agent.part(AutoscalingPart)
        assert part.tunable() == tunable
        part.host = replace(part.host, leads=Leads)
        assert part.tunable() == ()


def test_the_tuning_process_answers_without_the_extra_for_training(started: Started, tmp_path: Path) -> None:
    with started() as agent:
        turned(agent)
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TRAINING)
    of_group = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.086", "MAX": "5"}
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "TRIMTAB_STATE_DIRECTORY": str(tmp_path),
        "TRIMTAB_AWS__REGION": "us-east-1",
        **{f"TRIMTAB_FLEETS__web__GROUPS__workers__{name}": text for name, text in of_group.items()},
    }
    clock = VirtualClock(START)
    tuning = SelfTuning(lambda: ("web",), clock, environ, tmp_path / "models")
    tuning.look()
    clock.sleep(3600.0)
    with structlog.testing.capture_logs() as logged:

        def answered() -> bool:
            tuning.look()
            return bool(logged)

        until(answered)
    assert [(one["event"], one.get("outcome")) for one in logged] == [("self_tuning", "too_little")], logged
