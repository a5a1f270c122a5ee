"""Both policies from the same states: the reset, and the middle of the champion's run."""

from dataclasses import replace
from pathlib import Path

import pytest

from domain.errors import BadInput
from tests.trainer.promotion.arena import cases, idler, spender
from trainer.autoscaling.evaluation.contenders import ANYWHERE, Contender
from trainer.autoscaling.policies import run_policy
from trainer.autoscaling.policy_names import policy_of
from trainer.promotion.autoscaling import clusters_of, trials, vetoes_of
from trainer.promotion.gate import Trial


def contender(text: str | Path) -> Contender:
    return Contender("one of them", {ANYWHERE: str(text)})


def test_a_case_is_run_from_its_reset_and_from_three_states_of_the_champions_run(tmp_path: Path) -> None:
    (case,) = cases(1)
    made = trials(contender(spender(tmp_path)), contender(idler(tmp_path)), [case])
    steps = run_policy(policy_of(str(spender(tmp_path))), case.config, case.trace, case.seed).steps
    assert [t.entry_step for t in made] == [0, round(steps / 4), round(steps / 2), round(3 * steps / 4)]
    assert {t.case_key for t in made} == {case.key}


def test_a_policy_without_memory_goes_on_from_a_snapshot_as_if_never_stopped(tmp_path: Path) -> None:
    (case,) = cases(1)
    path = spender(tmp_path)
    made = trials(contender(path), contender(path), [case])
    whole = made[0]
    for entered in made[1:]:
        assert entered.champion_cost == entered.challenger_cost < whole.champion_cost
        assert entered.champion_run_time_s == whole.champion_run_time_s


def test_the_later_the_entry_the_less_there_is_left_to_save(tmp_path: Path) -> None:
    (case,) = cases(1)
    saved = [
        t.champion_cost - t.challenger_cost
        for t in trials(contender(spender(tmp_path)), contender(idler(tmp_path)), [case])
    ]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > saved[-1] > 0.0


def test_a_policy_that_begins_with_its_own_fleet_cannot_take_part(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="its own fleet"):
        trials(contender("constant:5,5,5"), contender(idler(tmp_path)), cases(1))


def test_runs_cluster_by_trace_and_by_boot_seed_where_a_family_has_a_single_trace() -> None:
    one = cases(1)[0]
    boots = [replace(one, seed=seed) for seed in range(3)]
    assert len(set(clusters_of(boots).values())) == 3
    windows = [replace(case, seed=seed) for case in cases(2) for seed in range(3)]
    found = clusters_of(windows)
    assert [found[case.key] for case in windows] == [case.trace.digest for case in windows]


def test_the_suite_has_a_veto_where_there_are_loads_of_ones_own() -> None:
    suite, own = (Trial("", family, "", 0, 1.0, 1.0) for family in ("T6 burst x10", "recent"))
    assert vetoes_of([suite]) == set()
    assert vetoes_of([suite, own]) == {"T6 burst x10"}
