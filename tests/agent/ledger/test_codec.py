"""Stored records: canonical bytes that always give the same value back, and a refusal of what is not a number."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import EnumMeta
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.decide import DecisionInputs
from agent.ledger import codec
from agent.rails.state import LoopState, Spend
from domain.announcements import Announcement
from domain.controls import Controls, Pause, Pin
from domain.decisions import Decision, Event, Intent, Outcome, Reason
from domain.errors import BadInput, LedgerError
from domain.fleet import Fleet, Group, VmType
from domain.subject import fleet_subject
from tests.agent.ledger.records import START, made

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TYPES = st.builds(VmType, WORDS, st.integers(1, 128), NUMBERS, st.floats(0, 1e9))
MORE = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)
ANNOUNCEMENTS = st.builds(Announcement, NUMBERS, st.integers(1, 2**70), MORE, st.just(0.0) | MORE)
GROUPS = st.builds(Group, WORDS, WORDS, TYPES, st.just(0), st.integers(0, 10**6))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    groups = [replace(draw(GROUPS), key=f"k{i}", name=f"n{i}") for i in range(draw(st.integers(1, 3)))]
    return Fleet(draw(WORDS), tuple(groups), draw(st.none() | WORDS))


LEAVES = {float: NUMBERS, int: st.integers(-(2**70), 2**70), str: WORDS, bool: st.booleans(), type(None): st.none()}


def anything(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a record's type: its fields' hints say what may stand there."""
    if hint in LEAVES:
        return LEAVES[hint]
    if hint is Fleet:
        return fleets()
    if hint is Announcement:
        return ANNOUNCEMENTS
    if isinstance(hint, EnumMeta):
        return st.sampled_from(list(hint))
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{f.name: anything(hints[f.name]) for f in fields(hint)})
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of([anything(part) for part in parts])
    if origin is tuple and parts[-1] is ...:
        return st.lists(anything(parts[0]), max_size=2).map(tuple)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return st.builds(hint, **{name: anything(one) for name, one in get_type_hints(hint).items()})
    if origin is tuple:
        return st.tuples(*(anything(part) for part in parts))
    assert issubclass(origin, Mapping), f"no strategy for {hint}"
    return st.dictionaries(anything(parts[0]), anything(parts[1]), max_size=3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [DecisionInputs, Decision, LoopState, Pause, Pin, Intent, Outcome, Event])
@given(data=st.data())
def test_a_record_comes_back_as_it_was_and_is_written_in_the_same_bytes_again(kind: type, data: st.DataObject) -> None:
    value = data.draw(anything(kind))
    text = codec.encode(value)
    assert codec.decode(kind, text) == value
    assert codec.encode(codec.decode(kind, text)) == text
    assert codec.unpack(codec.pack(text)) == text


def test_the_order_in_which_a_mapping_was_filled_does_not_show() -> None:
    one = LoopState(in_streak={"a": 1, "b": 2}, memory={"h": (1.0,), "c": (2.0,)})
    other = LoopState(in_streak={"b": 2, "a": 1}, memory={"c": (2.0,), "h": (1.0,)})
    assert codec.encode(one) == codec.encode(other)
    inputs, _ = made(1)
    assert codec.encode(replace(inputs, state=one)) == codec.encode(replace(inputs, state=other))


def test_nor_does_it_inside_a_field_that_may_be_absent() -> None:
    one, other = (Controls(pin=Pin(sizes, "ana", "", START, START)) for sizes in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert codec.encode(one) == codec.encode(other)
    assert codec.decode(Controls, codec.encode(Controls())) == Controls()


def test_a_whole_number_in_a_float_field_is_written_as_a_float() -> None:
    assert (
        codec.encode(Spend(dollars=5))
        == codec.encode(Spend(dollars=5.0))
        == b'{"day_start":0.0,"dollars":5.0,"at":0.0}'
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused_by_name(number: float) -> None:
    with pytest.raises(BadInput, match=r"LoopState for the ledger is '-?(NaN|Infinity)': "):
        codec.encode(LoopState(memory={"h": (number,)}))
    with pytest.raises(BadInput, match="only finite numbers"):
        codec.encode_mapping({"a": [number]})


def test_a_sentence_may_say_nan_and_infinity() -> None:
    event = Event(fleet_subject("web"), START, Reason.NOT_FINITE, "the policy gave NaN, then -Infinity")
    assert codec.decode(Event, codec.encode(event)) == event


FIVE: Any = "five"
HALF: Any = 0.5


@pytest.mark.parametrize("value", [Spend(FIVE), LoopState(HALF)])
def test_a_value_of_another_type_than_declared_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="plain values of the declared types"):
        codec.encode(value)


def test_a_field_added_since_takes_its_default() -> None:
    assert codec.decode(LoopState, b'{"decisions":3}') == LoopState(decisions=3)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"decisions":"x"}', b'{"spend":{"dollars":NaN}}', b"{},{}"]
)
def test_damaged_bytes_are_said_to_be_damaged(text: bytes) -> None:
    with pytest.raises(LedgerError, match="a stored LoopState cannot be read"):
        codec.decode(LoopState, text)


def test_a_large_body_is_stored_compressed_and_a_damaged_one_is_noticed() -> None:
    text = codec.encode(made(1)[0])
    stored = codec.pack(text)
    assert len(stored) < len(text) / 2
    for broken in (b"?" + stored[1:], stored[:-20]):
        with pytest.raises(LedgerError, match="it is damaged"):
            codec.unpack(broken)


def test_text_that_is_not_unicode_is_stored_with_question_marks() -> None:
    made = Event(fleet_subject("web"), START, Reason.DONE, "from a plug-in: \ud800")
    assert codec.decode(Event, codec.encode(made)).detail == "from a plug-in: ?"
