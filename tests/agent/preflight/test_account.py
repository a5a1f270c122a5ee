"""Preflight checks a real endpoint, reports what is missing with a remedy, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.decisions.checks import CheckResult, State, passed
from agent.models.shipped import shipped_models
from domain.decisions import Mode
from tests.agent.preflight.looking import look, tag, wrong
from tests.faults.world import World

ALWAYS_UNKNOWN_HERE = [
    ("permission to act", State.UNKNOWN),
    ("measurements", State.UNKNOWN),
]
"""The look-alike's caller is no role, and nothing was listened for."""


@pytest.fixture
def ready(world: World) -> World:
    """A world in which everything is as it should be."""
    tag(world)
    return world


def about(results: list[CheckResult], subject: str, state: State) -> list[tuple[str, str]]:
    return [(one.detail, one.remedy) for one in results if one.subject == subject and one.state is state]


def test_an_account_that_is_ready_passes(ready: World) -> None:
    results = look(ready, Mode.ACT)
    assert wrong(results) == ALWAYS_UNKNOWN_HERE
    assert passed(results)


@pytest.mark.parametrize("mode", list(Mode))
def test_not_one_call_changes_anything(ready: World, mode: Mode) -> None:
    before = len(ready.calls)
    look(ready, mode)
    made = ready.calls[before:]
    assert {call["operation"] for call in made} >= {"GetCallerIdentity", "DescribeAutoScalingGroups"}
    assert [call["operation"] for call in made if call["mutating"]] == []


def test_a_group_that_is_not_there_is_missing_and_the_others_are_looked_at(ready: World) -> None:
    results = look(ready, Mode.ACT, FLEETS__web__GROUPS__small__NAME="worker-s")
    assert about(results, "group web.small", State.MISSING) == [
        (
            "no Auto Scaling group is named worker-s in us-east-1",
            "create it, or correct TRIMTAB_FLEETS__web__GROUPS__small__NAME or TRIMTAB_AWS__REGION",
        )
    ]
    assert about(results, "group web.medium", State.MISSING) == []
    assert not passed(results)


@pytest.mark.parametrize(("mode", "state"), [(Mode.ACT, State.MISSING), (Mode.OBSERVE, State.ADVICE)])
def test_the_tag_is_needed_to_act_and_advised_to_observe(world: World, mode: Mode, state: State) -> None:
    tag(world, "shop")
    assert about(look(world, mode), "group web.small", state) == [
        (
            "its tag trimtab:fleet is shop",
            "tag the group trimtab:fleet=web; deploy/iam/act.json lets the agent change tagged groups only",
        )
    ]


def test_bounds_that_no_size_fits_are_missing(ready: World) -> None:
    results = look(ready, Mode.ACT, FLEETS__web__GROUPS__small__MIN="12", FLEETS__web__GROUPS__small__MAX="20")
    assert [detail for detail, _ in about(results, "group web.small", State.MISSING)] == [
        "no size fits both bounds: the settings have 12..20, the group 1..10"
    ]


def test_bounds_that_differ_are_reported_with_those_in_force(ready: World) -> None:
    results = look(ready, Mode.ACT, FLEETS__web__GROUPS__small__MAX="20")
    assert [detail for detail, _ in about(results, "group web.small", State.ADVICE)] == [
        "the settings have 1..20, the group 1..10: the narrower hold, 1..10"
    ]
    assert passed(results)


def test_a_suspended_process_is_named_with_the_command_that_resumes_it(ready: World) -> None:
    ready.owner.suspend_processes(AutoScalingGroupName="workers-s", ScalingProcesses=["Terminate"])
    assert about(look(ready, Mode.ACT), "group web.small", State.MISSING) == [
        (
            "its process Terminate is suspended",
            "resume it: aws autoscaling resume-processes --scaling-processes Terminate ...",
        )
    ]


def test_a_group_without_a_drain_hook_is_advised_to_have_one(make_world: Callable[..., World]) -> None:
    world = make_world(hook=False)
    tag(world)
    results = look(world, Mode.ACT)
    assert [detail for detail, _ in about(results, "group web.large", State.ADVICE)] == [
        "it has no terminating lifecycle hook: VMs are removed without finishing their jobs"
    ]
    assert passed(results)


def test_a_heartbeat_too_short_for_the_loop_is_missing(ready: World) -> None:
    results = look(ready, Mode.ACT, TICK_INTERVAL_S="100")
    assert about(results, "group web.small", State.MISSING) == [
        (
            "hook drain drains, heartbeat timeout 180 s",
            "raise it to at least 200 s, two turns of the loop, else jobs are cut off",
        )
    ]


def test_cores_and_memory_that_the_type_does_not_have_are_missing(ready: World) -> None:
    changed = {"FLEETS__web__GROUPS__small__CORES": "4", "FLEETS__web__GROUPS__small__MEMORY_GB": "9"}
    assert about(look(ready, Mode.ACT, **changed), "type web.small", State.MISSING) == [
        (
            "m5a.large has 2 vCPUs and 8 GB, not the values of the settings",
            "set TRIMTAB_FLEETS__web__GROUPS__small__CORES=2 and TRIMTAB_FLEETS__web__GROUPS__small__MEMORY_GB=8",
        )
    ]


def test_a_type_that_does_not_exist_is_missing_and_the_vms_show_it_too(ready: World) -> None:
    results = look(ready, Mode.ACT, FLEETS__web__GROUPS__small__VM_TYPE="m9z.large")
    assert about(results, "type web.small", State.MISSING) == [
        ("us-east-1 has no m9z.large", "correct TRIMTAB_FLEETS__web__GROUPS__small__VM_TYPE")
    ]
    assert [detail for detail, _ in about(results, "group web.small", State.MISSING)] == [
        "its VMs are m5a.large, the settings have m9z.large",
        "it may launch m5a.large, the settings have m9z.large",
    ]


def mix(world: World, group: str, *overrides: dict[str, Any]) -> None:
    template = {"LaunchTemplateSpecification": {"LaunchTemplateName": group}, "Overrides": list(overrides)}
    world.owner.update_auto_scaling_group(AutoScalingGroupName=group, MixedInstancesPolicy={"LaunchTemplate": template})


def test_a_group_with_several_weights_is_missing(ready: World) -> None:
    overrides = [
        {"InstanceType": f"m5a.{size}", "WeightedCapacity": w} for size, w in (("large", "1"), ("xlarge", "2"))
    ]
    mix(ready, "workers-s", *overrides)
    results = look(ready, Mode.OBSERVE)
    detail, _ = [detail for detail, _ in about(results, "group web.small", State.MISSING)]
    assert detail.startswith("it cannot be managed: the overrides of workers-s have several weights (one m5a.large ")
    assert not passed(results)


def test_a_group_that_weighs_its_vms_passes_with_its_bounds_in_vms_and_its_weight(ready: World) -> None:
    mix(ready, "workers-s", {"InstanceType": "m5a.large", "WeightedCapacity": "2"})
    bounds = {"MinSize": 1, "MaxSize": 9, "DesiredCapacity": 3}
    ready.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", **bounds)
    results = look(ready, Mode.ACT)
    assert passed(results)
    details = [result.detail for result in results if result.subject == "group web.small"]
    assert "workers-s exists, 2 VMs, 2 VMs = 3 units desired" in details
    assert "AWS counts a VM that it launches as 2 units; everything here counts VMs" in details
    (detail, _) = next(a for a in about(results, "group web.small", State.ADVICE) if "narrower" in a[0])
    assert detail == "the settings have 1..10, the group 1..4 VMs = 1..9 units: the narrower hold, 1..4"


def test_vms_that_weigh_something_else_than_new_ones_are_named(ready: World) -> None:
    mix(ready, "workers-s", {"InstanceType": "m5a.large", "WeightedCapacity": "2"})
    template = {"LaunchTemplateName": "workers-s", "Version": "$Latest"}
    ready.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", LaunchTemplate=template)
    results = look(ready, Mode.ACT)
    assert passed(results)
    (vm,) = ready.in_service("small")
    details = [detail for detail, _ in about(results, "group web.small", State.ADVICE)]
    assert f"a new VM counts as 1, and these do not: {vm}" in details


def test_a_group_that_weighs_every_vm_as_one_passes(ready: World) -> None:
    mix(ready, "workers-s", {"InstanceType": "m5a.large", "WeightedCapacity": "1"})
    assert wrong(look(ready, Mode.ACT)) == ALWAYS_UNKNOWN_HERE


def test_a_group_that_may_launch_another_type_than_runs_is_missing(ready: World) -> None:
    mix(ready, "workers-s", {"InstanceType": "m5a.large"}, {"InstanceType": "m5a.2xlarge"})
    assert about(look(ready, Mode.ACT), "group web.small", State.MISSING) == [
        (
            "it may launch m5a.2xlarge, m5a.large, the settings have m5a.large",
            "one type to a group: correct TRIMTAB_FLEETS__web__GROUPS__small__VM_TYPE, or the group's overrides and "
            "launch template",
        )
    ]


@pytest.mark.exhaustive
def test_a_group_without_vms_is_judged_by_what_it_would_launch(ready: World) -> None:
    results = look(ready, Mode.ACT, FLEETS__web__GROUPS__large__VM_TYPE="m5a.large")
    assert "it may launch m5a.2xlarge, the settings have m5a.large" in [
        detail for detail, _ in about(results, "group web.large", State.MISSING)
    ]


@pytest.mark.parametrize(("mode", "state"), [(Mode.ACT, State.MISSING), (Mode.OBSERVE, State.ADVICE)])
def test_a_scaling_policy_or_scheduled_action_of_the_group_s_own_is_named(
    ready: World, mode: Mode, state: State
) -> None:
    ready.owner.put_scaling_policy(
        AutoScalingGroupName="workers-s",
        PolicyName="keep-cpu",
        PolicyType="TargetTrackingScaling",
        TargetTrackingConfiguration={
            "PredefinedMetricSpecification": {"PredefinedMetricType": "ASGAverageCPUUtilization"},
            "TargetValue": 50.0,
        },
    )
    ready.owner.put_scheduled_update_group_action(
        AutoScalingGroupName="workers-m", ScheduledActionName="nightly", Recurrence="0 2 * * *", DesiredCapacity=1
    )
    results = look(ready, mode)
    assert about(results, "group web.small", state) == [
        (
            "the scaling policy keep-cpu (TargetTrackingScaling) sizes it too: the two undo each other's changes",
            "delete it, or suspend the group's process AlarmNotification",
        )
    ]
    assert about(results, "group web.medium", state) == [
        (
            "the scheduled action nightly sizes it too: the two undo each other's changes",
            "delete it, or suspend the group's process ScheduledActions",
        )
    ]
    ready.owner.suspend_processes(AutoScalingGroupName="workers-s", ScalingProcesses=["AlarmNotification"])
    ready.owner.suspend_processes(AutoScalingGroupName="workers-m", ScalingProcesses=["ScheduledActions"])
    assert wrong(look(ready, mode)) == ALWAYS_UNKNOWN_HERE


def test_a_price_of_nothing_is_reported(ready: World) -> None:
    results = look(ready, Mode.ACT, FLEETS__web__GROUPS__small__PRICE_PER_HOUR="0")
    assert [detail for detail, _ in about(results, "type web.small", State.ADVICE)] == [
        "its price is 0: costs count as nothing and no budget holds"
    ]


def test_missing_queues_are_reported_by_name(ready: World) -> None:
    jobs = ready.sqs.create_queue(QueueName="jobs")["QueueUrl"]
    assert about(look(ready, Mode.ACT, FLEETS__web__QUEUE_URL=jobs), "collector queue:web", State.OK) == [
        ("collected 2 samples", "")
    ]
    gone = {"FLEETS__web__QUEUE_URL": f"{jobs}-gone", "INTERRUPTION_QUEUE_URL": f"{ready.notices}-gone"}
    results = look(ready, Mode.ACT, **gone)
    assert {one.subject for one in results if one.state is State.MISSING} == {
        "collector queue:web",
        "interruption queue",
    }


def test_a_refused_read_is_named_with_the_permission_it_takes(ready: World) -> None:
    ready.fault("access_denied", operations=["DescribeScalingActivities"])
    results = look(ready, Mode.OBSERVE)
    assert {remedy for _, remedy in about(results, "group web.small", State.MISSING)} == {
        "allow autoscaling:DescribeScalingActivities (deploy/iam/observe.json)"
    }


def test_without_an_identity_nothing_else_is_requested(ready: World) -> None:
    ready.fault("access_denied", services=["sts"])
    before = len(ready.calls)
    results = look(ready, Mode.ACT)
    assert wrong(results)[0] == ("credentials", State.MISSING)
    assert {call["operation"] for call in ready.calls[before:]} == {"GetCallerIdentity"}


def test_a_ledger_that_cannot_be_made_is_missing(ready: World, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    results = look(ready, Mode.ACT, LEDGER__URL=f"sqlite:///{file}/ledger.db")
    assert wrong(results)[0] == ("ledger", State.MISSING)


def test_a_ledger_that_is_not_there_yet_is_not_made(ready: World, tmp_path: Path) -> None:
    place = tmp_path / "state"
    results = look(ready, Mode.ACT, STATE_DIRECTORY=str(place))
    assert [one.state for one in results if one.subject == "ledger"] == [State.OK]
    assert not place.exists()


def test_without_fleets_in_the_settings_those_that_tags_describe_are_looked_at(ready: World) -> None:
    results = look(ready, Mode.ACT, DISCOVERY__ENABLED="true")
    assert about(results, "discovery", State.OK) == [("tags describe the fleet web with 3 groups", "")]
    assert [subject for subject, _ in wrong(results)] == [
        "permission to act",
        "measurements",
    ]


def test_groups_whose_tags_describe_no_fleet_are_missing_with_the_reason(world: World) -> None:
    tag(world, "Web Shop")
    results = look(world, Mode.ACT, DISCOVERY__ENABLED="true")
    (texts,) = [one.detail for one in results if (one.subject, one.state) == ("discovery", State.MISSING)]
    assert "tag trimtab:fleet of workers-l, workers-m, workers-s" in texts
    assert not passed(results)


def test_a_learned_policy_that_no_model_fits_is_missing_and_one_that_is_fitted_is_named(ready: World) -> None:
    network = next(model.path for model in shipped_models() if model.name == "lstm-release")
    small = {"FLEETS__web__GROUPS__small__MAX": "7", "LEARNED__MODEL_FILE": str(network)}
    unfit = look(ready, Mode.ACT, FLEETS__web__POLICY="learned", **small)
    ((detail, remedy),) = about(unfit, "model of web, policy", State.MISSING)
    assert "the fleet web has 7 of 2 cores" in detail
    assert remedy == "promote a model that was trained for it, or choose another policy"
    assert not passed(unfit)
    tens = {f"FLEETS__web__GROUPS__{group.key}__MAX": "10" for group in ready.fleet.groups}
    fits = look(ready, Mode.ACT, FLEETS__web__SHADOW="learned", **tens)
    ((detail, _),) = about(fits, "model of web, shadow", State.OK)
    assert detail.startswith("learned:")
