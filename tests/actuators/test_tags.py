"""Tags of groups: one call, fenced, stopped in observe mode, and nothing of what is there already."""

from __future__ import annotations

import pytest

from actuators.values import LONGEST_VALUE, GroupTags, missing, tag_value
from domain.errors import CloudError, FailureClass, Fenced
from tests.actuators.shift import Shift


def tags_of(shift: Shift, name: str = "web-s") -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in shift.world.show(name)["Tags"]}


def test_tags_are_written_in_one_call_and_stay_off_the_vms(shift: Shift) -> None:
    answer = {"trimtab:admission": "refused:rejected_rule", "trimtab:decision": "gpu-7"}
    GroupTags(shift.session).put("batch", "web-s", answer, shift.permit)
    assert tags_of(shift) == {"trimtab:admission": "refused:rejected_rule", "trimtab:decision": "gpu-7"}
    assert [operation for operation, _ in shift.mutations] == ["CreateOrUpdateTags"]
    assert [tag["PropagateAtLaunch"] for tag in shift.world.show("web-s")["Tags"]] == [False, False]


def test_observe_mode_writes_none(shift: Shift) -> None:
    shift.start_agent(read_only=True)
    with pytest.raises(CloudError) as refused:
        GroupTags(shift.session).put("batch", "web-s", {"trimtab:admission": "admitted"}, shift.permit)
    assert refused.value.failure is FailureClass.READ_ONLY
    assert (tags_of(shift), shift.mutations) == ({}, [])


def test_a_deposed_leader_writes_none(shift: Shift) -> None:
    def closed() -> None:
        raise Fenced("epoch 1 is over")

    shift.start_agent(fence=closed)
    with pytest.raises(Fenced):
        GroupTags(shift.session).put("batch", "web-s", {"trimtab:admission": "admitted"}, shift.permit)
    assert (tags_of(shift), shift.mutations) == ({}, [])


def test_a_lost_answer_is_an_unknown_outcome_and_the_call_is_not_repeated(shift: Shift) -> None:
    shift.start_agent(read_timeout_s=1.0)
    shift.control.add_fault("timeout_after", operations=["CreateOrUpdateTags"], count=1)
    with pytest.raises(CloudError) as lost:
        GroupTags(shift.session).put("batch", "web-s", {"trimtab:admission": "admitted"}, shift.permit)
    assert lost.value.failure is FailureClass.UNKNOWN_OUTCOME
    assert missing({"trimtab:admission": "admitted"}, tags_of(shift)) == {}
    assert len(shift.mutations_soon(1)) == 1


def test_what_is_missing_is_what_differs() -> None:
    wanted = {"a": "1", "b": "2", "c": "3"}
    assert missing(wanted, {"a": "1", "b": "0", "z": "9"}) == {"b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("refused:rejected_rule", "refused:rejected_rule"),
        ("a|b;c\n", "a_b_c_"),
        ("x" * 300, "x" * LONGEST_VALUE),
    ],
)
def test_a_value_holds_only_what_aws_takes(text: str, value: str) -> None:
    assert tag_value(text) == value
