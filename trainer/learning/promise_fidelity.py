"""Is the simulator of a pool or a cluster true? What was recorded, replayed under what ran, must come out as recorded.

Both say of one figure how it was recorded and how it is replayed, and of the quantities that it is made of likewise, so
that the one that is off can be named. A cluster's record is a draw of chance: where replays lie further apart than the
bound, a difference counts from there on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from domain.rules.admission.population import Population
from domain.units import HOURS_PER_DAY
from simulator.admission import Cluster, draw_run, play, rule_of
from simulator.oversubscription.scenario import Scenario
from trainer.admission.fitting.histories import Histories
from trainer.learning.fidelity import WITHIN
from trainer.learning.round import Budget, Truth
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.evaluation import SEED
from trainer.oversubscription.policies import Task, policy_of

REPLAYS = 20
"""Replays of a cluster."""
FIRST_SEED = 2_900_000_000
"""Seeds of the replays of a cluster; what tunes, judges or asks the gate uses others."""
APART = 2.09 * math.sqrt(1.0 + 1.0 / REPLAYS)
"""Standard deviations within which one more draw lies with 95 %, for as many replays (Student's t)."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity as recorded and as replayed; chance: by how much it may differ by chance."""

    name: str
    recorded: float
    replayed: float
    chance: float = 0.0

    @property
    def off(self) -> float:
        """Replayed over recorded, minus 1; inf where nothing was recorded and something is replayed."""
        if self.recorded > 0.0:
            return self.replayed / self.recorded - 1.0
        return math.inf if self.replayed > 0.0 else 0.0

    @property
    def differs(self) -> bool:
        """Whether it is off by more than the bound, and by more than chance makes of it."""
        return abs(self.off) > WITHIN and abs(self.replayed - self.recorded) > self.chance


def truth_of(subject: str, figure: Quantity, parts: Sequence[Quantity], rest: str = "") -> Truth:
    """Return whether a replay is true to the record: the figure must be met.

    subject: the pool or the cluster, for people. parts: of the figure, to name the one that is off; rest: the name
    where none of them is.
    """
    found = f"replayed, {figure.name} are {figure.off:+.1%} of the recorded figure, at most {WITHIN:.0%} is allowed"
    named = ""
    if figure.differs:
        wrong = [one for one in parts if one.differs]
        named = max(wrong, key=lambda one: abs(one.off)).name if wrong else rest
        apart = ", ".join(f"{one.name} {one.off:+.0%}" for one in parts)
        sentence = f"the simulator does not describe {subject}: {found} ({apart}): {named} are off"
    else:
        if abs(figure.off) > WITHIN:
            found += f", or {figure.chance / figure.recorded:.0%} by chance"
        sentence = f"the simulator describes {subject}: {found}"
    each = {one.name: asdict(one) | {"off": one.off} for one in (figure, *parts)}
    return Truth(not figure.differs, figure.off, named, each, sentence)


def pool_fidelity(
    scenario: Scenario, policy: str, weeks: Sequence[tuple[str, float, float]], start: str, alpha: float, budget: Budget
) -> Truth:
    """Replay weeks of a pool with the usage that was measured; raises BudgetUsed.

    policy: what ran, behind its shield. weeks: names, with the cores requested and reserved that were recorded, summed
    over hours of the VMs in the scenario.
    """
    requested = reserved = wanted = kept = 0.0
    for name, asked, given in weeks:
        budget.check()
        usage = f"replay:{scenario.folder / f'{scenario.name}_{name}_usage.csv.gz'}"
        task = Task(scenario, scenario.week(name), start, alpha)
        hours = judge(policy_of(policy), task, usage=usage, episodes=1, seed=SEED).hours()
        requested, wanted = requested + float(hours["cores_requested"].sum()), wanted + asked
        reserved, kept = reserved + float(hours["cores_reserved"].sum()), kept + given
    rates = Quantity("rates", kept / max(wanted, 1e-9), reserved / max(requested, 1e-9))
    parts = (Quantity("requests", wanted, requested), rates)
    return truth_of(f"pool {scenario.name}", Quantity("cores reserved", kept, reserved), parts)


def cluster_fidelity(
    name: str, recorded: Histories, population: Population, capacity: int, sla: float, budget: Budget
) -> Truth:
    """Replay those who came into a cluster, from an empty one on, with lives of the population; raises BudgetUsed.

    recorded: deployments that began in the part, what ran had admitted them: all that fit are admitted.
    """
    count, core_hours = len(recorded), float(recorded.core_hours.sum())
    cluster = Cluster("record", population, capacity, count / recorded.window_h, sla)
    rows = []
    for seed in range(REPLAYS):
        budget.check()
        found = play(draw_run(cluster, FIRST_SEED + seed, hours=recorded.window_h), rule_of(f"zeroth:{capacity}"))
        cores = found.utilisation * capacity
        more = float(found.requests.sum() - found.failures.sum())
        rows.append(
            (
                cores,
                found.admitted / recorded.window_h * HOURS_PER_DAY,
                more / max(found.admitted, 1),
                found.deaths / max(cores * recorded.window_h, 1e-9),
            )
        )
    ended = float(recorded.ended.sum() - recorded.last_cores[recorded.shut_down].sum())
    known = (
        core_hours / recorded.window_h,
        count / recorded.window_h * HOURS_PER_DAY,
        float(recorded.scale_outs.sum()) / count,
        ended / max(core_hours, 1e-9),
    )
    names = ("cores taken", "arrivals", "requests for more cores", "ends of cores")
    means, apart = np.mean(rows, axis=0), APART * np.std(rows, axis=0, ddof=1)
    figure, *parts = (
        Quantity(name, one, float(mean), float(chance))
        for name, one, mean, chance in zip(names, known, means, apart, strict=True)
    )
    return truth_of(f"cluster {name}", figure, parts, "sizes")
