"""What may differ from the week that rates were fitted on: another week, other profiles, VMs that do not scatter alone.

Specification §8 and §9, B5 and B5b.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from simulator.oversubscription.scenario import Week
from trainer.oversubscription.calibration import AUTO, calibrate, fit_static
from trainer.oversubscription.trials import CORRELATED, LEFT_OUT, PERSISTENT, SHIFTED, Contender, Row, Trials
from trainer.oversubscription.unseen import arrivals_of, shifted, unseen_week

FILTER_BUDGET = 0.003
PERSISTENT_USAGE = "persistent:psi=0.85"
PERSISTENT_BASE = {"internal_like": "grid:0.3"}
"""Base of the shield that knows each VM's level; where there is no entry, the static optimum."""
CORRELATIONS = (0.05, 0.2)


def released(trials: Trials, weeks: tuple[Week, ...], *, shield: bool) -> str:
    """Return the release policy that is calibrated on weeks of the scenario: rates alone, or behind a shield."""
    search: dict[str, Any] = {
        "alpha": 0.95,
        "evaluations": trials.extent.evaluations,
        "shield": AUTO if shield else None,
    }
    names = [week.name for week in weeks]
    fit = partial(calibrate, trials.scenario, start=trials.start, weeks=names, told=trials.told, **search)
    return trials.found("release", weeks, fit, **search)


def left_out(trials: Trials, static: str) -> Iterable[Row]:
    """Return rows of each packaged week under what was calibrated on the others alone, beside the moving average.

    static: rates fitted on the first week; they meet the others, so that packaged weeks compare with redrawn ones.
    """
    scenario = trials.scenario
    weeks = [scenario.week(name) for name in scenario.weeks]
    for week in weeks if len(weeks) > 1 else ():
        others = tuple(other for other in weeks if other is not week)
        policies = {"MA": "ma"} if week is weeks[0] else {"MA": "ma", "static 0.95": static}
        policies["calibrated 0.95"] = released(trials, others, shield=False)
        policies["shielded 0.95"] = released(trials, others, shield=True)
        for label, text in policies.items():
            yield trials.row(Contender(label, (text,)), week, LEFT_OUT, trials.extent.long_episodes)


def on_shifted(trials: Trials, before: str) -> Iterable[Row]:
    """Return rows on profiles that have shifted: the policy from before, policies fitted anew, the moving average."""
    for seed in range(trials.extent.shifted):
        changed = replace(trials, scenario=shifted(trials.scenario, seed))
        scenario = changed.scenario
        known = tuple(scenario.week(name) for name in scenario.weeks)
        policies = [
            Contender("MA", ("ma",)),
            Contender("calibrated before", (before,)),
            Contender("calibrated anew", (released(changed, known, shield=False),)),
            Contender("shielded anew", (released(changed, known, shield=True),)),
        ]
        arrivals = arrivals_of(scenario)
        for week in (unseen_week(arrivals, 500 + number) for number in range(2)):
            for contender in policies:
                row = changed.row(contender, week, SHIFTED, trials.extent.episodes)
                yield row | {"week": f"profile{seed} {week.name}"}


def on_persistent(trials: Trials, static: str) -> Iterable[Row]:
    """Return rows for VMs that keep a level of their own, with and without knowing it; from a cold start."""
    base = PERSISTENT_BASE.get(trials.scenario.name, static)
    policies = [
        Contender("No-oversub", ("none",)),
        Contender("static 0.95", (static,)),
        Contender("shield, knowing VMs", (f"shield:base=({base}),b=0.001,posterior=true",)),
        Contender("risk filter", ("filter:rate=0.2,b=0.001",)),
        Contender("risk filter, knowing VMs", (f"filter:rate=0.2,b={FILTER_BUDGET},posterior=true",)),
    ]
    week = trials.scenario.week(trials.scenario.weeks[0])
    for contender in policies:
        episodes = trials.extent.persistent if "posterior" in contender.texts[0] else trials.extent.episodes
        yield trials.row(contender, week, PERSISTENT, episodes, usage=PERSISTENT_USAGE)


def on_correlated(trials: Trials, policies: Mapping[str, str]) -> Iterable[Row]:
    """Return rows for VMs of a subscriber that move together: policies that ignore it, and static rates that do not."""
    week = trials.scenario.week(trials.scenario.weeks[0])
    search: dict[str, Any] = {"alpha": 0.95, "evaluations": trials.extent.evaluations, "seed": 0}
    for rho in CORRELATIONS:
        fit = partial(fit_static, trials.scenario, week.name, start=trials.start, rho=rho, told=trials.told, **search)
        fitted = trials.found("static", (week,), fit, rho=rho, **search)
        for label, text in (*policies.items(), ("static, reckoning with it", fitted)):
            contender = Contender(f"{label}, rho {rho:g}", (text,))
            yield trials.row(contender, week, CORRELATED, trials.extent.episodes, usage=f"gauss_corr:rho={rho:g}")
