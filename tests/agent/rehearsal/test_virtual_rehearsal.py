"""The rehearsal: the loop in virtual time has the simulator's costs and observations, and can be replayed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.replay import replay, what_if
from agent.autoscaling.state import FleetStore
from agent.commands.main import app
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from agent.models.shelf import ModelMissing
from agent.models.shipped import ShippedModel, shipped_models
from agent.rails.schedule import WindowSetting
from agent.rehearsal import virtual_time
from agent.rehearsal.virtual_time import FLEET, PAPER, RailSet, Rehearsal, fleet_of, quiet_logs, rail_set
from domain.decisions import Mode, Reason
from domain.errors import BadInput, LedgerUnavailable
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import CpuSampling, SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.named import workload_of
from tests.agent.models.making import ADD_M, NOTHING, preferring, scorer
from tests.oracles.lstm_model import write_model
from trainer.autoscaling.policy_names import policy_of
from trainer.autoscaling.simulate import play

WORLD = preset("train-text")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet_logs():
        yield


@pytest.fixture
def rehearse(tmp_path: Path) -> Iterator[Callable[..., Rehearsal]]:
    """Return a maker of rehearsals, each with a ledger of its own."""
    numbers, made = itertools.count(), []

    def make(policy: str, trace: Trace, rails: str = "paper", config: SimulationConfig = WORLD, **more: Any) -> Any:
        ledger = tmp_path / f"ledger-{next(numbers)}.db"
        made.append(Rehearsal(policy, trace, config, rail_set(rails), ModelShelf(tmp_path), ledger, **more))
        return made[-1]

    yield make
    for rehearsal in made:
        rehearsal.close()


def fits(path: Path) -> bool:
    """Return whether a model was trained for the fleet of the published world."""
    return ModelShelf(None).fits(f"model:{path}", fleet_of(WORLD))


NETWORKS = [m for m in shipped_models() if m.name.startswith("ppo-lstm") and fits(m.path)]


def short() -> Trace:
    """Ninety minutes of bursts."""
    arrivals = np.repeat([0.0, 900.0, 1810.0, 2400.0, 4000.0], [40, 75, 20, 110, 30])
    return make_trace("short", arrivals, np.tile([45.0, 120.0, 360.0, 200.0, 75.0], 55))


@pytest.mark.parametrize("workload", ["train-text", pytest.param("train-fit", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("simulated", "live"),
    [
        ("queue-rule", "queue-rule"),
        pytest.param("threshold:cooldown_s=0", "threshold", marks=pytest.mark.exhaustive),
        *(
            pytest.param(*each, marks=pytest.mark.exhaustive)
            for each in (
                ("queue-rule:single=true", "queue-rule:single=true"),
                ("threshold:cooldown_s=0,exclude_warming=false", "threshold:exclude_warming=false"),
                ("threshold:cooldown_s=0,high=0.75,low=0.5,periods=3", "threshold:high=0.75,low=0.5,periods=3"),
            )
        ),
    ],
)
def test_under_the_papers_rails_a_rule_costs_what_the_simulator_says(
    rehearse: Callable[..., Rehearsal], workload: str, simulated: str, live: str
) -> None:
    trace = workload_of(workload)
    wanted = play(policy_of(simulated), simulated, WORLD, trace, 5).measures
    found = rehearse(live, trace, seed=5).run("paper").measures
    assert (found.steps, found.cost, found.rent) == (wanted.steps, wanted.cost, wanted.rent)


@pytest.mark.parametrize(
    ("seed", "observation", "action_set"),
    [
        (6, "obs-v2", "act-multi"),
        pytest.param(1, "obs-7", "act-7", marks=pytest.mark.exhaustive),
        pytest.param(4, "obs-7", "act-7", marks=pytest.mark.exhaustive),
        pytest.param(8, "obs-v2", "act-7", marks=pytest.mark.exhaustive),
    ],
)
def test_under_the_papers_rails_a_model_costs_what_the_simulator_says(
    rehearse: Callable[..., Rehearsal], tmp_path: Path, seed: int, observation: str, action_set: str
) -> None:
    path = write_model(tmp_path, seed, hidden=16, scale=0.5, observation=observation, action_set=action_set)
    trace = workload_of("train-text")
    wanted = play(policy_of(str(path)), str(path), WORLD, trace, 0).measures
    found = rehearse(f"model:{path}", trace).run("paper")
    assert (found.measures.steps, found.measures.cost) == (wanted.steps, wanted.cost)
    assert (found.stood_in, found.held, found.policy) == (0, 0, f"learned:{path.stem}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: model.name)
def test_under_the_papers_rails_a_shipped_network_costs_what_the_simulator_says(
    rehearse: Callable[..., Rehearsal], model: ShippedModel
) -> None:
    trace, path = workload_of("train-text"), str(model.path)
    wanted = play(policy_of(path), path, WORLD, trace, 1).measures
    found = rehearse(f"model:{path}", trace, seed=1).run("paper").measures
    assert (found.steps, found.rent, found.penalty) == (wanted.steps, wanted.rent, wanted.penalty)


SAMPLED = replace(WORLD, cpu_sampling=CpuSampling.SAMPLED, idle_cpu=0.07, base_ram_gb=0.9)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("config", "rails"),
    [(WORLD, PAPER), (SAMPLED, replace(PAPER, sample_interval_s=10.0, drains=True))],
    ids=["paper", "sampled and drained"],
)
def test_the_loop_sees_minute_by_minute_what_the_simulator_shows(
    tmp_path: Path, config: SimulationConfig, rails: RailSet
) -> None:
    """From the first step on: before it the simulator shows zeros, the loop what idle VMs report."""
    path = write_model(tmp_path, 6, hidden=16, scale=0.5, observation="obs-v2", action_set="act-multi")
    rehearsal = Rehearsal(f"model:{path}", short(), config, rails, ModelShelf(None), tmp_path / "ledger.db")
    simulation, changes = rehearsal.cloud.simulation, 0
    while not simulation.finished:
        report = rehearsal.loop.turn(rehearsal._clock.now())
        (snapshot,) = report.snapshots
        changes += bool(report.decisions[0].intents)
        if simulation.steps:
            np.testing.assert_allclose(snapshot.obs7, simulation.observe(), rtol=0, atol=1e-6)
            np.testing.assert_allclose(snapshot.obs_v2, simulation.observe_v2(), rtol=0, atol=1e-6)
        rehearsal.cloud.minute()
    rehearsal.close()
    assert changes > 20


@pytest.mark.exhaustive
def test_the_default_rails_hold_back_and_let_jobs_finish(rehearse: Callable[..., Rehearsal]) -> None:
    trace = short()
    paper, default = (rehearse("threshold", trace, rails).run(rails) for rails in ("paper", "default"))
    assert paper.measures.interruptions > 0
    assert default.measures.interruptions == 0
    assert default.held > 10 * max(1, paper.held)
    assert default.measures.jobs_finished == trace.jobs


@pytest.mark.exhaustive
def test_the_same_rehearsal_gives_the_same_figures(rehearse: Callable[..., Rehearsal]) -> None:
    first, second = (rehearse("queue-rule", short(), "default", seed=3).run("default") for _ in range(2))
    assert first == second
    assert rehearse("queue-rule", short(), "default", seed=4).run("default") != first


@pytest.mark.exhaustive
def test_a_rehearsal_of_given_hours_lasts_so_long_jobs_or_not(rehearse: Callable[..., Rehearsal]) -> None:
    found = rehearse("queue-rule", short(), hours=3.0).run("paper")
    assert (found.measures.steps, found.decisions, found.measures.jobs_finished) == (180, 180, 275)
    assert rehearse("queue-rule", short(), hours=0.5).run("paper").measures.steps == 30


def test_a_cool_down_holds_each_direction(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> None:
    path = preferring(tmp_path, ADD_M, NOTHING)
    free = rehearse(f"model:{path}", short(), hours=0.5).run("paper")
    assert free.measures.added == (0, 9, 0)
    ledger = tmp_path / "cooling.db"
    cooled = Rehearsal(f"model:{path}", short(), WORLD, rail_set("paper", 300.0), ModelShelf(None), ledger, hours=0.5)
    assert cooled.run("paper").measures.added == (0, 6, 0)
    reasons = [row.decision.proposal.detail for row in FleetStore(cooled.ledger).decisions(FLEET, newest_first=False)]
    cooled.close()
    impossible = ("s -1 (1 ready of at least 1)", "m +1 (cooling down", "240 s")
    assert [text for text in impossible if text not in reasons[1]] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["network", "scorer"])
def test_every_minute_is_recorded_and_comes_out_the_same_again(
    rehearse: Callable[..., Rehearsal], tmp_path: Path, form: str
) -> None:
    if form == "network":
        path = write_model(tmp_path, 4, hidden=16, scale=0.5)
    else:
        path = scorer(tmp_path, {"added_log": 1.0, "idle_removed": 1.0}, sees={"jobs_3": 0.1}, margin=0.2)
    rehearsal = rehearse(f"model:{path}", short(), "default")
    found = rehearsal.run("default")
    records = list(FleetStore(rehearsal.ledger).inputs(FLEET))
    assert len(records) == found.decisions
    assert {inputs.policy for inputs, _ in records} == {f"learned:{path.stem}"}
    assert all(item.same for item in replay(records, ModelShelf(tmp_path)))
    assert {inputs.mode for inputs, _ in records} == {Mode.ACT}


def test_a_replay_without_the_model_names_the_missing_file(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> None:
    path = preferring(tmp_path, NOTHING)
    rehearsal = rehearse(f"model:{path}", short(), hours=0.1)
    rehearsal.run("paper")
    records = list(FleetStore(rehearsal.ledger).inputs(FLEET))
    with pytest.raises(ModelMissing, match=f"put {path.name} "):
        list(replay(records, ModelShelf(tmp_path / "elsewhere")))


def test_a_model_can_be_replayed_on_the_inputs_of_a_rule(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> None:
    path = preferring(tmp_path, ADD_M)
    rehearsal = rehearse("queue-rule", short(), hours=0.2)
    rehearsal.run("paper")
    others = list(what_if(FleetStore(rehearsal.ledger).inputs(FLEET), f"model:{path}", ModelShelf(None)))
    assert {item.other.proposal.policy for item in others} == {f"learned:{path.stem}"}
    assert others[0].other.desired == (1, 2, 1)


def test_a_policy_that_cannot_decide_is_refused(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> None:
    for policy in ("clairvoyance", "constant:1,1", "learned:latest", f"model:{tmp_path / 'none.onnx'}"):
        with pytest.raises(BadInput):
            rehearse(policy, short())
    with pytest.raises(BadInput, match="paper, default"):
        rail_set("none")


def test_a_ledger_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(f"sqlite:///{path}").close()
    with pytest.raises(LedgerUnavailable, match="a new ledger"):
        Rehearsal("hold", short(), WORLD, PAPER, ModelShelf(None), path)


def test_a_world_of_other_types_has_its_own_fleet() -> None:
    config = replace(WORLD, types=WORLD.types[:2], limits=(4, 5), minimum=(1, 0), initial=(1, 0))
    groups = fleet_of(config).groups
    assert [(g.key, g.minimum, g.maximum) for g in groups] == [("type0", 1, 4), ("type1", 0, 5)]


UNKNOWN = """
version = 1
[jobs]
sizes = "unknown"
typical_core_s = 77
[cooldown]
seconds = 240
[[vm_types]]
name = "only"
cores = 6
memory_gb = 8
price_per_hour = 0.3
limit = 9
minimum = 1
"""


def rehearsed(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["rehearse", *arguments])


def test_any_world_and_several_workloads_are_rehearsed(tmp_path: Path) -> None:
    world, jobs = tmp_path / "one.toml", tmp_path / "jobs.csv"
    world.write_text(UNKNOWN, "utf-8")
    jobs.write_text("arrival_s,service_s\n" + "0,90\n" * 40, "utf-8")
    workloads = ("--workload", str(jobs), "--workload", "nasa", "--hours", "0.2")
    answer = rehearsed("--world", str(world), *workloads, "--json")
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    assert data["world"] == "one"
    assert [one["workload"] for one in data["workloads"]] == ["jobs", "nasa-ipsc-1993-11-26"]
    assert all("job_core_s=77" in one["policy"] for one in data["workloads"])
    assert all(len(one["added"]) == 1 for one in data["workloads"])
    refused = rehearsed("--world", str(world), *workloads, "--keep", str(tmp_path / "kept.db"))
    assert (refused.exit_code, "give one where --keep" in refused.stderr) == (2, True)


def test_an_unknown_policy_is_refused_with_the_rules_and_the_bundled_models() -> None:
    refused = rehearsed("--policy", "no-such", "--hours", "0.1")
    assert refused.exit_code == 2
    assert all(name in refused.stderr for name in ("queue-rule", "constant:", *(one.name for one in shipped_models())))


@pytest.mark.parametrize("name", ["scorer", "model:ppo-lstm-published"])
def test_a_bundled_model_is_rehearsed_by_its_name(name: str) -> None:
    answer = rehearsed("--workload", "nasa", "--policy", name, "--hours", "0.1", "--json")
    assert answer.exit_code == 0, answer.output
    (model,) = (one for one in shipped_models() if one.name == name.removeprefix("model:"))
    assert json.loads(answer.stdout)["policy"] == f"learned:{model.sha256}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--world", "compat"), "the loop decides once a minute"),
        (("--world", "moon"), "choose one of exact"),
        (("--world", "one.toml", "--prices", "m5a"), "other VM types"),
        (("--prices", "gold"), "choose one of train, m5a"),
    ],
)
def test_a_world_that_the_loop_cannot_run_in_is_refused(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.toml").write_text(UNKNOWN, "utf-8")
    answer = rehearsed(*arguments)
    assert answer.exit_code == 2
    assert said in answer.stderr


@pytest.mark.exhaustive
def test_the_rails_of_the_paper_take_the_cool_down_of_the_world(tmp_path: Path) -> None:
    found = play_rehearsal(tmp_path, "live-like", None)
    assert found == play_rehearsal(tmp_path, "live-like", 300.0) != play_rehearsal(tmp_path, "live-like", 0.0)


def play_rehearsal(tmp_path: Path, world: str, cooldown_s: float | None) -> float:
    result = virtual_time.play(
        workload="train-text",
        policy="queue-rule",
        rails="paper",
        cooldown_s=cooldown_s,
        hours=1.0,
        world=virtual_time.world_to_rehearse(world),
        seed=0,
        models=tmp_path,
        ledger_path=tmp_path / f"{cooldown_s}.db",
        on_minute=lambda minutes, finished, jobs: None,
    )
    return result.measures.cost


def test_a_window_of_the_schedule_binds_by_the_virtual_clock(rehearse: Callable[..., Rehearsal]) -> None:
    """Ten minutes with at least eight VMs, then ten under another policy; a restart in between changes nothing."""
    first, second = (datetime.fromtimestamp(virtual_time.START + 60.0 * m, UTC) for m in (5, 15))
    rush = WindowSetting("rush", f"{first.minute} {first.hour} * * *", 10.0, minimum=8)
    calm = WindowSetting("calm", f"{second.minute} {second.hour} * * *", 10.0, policy="hold")
    rehearsal = rehearse("queue-rule", short(), rails="paper", planned=(rush, calm))
    raised, policies, sizes = {}, {}, {}
    for report in rehearsal.minutes(30):
        (decision,) = report.decisions
        minute = round((decision.at - virtual_time.START) / 60.0)
        sizes[minute] = sum(decision.desired)
        raised[minute] = Reason.SCHEDULED_MINIMUM in {effect.reason for effect in decision.effects}
        policies[minute] = decision.proposal.policy.partition(":")[0]
        if minute == 8:
            # As a process that begins anew finds it: nothing of the window is remembered.
            rehearsal.loop.fleets = (replace(rehearsal.loop.fleets[0], planned=(rush, calm)),)
            rehearsal.loop.leads = Leads(every=rehearsal.ledger.take_epoch("after a restart", decision.at))
    assert min(size for minute, size in sizes.items() if 5 <= minute < 15) >= 8, sizes
    assert [minute for minute, spoke in raised.items() if spoke]
    assert all(5 <= minute < 15 for minute, spoke in raised.items() if spoke)
    assert {minute for minute, policy in policies.items() if policy == "hold"} == set(range(15, 25))
    assert all(one.same for one in replay(FleetStore(rehearsal.ledger).inputs(FLEET, None, None)))
