"""The gate of clusters: a rule with its threshold and its population, on runs that nothing was tuned on.

A cluster's model is a JSON or TOML file: `rule`, a text of `trimtab simulate admission`, beside `preset` or what
`trimtab fit admission` writes of the population. It is played in the world of its own population, which was fitted to
the cluster's usage, or in another one. A rule costs the share of cores that it leaves idle. It keeps the promise when
the upper end of the one-sided 90 % interval of the share of scale-outs refused is at most the cluster's (§6). The best
tuned rule is `second` with the threshold that `trimtab tune admission` finds on seeds of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agent.admission.settings import cluster_model_in
from domain.errors import BadInput
from simulator.admission import cluster_of
from simulator.admission.arrivals import HOURS_PER_RUN
from trainer.admission.fronts import result_of
from trainer.admission.table import PIECE, Cell, Runs, Store, comparison_seeds, configuration_of, run_cells
from trainer.admission.tuning import ONE_SIDED_90, pieces_expected, scale_of, tune
from trainer.kit.jobs import HERE, Workers
from trainer.promotion.gate import CHALLENGER, CHAMPION, TUNED, Gate, Limits, PolicyCosts, Verdict, verdict


def cluster_gate(
    limits: Limits,
    *,
    now: str,
    capacity: int | None = None,
    world: str = "",
    tuned: str = "",
    sla: float | None = None,
    observations: int = 0,
    runs: int = 100,
    hours: float = HOURS_PER_RUN,
    workers: Workers = HERE,
) -> Gate:
    """Return the gate of clusters. now: the rule that decides where there is no champion.

    capacity: cores of the cluster; the challenger's own world is scaled to it, arrivals too. world: T, H, K or a file,
    "" for the challenger's own. tuned: the best tuned rule, "" to search for it. sla: share
    of scale-outs that may be refused, else the world's. observations: prior ones of each arrival.
    """

    def gate(challenger: Path, champion: Path | None) -> Verdict:
        rule = cluster_model_in(challenger).rule
        theirs = now if champion is None else cluster_model_in(champion).rule
        preset = world or str(_world_of(challenger, capacity))
        level = cluster_of(preset).sla if sla is None else sla
        store = Store(None, configuration_of([preset], hours))

        scale = scale_of("second", preset)
        searched = 0 if tuned else pieces_expected(scale, runs, runs)
        crew = replace(workers, expected=searched + math.ceil(3 * runs / PIECE))

        def play(cell: Cell, seeds: Sequence[int]) -> Runs:
            return run_cells(store, [cell], seeds, crew)[cell]

        def played(text: str) -> PolicyCosts:
            cell = Cell(preset, text, observations, hours=hours)
            found = play(cell, comparison_seeds(runs))
            idle = (1.0 - found.utilisation).tolist()
            costs = [("runs", str(seed), cost) for seed, cost in zip(found.seed.tolist(), idle, strict=True)]
            return PolicyCosts(tuple(costs), result_of(cell, found, level=ONE_SIDED_90).primary.high, level)

        start = Cell(preset, rule, observations, hours=hours)
        best = tuned or tune(start, scale, level, play, runs=runs, final_runs=runs).policy
        if best is None:
            raise BadInput(
                "--tuned", "", "no threshold of second keeps the promise: give more --runs, or another world"
            )
        texts = {CHALLENGER: rule, CHAMPION: theirs, TUNED: best}
        found = {label: played(text) for label, text in texts.items()}
        facts = {
            "challenger": {"rule": rule},
            "champion": {"rule": theirs},
            "tuned": best,
            "suite": {"world": store.configuration, "runs": runs, "observations": observations},
        }
        return verdict(
            "admission", found, limits, theirs if champion is None else "champion", facts, more={"sla": level}
        )

    return gate


def _world_of(challenger: Path, capacity: int | None) -> Path:
    """Write the challenger's population beside its copy, as the simulator reads it, and return that file."""
    held = {name: value for name, value in cluster_model_in(challenger).held.items() if name != "rule"}
    path = challenger.with_name("world.json")
    path.write_text(json.dumps(held), "utf-8")
    if capacity is not None:
        world = cluster_of(str(path))
        rate = world.arrival_rate * capacity / world.capacity
        path.write_text(json.dumps({**held, "capacity": capacity, "arrival_rate": rate}), "utf-8")
    return path
