"""The replay of recorded windows: true where the world is the fleet's, else refused with the quantity that is off."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.commands.main import app
from agent.rehearsal.virtual_time import START, Rehearsal, quiet_logs, rail_set
from domain.controls import Controls, Pause, PauseScope
from domain.errors import BadInput
from domain.workload import Trace, make_trace
from simulator.autoscaling.world_file import World, write_world
from simulator.workloads.named import workload_of
from tests.trainer.learning.recording import FLEET, RULE, WORLD, batches, loop_of, made, recorded_in
from trainer.learning.fidelity import ARRIVALS, BOOTS, LENGTHS, Fidelity, WindowCost, check_fidelity
from trainer.learning.minutes import Span, read_record, record_of, span_of
from trainer.learning.replay import Lived, play
from trainer.learning.subject import learner_of

HOURS = 1.1


@pytest.fixture(scope="module")
def stretch() -> Span:
    """An hour with three batches, as one stretch."""
    inputs = [inputs for inputs, _ in made(HOURS, trace=batches(HOURS, every_min=20.0))]
    return span_of("all", record_of(FLEET, inputs).minutes, 300.0)


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Span:
    """Three hours with batches."""
    return lived(batches(3.0), 3.0, tmp_path_factory.mktemp("hours"))


def lived(trace: Trace, hours: float, folder: Path) -> Span:
    """The record of a rehearsal in virtual time, from its ledger."""
    with quiet_logs():
        rehearsal = Rehearsal(
            RULE, trace, WORLD, rail_set("default"), ModelShelf(folder), folder / "ledger.db", hours=hours
        )
        rehearsal.run("default")
        rehearsal.close()
    return span_of("all", read_record(str(folder / "ledger.db"), FLEET, 1.0).minutes, 300.0)


def test_in_its_own_world_a_fleet_costs_what_was_recorded(stretch: Span) -> None:
    found = check_fidelity(loop_of(), WORLD, [stretch], [stretch], seeds=2)
    assert found.holds
    assert found.suspects == ()
    assert "describes this fleet" in found.sentence
    assert sum(one.recorded for one in found.windows) == pytest.approx(stretch.cost)


def test_a_world_with_boots_three_times_as_long_is_refused_and_boots_are_named(stretch: Span) -> None:
    found = check_fidelity(loop_of(), WORLD.boots_scaled(3.0), [stretch], [stretch], seeds=1)
    assert not found.holds
    assert found.named == BOOTS
    assert found.suspects[0].factor == pytest.approx(1 / 3, rel=0.1)
    assert found.boots > 1.5
    assert "not describe this fleet" in found.sentence


def test_jobs_reported_half_as_long_as_they_are_name_lengths(stretch: Span) -> None:
    reported = replace(stretch, trace=replace(stretch.trace, service_s=stretch.trace.service_s / 2.0))
    found = check_fidelity(loop_of(), WORLD, [reported], [reported], seeds=1)
    assert found.named == LENGTHS
    assert found.suspects[0].factor == pytest.approx(2.0)


def test_jobs_that_the_source_did_not_count_name_arrivals(stretch: Span) -> None:
    half = replace(stretch, trace=_every_second(stretch.trace))
    found = check_fidelity(loop_of(), WORLD, [half], [half], seeds=1)
    assert found.named == ARRIVALS
    assert found.suspects[0].factor == pytest.approx(2.0)


def _every_second(trace: Trace) -> Trace:
    return make_trace(trace.name, trace.arrival_s[::2], trace.service_s[::2])


def test_boots_of_half_the_length_are_refused_although_the_cost_is_met(hours: Span) -> None:
    """The ledger has the boots: the replay takes them, and the world's are compared with them."""
    true, half = (check_fidelity(loop_of(), world, [hours], [hours]) for world in (WORLD, WORLD.boots_scaled(0.5)))
    assert true.holds
    assert abs(half.off) < 0.05
    assert not half.holds
    assert half.named == BOOTS
    assert half.suspects[0].factor == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("factors", [(0.5, 1.0, 1.0), (0.5, 1.5, 1.0)])
def test_boots_of_one_group_are_compared_by_themselves(factors: tuple[float, ...], hours: Span) -> None:
    lows, highs = zip(*WORLD.boot_ranges_s, strict=True)
    lows, highs = ([one * factor for one, factor in zip(of, factors, strict=True)] for of in (lows, highs))
    world = replace(WORLD, boot_lows_s=tuple(lows), boot_highs_s=tuple(highs), boot_quantiles_s=())
    many = replace(hours, boots=hours.boots * 4)
    found = check_fidelity(loop_of(), world, [many], [many], seeds=1)
    assert not found.are_boots_met
    assert found.named == BOOTS


def test_a_record_that_cost_nothing_and_a_world_that_boots_at_once_are_compared_too(stretch: Span) -> None:
    free = replace(stretch, rent=0.0 * stretch.rent, penalty=0.0 * stretch.penalty)
    found = check_fidelity(loop_of(), WORLD.boots_scaled(0.0), [free], [free], seeds=1)
    assert not found.holds
    assert found.off == 0.0


def test_windows_that_cancel_each_other_do_not_hold(stretch: Span) -> None:
    """Dear minutes of which the record has too much, and the others too little: the sum alone would be met."""
    rent = stretch.rent.copy()
    middle = rent.size // 2
    rent[:middle], rent[middle:] = 1.4 * rent[:middle], rent[middle:] - 0.4 * rent[:middle].sum() / (rent.size - middle)
    marks = (("first", 0, middle), ("second", middle, rent.size))
    found = check_fidelity(loop_of(), WORLD, [replace(stretch, rent=rent, marks=marks)], [stretch], seeds=1)
    assert abs(found.off) < 0.05
    assert found.apart > 0.15
    assert not found.holds


def test_a_fleet_that_a_schedule_pauses_every_other_half_hour_is_met(tmp_path: Path) -> None:
    minutes = round(2.0 * 60) + 1
    paused = Controls(pauses=(Pause(PauseScope.ALL, "sre", "freeze", START),))
    lived = [Lived(240.0, controls=paused if number // 30 % 2 else Controls()) for number in range(minutes)]
    found: list[DecisionInputs] = []
    trace = batches(2.0, every_min=20.0)
    world, policies = replace(WORLD, initial=WORLD.minimum), [RULE] * minutes
    play(loop_of(), world, trace, policies, 0, START, lived=lived, seen=lambda inputs, _: found.append(inputs))
    span = span_of("all", record_of(FLEET, found).minutes, 300.0)
    free = replace(span, lived=tuple(replace(one, controls=Controls()) for one in span.lived))
    kept, ignored = (check_fidelity(loop_of(), WORLD, [one], [one], seeds=2) for one in (span, free))
    assert kept.holds, kept.sentence
    assert not ignored.holds


def test_a_minute_is_replayed_with_the_idle_time_and_the_limits_that_it_had() -> None:
    loop = loop_of()
    terms, other = replace(loop.terms, idle_s=600.0), replace(loop.limits, cooldown_in_s=1200.0)
    found: list[DecisionInputs] = []
    for limits, idle_s in ((other, 600.0), (loop.limits, 60.0)):
        changed = replace(loop, terms=replace(terms, idle_s=idle_s), limits=limits, idle_s=idle_s)
        found += [inputs for inputs, _ in made(1.0, loop=changed)][: 30 if limits is other else None]
    later = [replace(one, snapshot=replace(one.snapshot, bin_end=START + 60.0 * k)) for k, one in enumerate(found)]
    span = span_of("all", record_of(FLEET, later).minutes, 300.0)
    assert [one.idle_s for one in span.lived[:30]] == [600.0] * 30
    assert {one.limits for one in span.lived[:30]} == {other}
    # Those of the newest minute stand in the record once.
    assert {(one.idle_s, one.limits) for one in span.lived[30:]} == {(60.0, None)}
    seen: list[DecisionInputs] = []
    play(loop, WORLD, span.trace, span.policies, 0, lived=span.lived, seen=lambda one, _: seen.append(one))
    assert [one.limits for one in seen] == [other] * 30 + [loop.limits] * (len(seen) - 30)


def test_a_learned_model_is_replayed_by_its_sha_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path)
    loop = loop_of(models=shelf)
    name = shelf.resolve("learned", loop.fleet)
    inputs = [inputs for inputs, _ in made(0.7, trace=batches(0.7, every_min=20.0), policy=name, loop=loop)]
    recorded = record_of(FLEET, inputs)
    learner = learner_of(recorded, None, shelf, 120.0)
    span = span_of("all", recorded.minutes, 300.0)
    found = check_fidelity(learner.loop, learner.config, [span], [span], seeds=1)
    assert found.policy_failures == 0
    assert found.holds
    gone = [replace(one, policy=f"learned:{'0' * 64}") for one in inputs]
    with pytest.raises(BadInput, match=r"put 0+\.onnx into"):
        learner_of(record_of(FLEET, gone), None, shelf, 120.0)


def test_minutes_in_which_the_policy_could_not_decide_are_counted(stretch: Span) -> None:
    short = replace(stretch, policies=("learned:gone",) * 5 + stretch.policies[5:])
    found = check_fidelity(loop_of(), WORLD, [short], [short], seeds=1)
    assert found.policy_failures == 5
    assert "in 5 minutes another" in found.sentence


@pytest.mark.exhaustive
def test_the_command_checks_a_ledger_of_the_rehearsal_in_virtual_time(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    trace = batches(10.0)
    with quiet_logs():
        rehearsal = Rehearsal(RULE, trace, WORLD, rail_set("default"), ModelShelf(tmp_path), path, hours=10.0)
        rehearsal.run("default")
        rehearsal.close()
    shown = CliRunner().invoke(app, ["learn", "autoscaling", FLEET, "--ledger", str(path), "--check", "--json"])
    assert shown.exit_code == 0, shown.output
    assert abs(json.loads(shown.output)["fidelity"]["off"]) < 0.05


@pytest.mark.exhaustive
@pytest.mark.parametrize("log", ["nasa-day", "hpc2n-2002-day-49", "lcg-2005-hour-40"])
def test_a_recorded_log_is_met_by_the_true_world(log: str, tmp_path: Path) -> None:
    span = lived(workload_of(log), 5.0, tmp_path)
    found = check_fidelity(loop_of(), WORLD, [span], [span])
    assert found.holds, found.sentence


@pytest.mark.exhaustive
def test_the_command_refuses_a_world_file_that_lies_with_its_own_status(tmp_path: Path) -> None:
    path = recorded_in(tmp_path / "ledger.db", made(10.0))
    write_world(World(WORLD.boots_scaled(3.0), "lie"), tmp_path / "lie.toml")
    shown = CliRunner().invoke(
        app, ["learn", "autoscaling", FLEET, "--ledger", str(path), "--world", str(tmp_path / "lie.toml"), "--check"]
    )
    assert shown.exit_code == 3
    assert "its boots are off" in shown.output


def test_too_little_recorded_ends_the_command_with_its_own_status(tmp_path: Path) -> None:
    path = recorded_in(tmp_path / "ledger.db", made(2.0))
    shown = CliRunner().invoke(app, ["learn", "autoscaling", FLEET, "--ledger", str(path), "--check"])
    assert shown.exit_code == 4
    assert "h more with jobs" in shown.output


def test_work_that_differs_is_refused_where_it_is_recorded() -> None:
    window = WindowCost("all", 0.0, 1.0, 1.0, 0.0, 1.0, 0.0)
    more = Fidelity((window,), rent=0.0, penalty=0.0, boots=0.0, work=0.2)
    assert not more.holds
    assert replace(more, is_work_recorded=False).holds
    assert replace(more, work=0.05).holds


def test_a_given_idle_time_replaces_the_recorded_ones(tmp_path: Path) -> None:
    loop = loop_of()
    changed = replace(loop, terms=replace(loop.terms, idle_s=600.0))
    recorded = record_of(FLEET, [inputs for inputs, _ in made(0.5, loop=changed)])
    known, given = (learner_of(recorded, None, ModelShelf(tmp_path), idle_s, 1.0) for idle_s in (None, 30.0))
    assert (known.loop.idle_s, given.loop.idle_s) == (600.0, 30.0)
    assert {one.under.idle_s for one in known.recorded.minutes} == {600.0}
    assert {one.under.idle_s for one in given.recorded.minutes} == {None}
