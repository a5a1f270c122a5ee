"""A cluster is described by settings; what does not fit is reported with the setting's name and what to give."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.admission.book import bands_of, horizons_of, kappas_of
from agent.admission.cluster import clusters_of
from agent.admission.settings import cluster_model_in, rules_of
from agent.ledger import Ledger
from agent.models.directory import read_model_file
from agent.settings import Settings, load_settings
from domain.clock import VirtualClock
from domain.errors import BadInput, ConfigurationError
from domain.rules.admission.cluster import ClusterRules, Moments, PolicyKind
from domain.rules.admission.policies import BANDS_H, paper_grid
from domain.rules.admission.population import POPULATIONS
from domain.rules.admission.rule import KINDS, kappa_of
from domain.subject import Subject
from tests.agent.admission.clusters import rules
from trainer.promotion.directory import ModelsWriter

T = {"mu_shape": 0.4, "mu_rate": 0.5, "lam_shape": 1.3, "lam_rate": 0.8, "sig_shape": 0.9, "sig_rate": 0.2}


def given(**values: object) -> dict[str, str]:
    named = {"CAPACITY_CORES": 20_000, **values}
    return {f"TRIMTAB_CLUSTERS__main__{name}": str(value) for name, value in named.items()}


def rules_from(**values: object) -> ClusterRules:
    settings: Settings = load_settings(given(**values))
    return rules_of("main", settings.clusters["main"])


def mistakes(**values: object) -> list[tuple[str, str]]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(given(**values))
    return [(mistake.name, mistake.remedy) for mistake in caught.value.mistakes]


def test_who_only_reads_settings_loads_no_numpy() -> None:
    code = "import sys, agent.settings, agent.commands.collect, agent.service.vm_agent; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_capacity_is_enough() -> None:
    found = rules_from()
    assert found == ClusterRules("main", 20_000, POPULATIONS["T"], PolicyKind.SECOND, kappa=2.8)
    assert (found.text, found.moments, found.limit_cores) == ("second:2.8", Moments.AB, 20_000.0)


def test_every_rule_can_be_asked_for() -> None:
    assert rules_from(POLICY="zeroth", THRESHOLD_CORES=14_000).text == "zeroth:14000"
    assert rules_from(POLICY="first", THRESHOLD_CORES=16_000).text == "first:16000"
    assert rules_from(KAPPA=2.2, THRESHOLD_CORES=15_000).limit_cores == 15_000.0
    assert rules_from(RISK=0.1).standard_deviations == kappa_of(0.1)
    assert rules_from(POLICY="sgamma", RISK=1e-3).text == "sgamma:0.001"
    assert rules_from(POLICY="gamma", RISK=1e-3).text == "gamma:0.001"
    assert rules_from(POLICY="budget", RISK=3e-4).text == "budget:0.0003"


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_is_taken_in_the_words_of_the_simulator(kind: str) -> None:
    text = f"{kind}:{0.5 if kind in ('gamma', 'sgamma', 'budget') else 2}"
    assert rules_from(RULE=text).text == text
    assert rules_from(RULE=text, SLA=0.01).sla == 0.01


def test_a_learned_rule_is_that_of_the_promoted_file_and_without_one_the_other_settings_decide(tmp_path: Path) -> None:
    directory, file = ModelsWriter(tmp_path / "models"), tmp_path / "cluster.json"
    file.write_text(json.dumps({"preset": "K", "rule": "second:2.2"}))
    here = {"TRIMTAB_LEARNED__MODELS_DIR": str(directory.path)}
    settings = load_settings({**given(RULE="learned", KAPPA=3, MARGINAL_CORES=2), **here})
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        before = clusters_of(settings, ledger, VirtualClock(0.0))["main"].rules
        assert (before.text, before.marginal_cores, before.population) == ("second:3", 2.0, POPULATIONS["T"])
        subject, put = Subject("admission", "main"), read_model_file(file)
        held = directory.force(put, subject, "a trial", "2026-03-01T12:00:00Z", cluster_model_in)
        after = clusters_of(settings, ledger, VirtualClock(0.0))["main"].rules
        assert (after.text, after.marginal_cores, after.population) == ("second:2.2", 0.0, POPULATIONS["K"])
        (directory.path / held.model).write_text(file.read_text().replace("2.2", "0.1"))
        assert clusters_of(settings, ledger, VirtualClock(0.0))["main"].rules == before


def test_a_rule_brings_all_its_settings_and_the_simulators_defaults() -> None:
    plain = rules_from(RULE="second:2.2")
    assert (plain.moments, plain.marginal_cores, plain.kappa_factors) == (Moments.AB_FAST, 0.0, (1.0,) * 5)
    text = "budget:3e-4,threshold=900,feedback=yes,fresh=ab,belief=conjugate,grid=paper,tol=0.2,dead_band=3,marginal=2"
    full = rules_from(RULE=text)
    assert (full.risk, full.limit_cores, full.feedback, full.fresh) == (3e-4, 900.0, True, Moments.AB)
    assert (full.conjugate, full.tolerance, full.dead_band_cores, full.marginal_cores) == (True, 0.2, 3.0, 2.0)
    assert horizons_of(full).size == paper_grid().size
    banded = rules_from(RULE="second:2,bands=1/1/1/0.7/0.3")
    assert list(dict.fromkeys(kappas_of(banded, horizons_of(banded)))) == [2.0, 1.4, 0.6]


def test_a_fitted_population_is_read_from_its_file(tmp_path: Path) -> None:
    whole, part, toml = tmp_path / "whole.json", tmp_path / "part.json", tmp_path / "part.toml"
    whole.write_text(json.dumps({**T, "power": 0.8, "lifetimes": 20.0, "capacity": 500}), "utf-8")
    part.write_text(json.dumps({"preset": "K", "power": 0.5}), "utf-8")
    toml.write_text('preset = "K"\npower = 0.5\n', "utf-8")
    assert rules_from(POPULATION_FILE=whole).population.mu_shape == 0.4
    assert rules_from(POPULATION_FILE=part).population == rules_from(POPULATION_FILE=toml).population
    assert (rules_from(POPULATION_FILE=part).population.power, POPULATIONS["K"].power) == (0.5, 0.6)


@pytest.mark.parametrize(
    ("values", "name", "remedy"),
    [
        ({"CAPACITY_CORES": 0}, "CAPACITY_CORES", "give a whole number of cores from 1 to 10000000"),
        ({"POLICY": "third"}, "POLICY", "give one of zeroth, first, second, sgamma"),
        ({"POLICY": "zeroth"}, "THRESHOLD_CORES", "give the threshold of zeroth in cores"),
        ({"POLICY": "sgamma"}, "RISK", "give the chance that sgamma may leave, such as 1e-3"),
        ({"KAPPA": 2, "RISK": 0.1}, "KAPPA", "give either kappa or risk with the policy second"),
        ({"POLICY": "sgamma", "RISK": 0.1, "MOMENTS": "na"}, "MOMENTS", "give ab or ab_fast: sgamma needs a third"),
        ({"POLICY": "budget"}, "RISK", "give the chance that budget may leave, such as 1e-3"),
        ({"RULE": "third:2"}, "RULE", "give a rule such as second:2.8 (one of zeroth, first, second"),
        ({"RULE": "second:2,colour=3"}, "RULE", "policy 'second:2,colour=3': colour is not a setting of second"),
        ({"RULE": "budget:1e-3,moments=na"}, "RULE", "moments 'na': give ab or ab_fast: budget needs a third moment"),
        ({"RULE": "sgamma:1"}, "RULE", "risk 1.0: give a chance between 0 and 1"),
        ({"RULE": "second:2", "KAPPA": 3, "POLICY": "first"}, "RULE", "leave out kappa, policy: the rule sets all"),
        ({"SLA": 1}, "SLA", "give a number above 0 and below 1"),
        ({"PRESET": "Q"}, "PRESET", "give one of T, H, K"),
    ],
)
def test_what_does_not_fit_is_reported(values: dict[str, object], name: str, remedy: str) -> None:
    ((found, said),) = mistakes(**values)
    assert found == f"TRIMTAB_CLUSTERS__main__{name}"
    assert said.startswith(remedy)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "give a JSON or TOML file that can be read"),
        ("[]", "it lacks mu_shape, mu_rate, lam_shape, lam_rate, sig_shape, sig_rate, power, lifetimes"),
        (json.dumps({"preset": "K", "power": "much"}), "its power is 'much': give a number"),
        (json.dumps({"preset": "K", "power": 2}), "its power is 2.0: give a number from 0 to 1.5"),
        (json.dumps({"preset": "K", "lifetimes": 0}), "its lifetimes is 0.0: give a finite number above 0"),
        (json.dumps({"preset": "K", "mu_rate": -1}), "its mu_rate is -1.0: give a finite number above 0"),
    ],
)
def test_a_file_that_cannot_be_used_is_reported(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "population.json"
    file.write_text(text, "utf-8")
    ((name, remedy),) = mistakes(POPULATION_FILE=file)
    assert name == "TRIMTAB_CLUSTERS__main__POPULATION_FILE"
    assert said in remedy


def test_a_rule_looks_at_two_horizons_or_more() -> None:
    with pytest.raises(BadInput, match="count"):
        horizons_of(rules(horizons=1))


def test_bands_and_factors_go_by_horizon() -> None:
    ends = horizons_of(rules())
    names = bands_of(ends)
    assert list(dict.fromkeys(names)) == ["day", "week", "month", "year", "three_years"]
    assert all(ends[k] <= BANDS_H[0] * 1.001 for k, name in enumerate(names) if name == "day")
    kappas = kappas_of(rules(band_factor=0.5), ends)
    assert {name: float(kappas[k]) for k, name in enumerate(names)} == {
        **dict.fromkeys(("day", "week", "month"), 2.2),
        "year": 1.1,
        "three_years": 0.55,
    }


def test_any_change_of_the_rules_changes_their_hash() -> None:
    changes: list[dict[str, Any]] = [{}, {"kappa": 2.3}, {"capacity_cores": 999}, {"population": POPULATIONS["T"]}]
    assert len({rules(**change).config_hash for change in changes}) == len(changes)
    assert rules().config_hash == rules().config_hash
