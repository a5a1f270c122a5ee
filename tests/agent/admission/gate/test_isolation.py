"""One group's trouble is that group's: an answer without a field, or an error nobody foresaw, stops no other group."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import pytest

from tests.agent.admission.gate.yard import Yard

GROUPS: Final = "DescribeAutoScalingGroups"
NAME_OF: Final[Mapping[str, tuple[str, str, str]]] = {
    "AutoScalingGroups": ("autoscaling", GROUPS, "AutoScalingGroupName"),
    "LaunchTemplateVersions": ("ec2", "DescribeLaunchTemplateVersions", "LaunchTemplateName"),
}
"""By the list in an answer: its service and operation, and the field that names an item."""


@pytest.fixture
def broken(yard: Yard) -> dict[str, str]:
    """Fields that AWS's answers lack, by the name of the group, template or type that they lack it for."""
    lacking: dict[str, str] = {}
    for items, (service, operation, name) in NAME_OF.items():

        def strip(parsed: dict[str, Any], items: str = items, name: str = name, **_: Any) -> None:
            for one in parsed.get(items, ()):
                one.pop(lacking.get(one[name], ""), None)

        yard.session._boto.events.register(f"after-call.{service}.{operation}", strip)
    return lacking


def running(yard: Yard, name: str, vms: int, vm_type: str = "m5a.xlarge") -> None:
    """Let a group come in and run."""
    yard.ask(name, vms, vm_type=vm_type)
    yard.turn(3)
    assert yard.answer(name) == "admitted"


@pytest.mark.exhaustive
@pytest.mark.parametrize("field", ["DesiredCapacity", "Instances", "MinSize", "Tags"])
def test_a_group_described_without_a_field_keeps_its_cores_and_stops_nobody(
    yard: Yard, broken: dict[str, str], field: str
) -> None:
    running(yard, "batch-a", 4)
    broken["batch-a"] = field
    yard.ask("batch-b", 3)
    yard.ask("batch-c", 2)
    yard.turn(3)
    assert (yard.cores("batch-a"), yard.answer("batch-b"), yard.total) == (16, "admitted", 28)
    # 16 of 32 cores are still those of the group that cannot be read.
    assert yard.answer("batch-c") == "refused:rejected_feasibility"
    assert yard.reasons("batch-a").count("cloud_unreadable") == 1
    broken.clear()
    yard.world.desire(2, "batch-a")
    yard.turn(3)
    assert yard.cores("batch-a") == 8


def test_a_group_that_is_raised_while_it_cannot_be_read_waits_and_the_others_come_in(
    yard: Yard, broken: dict[str, str]
) -> None:
    yard.ask("batch-a", 2)
    yard.ask("batch-b", 2)
    yard.turn()
    broken["batch-a"] = "DesiredCapacity"
    yard.turn(2)
    assert (yard.answer("batch-a"), yard.answer("batch-b")) == ("pending", "admitted")
    assert yard.record("batch-a").open
    broken.clear()
    yard.turn(2)
    assert (yard.answer("batch-a"), yard.cores("batch-a")) == ("admitted", 8)


def test_a_group_whose_template_makes_no_sense_waits_and_the_others_come_in(yard: Yard, broken: dict[str, str]) -> None:
    broken["m5a.large"] = "LaunchTemplateData"
    yard.ask("batch-a", 2, vm_type="m5a.large")
    yard.ask("batch-b", 2)
    yard.turn(3)
    assert (yard.desired("batch-a"), yard.answer("batch-a"), yard.answer("batch-b")) == (0, "pending", "admitted")
    assert yard.reasons("batch-a") == ["internal_error"]


def test_a_vm_type_described_without_its_cores_touches_the_groups_of_that_type_only(yard: Yard) -> None:
    running(yard, "batch-a", 4, "m5a.large")
    yard.restart()

    def strip(parsed: dict[str, Any], **_: Any) -> None:
        for one in parsed["InstanceTypes"]:
            if one["InstanceType"] == "m5a.large":
                del one["VCpuInfo"]

    yard.session._boto.events.register("after-call.ec2.DescribeInstanceTypes", strip)
    yard.ask("batch-b", 2)
    yard.turn(3)
    assert (yard.cores("batch-a"), yard.answer("batch-b")) == (8, "admitted")
    assert "cloud_unreadable" in yard.reasons("batch-a")


def test_while_a_group_without_a_name_is_there_no_group_counts_as_gone(yard: Yard) -> None:
    running(yard, "batch-a", 4)

    def strip(parsed: dict[str, Any], **_: Any) -> None:
        for one in parsed["AutoScalingGroups"]:
            one.pop("AutoScalingGroupName")

    yard.restart()
    yard.session._boto.events.register(f"after-call.autoscaling.{GROUPS}", strip)
    yard.turn(2)
    assert (yard.cores("batch-a"), yard.kinds()[-1][1]) == (16, "started")


def test_a_damaged_record_leaves_its_group_as_it_is_and_stops_nobody(yard: Yard) -> None:
    running(yard, "batch-a", 4)
    with closing(sqlite3.connect(yard.directory / "ledger.db")) as database:
        database.execute("UPDATE state SET body = ? WHERE key = 'gate.group.batch-a'", (b'{"cluster": 7}',))
        database.commit()
    yard.ask("batch-b", 2)
    yard.world.desire(0, "batch-a")
    yard.turn(3)
    assert (yard.cores("batch-a"), yard.total, yard.answer("batch-b")) == (16, 24, "admitted")
    assert yard.reasons("batch-a").count("cloud_unreadable") == 1
    assert any("batch-a is left as it is: " in one.detail for one in yard.events)
