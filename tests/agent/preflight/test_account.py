"""Preflight checks a real endpoint, reports what is missing with a remedy, and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.kernel.checks import CheckResult, State, passed
from agent.models.shipped import shipped_models
from domain.decisions import Mode
from tests.agent.preflight.looking import look, tag, wrong
from tests.faults.world import Plan, World
from tests.golden import check_wording

ALWAYS_UNKNOWN_HERE = [
    ("permission to act", State.UNKNOWN),
    ("measurements", State.UNKNOWN),
]
"""The look-alike's caller is no role, and nothing was listened for."""
Found = list[tuple[str, State]]
SMALL, LARGE = "FLEETS__web__GROUPS__small__", "FLEETS__web__GROUPS__large__"
OF_SMALL, OF_MEDIUM, OF_LARGE = "group web.small", "group web.medium", "group web.large"
TYPE_OF_SMALL = "type web.small"


@contextmanager
def world_at(directory: Path, **plan: Any) -> Iterator[World]:
    """A world, tagged, in which everything is as it should be."""
    directory.mkdir(exist_ok=True)
    world = World(directory, Plan(**plan))
    try:
        tag(world)
        yield world
    finally:
        world.close()


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[World]:
    with world_at(tmp_path / "ready") as world:
        yield world


def written(results: list[CheckResult], world: World) -> str:
    """Return a line for each result to be read, without what differs from run to run."""
    lines = "\n".join(
        f"{one.state.value} {one.subject}: {one.detail} -> {one.remedy or 'nothing to do'}"
        for one in results
        if (one.state is not State.OK or "unit" in one.detail) and (one.subject, one.state) not in ALWAYS_UNKNOWN_HERE
    )
    for given, shown in ((world.running.endpoint, "<endpoint>"), (str(world.directory), "<directory>")):
        lines = lines.replace(given, shown)
    return re.sub(r"\bi-[0-9a-f]{8,}", "<vm>", lines)


@dataclass(frozen=True)
class Case:
    """Settings that do not describe the world, or a world that was changed, and what is found besides the usual."""

    expected: Found
    settings: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[World], object] | None = None
    mode: Mode = Mode.ACT
    plan: Mapping[str, Any] = field(default_factory=dict)


def mix(*overrides: tuple[str, str | None]) -> Callable[[World], None]:
    """Give the group `workers-s` overrides of its launch template: type and weight."""

    def change(world: World) -> None:
        listed = [
            {"InstanceType": name} | ({} if weight is None else {"WeightedCapacity": weight})
            for name, weight in overrides
        ]
        template = {"LaunchTemplateSpecification": {"LaunchTemplateName": "workers-s"}, "Overrides": listed}
        policy = {"LaunchTemplate": template}
        world.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", MixedInstancesPolicy=policy)

    return change


def weigh(world: World) -> None:
    """Let the group count each new VM as two units."""
    mix(("m5a.large", "2"))(world)
    bounds = {"MinSize": 1, "MaxSize": 9, "DesiredCapacity": 3}
    world.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", **bounds)


def weigh_no_more(world: World) -> None:
    """Leave one VM that counts as two units in a group whose new ones count as one."""
    mix(("m5a.large", "2"))(world)
    template = {"LaunchTemplateName": "workers-s", "Version": "$Latest"}
    world.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", LaunchTemplate=template)


def size_by_others(world: World) -> None:
    """Give one group a scaling policy and another a scheduled action."""
    world.owner.put_scaling_policy(
        AutoScalingGroupName="workers-s",
        PolicyName="keep-cpu",
        PolicyType="TargetTrackingScaling",
        TargetTrackingConfiguration={
            "PredefinedMetricSpecification": {"PredefinedMetricType": "ASGAverageCPUUtilization"},
            "TargetValue": 50.0,
        },
    )
    world.owner.put_scheduled_update_group_action(
        AutoScalingGroupName="workers-m", ScheduledActionName="nightly", Recurrence="0 2 * * *", DesiredCapacity=1
    )


def suspend_the_others(world: World) -> None:
    """Do so, and suspend the processes by which they act."""
    size_by_others(world)
    world.owner.suspend_processes(AutoScalingGroupName="workers-s", ScalingProcesses=["AlarmNotification"])
    world.owner.suspend_processes(AutoScalingGroupName="workers-m", ScalingProcesses=["ScheduledActions"])


def protect_new_vms(world: World) -> None:
    world.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", NewInstancesProtectedFromScaleIn=True)


def put_another_hook(world: World) -> None:
    """Let another party hold terminating VMs too."""
    about = {"LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "AutoScalingGroupName": "workers-s"}
    world.owner.put_lifecycle_hook(LifecycleHookName="a-upload-logs", **about)


def put_only_another_hook(world: World) -> None:
    put_another_hook(world)
    world.owner.delete_lifecycle_hook(LifecycleHookName="drain", AutoScalingGroupName="workers-s")


def suspend_terminate(world: World) -> None:
    world.owner.suspend_processes(AutoScalingGroupName="workers-s", ScalingProcesses=["Terminate"])


def refuse_activities(world: World) -> None:
    world.fault("access_denied", operations=["DescribeScalingActivities"])


EVERY_GROUP = (OF_SMALL, OF_MEDIUM, OF_LARGE)
BY_SETTINGS = {
    "a group that is not there": Case([(OF_SMALL, State.MISSING)], {f"{SMALL}NAME": "worker-s"}),
    "bounds that no size fits": Case([(OF_SMALL, State.MISSING)], {f"{SMALL}MIN": "12", f"{SMALL}MAX": "20"}),
    "bounds that differ": Case([(OF_SMALL, State.ADVICE)], {f"{SMALL}MAX": "20"}),
    "a heartbeat too short for the loop": Case(
        [(one, State.MISSING) for one in EVERY_GROUP], {"TICK_INTERVAL_S": "100"}
    ),
    "cores and memory of another type": Case(
        [(TYPE_OF_SMALL, State.MISSING)], {f"{SMALL}CORES": "4", f"{SMALL}MEMORY_GB": "9"}
    ),
    "a type that does not exist": Case(
        [(OF_SMALL, State.MISSING), (OF_SMALL, State.MISSING), (TYPE_OF_SMALL, State.MISSING)],
        {f"{SMALL}VM_TYPE": "m9z.large"},
    ),
    "a type that a group without VMs would not launch": Case(
        [(OF_LARGE, State.MISSING), ("type web.large", State.MISSING)], {f"{LARGE}VM_TYPE": "m5a.large"}
    ),
    "a price of nothing": Case([(TYPE_OF_SMALL, State.ADVICE)], {f"{SMALL}PRICE_PER_HOUR": "0"}),
}
BY_CHANGE = {
    "a suspended process": Case([(OF_SMALL, State.MISSING)], change=suspend_terminate),
    "another fleet's tag, to act": Case(
        [(one, State.MISSING) for one in EVERY_GROUP], change=lambda world: tag(world, "shop")
    ),
    "another fleet's tag, to observe": Case(
        [(one, State.ADVICE) for one in EVERY_GROUP], change=lambda world: tag(world, "shop"), mode=Mode.OBSERVE
    ),
    "a group that protects new VMs": Case([(OF_SMALL, State.ADVICE)], change=protect_new_vms),
    "groups without a drain hook": Case([(one, State.ADVICE) for one in EVERY_GROUP], plan={"hook": False}),
    "a hook of another party": Case([(OF_SMALL, State.ADVICE)], change=put_another_hook),
    "hooks of another party alone": Case([(OF_SMALL, State.MISSING)], change=put_only_another_hook),
    "several weights": Case(
        [(OF_SMALL, State.MISSING), (OF_SMALL, State.MISSING)],
        change=mix(("m5a.large", "1"), ("m5a.xlarge", "2")),
        mode=Mode.OBSERVE,
    ),
    "VMs that count as two units": Case([(OF_SMALL, State.ADVICE)], change=weigh),
    "VMs that weigh something else than new ones": Case([(OF_SMALL, State.ADVICE)], change=weigh_no_more),
    "VMs that count as one unit": Case([], change=mix(("m5a.large", "1"))),
    "another type that may be launched": Case(
        [(OF_SMALL, State.MISSING)], change=mix(("m5a.large", None), ("m5a.2xlarge", None))
    ),
    "a scaling policy and a scheduled action, to act": Case(
        [(OF_SMALL, State.MISSING), (OF_MEDIUM, State.MISSING)], change=size_by_others
    ),
    "a scaling policy and a scheduled action, to observe": Case(
        [(OF_SMALL, State.ADVICE), (OF_MEDIUM, State.ADVICE)], change=size_by_others, mode=Mode.OBSERVE
    ),
    "a scaling policy and a scheduled action that are suspended": Case([], change=suspend_the_others),
    "a refused read": Case([(one, State.MISSING) for one in EVERY_GROUP], change=refuse_activities, mode=Mode.OBSERVE),
    "tags that describe no fleet": Case(
        [("discovery", State.MISSING), ("fleets", State.MISSING)],
        {"DISCOVERY__ENABLED": "true"},
        lambda world: tag(world, "Web Shop"),
    ),
}


def test_each_obstacle_is_found_with_its_state_and_a_remedy(tmp_path: Path) -> None:
    texts, found, wanted = {}, {}, {}

    def check(name: str, case: Case, world: World) -> None:
        results = look(world, case.mode, **case.settings)
        texts[name] = written(results, world)
        found[name] = [one for one in wrong(results) if one not in ALWAYS_UNKNOWN_HERE]
        wanted[name] = case.expected
        assert passed(results) is (State.MISSING not in [state for _, state in found[name]]), name
        assert all(one.remedy for one in results if one.state in (State.MISSING, State.ADVICE)), name

    with world_at(tmp_path / "ready") as world:
        for name, case in BY_SETTINGS.items():
            check(name, case, world)
    for number, (name, case) in enumerate(BY_CHANGE.items()):
        with world_at(tmp_path / str(number), **case.plan) as world:
            if case.change is not None:
                case.change(world)
            check(name, case, world)
    assert found == wanted
    check_wording("preflight_account", texts)


def test_an_account_that_is_ready_passes_and_not_one_call_changes_anything(ready: World, tmp_path: Path) -> None:
    before, state = len(ready.calls), tmp_path / "state"
    for mode in Mode:
        for more in ({}, {"DISCOVERY__ENABLED": "true"}, {"STATE_DIRECTORY": str(state)}):
            results = look(ready, mode, **more)
            assert (wrong(results), passed(results)) == (ALWAYS_UNKNOWN_HERE, True), (mode, more)
    assert not state.exists(), "a ledger that is not there yet is not made"
    made = ready.calls[before:]
    assert {call["operation"] for call in made} >= {"GetCallerIdentity", "DescribeAutoScalingGroups"}
    assert [call["operation"] for call in made if call["mutating"]] == []


def test_with_discovery_the_fleets_that_tags_describe_are_looked_at(ready: World) -> None:
    (one,) = [one for one in look(ready, Mode.ACT, DISCOVERY__ENABLED="true") if one.subject == "discovery"]
    assert (one.state, "fleet web with 3 groups" in one.detail) == (State.OK, True)


def test_missing_queues_are_reported_by_name(ready: World) -> None:
    jobs = ready.sqs.create_queue(QueueName="jobs")["QueueUrl"]
    found = {one.subject: one for one in look(ready, Mode.ACT, FLEETS__web__QUEUE_URL=jobs)}
    assert (found["collector queue:web"].state, "2 samples" in found["collector queue:web"].detail) == (State.OK, True)
    gone = {"FLEETS__web__QUEUE_URL": f"{jobs}-gone", "INTERRUPTION_QUEUE_URL": f"{ready.notices}-gone"}
    results = look(ready, Mode.ACT, **gone)
    assert {one.subject for one in results if one.state is State.MISSING} == {
        "collector queue:web",
        "interruption queue",
    }


def test_a_ledger_that_cannot_be_made_is_missing_and_without_an_identity_nothing_else_is_requested(
    ready: World, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert wrong(look(ready, Mode.ACT, LEDGER__URL=f"sqlite:///{file}/ledger.db"))[0] == ("ledger", State.MISSING)
    ready.fault("access_denied", services=["sts"])
    before = len(ready.calls)
    assert wrong(look(ready, Mode.ACT))[0] == ("credentials", State.MISSING)
    assert {call["operation"] for call in ready.calls[before:]} == {"GetCallerIdentity"}


def test_a_learned_policy_that_no_model_fits_is_missing_and_one_that_is_fitted_is_named(ready: World) -> None:
    network = next(model.path for model in shipped_models() if model.name == "ppo-lstm-published")
    small = {f"{SMALL}MAX": "7", "LEARNED__MODEL_FILE": str(network)}
    unfit = look(ready, Mode.ACT, FLEETS__web__POLICY="learned", **small)
    (result,) = [one for one in unfit if one.subject == "model of web, policy"]
    assert (result.state, passed(unfit)) == (State.MISSING, False)
    assert "7 of 2 cores" in result.detail
    tens = {f"FLEETS__web__GROUPS__{group.key}__MAX": "10" for group in ready.fleet.groups}
    (fits,) = [one for one in look(ready, Mode.ACT, FLEETS__web__SHADOW="learned", **tens) if "shadow" in one.subject]
    assert (fits.subject, fits.state) == ("model of web, shadow", State.OK)
    assert fits.detail.startswith("learned:")
