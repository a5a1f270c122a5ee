"""Record minutes: what they cost, how gaps part them, and the episode that they make."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.autoscaling.decide import DecisionInputs
from domain.decisions import Mode
from domain.errors import BadInput, UnknownName
from tests.trainer.learning.recording import FLEET, loop_of, made, recorded_in
from trainer.learning.minutes import OBSERVED, OTHER_GROUPS, read_record, record_of, span_of


@pytest.fixture(scope="module")
def inputs() -> list[DecisionInputs]:
    return [one for one, _ in made(1.0)]


def test_a_recorded_minute_costs_what_its_vms_and_its_waiting_jobs_cost(inputs: list[DecisionInputs]) -> None:
    recorded = record_of(FLEET, inputs)
    prices = [group.vm_type.price_per_hour for group in recorded.fleet.groups]
    busiest = max(recorded.minutes, key=lambda minute: minute.waiting)
    vms = [there + leaving for there, leaving in zip(busiest.requested, busiest.draining, strict=True)]
    assert busiest.waiting > 0
    assert busiest.rent == pytest.approx(np.dot(vms, prices) / 60.0)
    assert busiest.penalty == pytest.approx(busiest.waiting * 0.036 / 60.0)
    assert recorded.lag_s == 5.0


def test_the_ledger_gives_back_what_was_decided(inputs: list[DecisionInputs], tmp_path: Path) -> None:
    path = recorded_in(tmp_path / "ledger.db", made(0.2))
    recorded = read_record(str(path), FLEET, 28.0)
    assert recorded.stretches[0] == record_of(FLEET, inputs[:13]).stretches[0]
    assert len(read_record(str(path), FLEET, 5.0 / 1440.0).minutes) == 6
    with pytest.raises(UnknownName, match="web"):
        read_record(str(path), "other", 28.0)


def test_a_short_gap_is_bridged_by_the_counters_and_a_long_one_parts_the_record(inputs: list[DecisionInputs]) -> None:
    short = record_of(FLEET, inputs[:4] + inputs[8:])
    whole = record_of(FLEET, inputs)
    assert len(short.stretches) == 1
    bridged, known = (span_of("", one.stretches[0], 300.0) for one in (short, whole))
    assert bridged.steps == known.steps
    assert bridged.trace.jobs == known.trace.jobs
    long = record_of(FLEET, inputs[:4] + inputs[20:])
    assert [len(stretch) for stretch in long.stretches] == [4, len(inputs) - 20]


def test_a_clock_that_was_set_back_parts_the_record(inputs: list[DecisionInputs]) -> None:
    assert [len(one) for one in record_of(FLEET, inputs[20:40] + inputs[:10]).stretches] == [20, 10]


def test_jobs_there_at_the_begin_are_in_the_episode(inputs: list[DecisionInputs]) -> None:
    minutes = record_of(FLEET, inputs).minutes
    place = max(range(len(minutes)), key=lambda k: minutes[k].waiting)
    span = span_of("", minutes[place : place + 10], 300.0)
    there = minutes[place].waiting + minutes[place].running
    assert (span.trace.arrival_s == 0.0).sum() == there
    assert span.cost == pytest.approx(sum(minute.cost for minute in minutes[place + 1 : place + 10]))


def test_minutes_that_no_policy_decided_are_left_out_and_counted(inputs: list[DecisionInputs]) -> None:
    watched = [replace(one, mode=Mode.OBSERVE) for one in inputs[:5]]
    small, *others = loop_of().fleet.groups
    fleet = replace(loop_of().fleet, groups=(replace(small, maximum=3), *others))
    snapshots = [replace(one, fleet=fleet) for one in inputs[5:8]]
    recorded = record_of(FLEET, [*watched, *snapshots, *inputs[8:]])
    assert recorded.left_out == {OBSERVED: 5, OTHER_GROUPS: 3}
    assert len(recorded.minutes) == len(inputs) - 8


def test_a_record_without_a_minute_that_can_be_replayed_says_why(inputs: list[DecisionInputs]) -> None:
    with pytest.raises(BadInput, match="the agent only observed in 3 minutes"):
        record_of(FLEET, [replace(one, mode=Mode.OBSERVE) for one in inputs[:3]])
