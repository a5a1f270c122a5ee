"""The evidence on a pool's models: hours under its champion, and the same hours under its challenger.

The agent recorded the answers of the challenger with its own. Their cost is that of a replay of the recorded hours
under both: the recorded requests, the measured usage, and windows of half a day.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from agent.models.directory import Champion, Probationer
from agent.oversubscription.settings import DIGITS
from agent.oversubscription.state import OversubscriptionStore
from domain.errors import BadInput
from domain.rules.oversubscription.risk import clopper_pearson_lower
from simulator.oversubscription.scenario import scenario_of
from trainer.learning.ledgers import reading
from trainer.learning.pool import OF_OBJECTIVE, PoolInUse
from trainer.learning.pools import PoolRecord, export_scenario, read_pool
from trainer.learning.trial import LEAST_SHARE, Promise, PromiseReplay, end_of
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.evaluation import SEED
from trainer.oversubscription.policies import Task, policy_of
from trainer.promotion.oversubscription import cost_of

WINDOW_H: Final = 12
LEAST_WINDOWS: Final = 3
LEAST_HOURS: Final = 24
"""Hours that a champion must have decided for a judgement."""


def lived(source: str, pool: str, champion: Champion) -> Promise | str:
    """Return the hot hours among those of a champion, or why they are not known.

    An hour is lived under the decision of the one before. LedgerUnavailable.
    """
    assert champion.at_s is not None, "a promotion that is watched has a time"
    digest = Path(champion.model).stem[:DIGITS]
    with reading(source) as ledger:
        made = OversubscriptionStore(ledger).hours_since(pool, champion.at_s)
    decided = {one.hour + 1 for one in made if one.model == digest}
    try:
        recorded = read_pool(source, pool, champion.at_s)
    except BadInput:
        return "the ledger has no hour since then"
    hot = {hour.hour: hour.hot > 0 for hour in recorded.hours if hour.hour in decided}
    if len(hot) < LEAST_HOURS:
        return f"{len(hot)} hours that it decided are recorded, {LEAST_HOURS} are needed to judge it by"
    return hot_of(recorded, sum(hot.values()), len(hot))


def hot_of(recorded: PoolRecord, hot: int, hours: int) -> Promise:
    """Return counts of hours with the share that the pool's promise allows, which is about its horizon."""
    rules = recorded.rules
    allowed = clopper_pearson_lower(int(rules["violation"]), recorded.horizon_h, float(rules["alpha"]))
    return Promise(hot, hours, allowed, "hours were hot")


def divergence_of(source: str, pool: str, one: Probationer) -> tuple[int, str]:
    """Return the number of hours with an answer of a model on probation, and its differences, for people."""
    until = end_of(one)
    digest = Path(one.model).stem[:DIGITS]
    with reading(source) as ledger:
        store = OversubscriptionStore(ledger)
        hours = [made for made in store.hours_since(pool, one.since) if made.at < until]
        requests = [made for made in store.requests_since(pool, one.since) if made.at < until]
    asked = [(m, m.shadow) for m in hours if m.shadow is not None and m.shadow.model == digest and not m.shadow.failed]
    answers = [(made, made.shadow) for made in requests if made.shadow is not None and made.shadow.model == digest]
    rates = [(row.rate, shadow.rate(row.subscriber)) for made, shadow in asked for row in made.subscribers]
    other = sum(abs(ours - theirs) > 1e-9 for ours, theirs in rates)
    text = f"it would have set another rate in {other / max(len(rates), 1):.1%} of {len(rates)} cases in {len(asked)} h"
    if answers:
        cores = sum(made.cores for made, _ in answers)
        ours = sum(made.rate * made.cores for made, _ in answers) / cores
        theirs = sum(shadow.rate * made.cores for made, shadow in answers) / cores
        text += f", and reserved {theirs:.1%} of the cores of {len(answers)} requests in place of {ours:.1%}"
    return len(asked), text


def replay(source: str, one: Probationer, in_use: PoolInUse, challenger: str) -> PromiseReplay:
    """Return the hours of a probation, replayed under the policy in use and the challenger; LedgerUnavailable."""
    pool, alpha = in_use.pool, in_use.alpha
    asked, divergence = divergence_of(source, pool, one)
    needed = round(LEAST_SHARE * one.hours)
    none = PromiseReplay(OF_OBJECTIVE[in_use.objective], asked, needed, divergence)
    until = end_of(one)
    with TemporaryDirectory() as place:
        try:
            recorded = read_pool(source, pool, one.since, until)
            cut = replace(recorded, rules={**recorded.rules, "horizon_h": WINDOW_H})
            export_scenario(cut, Path(place) / "hours")
        except BadInput as error:
            return replace(none, unknown=str(error))
        scenario = scenario_of(str(Path(place) / "hours"))
        weeks = [name for name in scenario.weeks if scenario.week(name).requests]
        if len(weeks) < LEAST_WINDOWS:
            why = f"{len(weeks)} windows of {WINDOW_H} h with requests are recorded, {LEAST_WINDOWS} are needed"
            return replace(none, unknown=why)
        costs: list[tuple[float, ...]] = []
        hot = 0
        for text in (in_use.policy, challenger):
            played = []
            for name in weeks:
                usage = f"replay:{scenario.folder / f'{scenario.name}_{name}_usage.csv.gz'}"
                task = Task(scenario, scenario.week(name), "warm", alpha)
                found = judge(policy_of(in_use.guarded(text)), task, usage=usage, episodes=1, seed=SEED)
                played.append(found)
            costs.append(tuple(cost_of(found, in_use.objective) for found in played))
            # The challenger comes last, and its hot hours count.
            hot = sum(int(found.sampled.hot_hours[0]) for found in played)
    kept = hot_of(recorded, hot, WINDOW_H * len(weeks))
    return replace(none, windows=tuple(weeks), now=costs[0], challenger=costs[1], kept=kept)
