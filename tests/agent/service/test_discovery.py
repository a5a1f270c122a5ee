"""Fleets found by the tags of their groups: read from the simulated cloud, described as settings describe them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.autoscaling.fleet_finder import FleetFinder
from agent.autoscaling.inputs import series_of
from agent.settings import Settings
from agent.settings.discovery import Discovery, described, discover, price_per_hour
from agent.settings.fleet import PolicyName
from agent.view.board import ServiceBoard
from collectors.aws import AwsOptions, AwsSession
from collectors.tagged_groups import TaggedGroup, TaggedGroups, VmSize
from domain.clock import VirtualClock
from domain.errors import RejectReason
from domain.fleet import Fleet, Group, VmType
from tests.golden import check_wording
from tests.simulator.aws.world import START, World

SIZES = {"m5a.large": VmSize(2, 8.0), "x9.mega": VmSize(4, 16.0)}
SETTINGS = Settings(discovery={"enabled": True})


def session(cloud: World, key: str = "agent", attempts: int = 1) -> AwsSession:
    options = AwsOptions("us-east-1", cloud.running.endpoint, 1.0, 2.0, attempts, 10_000, key, "simulated")
    return AwsSession(options, VirtualClock(START), read_only=True)


def tags(**values: str) -> list[dict[str, object]]:
    named = {f"trimtab:{name.replace('_', '-')}": value for name, value in values.items()}
    return [{"Key": name, "Value": value, "PropagateAtLaunch": False} for name, value in named.items()]


def find(cloud: World) -> Discovery:
    return discover(TaggedGroups(session(cloud)), SETTINGS, "us-east-1")


def describe(*groups: TaggedGroup, region: str = "us-east-1") -> Discovery:
    return described(groups, SIZES, SETTINGS, region)


def group(name: str = "workers", vm_types: tuple[str, ...] = ("m5a.large",), **values: str) -> TaggedGroup:
    named = {str(tag["Key"]): str(tag["Value"]) for tag in tags(**{"fleet": "web", **values})}
    return TaggedGroup(name, named, 1, 5, vm_types)


def test_a_fleet_is_described_by_its_groups_tags_types_bounds_and_the_price_table(cloud: World) -> None:
    cloud.template("small", "m5a.large")
    cloud.template("large", "m5a.2xlarge")
    queue = "https://sqs.us-east-1.amazonaws.com/123456789012/jobs"
    for name, size in (("large", (0, 0, 3)), ("small", (1, 1, 10))):
        about = {"LaunchTemplate": {"LaunchTemplateName": name, "Version": "$Latest"}}
        cloud.group(f"Web {name}", size=size, Tags=tags(fleet="web", queue_url=queue), **about)
    others = [{"Key": "team", "Value": "web", "PropagateAtLaunch": False}]
    cloud.group("another-owner", size=(0, 0, 1), Tags=others, **about)
    found = find(cloud)
    assert found.refused == {}
    assert found.settings.fleet("web") == Fleet(
        "web",
        (
            Group("web-small", "Web small", VmType("m5a.large", 2, 8.0, 0.086), 1, 10),
            Group("web-large", "Web large", VmType("m5a.2xlarge", 8, 32.0, 0.344), 0, 3),
        ),
        queue,
    )
    assert found.settings.fleets["web"].policy is PolicyName.QUEUE_RULE


def test_busy_cores_of_a_discovered_fleet_are_limited_by_those_that_aws_describes(cloud: World) -> None:
    cloud.template("large", "m5a.2xlarge")
    cloud.group("large", size=(0, 0, 3), LaunchTemplate={"LaunchTemplateName": "large"}, Tags=tags(fleet="web"))
    settings = find(cloud).settings
    store = series_of(settings, [settings.fleet("web")])
    path = b"trimtab.web.large.i-1.busy_cores"
    found = [store.append([path], [cores], [START], START) for cores in (8.0, 8.5)]
    assert [[refusal.reason for refusal in refused] for refused in found] == [[], [RejectReason.IMPLAUSIBLE]]
    assert store.too_high_at("web", "large", "i-1") == START


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            [
                {"InstanceType": "m5a.large", "WeightedCapacity": "2"},
                {"InstanceType": "m5a.xlarge", "WeightedCapacity": "4"},
            ],
            "several weights",
        ),
        ([{"InstanceRequirements": {"VCpuCount": {"Min": 2}, "MemoryMiB": {"Min": 1}}}], "launch one type"),
    ],
)
def test_a_fleet_with_a_group_that_cannot_be_counted_in_vms_of_one_type_is_refused(
    cloud: World, overrides: list[dict[str, object]], why: str
) -> None:
    cloud.template()
    template = {"LaunchTemplateSpecification": {"LaunchTemplateName": "workers"}, "Overrides": overrides}
    mixed = {"LaunchTemplate": template}
    cloud.group("workers", size=(0, 0, 5), MixedInstancesPolicy=mixed, Tags=tags(fleet="web"))
    found = find(cloud)
    assert found.settings.fleets == {}
    assert why in found.refused["web"]


def test_bounds_of_a_weighted_group_become_vms(cloud: World) -> None:
    cloud.template()
    overrides = [{"InstanceType": "m5a.large", "WeightedCapacity": "3"}]
    template = {"LaunchTemplateSpecification": {"LaunchTemplateName": "workers"}, "Overrides": overrides}
    mixed = {"LaunchTemplate": template}
    cloud.group("workers", size=(4, 6, 20), MixedInstancesPolicy=mixed, Tags=tags(fleet="web"))
    (group,) = find(cloud).settings.fleet("web").groups
    assert (group.minimum, group.maximum) == (2, 6)


@pytest.mark.exhaustive
def test_more_groups_than_a_page_holds_are_all_found(cloud: World) -> None:
    for number in range(103):
        cloud.group(f"g{number:03}", size=(0, 0, 1), Tags=tags(fleet=f"fleet-{number % 3}"))
    found = find(cloud)
    assert {name: len(fleet.groups) for name, fleet in found.settings.fleets.items()} == {
        "fleet-0": 35,
        "fleet-1": 34,
        "fleet-2": 34,
    }
    describes = [call for call in cloud.control.calls(access_key="agent") if "AutoScalingGroups" in call["operation"]]
    assert len(describes) == 2


def test_looking_changes_nothing(cloud: World) -> None:
    cloud.group(Tags=tags(fleet="web"))
    find(cloud)
    assert cloud.control.mutations(access_key="agent") == []


def test_tags_choose_key_policy_and_price() -> None:
    found = describe(group("Old_Name", ("x9.mega",), group="workers_m", policy="hold", price_per_hour="1.5"))
    (key,) = found.settings.fleets["web"].groups
    assert (key, found.settings.fleets["web"].policy) == ("workers_m", PolicyName.HOLD)
    assert found.settings.fleet("web").prices_per_hour == (1.5,)


@pytest.mark.parametrize(
    ("name", "key"),
    [("workers-s", "workers-s"), ("Web Workers (EU)", "web-workers-eu"), ("7th", "g-7th"), ("x" * 90, "x" * 63)],
)
def test_a_group_s_name_becomes_a_key_for_metric_paths(name: str, key: str) -> None:
    assert list(describe(group(name)).settings.fleets["web"].groups) == [key]


TAGGED_WRONGLY = {
    "a type without a price": [group(vm_types=("x9.mega",))],
    "several types": [group(vm_types=("m5a.large", "m5.large"))],
    "no type": [group(vm_types=())],
    "a type that AWS does not know": [group(vm_types=("m1.tiny",))],
    "a price that is no number": [group(price_per_hour="cheap")],
    "a key that no metric path holds": [group(group="Big One")],
    "two groups of one key": [group("workers"), group("Workers")],
    "two queues": [group("a", queue_url="https://sqs/1"), group("b", queue_url="https://sqs/2")],
    "a policy that does not exist": [group(policy="best")],
    "a group called queue": [group(group="queue")],
}


def test_a_fleet_tagged_wrongly_is_refused_with_what_to_do_and_the_others_are_found() -> None:
    texts = {}
    for name, groups in TAGGED_WRONGLY.items():
        found = describe(*groups, group("other", fleet="api"))
        assert (list(found.refused), list(found.settings.fleets)) == (["web"], ["api"]), name
        texts[name] = found.refused["web"]
    refused = describe(group(fleet="Web Shop")).refused
    assert list(refused) == ["Web Shop"]
    check_wording("discovery", texts | {"a fleet's name that no metric path holds": refused["Web Shop"]})


def test_the_price_table_is_the_simulated_cloud_s() -> None:
    ours, theirs = (
        json.loads((Path(__file__).parents[3] / where / "prices.json").read_text("utf-8"))
        for where in ("agent/settings", "simulator/aws")
    )
    regions = [key for key, prices in ours.items() if isinstance(prices, dict)]
    assert [{**theirs[region], **ours[region]} for region in regions] == [theirs[region] for region in regions]
    assert price_per_hour("m5a.large", "eu-west-1") == 0.096
    assert price_per_hour("m5a.large", "mars-1") is None


@pytest.fixture
def make_finder(cloud: World) -> Callable[..., tuple[FleetFinder, ServiceBoard, VirtualClock]]:
    def make(**discovery: float) -> tuple[FleetFinder, ServiceBoard, VirtualClock]:
        clock, board = VirtualClock(START), ServiceBoard(START)
        settings = Settings(discovery={"enabled": True, **discovery})
        return FleetFinder(settings, session(cloud), board.problem, clock.monotonic), board, clock

    return make


def names(finder: FleetFinder) -> list[str] | None:
    changed = finder.changed
    if changed is None:
        return None
    finder.taken(changed)
    return list(changed.fleets)


def test_the_loop_gets_a_new_set_only_when_it_changes(
    cloud: World, make_finder: Callable[..., tuple[FleetFinder, ServiceBoard, VirtualClock]]
) -> None:
    finder, _, clock = make_finder(interval_s=60.0)
    cloud.group("a", Tags=tags(fleet="web"))
    finder.look()
    assert names(finder) == ["web"]
    cloud.group("b", Tags=tags(fleet="api"))
    finder.look()
    assert names(finder) is None
    clock.advance(60.0)
    finder.look()
    assert names(finder) == ["api", "web"]
    clock.advance(60.0)
    finder.look()
    assert names(finder) is None


def test_a_fleet_is_given_up_when_it_is_missing_for_the_second_time(
    cloud: World, make_finder: Callable[..., tuple[FleetFinder, ServiceBoard, VirtualClock]]
) -> None:
    finder, _, clock = make_finder(interval_s=60.0)
    cloud.group("a", Tags=tags(fleet="web"))
    finder.look()
    assert names(finder) == ["web"]
    about = {"ResourceId": "a", "ResourceType": "auto-scaling-group", "Key": "trimtab:fleet"}
    cloud.groups.delete_tags(Tags=[about])
    clock.advance(60.0)
    finder.look()
    assert names(finder) is None
    clock.advance(60.0)
    finder.look()
    assert names(finder) == []


def test_a_fleet_whose_group_gets_several_weights_stays_known_so_that_the_loop_holds_it(
    cloud: World, make_finder: Callable[..., tuple[FleetFinder, ServiceBoard, VirtualClock]]
) -> None:
    finder, board, clock = make_finder(interval_s=60.0)
    cloud.group("a", Tags=tags(fleet="web"))
    finder.look()
    assert names(finder) == ["web"]
    template = {"LaunchTemplateSpecification": {"LaunchTemplateName": "workers"}}
    overrides = [
        {"InstanceType": "m5a.large", "WeightedCapacity": "1"},
        {"InstanceType": "m5a.xlarge", "WeightedCapacity": "2"},
    ]
    mixed = {"LaunchTemplate": {**template, "Overrides": overrides}}
    cloud.groups.update_auto_scaling_group(AutoScalingGroupName="a", MixedInstancesPolicy=mixed)
    for _ in range(3):
        clock.advance(60.0)
        finder.look()
        assert names(finder) is None
    assert "several weights" in board.read().problems["discovery"]
    assert "several weights" in finder.refused["web"]


def test_a_look_that_fails_changes_nothing_is_a_problem_and_is_repeated_soon(
    cloud: World, make_finder: Callable[..., tuple[FleetFinder, ServiceBoard, VirtualClock]]
) -> None:
    finder, board, _ = make_finder()
    cloud.group("a", Tags=tags(fleet="web"))
    cloud.control.add_fault("access_denied", operations=["DescribeAutoScalingGroups"], count=1)
    finder.look()
    assert (finder.known, finder.changed) == (False, None)
    assert "Groups: AccessDenied" in board.read().problems["discovery"]
    finder.look()
    assert names(finder) == ["web"]
    assert board.read().problems == {}


def test_a_fleet_that_is_refused_is_a_problem_with_its_remedy(
    cloud: World, make_finder: Callable[..., tuple[FleetFinder, ServiceBoard, VirtualClock]]
) -> None:
    finder, board, _ = make_finder()
    cloud.group("a", Tags=tags(fleet="web", price_per_hour="cheap"))
    finder.look()
    assert names(finder) == []
    assert "give dollars per hour" in board.read().problems["discovery"]
