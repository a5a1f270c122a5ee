"""Rules in the simulated cluster: the ladder's identities, the settings, and what is refused as a rule or a cluster."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from domain.errors import BadInput
from domain.rules.admission.policies import paper_grid
from domain.rules.admission.population import Population
from simulator.admission import PRESETS, Outcome, Rule, Run, cluster_of, draw_run, play, rule_of
from simulator.admission.rule import kappas_of

SMALL = replace(PRESETS["K"], capacity=400)
RUN = draw_run(SMALL, 7, hours=400.0)


def decisions(outcome: Outcome) -> list[tuple[int, int]]:
    arrivals = outcome.log[outcome.log["kind"] <= 1]
    return [(int(row["deployment"]), int(row["kind"])) for row in arrivals]


def played(text: str) -> Outcome:
    return play(RUN, rule_of(text), log=200_000)


def by_law(law: Population, number: int = 1) -> Run:
    arrivals = RUN.arrivals.copy()
    arrivals["law"] = number
    return replace(RUN, arrivals=arrivals, laws=(law,))


def test_a_law_that_is_the_population_s_decides_the_same_and_another_does_not() -> None:
    own = RUN.cluster.population
    plain, same, brief = (
        play(run, rule_of("second:2"), log=200_000)
        for run in (RUN, by_law(own), by_law(replace(own, mu_shape=30.0, mu_rate=1.0)))
    )
    assert decisions(same) == decisions(plain)
    assert same.utilisation == plain.utilisation
    # Cores that are believed to last two minutes keep nobody out.
    assert brief.admitted > plain.admitted
    assert len({plain.config_hash, same.config_hash, brief.config_hash}) == 3


def test_a_law_that_a_run_lacks_or_of_another_power_is_refused() -> None:
    own = RUN.cluster.population
    for number in (2, -1):
        with pytest.raises(BadInput, match="law"):
            by_law(own, number)
    with pytest.raises(BadInput, match="laws"):
        by_law(replace(own, power=0.9))


def test_a_threshold_above_the_capacity_admits_whatever_fits() -> None:
    outcome = played("zeroth:401")
    assert outcome.binding.sum() == 0
    assert outcome.unfit > 0
    assert outcome.admitted == outcome.arrivals - outcome.unfit


@pytest.mark.parametrize("text", ["zeroth:0", "zeroth:-3", "first:0"])
def test_no_threshold_no_admission(text: str) -> None:
    outcome = played(text)
    assert (outcome.admitted, outcome.utilisation) == (0, 0.0)


def test_a_risk_and_its_kappa_are_the_same_rule() -> None:
    by_risk, by_kappa = played("second:p=0.2"), played("second:2")
    assert by_risk.log.tobytes() == by_kappa.log.tobytes()
    assert by_kappa.binding.sum() > 0
    assert by_kappa.refreshes > 0


def test_the_second_moment_at_kappa_0_is_the_first_moment_at_the_capacity() -> None:
    assert decisions(played("second:0")) == decisions(played("first:400"))


def test_a_horizon_at_which_the_newcomer_is_marginal_does_not_bind() -> None:
    without, with_marginal = played("second:2"), played("second:2,marginal=1000")
    assert without.binding.sum() > 0
    assert with_marginal.binding.sum() == 0


def test_prior_observations_let_more_in_at_the_same_kappa() -> None:
    run = draw_run(replace(SMALL, capacity=2000), 7, observations=5, hours=400.0)
    informed = play(run, rule_of("second:3,marginal=1"))
    blind = play(draw_run(run.cluster, 7, hours=400.0), rule_of("second:3"))
    assert informed.admitted > blind.admitted


@pytest.mark.exhaustive
def test_the_log_grid_decides_as_the_published_one_and_the_tolerance_changes_little() -> None:
    run = draw_run(SMALL, 9, hours=72.0)
    exact = decisions(play(run, rule_of("second:2,grid=paper,tol=0"), log=50_000))
    fast = decisions(play(run, rule_of("second:2,tol=0"), log=50_000))
    assert len(exact) == len(fast) > 50
    assert sum(a == b for a, b in zip(exact, fast, strict=True)) >= len(exact) - 1
    assert len(Rule("second", kappa=1.0, grid="paper").bands) == 5


def test_kappa_is_given_by_band() -> None:
    rule = rule_of("second:2,bands=1/1/1/0.5/0.25")
    horizons = np.array([0.1, 24.0, 730.0, 730.5, 8760.0, 8761.0, 26_280.0])
    assert kappas_of(rule, horizons).tolist() == [2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5]
    assert kappas_of(rule, paper_grid())[[0, -1]].tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capacity", 0),
        ("capacity", 2.5),
        ("capacity", math.nan),
        ("arrival_rate", -1.0),
        ("arrival_rate", math.inf),
        ("sla", 0.0),
        ("sla", 1.0),
        ("mu_shape", 0.0),
        ("lam_rate", -1.0),
        ("sig_shape", "much"),
        ("power", 2.0),
        ("lifetimes", 0.0),
        ("colour", "red"),
        *(("sizes", sizes) for sizes in ([], [0], [1.5], "many")),
    ],
)
def test_a_cluster_file_names_the_field_that_is_wrong(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "cluster.json"
    table = {"initial_size": "empirical"} if field == "sizes" else {}
    path.write_text(json.dumps({"preset": "H", field: value} | table), "utf-8")
    with pytest.raises(BadInput) as refused:
        cluster_of(str(path))
    assert refused.value.field == field


def test_a_cluster_file_may_stand_alone_or_differ_from_a_preset(tmp_path: Path) -> None:
    differing = tmp_path / "mine.toml"
    differing.write_text('preset = "K"\ncapacity = 500\nsig_rate = 0.2\n', "utf-8")
    cluster = cluster_of(str(differing))
    law = replace(PRESETS["K"].population, sig_rate=0.2)
    assert cluster == replace(PRESETS["K"], name="mine", capacity=500, population=law)
    alone = tmp_path / "alone.json"
    fields = asdict(PRESETS["H"].population) | {"capacity": 900, "arrival_rate": 2.0, "sla": 0.01}
    alone.write_text(json.dumps(fields), "utf-8")
    assert cluster_of(str(alone)).population == PRESETS["H"].population
    alone.write_text(json.dumps(fields | {"sla": 2.0}), "utf-8")
    with pytest.raises(BadInput, match="sla is 2"):
        cluster_of(str(alone))


def test_a_preset_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for text in ("Z", str(tmp_path / "none.json")):
        with pytest.raises(BadInput, match="preset"):
            cluster_of(text)


def test_moments_are_refused_where_empty_deployments_come_back() -> None:
    run = draw_run(replace(SMALL, absorb=False), 0, hours=24.0)
    with pytest.raises(BadInput, match="absorb"):
        play(run, rule_of("second:2"))


def test_the_command_prints_the_figures_of_the_run() -> None:
    args = ["simulate", "admission", "--preset", "H", "--policy", "zeroth:14000", "--observations", "0", "--seed", "0"]
    done = CliRunner().invoke(app, [*args, "--years", "0.1", "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    outcome = play(draw_run(PRESETS["H"], 0, hours=876.0), rule_of("zeroth:14000"))
    assert printed["utilisation"] == outcome.utilisation
    assert printed["requests"] == outcome.requests.sum()
    assert printed["failures"] == outcome.failures.sum()
    assert printed["by_month"]["requests"] == outcome.requests.tolist()
    assert printed["arrivals"] == printed["admitted"] + printed["rejected_no_room"] + printed["rejected_by_rule"]
    assert (printed["preset"], printed["policy"], printed["seed"], printed["hours"]) == ("H", "zeroth:14000", 0, 876.0)
    text = CliRunner().invoke(app, [*args, "--years", "0.1"])
    assert f"{outcome.utilisation:.1%} of 20,000" in text.stdout
