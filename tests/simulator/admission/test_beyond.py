"""Rules beyond the published ones, moments to choose from, and deployments that may be of either of two kinds.

Admission specification §5.1, §8.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from domain.errors import BadInput
from simulator.admission import PRESETS, Outcome, draw_run, play, rule_of
from simulator.admission.rule import kappas_of

SMALL = replace(PRESETS["K"], capacity=400)
RUN = draw_run(SMALL, 7, hours=400.0)


def played(text: str) -> Outcome:
    return play(RUN, rule_of(text), log=200_000)


@pytest.mark.parametrize(
    ("strict", "loose"),
    [
        ("gamma:1e-4", "gamma:0.2"),
        ("sgamma:1e-4", "sgamma:0.2"),
        ("budget:1e-4", "budget:0.1"),
        ("second:2,moments=na", "second:2,moments=ab"),
        ("second:2.5", "second:2.5,a=0.3"),
        ("second:threshold=250,kappa=1", "second:threshold=400,kappa=1"),
    ],
)
def test_who_asks_for_less_admits_more(strict: str, loose: str) -> None:
    few, many = played(strict), played(loose)
    assert few.binding.sum() > 0
    assert few.utilisation < many.utilisation


@pytest.mark.parametrize("kind", ["gamma", "sgamma", "budget"])
def test_a_risk_of_one_admits_whatever_fits_and_a_risk_of_zero_nothing(kind: str) -> None:
    assert played(f"{kind}:1").binding.sum() == 0
    assert played(f"{kind}:0").admitted == 0


def test_a_budget_with_feedback_admits_less_once_requests_have_failed() -> None:
    run = draw_run(replace(SMALL, capacity=2000, sla=1e-3), 1, hours=4000.0)
    without, with_feedback = (play(run, rule_of(f"budget:0.05{more}")) for more in ("", ",feedback=yes"))
    assert without.failures.sum() > 0
    assert with_feedback.admitted < without.admitted
    asked = np.flatnonzero(without.failures)[0]
    assert np.array_equal(with_feedback.utilisation_by_month[:asked], without.utilisation_by_month[:asked])


@pytest.mark.parametrize("moments", ["paper", "na", "ab", "ab_fast"])
@pytest.mark.parametrize("belief", ["exact", "conjugate"])
def test_every_moments_and_belief_can_decide(moments: str, belief: str) -> None:
    outcome = played(f"second:2,moments={moments},belief={belief}")
    assert 0.0 < outcome.utilisation < 1.0
    assert outcome.refreshes > 0
    same = played(f"second:2,moments={moments}")
    # Published moments stand on the conjugate belief in any case.
    assert (outcome.config_hash == same.config_hash) == (belief == "exact")
    assert (outcome.log.tobytes() == same.log.tobytes()) == (belief == "exact" or moments == "paper")


def test_fresh_arrivals_may_be_looked_at_more_closely() -> None:
    run, zeroth = draw_run(replace(SMALL, capacity=2000), 1, hours=500.0), rule_of("zeroth:2000")
    # Asked beside another rule, each decision tells the room that is left with the arrival in.
    as_before, same, closer = (
        play(run, rule_of(f"second:2{fresh}"), beside=zeroth).decisions["slack"]
        for fresh in ("", ",fresh=ab_fast", ",fresh=ab")
    )
    assert np.array_equal(as_before, same)
    # The first comes into an empty cluster: nothing but its own forecast is in the figure.
    assert as_before[0] != closer[0]
    assert as_before[0] == pytest.approx(closer[0], rel=0.01)


def test_beyond_a_month_kappa_is_taken_times_the_factor_and_beyond_a_year_times_its_square() -> None:
    kappa = kappas_of(rule_of("second:2,a=0.7"), np.array([1.0, 730.0, 731.0, 8_760.0, 9_000.0]))
    assert kappa == pytest.approx([2.0, 2.0, 1.4, 1.4, 0.98])


@pytest.mark.exhaustive
def test_a_rule_beside_is_asked_and_has_no_say() -> None:
    rule, other = rule_of("second:2,reuse=0"), rule_of("second:2,reuse=0,grid=paper")
    alone, watched = play(RUN, rule, log=200_000), play(RUN, rule, log=200_000, beside=other)
    assert watched.log.tobytes() == alone.log.tobytes()
    assert len(watched.decisions) == alone.arrivals - alone.unfit
    assert np.sum(watched.decisions["rule"] >= 0) == alone.binding.sum()
    same = np.mean((watched.decisions["rule"] >= 0) == (watched.decisions["other"] >= 0))
    assert same >= 0.98


def test_labels_leave_deployments_and_what_was_seen_of_them_as_they_are() -> None:
    labelled = draw_run(PRESETS["H"], 3, observations=5, hours=500.0).arrivals
    unlabelled = draw_run(PRESETS["H"], 3, observations=5, hours=500.0, labels="unlabelled").arrivals
    names = list(labelled.dtype.fields or {})
    mine = [name for name in names if name != "kinds" and not name.startswith("other_")]
    assert labelled[mine].tolist() == unlabelled[mine].tolist()
    assert set(unlabelled["other_sizes"].tolist()) == {5}
    assert not np.array_equal(unlabelled["other_core_hours"], unlabelled["seen_core_hours"])


@pytest.mark.exhaustive
def test_not_knowing_which_kind_comes_costs_room() -> None:
    cluster = replace(SMALL, capacity=2000)
    rule = rule_of("second:3,marginal=1")
    outcomes = [
        play(draw_run(cluster, seed, observations=5, hours=700.0, labels=labels, weights=weights), rule)
        for labels, weights in (("labelled", "evidence"), ("unlabelled", "evidence"), ("unlabelled", "static"))
        for seed in range(3)
    ]
    labelled, weighed, halves = (np.mean([o.utilisation for o in outcomes[i : i + 3]]) for i in (0, 3, 6))
    assert labelled > weighed > halves
    assert len({outcome.config_hash for outcome in outcomes}) == 3


def test_scale_outs_may_be_seen_as_counts_of_hours() -> None:
    counts = draw_run(PRESETS["T"], 3, observations=4, hours=3000.0, scale_outs="counts").arrivals
    assert set(counts["seen_gap_hours"].tolist()) == {4.0}
    assert abs(counts["seen_requests"].sum() / (4.0 * counts["theta"].sum()) - 1.0) < 0.1


def test_first_sizes_from_a_table_tell_nothing_of_later_ones() -> None:
    cluster = replace(SMALL, initial_size="empirical", sizes=(1, 2, 2, 64))
    run = draw_run(cluster, 7, hours=400.0)
    assert set(run.arrivals["size"].tolist()) == {1, 2, 64}
    other, same = play(draw_run(SMALL, 7, hours=400.0), rule_of("second:2")), play(run, rule_of("second:2"))
    assert other.config_hash != same.config_hash
    assert same.admitted > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("labels", "some"),
        ("weights", "even"),
        ("scale_outs", "waits"),
        ("seed", -1),
        ("observations", -1),
        ("hours", 0.0),
    ],
)
def test_a_run_names_what_is_wrong(field: str, value: object) -> None:
    with pytest.raises(BadInput) as refused:
        draw_run(SMALL, **{"seed": 0, "hours": 10.0, field: value})  # type: ignore[arg-type]
    assert refused.value.field == field


def test_the_command_tells_labels_and_every_figure_of_a_run() -> None:
    args = ["simulate", "admission", "--preset", "H", "--policy", "sgamma:1e-3,marginal=1", "--years", "0.05"]
    done = CliRunner().invoke(app, [*args, "--observations", "1", "--labels", "unlabelled", "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    run = draw_run(PRESETS["H"], 0, observations=1, hours=438.0, labels="unlabelled")
    outcome = play(run, rule_of("sgamma:1e-3,marginal=1"))
    assert printed["utilisation"] == outcome.utilisation
    assert printed["config_hash"] == outcome.config_hash
    assert printed["pooled_failed_share"] == outcome.pooled_failed_share
    assert printed["labels"] == "unlabelled"
