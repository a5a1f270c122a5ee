"""One round of learning for a placement pool: from what was recorded to a policy's file, a report, and the gate.

    record   the windows of the record; the latest two fifths are held out
    now      what decides when the round begins
    plan     how long a search may be
    search   a vector on the earlier windows, by CMA-ES from what decides now and from what comes with the agent
    choose   of that and of the policies without a vector to learn, the best on orders that the search did not see
    judge    all of them, what decides now, best fit and the bound on the held-out windows
    report   what people read
    gate     the choice against what decides now (`trainer.promotion.placement`)

Stages are done once, see `trainer.learning.stages`; nothing is in use before the gate has let it pass.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent.placement.choosing import SHIPPED, read_policy
from domain.rules.placement.instance import Instance
from domain.rules.placement.mix import mix_of_instances
from domain.rules.placement.policies import BF, FF, RESERVE, WF, Policy, Training, parse_policy, policy_document
from domain.subject import Subject
from simulator.placement import engine
from simulator.placement.instances import digest_of
from trainer.kit.files import replace_file, write_json
from trainer.kit.intervals import compare
from trainer.kit.report import Section, document, escape, table
from trainer.learning.placements import Windows, reordered
from trainer.learning.report import DATA_FILE, PAGE_FILE, write_folder
from trainer.learning.stages import Budget, Stage, Tell, ask_gate, check_minutes, cpu_s, go_on, not_asked, plain
from trainer.learning.state import State
from trainer.placement.search import CMAES, SELECTION, Floats, History, Plan, search
from trainer.placement.windows import Case
from trainer.promotion.directory import ModelsWriter, Verify
from trainer.promotion.gate import Gate, Limits, Term
from trainer.promotion.placement import ORDERS, HeldOut, costs_of, digest_of_cases, held_out, placement_gate

PLACEMENT: Final = "placement"
NOW, LEARNT, SHIPPED_ONE, BOUND = "decides now", "learnt", "comes with the agent", "bound"
FAMILY: Final = "tiers17a"
PLAIN: Final = (FF, BF, WF, RESERVE)
"""Policies that are tried as they are."""
SEARCH_FILE: Final = "search.json"
CHOSEN_ORDERS: Final = 2
"""Other orders of each earlier window on which one policy is chosen; their seeds follow those of the search."""
FIRST_CHOSEN: Final = 40_000


@dataclass(frozen=True, slots=True)
class PlacementRound:
    """How a round is done.

    cpu_s: seconds of a processor over all resumptions. population: points an iteration. iterations: fewest and most of
    the search; between them the budget decides. orders: other ones of each held-out window.
    """

    cpu_s: float = 600.0
    population: int = 16
    iterations: tuple[int, int] = (2, 40)
    orders: int = ORDERS
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_minutes(self.cpu_s)


@dataclass(slots=True)
class PlacementLearning:
    """A round under way. in_use: what decides now. at: the time for the record of the gate.

    term: of the probation of what passes, None where it decides at once.
    """

    pool: str
    in_use: Policy
    windows: Windows
    state: State
    settings: PlacementRound
    directory: ModelsWriter
    verify: Verify
    at: str
    try_only: bool = False
    tell: Tell = lambda line: None
    term: Term | None = None

    def go_on(self) -> dict[str, Any]:
        """Do every stage that is not done, and return the results by stage.

        Raises BudgetUsed, and BadInput where the gate refuses to compare; what is done is kept.
        """
        if "now" in self.state.stages:
            # What the round itself promoted before it was stopped is not what it is compared with.
            self.in_use = parse_policy(self.state.stages["now"])
        stages: dict[str, Stage] = {
            "now": lambda budget: policy_document(self.in_use),
            "plan": self._plan,
            "search": self._search,
            "choose": self._choose,
            "judge": self._judge,
            "report": self._report,
            "gate": self._gate,
        }
        return go_on(self.state, stages, self.settings.cpu_s, self.tell)

    @property
    def model(self) -> Path:
        """The file of the policy that is handed to the gate."""
        return self.state.folder / "learnt.json"

    def _plan(self, budget: Budget) -> dict[str, Any]:
        """Choose how long the search is; kept apart, so that a round that goes on has the same."""
        cases = self._cases(self.windows.earlier)
        # The first call compiles.
        cases[0].cost(self.in_use)
        begun_s = cpu_s()
        for case in cases:
            case.cost(read_policy(SHIPPED))
        each_s = max(cpu_s() - begun_s, 1e-5)
        fewest, most = self.settings.iterations
        affordable = int(0.5 * max(budget.left_s - budget.used_s, 0.0) / (each_s * self.settings.population))
        return {"vector_s": each_s, "iterations": min(max(affordable, fewest), most)}

    def _search(self, budget: Budget) -> dict[str, Any]:
        """Search a vector on the earlier windows, in an order of their own for each draw; it goes on where it was."""
        starts = [policy.theta for policy in (self.in_use, read_policy(SHIPPED)) if policy.family == FAMILY]
        plan = Plan(
            family=FAMILY,
            method=CMAES,
            population=self.settings.population,
            iterations=int(self.state.stages["plan"]["iterations"]),
            starts=tuple(dict.fromkeys(starts)),
        )
        drawn: dict[int, list[Case]] = {}

        def of_draw(draw: int) -> list[Case]:
            if draw not in drawn:
                drawn.clear()
                seed = 0 if draw == SELECTION else draw + 1
                both = [*self.windows.earlier, *(reordered(one, seed) for one in self.windows.earlier)]
                drawn[draw] = self._cases(both if draw == SELECTION else both[len(self.windows.earlier) :])
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
        return plain({"theta": found.theta, "value": found.value, "iterations": len(found.steps)})

    def _choose(self, budget: Budget) -> dict[str, Any]:
        """Choose what is handed to the gate, by the earlier windows alone."""
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
        return plain({"means": means, "chosen": chosen, "policy": policy.name})

    def _judge(self, budget: Budget) -> dict[str, Any]:
        """Play all on the held-out windows and their other orders; every placement is checked."""
        windows = self._held_out()
        costs = {name: costs_of(policy, windows, budget.check) for name, policy in self._candidates().items()}
        bound = [case.bound() for window in windows for _, case in window.cases]
        clusters = [window.name for window in windows for _ in window.cases]
        against = {
            name: asdict(compare(row, costs[NOW], clusters=clusters)) for name, row in costs.items() if name != NOW
        }
        return plain(
            {
                "windows": [window.name for window in windows],
                "cases": len(clusters),
                "sha256": digest_of_cases(windows),
                "hosts": {name: float(np.mean(row)) for name, row in costs.items()},
                "bound": float(np.mean(bound)),
                "costs": costs,
                "against_now": against,
            }
        )

    def _report(self, budget: Budget) -> dict[str, Any]:
        write_folder(self.state.folder, page(self), {"facts": self.state.facts, **self.state.stages})
        return {"files": [PAGE_FILE, DATA_FILE]}

    def _gate(self, budget: Budget) -> dict[str, Any]:
        """Hand the policy to the gate; a promotion after which the round was stopped is found, not repeated."""
        why = self.objection()
        if why:
            return not_asked(why)
        name = f"{hashlib.sha256(self.model.read_bytes()).hexdigest()}.json"
        place = (self.model, name, self.directory, Subject(PLACEMENT, self.pool), self.verify, self._placement_gate)
        return ask_gate(*place, budget, at=self.at, try_only=self.try_only, term=self.term)

    def _placement_gate(self) -> Gate:
        return placement_gate(self._held_out(), self.settings.limits, now=self.in_use)

    def objection(self) -> str:
        """Return why the choice does not go to the gate, "" where it does."""
        chosen, judged = self.state.stages["choose"], self.state.stages["judge"]
        hosts, name = judged["hosts"], chosen["chosen"]
        if self._candidates()[name].digest == self.in_use.digest:
            return f"the best is the policy in use, {self.in_use.name}"
        if hosts[name] >= hosts[NOW]:
            return f"on the held-out windows {name} does not open fewer hosts than the policy in use"
        if hosts[name] > hosts[BF.name]:
            return f"on the held-out windows {name} opens more hosts than best fit"
        return ""

    def _candidates(self) -> dict[str, Policy]:
        """Return every policy by its label."""
        theta = self.state.stages["search"]["theta"]
        digests = tuple(digest_of(one) for one in self.windows.earlier)
        mix = mix_of_instances(self.windows.earlier)
        learnt = Policy(
            f"{FAMILY} learnt from {self.pool} to {self.windows.earlier[-1].name}",
            FAMILY,
            tuple(theta),
            self.windows.earlier[0].hosts[0].capacity[0],
            Training(digests, (), self.state.stages["search"]["value"], None, engine.VERSION, self.at, mix),
        )
        plain_ones = {policy.name: policy for policy in PLAIN}
        return {NOW: self.in_use, **plain_ones, SHIPPED_ONE: read_policy(SHIPPED), LEARNT: learnt}

    def _cases(self, windows: Sequence[Instance]) -> list[Case]:
        return [Case.of(one, self.windows.length_s) for one in windows]

    def _held_out(self) -> list[HeldOut]:
        return held_out(self.windows.held_out, self.windows.length_s, reordered, self.settings.orders)


def _history(path: Path) -> History | None:
    if not path.is_file():
        return None
    held = json.loads(path.read_bytes())
    return History([np.array([np.inf if one is None else one for one in values]) for values in held])


def _keep(path: Path, history: History) -> None:
    replace_file(path, json.dumps(plain({"values": history.values})["values"]))


def page(work: PlacementLearning) -> str:
    """Return the page of a round."""
    judged, chosen = work.state.stages["judge"], work.state.stages["choose"]
    facts = {
        "pool": work.pool,
        NOW: work.in_use.name,
        "chosen on the earlier windows": chosen["chosen"],
        "windows judged on": ", ".join(judged["windows"]),
    }
    rows = []
    for name, hosts in judged["hosts"].items():
        against = judged["against_now"].get(name)
        row = [escape(name), f"{hosts:.2f}", f"{hosts / judged['bound'] - 1.0:+.1%}" if judged["bound"] else ""]
        if against is not None:
            difference = against["difference"]
            row += [f"{difference['mean']:+.2f}", f"{difference['low']:+.2f} to {difference['high']:+.2f}"]
        rows.append([*row, "", ""][:5])
    rows.append([BOUND, f"{judged['bound']:.2f}", "", "", ""])
    words = (
        f"Mean of the open hosts over {judged['cases']} cases: the held-out windows as recorded, and with their "
        "requests in other orders. Every placement was held to the rules by the independent checker."
    )
    head = ["", "hosts", "above the bound", "against now", "95 %"]
    body = f'<p class="soft">{escape(words)}</p>{table(head, rows)}'
    return document(f"The learning record of pool {work.pool}", [Section("use", "The held-out windows", body)], facts)
