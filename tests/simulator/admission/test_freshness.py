"""Forecasts that are not made anew at every arrival: they decide as if they were, and are far fewer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.admission import PRESETS, Outcome, Run, draw_run, play, rule_of

CLUSTER = replace(PRESETS["K"], capacity=2000, arrival_rate=0.4)


def beside_exact(run: Run, text: str, settings: str) -> Outcome:
    """Play a run under a rule, the same with tolerance 0 deciding beside it in the same state of the cluster."""
    return play(run, rule_of(text + settings), beside=rule_of(f"{text},tol=0"))


def share_unlike(outcome: Outcome) -> float:
    refused, would_refuse = outcome.decisions["rule"] >= 0, outcome.decisions["other"] >= 0
    assert 0.1 < np.mean(would_refuse) < 0.9, "a rule that always decides the same proves nothing"
    return float(np.mean(refused != would_refuse))


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", ["", ",tol=0.1,dead_band=1,reuse=0"])
def test_old_forecasts_decide_as_new_ones_would(settings: str) -> None:
    assert share_unlike(beside_exact(draw_run(CLUSTER, 1, hours=4000.0), "second:2", settings)) <= 0.005


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", ["first:1800", "gamma:0.1", "sgamma:0.1", "budget:0.02", "second:2,moments=na"])
def test_so_they_do_under_every_kind_of_rule(text: str) -> None:
    assert share_unlike(beside_exact(draw_run(CLUSTER, 2, hours=2500.0), text, "")) <= 0.01
