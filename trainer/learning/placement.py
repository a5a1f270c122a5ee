"""The round of a placement pool: from its record to a policy's file, a report, and the gate.

record   the windows of the record; the latest two fifths are held out
now      the policy in use when the round begins
plan     the length of the search
search   a vector on the earlier windows, by CMA-ES from the policy in use and from the bundled one
choose   of that and of the policies without a vector to learn, the best on orders that the search did not see
judge    all of them, the policy in use, best fit and the bound on the held-out windows
report   for people
gate     the choice against the policy in use (`trainer.promotion.placement`)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np

from agent.placement.choosing import SHIPPED, read_policy
from domain.rules.placement.instance import Instance
from domain.rules.placement.mix import mix_of_instances
from domain.rules.placement.policies import BF, FF, RESERVE, WF, Policy, Training, parse_policy, policy_document
from domain.subject import Subject
from simulator.placement import engine
from simulator.placement.instances import digest_of
from trainer.kit.files import replace_file, write_json
from trainer.kit.intervals import Comparison, compare
from trainer.kit.report import Section, document, escape, table
from trainer.learning.placements import Windows, reordered
from trainer.learning.round import Budget, Round, Stages, cpu_s
from trainer.learning.state import StageResult, plain
from trainer.placement.evaluation import Case
from trainer.placement.swarm import CMAES, SELECTION, Floats, History, Plan, search
from trainer.promotion.gate import Gate, Limits
from trainer.promotion.placement import ORDERS, HeldOut, costs_of, digest_of_cases, held_out, placement_gate

PLACEMENT: Final = "placement"
NOW, LEARNT, SHIPPED_ONE, BOUND = "decides now", "learnt", "comes with the agent", "bound"
FAMILY: Final = "tiers17a"
PLAIN: Final = (FF, BF, WF, RESERVE)
"""Policies without a vector."""
SEARCH_FILE: Final = "search.json"
CHOSEN_ORDERS: Final = 2
"""Other orders of each earlier window on which one policy is chosen; their seeds follow those of the search."""
FIRST_CHOSEN: Final = 40_000


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """How a round is done.

    population: points an iteration. iterations: fewest and most of
    the search; between them the budget decides. orders: other ones of each held-out window.
    """

    population: int = 16
    iterations: tuple[int, int] = (2, 40)
    orders: int = ORDERS
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class InUse(StageResult):
    """The policy in use when the round begins; a promotion of this very round is not compared with itself."""

    STAGE: ClassVar = "now"

    policy: Policy

    def as_data(self) -> dict[str, Any]:
        """Return it as the content of its file."""
        return policy_document(self.policy)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the policy in the content of a file."""
        return cls(parse_policy(data))


@dataclass(frozen=True, slots=True)
class SearchPlan(StageResult):
    """The length of the search. vector_s: seconds for one vector on all windows."""

    STAGE: ClassVar = "plan"

    vector_s: float
    iterations: int


@dataclass(frozen=True, slots=True)
class SearchResult(StageResult):
    """The vector of the search with its value."""

    STAGE: ClassVar = "search"

    theta: tuple[float, ...]
    value: float | None
    iterations: int


@dataclass(frozen=True, slots=True)
class Choice(StageResult):
    """The candidate for the gate by its label, the name of its policy, and the mean of open hosts by label."""

    STAGE: ClassVar = "choose"

    means: Mapping[str, float]
    chosen: str
    policy: str


@dataclass(frozen=True, slots=True)
class HeldOutResult(StageResult):
    """Open hosts on the held-out windows and their other orders: the mean by label, each case, and the bound."""

    STAGE: ClassVar = "judge"

    windows: tuple[str, ...]
    cases: int
    sha256: str
    hosts: Mapping[str, float]
    bound: float
    costs: Mapping[str, tuple[float, ...]]
    against_now: Mapping[str, Comparison]


@dataclass(slots=True, kw_only=True)
class PlacementRound(Round):
    """A round under way. in_use: the policy that decides now."""

    pool: str
    in_use: Policy
    windows: Windows
    settings: PlacementSettings

    @property
    def subject(self) -> Subject:
        """The pool."""
        return Subject(PLACEMENT, self.pool)

    @property
    def model(self) -> Path:
        """The file of the policy for the gate."""
        return self.state.folder / "learnt.json"

    @property
    def now(self) -> Policy:
        """The policy in use when the round began."""
        return self.state.result(InUse).policy

    def stages(self) -> Stages:
        """Return the stages before the report."""
        return {
            InUse: lambda _: InUse(self.in_use),
            SearchPlan: self._plan,
            SearchResult: self._search,
            Choice: self._choose,
            HeldOutResult: self._judge,
        }

    def _plan(self, budget: Budget) -> SearchPlan:
        """Choose the length of the search; a separate stage, so that a round that resumes has the same."""
        cases = self._cases(self.windows.earlier)
        # The first call compiles.
        cases[0].cost(self.now)
        begun_s = cpu_s()
        for case in cases:
            case.cost(read_policy(SHIPPED))
        each_s = max(cpu_s() - begun_s, 1e-5)
        # Half of the rest; judging and the gate need the other one.
        return SearchPlan(each_s, budget.affordable(2.0 * each_s * self.settings.population, self.settings.iterations))

    def _search(self, budget: Budget) -> SearchResult:
        """Search a vector on the earlier windows, in other orders for each draw; it resumes where it was stopped."""
        starts = [policy.theta for policy in (self.now, read_policy(SHIPPED)) if policy.family == FAMILY]
        plan = Plan(
            family=FAMILY,
            method=CMAES,
            population=self.settings.population,
            iterations=self.state.result(SearchPlan).iterations,
            starts=tuple(dict.fromkeys(starts)),
        )
        drawn: dict[int, list[Case]] = {}

        def of_draw(draw: int) -> list[Case]:
            if draw not in drawn:
                drawn.clear()
                seed = 0 if draw == SELECTION else draw + 1
                other = [reordered(one, seed) for one in self.windows.earlier]
                drawn[draw] = self._cases([*self.windows.earlier, *other] if draw == SELECTION else other)
            return drawn[draw]

        def objective(points: Floats, draw: int) -> Floats:
            cases = of_draw(draw)
            values = []
            for point in points:
                budget.check()
                values.append(np.mean([case.cost(Policy("point", FAMILY, tuple(point.tolist()))) for case in cases]))
            return np.array(values)

        path = self.state.folder / SEARCH_FILE
        found = search(plan, objective, history=_history(path), on_step=lambda step, history: _keep(path, history))
        return SearchResult(tuple(found.theta.tolist()), found.value, len(found.steps))

    def _choose(self, budget: Budget) -> Choice:
        """Choose the candidate for the gate, by the earlier windows alone."""
        cases = self._cases(
            [reordered(one, FIRST_CHOSEN + k) for one in self.windows.earlier for k in range(CHOSEN_ORDERS)]
        )
        means = {}
        for name, policy in self._candidates().items():
            budget.check()
            means[name] = float(np.mean([case.cost(policy) for case in cases]))
        chosen = min((name for name in means if name != NOW), key=lambda name: means[name])
        policy = self._candidates()[chosen]
        write_json(self.model, policy_document(policy))
        return Choice(means, chosen, policy.name)

    def _judge(self, budget: Budget) -> HeldOutResult:
        """Play all on the held-out windows and their other orders; every placement is checked."""
        windows = self._held_out()
        costs = {name: costs_of(policy, windows, budget.check) for name, policy in self._candidates().items()}
        bound = [case.bound() for window in windows for _, case in window.cases]
        clusters = [window.name for window in windows for _ in window.cases]
        against_now = partial(compare, reference=costs[NOW], clusters=clusters)
        return HeldOutResult(
            tuple(window.name for window in windows),
            len(clusters),
            digest_of_cases(windows),
            {name: float(np.mean(row)) for name, row in costs.items()},
            float(np.mean(bound)),
            {name: tuple(row) for name, row in costs.items()},
            {name: against_now(row) for name, row in costs.items() if name != NOW},
        )

    def challenger(self) -> Path | str:
        """Return the chosen policy, or the reason why it does not go to the gate."""
        name, hosts = self.state.result(Choice).chosen, self.state.result(HeldOutResult).hosts
        if self._candidates()[name].digest == self.now.digest:
            return f"the best is the policy in use, {self.now.name}"
        if hosts[name] >= hosts[NOW]:
            return f"on the held-out windows {name} does not open fewer hosts than the policy in use"
        if hosts[name] > hosts[BF.name]:
            return f"on the held-out windows {name} opens more hosts than best fit"
        return self.model

    def gate(self, budget: Budget) -> Gate:
        """Return the gate on the held-out windows."""
        return placement_gate(self._held_out(), self.settings.limits, now=self.now)

    def _candidates(self) -> dict[str, Policy]:
        """Return every policy by its label."""
        found = self.state.result(SearchResult)
        digests = tuple(digest_of(one) for one in self.windows.earlier)
        mix = mix_of_instances(self.windows.earlier)
        learnt = Policy(
            f"{FAMILY} learnt from {self.pool} to {self.windows.earlier[-1].name}",
            FAMILY,
            found.theta,
            self.windows.earlier[0].hosts[0].capacity[0],
            Training(digests, (), found.value, None, engine.VERSION, self.at, mix),
        )
        plain_ones = {policy.name: policy for policy in PLAIN}
        return {NOW: self.now, **plain_ones, SHIPPED_ONE: read_policy(SHIPPED), LEARNT: learnt}

    def _cases(self, windows: Sequence[Instance]) -> list[Case]:
        return [Case.of(one, self.windows.length_s) for one in windows]

    def _held_out(self) -> list[HeldOut]:
        return held_out(self.windows.held_out, self.windows.length_s, reordered, self.settings.orders)

    def page(self) -> str:
        """Return the page of the report."""
        judged = self.state.result(HeldOutResult)
        facts = {
            "pool": self.pool,
            NOW: self.now.name,
            "chosen on the earlier windows": self.state.result(Choice).chosen,
            "windows judged on": ", ".join(judged.windows),
        }
        rows = []
        for name, hosts in judged.hosts.items():
            against = judged.against_now.get(name)
            row = [escape(name), f"{hosts:.2f}", f"{hosts / judged.bound - 1.0:+.1%}" if judged.bound else ""]
            if against is not None:
                difference = against.difference
                row += [f"{difference.mean:+.2f}", f"{difference.low:+.2f} to {difference.high:+.2f}"]
            rows.append([*row, "", ""][:5])
        rows.append([BOUND, f"{judged.bound:.2f}", "", "", ""])
        words = (
            f"Mean of the open hosts over {judged.cases} cases: the held-out windows as recorded, and with their "
            "requests in other orders. Every placement was held to the rules by the independent checker."
        )
        head = ["", "hosts", "above the bound", "against now", "95 %"]
        body = f'<p class="soft">{escape(words)}</p>{table(head, rows)}'
        sections = [Section("use", "The held-out windows", body)]
        return document(f"The learning record of pool {self.pool}", sections, facts)


def _history(path: Path) -> History | None:
    if not path.is_file():
        return None
    held = json.loads(path.read_bytes())
    return History([np.array([np.inf if one is None else one for one in values]) for values in held])


def _keep(path: Path, history: History) -> None:
    replace_file(path, json.dumps(plain(history.values)))
