"""The rule for each request in the round of a pool: trained, chosen and released on the earlier weeks.

The recipe is that of `trimtab train oversubscription --preset machine --set drifts=true`
(`trainer.oversubscription.rule_runs`), with weeks redrawn from the pool's own arrivals and profiles. Its streams for
training, validation and release never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from simulator.oversubscription.scenario import Scenario
from trainer.kit.runs import checkpoints_of
from trainer.learning.state import StageResult
from trainer.oversubscription.policies import RatesFile
from trainer.oversubscription.rule_runs import RELEASE_EPISODES, choose, released, through_changes, write_rule
from trainer.oversubscription.rule_training import Config, decoded, raised, train

SEEDS: Final = (0, 1)
RELATIVE_COST: Final = 5.0
"""Seconds of a week under a rule, over those at constant rates."""
USUAL_OFFSETS: Final = 4
"""Offsets that the choice tries for a seed, more rarely."""
SHIELDED_COST: Final = 60.0
"""As RELATIVE_COST, of a week by the rule and by its rates behind the agent's shield."""
FULL: Final = 20.0
"""Added to b of a subscriber that is reserved in full: no margin makes up for it."""
MOST_GENERATIONS: Final = Config().whole


@dataclass(frozen=True, slots=True)
class TrainedRule(StageResult):
    """The chosen rule in its file. released: whether each week of the release keeps the promise.

    passed: whether it keeps the margins of the validation weeks. worst: chance of a broken promise in the worst week
    of the release, the larger of the one without sampling and the sampled one. changed, rates_changed: mean risk of
    weeks with usual drifts behind the agent's shield, of the rule and of its constant rates.
    """

    STAGE: ClassVar = "rule"

    objective: str
    seed: int
    offset: float
    saved: float
    passed: bool
    released: bool
    worst: float
    changed: float
    rates_changed: float


def generation_s(week_s: float, config: Config) -> float:
    """Return the seconds of a generation of all seeds; week_s: those of a week at constant rates."""
    return len(SEEDS) * config.population * config.drawn * RELATIVE_COST * week_s


def choice_s(week_s: float, config: Config, known: int) -> float:
    """Return the seconds of choice and release. known: the pool's weeks; week_s: see `generation_s`.

    An episode of usage takes about as long as a week at constant rates.
    """
    chosen = len(SEEDS) * USUAL_OFFSETS * (config.validation + known) * RELATIVE_COST
    released = (config.released + known) * RELEASE_EPISODES + config.released * SHIELDED_COST
    return (chosen + released) * week_s


def config_of(scenario: str, start: str, alpha: float, objective: str, more: Mapping[str, Any]) -> Config:
    """Return the configuration of a run. more: fields in place of the defaults."""
    return Config(scenario=scenario, start=start, alpha=alpha, objective=objective, drifts=True, **more)


def train_rule(
    scenario: Scenario,
    config: Config,
    generations: int,
    rates: RatesFile,
    opted_out: Collection[str],
    folder: Path,
    file: Path,
    check: Callable[[], None],
) -> TrainedRule:
    """Train a rule for each seed, resuming in the folder, and write the chosen one.

    rates: where the search begins, and for the hours without the rule. opted_out: reserved in full, which leaves more
    room than in the search. check: raises where the round has to stop.
    """
    first = max(1, round(generations * config.generations[0] / config.whole))
    config = replace(config, generations=(first, max(1, generations - first)))
    rules = []
    for seed in SEEDS:
        learnt = train(
            replace(config, seed=seed),
            rates=rates,
            checkpoints=checkpoints_of(folder / f"seed-{seed}"),
            on_progress=lambda _: check(),
        )
        rule = decoded(learnt.point, len(rates.subscribers))
        rules.append(raised(rule, np.array([FULL * (name in opted_out) for name in rates.subscribers])))
    chosen, facts = choose(scenario, config, rules, check)
    rule = raised(rules[chosen], facts["offset"])
    weeks, changes = released(scenario, config, rule, check), through_changes(scenario, config, rule, rates, check)
    about = {"seed": SEEDS[chosen], "choice": facts, "release": weeks, "changes": changes}
    write_rule(file, scenario, config, rule, rates, about)
    return TrainedRule(
        config.objective,
        SEEDS[chosen],
        facts["offset"],
        facts["saved"],
        facts["passed"],
        all(week["released"] for week in weeks) and changes["released"],
        max(max(week["c_hot_r"], week["c_hot_r_analytic"]) for week in weeks),
        changes["mean"],
        changes["rates_mean"],
    )
