"""Record minutes: what they cost, how gaps part them, and the episode that they make."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.minutes import Boot, MinuteMeasurements
from domain.decisions import Mode
from domain.errors import BadInput
from tests.trainer.learning.recording import FLEET, loop_of, made, recorded_in
from trainer.learning.minutes import OBSERVED, OTHER_GROUPS, jobs_of, read_record, record_of, span_of


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
    with pytest.raises(BadInput, match="web"):
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


def test_a_step_of_the_clock_that_the_ledger_knows_parts_the_record_however_short(
    inputs: list[DecisionInputs], tmp_path: Path
) -> None:
    """Three minutes forward would be a gap that the counters of the queue bridge, if nobody had said so."""
    pairs = made(0.5)
    ahead = [
        (replace(one, now=one.now + 180.0, snapshot=replace(one.snapshot, bin_end=one.snapshot.bin_end + 180.0)), of)
        for one, of in pairs[10:]
        if one.snapshot is not None
    ]
    marks = [MinuteMeasurements(clock_set=n == 10) for n in range(11)]
    told = read_record(recorded_in(tmp_path / "told.db", [*pairs[:10], *ahead], *marks), FLEET, 1.0)
    untold = read_record(recorded_in(tmp_path / "untold.db", [*pairs[:10], *ahead]), FLEET, 1.0)
    assert [len(one) for one in told.stretches] == [10, len(ahead)]
    assert [len(one) for one in untold.stretches] == [len(pairs)]


def test_minutes_that_two_agents_decided_in_turns_count_once(inputs: list[DecisionInputs]) -> None:
    """The second one took the lead a minute late, and decided the last two minutes of the first one again."""
    again = [replace(one, epoch=one.epoch + 1) for one in inputs[8:10]]
    assert record_of(FLEET, [*inputs[:10], *again, *inputs[10:]]).stretches == record_of(FLEET, inputs).stretches


def test_a_group_of_another_name_in_aws_is_the_same_group(inputs: list[DecisionInputs]) -> None:
    small, *others = loop_of().fleet.groups
    moved, other = replace(small, name="web-2-s"), replace(small, key="small")
    fleets = [replace(loop_of().fleet, groups=(one, *others)) for one in (moved, other)]
    as_moved, as_other = ([replace(one, fleet=fleet) for one in inputs[:5]] for fleet in fleets)
    assert record_of(FLEET, [*as_moved, *inputs[5:]]).left_out == {}
    assert record_of(FLEET, [*as_other, *inputs[5:]]).left_out == {OTHER_GROUPS: 5}


def test_the_jobs_of_a_stretch_have_the_lengths_that_their_work_says(tmp_path: Path) -> None:
    """Batches of forty jobs of 300 s: the ledger has the work of the jobs that finished in each minute."""
    given = made(2.0)
    done = [one.snapshot.queue.submitted - one.snapshot.queue.waiting - one.snapshot.queue.running for one, _ in given]
    ended = [0, *(after - before for before, after in pairwise(done))]
    marks = [MinuteMeasurements(finished=count, finished_core_s=300.0 * count) for count in ended]
    stretch = read_record(recorded_in(tmp_path / "ledger.db", given, *marks), FLEET, 1.0).stretches[0]
    known = span_of("", stretch, 120.0).trace
    assert known.service_s == pytest.approx(300.0, abs=1.0)
    place = max(range(len(stretch)), key=lambda k: stretch[k].running)
    running = stretch[place].running
    for jobs in (None, jobs_of(stretch)):
        later = span_of("", stretch[place:], 120.0, jobs=jobs).trace
        assert np.all(later.service_s[:running] < 300.0)
        assert later.service_s[running:] == pytest.approx(300.0, abs=1.0)


def test_jobs_that_finish_in_a_gap_end_there(tmp_path: Path) -> None:
    """A minute is missing in which jobs finish: the counters of the queue show it in the one after."""
    given = made(2.0)
    done = [one.snapshot.queue.submitted - one.snapshot.queue.waiting - one.snapshot.queue.running for one, _ in given]
    ended = [0, *(after - before for before, after in pairwise(done))]
    marks = [MinuteMeasurements(finished=count, finished_core_s=300.0 * count) for count in ended]
    most = max(range(len(ended)), key=ended.__getitem__)
    del given[most], marks[most]
    stretch = read_record(recorded_in(tmp_path / "ledger.db", given, *marks), FLEET, 1.0).stretches[0]
    assert span_of("", stretch, 120.0).trace.service_s.max() < 500.0


def test_boots_are_those_of_the_ledger_from_the_launch_until_the_vm_was_ready(tmp_path: Path) -> None:
    pairs = made(1.0)
    marks = [MinuteMeasurements(boots=(Boot(1, 95.0),) if n == 20 else ()) for n in range(len(pairs))]
    minutes = read_record(recorded_in(tmp_path / "ledger.db", pairs, *marks), FLEET, 1.0).minutes
    (boot,) = span_of("", minutes, 300.0).boots
    # Reports come every ten seconds, the first one five seconds late in the mean, at any time of its minute.
    assert (boot.group, boot.seconds) == (1, 90.0)
    assert boot.launched_s == minutes[20].end_s - 30.0 - 95.0


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
    with pytest.raises(BadInput, match="observed in 3 minutes"):
        record_of(FLEET, [replace(one, mode=Mode.OBSERVE) for one in inputs[:3]])
