"""A run writes its policy with where it comes from, and goes on after an interruption as if it had never stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.placement.policies import parse_policy
from simulator.placement import engine, instances
from trainer.kit.checkpoint import OtherConfiguration
from trainer.kit.jobs import HERE, Workers
from trainer.kit.runs import checkpoints_of
from trainer.placement import runs
from trainer.placement.runs import Config, jobs_of, train_all
from trainer.placement.swarm import SELECTION, Plan, Samples, Valuation

CONFIG = Config(("small-3",), Plan(population=6, iterations=7, patience=9, finalists=2), Samples(sequences=3))
CREATED = "2026-01-02T03:04:05+00:00"


def trained(
    out: Path, config: Config = CONFIG, *, seeds: tuple[int, ...] = (0,), workers: Workers = HERE
) -> dict[str, Any]:
    jobs = jobs_of(config, seeds, out, workers=workers, created=CREATED, resume=True)
    return train_all(jobs, out, at_once=1, silent=True)


def test_the_total_counts_the_one_sequence_of_the_given_order() -> None:
    assert CONFIG.sequences == 6 * 7 * 3
    assert replace(CONFIG, samples=Samples(orders="nominal")).sequences == 6 * 7


def test_a_policy_file_says_where_its_vector_comes_from(tmp_path: Path) -> None:
    """Instances by digest, shuffles, objective with its error, simulator and date; and it is read by the rules."""
    summary = trained(tmp_path)
    policy = parse_policy(json.loads((tmp_path / "policy.json").read_text("utf-8")))
    made = instances.small(3)
    assert policy.training is not None
    assert policy.family == "tiers17a"
    assert policy.training.instances == (instances.digest_of(made),)
    assert policy.training.shuffles[:3] == (10_000, 10_001, 10_002)
    assert min(policy.training.shuffles) >= 10_000
    assert policy.training.objective == summary["values"][0]
    assert (policy.training.simulator, policy.training.created) == (engine.VERSION, CREATED)
    run = json.loads((tmp_path / "seed-0" / "run.json").read_text("utf-8"))
    assert run["nominal"] == {"small-3": engine.play(made, policy).hosts}
    # Seven iterations of six points, a refresh of six, and two finalists on 96 orders.
    assert run["evaluations"] == 7 * 6 + 6 + 2
    assert run["steps"] == (7 * 6 + 6) * 3 + 2 * 96


def test_weights_are_searched_on_departures_and_chosen_on_other_stretches(tmp_path: Path) -> None:
    """Two kinds of declared lifetimes; the finalist is the best of the other stretch."""
    plan = Plan(family="lifetime", method="cmaes", population=4, iterations=2, finalists=3)
    hints, other = ("0.5", "1"), "alibaba-openb:2000+500@8"
    summary = trained(tmp_path, Config(("alibaba-openb:0+500@8",), plan, Samples(orders="nominal"), hints, (other,)))
    assert [*summary["chosen_on"][0]] == [f"{other}, hints {one}" for one in hints]
    policy = parse_policy(json.loads((tmp_path / "policy.json").read_text("utf-8")))
    costs = Valuation([instances.instance_of(other, one) for one in hints], "lifetime", Samples())
    assert summary["values"] == costs(np.array([policy.theta]), SELECTION).tolist()
    # A point has two sequences in the search as in the choice.
    assert summary["steps"] == [2 * (2 * 4 + 3)]


def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in its fifth iteration, after the checkpoint of the fourth."""
    trained(tmp_path / "whole")
    real, calls = Valuation.__call__, []

    def stopping(self: Valuation, points: Any, draw: int, run: Any) -> Any:
        calls.append(draw)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, points, draw, run)

    with monkeypatch.context() as patched:
        patched.setattr(Valuation, "__call__", stopping)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "cut")
    last = checkpoints_of(tmp_path / "cut" / "seed-0").last()
    assert last is not None
    assert last.update == 4
    trained(tmp_path / "cut")
    for name in ("policy.json", "seed-0/policy.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    cut, whole = (json.loads((tmp_path / one / "seed-0" / "run.json").read_text("utf-8")) for one in ("cut", "whole"))
    assert (cut["curve"], cut["theta"], cut["value"]) == (whole["curve"], whole["theta"], whole["value"])


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    """B8: the same seed gives the same file."""
    for workers in (1, 2):
        trained(tmp_path / str(workers), workers=Workers(workers))
    assert (tmp_path / "1" / "policy.json").read_bytes() == (tmp_path / "2" / "policy.json").read_bytes()


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_points_and_seeds_on_ray_change_nothing(tmp_path: Path) -> None:
    """Two seeds are tasks of a cluster, and so are the points of each."""
    places = {"here": None, "ray": "local"}
    for name, ray in places.items():
        jobs = jobs_of(CONFIG, (0, 1), tmp_path / name, workers=Workers(1, ray), created=CREATED, resume=True)
        train_all(jobs, tmp_path / name, at_once=2, ray=ray, silent=True)
    for name in ("policy.json", "seed-0/policy.json", "seed-1/policy.json"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


@pytest.mark.exhaustive
def test_the_best_seed_gives_the_policy(tmp_path: Path) -> None:
    """By the value on the orders of the last choice, which no seed was searched on."""
    summary = trained(tmp_path, seeds=(0, 1))
    best = summary["seeds"][summary["values"].index(min(summary["values"]))]
    assert summary["best"] == best
    assert (tmp_path / "policy.json").read_bytes() == (tmp_path / f"seed-{best}" / "policy.json").read_bytes()
    assert len(set(summary["values"])) > 1


def test_another_configuration_does_not_go_over_a_run(tmp_path: Path) -> None:
    """Neither without --resume nor with it."""
    trained(tmp_path)
    options: dict[str, Any] = {"workers": HERE, "created": CREATED}
    with pytest.raises(BadInput, match="give --resume"):
        jobs_of(CONFIG, [0], tmp_path, resume=False, **options)
    other = replace(CONFIG, samples=Samples(sequences=4))
    with pytest.raises(OtherConfiguration, match="saved 3, given 4"):
        jobs_of(other, [0], tmp_path, resume=True, **options)


def test_fifteen_hosts_on_s1_within_a_minute(tmp_path: Path) -> None:
    """B3: nominal order, the search as it is by default; seconds of processor time, not sixty."""
    config = Config(("S1",), Plan(family="potential17"), Samples(orders="nominal"))
    trained(tmp_path, config)
    run = json.loads((tmp_path / "seed-0" / "run.json").read_text("utf-8"))
    assert run["nominal"] == {"S1": 15}
    assert run["cpu_s"] < 60.0


def test_instances_are_named_once(tmp_path: Path) -> None:
    for names in ((), ("S1", "S1")):
        with pytest.raises(BadInput, match="each once"):
            replace(CONFIG, instances=names)
    assert Config.of(CONFIG.plain()) == CONFIG
    assert runs.POLICY_FILE == "policy.json"


def test_a_policy_of_many_instances_has_a_name_that_a_file_may_have() -> None:
    assert runs._listed(("S1", "L219")) == "S1, L219"
    many = tuple(f"small-{seed}" for seed in range(100, 132))
    assert runs._listed(many) == "32 instances, small-100 to small-131"
    path = f"/{'deep/' * 40}mine.json"
    assert runs._listed((path,)) == f"...{path[-24:]}"
    assert len(runs._listed((path, path + "x"))) < 80
