"""The interruption queue: no notice lost, none deleted before it is recorded, nothing touched in observe mode."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.interruptions import Interruption, InterruptionKind, InterruptionQueue, parse_event
from domain.errors import BadInput
from tests.actuators.shift import Shift, running_shift


@pytest.fixture
def shift() -> Iterator[Shift]:
    with running_shift() as made:
        yield made


@pytest.fixture
def url(shift: Shift) -> str:
    return str(shift.world.client("sqs").create_queue(QueueName="notices")["QueueUrl"])


def waiting(shift: Shift, url: str) -> tuple[int, int]:
    """Messages visible and hidden."""
    attributes = shift.world.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(attributes["ApproximateNumberOfMessages"]), int(attributes["ApproximateNumberOfMessagesNotVisible"])


def event(**about: object) -> str:
    return json.dumps(
        {
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "time": "2026-11-20T12:00:00Z",
            "detail": {"instance-id": "i-0123456789abcdef0", "instance-action": "terminate"},
            **about,
        }
    )


def test_a_storm_with_duplicates_and_disorder_is_read_whole_and_nothing_is_lost(shift: Shift, url: str) -> None:
    noticed = shift.control.spot_notice(queue=url, count=4, duplicates=10, shuffled=True)
    queue = InterruptionQueue(shift.session, url, shift.clock)
    notices = queue.receive(shift.now)
    assert len(notices) == noticed["messages"] == 44
    assert {notice.vm for notice in notices} == set(noticed["instance_ids"])
    assert {(notice.kind, notice.at) for notice in notices} == {(InterruptionKind.SPOT, shift.now)}
    assert waiting(shift, url) == (0, 44)
    queue.acknowledge(notices)
    assert waiting(shift, url) == (0, 0)
    assert queue.counts["interruptions"] == 44


def test_a_notice_that_was_not_recorded_comes_again(shift: Shift, url: str) -> None:
    shift.control.spot_notice(queue=url, count=1)
    queue = InterruptionQueue(shift.session, url, shift.clock, visibility_s=60)
    (first,) = queue.receive(shift.now)
    assert queue.receive(shift.now) == ()
    shift.control.advance(61.0)
    (again,) = queue.receive(shift.now)
    assert (again.vm, again.message_id) == (first.vm, first.message_id)


def test_nonsense_is_counted_and_removed_and_does_not_hide_what_follows(shift: Shift, url: str) -> None:
    sqs = shift.world.client("sqs")
    for body in ("{", "[]", event(detail={}), event(time="yesterday"), event(detail=[1])):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    sqs.send_message(QueueUrl=url, MessageBody=event(**{"detail-type": "EC2 Fleet Something"}))
    shift.control.spot_notice(queue=url, count=1)
    queue = InterruptionQueue(shift.session, url, shift.clock)
    assert len(queue.receive(shift.now)) == 1
    assert (queue.counts["malformed"], queue.counts["ignored"], queue.counts["interruptions"]) == (5, 1, 1)
    assert "send the event unchanged" in queue.last_problem
    assert waiting(shift, url) == (0, 1)


def test_a_notice_of_a_leap_second_is_taken() -> None:
    at = {text: parse_event(event(time=text), "m", "r") for text in ("2026-12-31T23:59:60Z", "2027-01-01T00:00:00Z")}
    assert len({notice.at for notice in at.values() if notice is not None}) == 1
    assert None not in at.values()


def test_in_observe_mode_the_queue_is_not_touched(shift: Shift, url: str) -> None:
    shift.control.spot_notice(queue=url, count=1)
    shift.start_agent(read_only=True)
    queue = InterruptionQueue(shift.session, url, shift.clock)
    before = shift.control.calls()[-1]["seq"]
    assert queue.receive(shift.now) == ()
    queue.acknowledge([Interruption("i-0123456789abcdef0", InterruptionKind.SPOT, 0.0, "m", "r")])
    assert shift.control.calls(before, service="sqs") == []
    assert waiting(shift, url) == (1, 0)


@pytest.mark.parametrize("fault", ["throttle", "timeout_before", "timeout_after", "access_denied", "internal_error"])
def test_a_call_that_fails_loses_no_notice(shift: Shift, url: str, fault: str) -> None:
    shift.control.spot_notice(queue=url, count=1)
    queue = InterruptionQueue(shift.session, url, shift.clock, visibility_s=30)
    shift.control.add_fault(fault, services=["sqs"], operations=["ReceiveMessage"], count=1)
    assert queue.receive(shift.now) == ()
    assert queue.counts["failed_calls"] == 1
    shift.control.advance(60.0)
    notices = queue.receive(shift.now)
    assert len(notices) == 1
    shift.control.add_fault(fault, services=["sqs"], operations=["DeleteMessageBatch"], count=1)
    queue.acknowledge(notices)
    assert queue.counts["undeleted"] == 1


def test_reading_stops_at_the_most_messages_a_tick(shift: Shift, url: str) -> None:
    shift.control.spot_notice(queue=url, count=4, duplicates=9)
    queue = InterruptionQueue(shift.session, url, shift.clock, most_messages=20)
    assert len(queue.receive(shift.now)) == 20
    assert len(queue.receive(shift.now)) == 20


@pytest.mark.parametrize(
    ("about", "kind"),
    [
        ({}, InterruptionKind.SPOT),
        ({"detail-type": "EC2 Instance Rebalance Recommendation"}, InterruptionKind.REBALANCE),
        (
            {
                "detail-type": "EC2 Instance State-change Notification",
                "detail": {"instance-id": "i-0123456789abcdef0", "state": "shutting-down"},
            },
            InterruptionKind.STATE_CHANGE,
        ),
    ],
)
def test_each_kind_of_notice_is_read(about: dict[str, object], kind: InterruptionKind) -> None:
    assert parse_event(event(**about), "m", "r") == Interruption("i-0123456789abcdef0", kind, 1_795_176_000.0, "m", "r")


def test_a_vm_that_starts_is_no_notice() -> None:
    starting = {"instance-id": "i-0123456789abcdef0", "state": "running"}
    about = {"detail-type": "EC2 Instance State-change Notification", "detail": starting}
    assert parse_event(event(**about), "m", "r") is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.text(max_size=200)
    | st.fixed_dictionaries(
        {},
        optional={
            "detail-type": st.sampled_from(["EC2 Spot Instance Interruption Warning", "Other"]) | values,
            "time": st.sampled_from(["2026-11-20T12:00:00Z", "2026-11-20", "9999-99-99"]) | values,
            "detail": st.fixed_dictionaries({"instance-id": st.just("i-0123456789abcdef0") | values}) | values,
        },
    ).map(json.dumps)
)
def test_any_body_is_a_notice_ignored_or_refused_by_name(body: str) -> None:
    notice, refusal = None, None
    try:
        notice = parse_event(body, "m", "r")
    except BadInput as problem:
        refusal = problem
    assert notice is None or notice.vm == "i-0123456789abcdef0"
    assert refusal is None or (refusal.field.startswith("interruption queue: ") and len(str(refusal)) < 400)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        parse_event("[" * 200_000, "m", "r")
    assert caught.value.field.startswith("interruption queue: ")
