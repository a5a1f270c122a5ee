"""A policy's name says what it is: read, built, and spelled again without loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.policies.rules import (
    ConstantPolicy,
    HoldPolicy,
    QueueRulePolicy,
    SignalTrackingPolicy,
    TargetTrackingPolicy,
    ThresholdPolicy,
)
from domain.errors import BadInput

NUMBERS = st.integers(1, 99_999).map(lambda n: n / 100.0)  # as many digits as a name shows
POLICIES = st.one_of(
    st.just(HoldPolicy()),
    st.builds(ConstantPolicy, st.lists(st.integers(0, 500), min_size=1, max_size=5).map(tuple)),
    st.builds(QueueRulePolicy, NUMBERS, NUMBERS, st.booleans()),
    st.builds(ThresholdPolicy, NUMBERS, NUMBERS, st.integers(1, 60), st.booleans()),
    st.builds(SignalTrackingPolicy, NUMBERS, st.integers(1, 60), st.integers(1, 60)),
    st.builds(TargetTrackingPolicy, NUMBERS, NUMBERS, st.integers(1, 60), st.integers(1, 60)),
)


@given(POLICIES)
def test_a_name_read_back_is_the_same_policy(policy: QueueRulePolicy) -> None:
    assert policy_from_name(policy.name) == policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("hold", HoldPolicy()),
        ("queue-rule", QueueRulePolicy()),
        ("queue-rule:horizon_s=60", QueueRulePolicy(horizon_s=60.0)),
        ("queue-rule:single=True", QueueRulePolicy(single=True)),
        ("threshold:low=0.5,periods=3", ThresholdPolicy(low=0.5, periods=3)),
        ("constant: 2,0, 1", ConstantPolicy((2, 0, 1))),
    ],
)
def test_parameters_that_are_not_given_have_their_defaults(text: str, policy: object) -> None:
    assert policy_from_name(text) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "policy is '': choose one of: hold, queue-rule, signal-tracking, target-tracking, threshold, "
            "constant:N,N,...",
        ),
        ("Threshold", "policy is 'Threshold': choose one of: "),
        (
            "threshold:hihg=0.5",
            "policy threshold: parameter is 'hihg': choose from: high, low",
        ),
        ("hold:on=1", "policy hold: parameter is 'on': choose from: none"),
        ("threshold:periods=often", "policy threshold: periods is 'often': input should be a valid integer"),
        ("constant:2,-1", "policy constant: size is '-1': give one whole number per group"),
        ("constant:", "policy constant: size is '': give one whole number per group"),
        ("constant:\u00b2", "policy constant: size is '\u00b2': give one whole number per group"),
        ("constant:" + "9" * 5000, "policy constant: size is '9999"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_there_is(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        policy_from_name(text)
    assert str(refused.value).startswith(message)


@given(st.text(max_size=40))
def test_any_other_text_is_bad_input_and_nothing_else(text: str) -> None:
    try:
        policy = policy_from_name(text)
    except BadInput:
        return
    assert policy_from_name(policy.name) == policy
