"""What came of a dry run: jobs, waits and cost, beside other fleets on the same jobs, and what to try next."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agent.autoscaling.policies.ppo_lstm import LEARNED, names_model
from agent.models.shelf import ModelShelf
from agent.rehearsal.counterfactual import Counterfactual, Settled, best_constant, run_agent
from agent.rehearsal.story import STORIES
from domain.decisions import Reason
from domain.workload import Trace
from simulator.autoscaling.reference import preset

WAITING_PRICE_PER_HOUR = preset("live-like").waiting_price_per_hour
"""Dollars that a job's hour in the queue counts for (autoscaler specification §5)."""

HINDSIGHT = "constant"
QUEUE_RULE, THRESHOLD = "queue-rule", "threshold"


@dataclass(frozen=True, slots=True)
class Lived:
    """The run itself: policy, dollars of rent, jobs, seconds.

    waiting_job_s: in the queue, over all jobs. lost, handed_back: jobs that began and had to begin again, because their
    VM was gone, or because it was about to go and its worker gave them back.
    """

    policy: str
    rent: float
    waiting_job_s: float
    submitted: int
    finished: int
    mean_wait_s: float
    p95_wait_s: float
    lost: int
    handed_back: int

    @property
    def waiting_cost(self) -> float:
        """Dollars that the waiting counts for."""
        return self.waiting_job_s / 3600.0 * WAITING_PRICE_PER_HOUR

    @property
    def cost(self) -> float:
        """Rent and waiting together."""
        return self.rent + self.waiting_cost


@dataclass(frozen=True, slots=True)
class Other:
    """Another fleet on the same jobs, and how its figures were obtained."""

    name: str
    how: str
    run: Counterfactual


@dataclass(frozen=True, slots=True)
class Summary:
    """The run, the others on the same jobs, and the required reasons that the ledger does not hold."""

    story: str
    lived: Lived
    others: tuple[Other, ...]
    decisions: int
    changes: int
    held: int
    missing: tuple[Reason, ...]
    program: str
    ledger: str
    explain: str

    @property
    def how_lived(self) -> str:
        """How the run's own figures were obtained."""
        faults = next((len(story.beats) for story in STORIES if story.name == self.story), 0)
        return "lived, with the story's faults" if faults else "lived, without faults"

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        lived = {**asdict(self.lived), "waiting_cost": self.lived.waiting_cost, "cost": self.lived.cost}
        return {
            "kind": "summary",
            "story": self.story,
            "lived": {**lived, "how": self.how_lived},
            "others": [
                {"name": other.name, "how": other.how, **asdict(other.run), "cost": other.run.cost}
                for other in self.others
            ],
            "waiting_price_per_hour": WAITING_PRICE_PER_HOUR,
            "decisions": self.decisions,
            "changes": self.changes,
            "held": self.held,
            "missing": list(self.missing),
            "ledger": self.ledger,
            "next": list(self.next_commands()),
        }

    def next_commands(self) -> tuple[str, str]:
        """Return two commands worth trying, as they are typed where this one was."""
        program, ledger = shlex.quote(self.program), shlex.quote(self.ledger)
        return (
            f"{program} explain {self.explain} --ledger {ledger}",
            f"{program} replay --policy threshold --ledger {ledger}",
        )

    def sentence(self) -> str:
        """Return the run in one sentence."""
        lived = self.lived
        again = [
            f"{count} {what}"
            for count, what in ((lived.handed_back, "handed back in time"), (lived.lost, "lost with their VM"))
            if count
        ]
        jobs = f"{lived.finished} of {lived.submitted} jobs done" + "".join(f", {text}" for text in again)
        return (
            f"{self.decisions} decisions: {self.changes} changed the fleet, rails changed {self.held}; {jobs}; "
            f"${lived.rent:.2f} of rent"
        )

    def verdict(self) -> str:
        """Return what the comparison says, whoever wins."""
        words = []
        for other in self.others:
            ratio = self.lived.cost / other.run.cost - 1.0 if other.run.cost else 0.0
            compared = (
                "as much as" if abs(ratio) < 0.005 else f"{abs(ratio):.0%} {'more' if ratio > 0 else 'less'} than"
            )
            if other.run.policy.startswith(HINDSIGHT):
                against = "the best constant fleet, whose size only hindsight knows"
            else:
                against = other.name
            words.append(f"{compared} {against}")
        return f"In all, this run cost {'; '.join(words)}."

    def table(self) -> RenderableType:
        """Return the comparison as a table and what its columns mean."""
        table = Table(box=None, pad_edge=False, header_style="dim", title="The same jobs, other fleets")
        table.title_justify, table.title_style = "left", "bold"
        table.add_column("", ratio=1)
        for heading in ("rent", "waiting", "total", "mean wait", "95 %", "done"):
            table.add_column(heading, justify="right", no_wrap=True)
        lived = self.lived
        name = f"this run: {lived.policy.partition(':')[0]}"
        waits = (lived.mean_wait_s, lived.p95_wait_s)
        table.add_row(
            *_cells(name, self.how_lived, lived.rent, lived.waiting_cost, *waits, lived.finished), style="bold"
        )
        for other in self.others:
            run = other.run
            waits = (run.mean_wait_s, run.p95_wait_s)
            table.add_row(*_cells(other.name, other.how, run.rent, run.waiting_cost, *waits, run.jobs_finished))
        legend = Text(
            f"rent: from a VM's launch to its end. waiting: ${WAITING_PRICE_PER_HOUR:g} for a job's hour in the queue. "
            f"mean wait, 95 %: of the jobs done, of {lived.submitted} submitted.",
            style="dim",
        )
        return Group(table, legend, self.verdict())


def _cells(name: str, how: str, rent: float, waiting: float, mean_s: float, p95_s: float, done: int) -> list[Any]:
    label = Text.assemble(name, "\n", (f"  {how}", "dim not bold"))
    return [
        label,
        f"${rent:.2f}",
        f"${waiting:.2f}",
        f"${rent + waiting:.2f}",
        f"{mean_s:.0f} s",
        f"{p95_s:.0f} s",
        f"{done}",
    ]


def compare(
    settled: Settled,
    policy: str,
    trace: Trace,
    initial: tuple[int, ...],
    horizon_s: float,
    seed: int,
    models: ModelShelf | None = None,
) -> tuple[Other, ...]:
    """Return the run's own policy, others of the agent and the best constant fleet on the same jobs, simulated.

    The others are the learned policy, where `models` have one that fits the fleet, the queue rule beside it, and the
    75 % threshold.
    """
    own = policy.partition(":")[0]
    names = {policy: own}
    if names_model(policy):
        names[QUEUE_RULE] = QUEUE_RULE
    elif models is not None and models.fits(LEARNED, settled.fleet):
        names[LEARNED] = LEARNED
    if own != THRESHOLD:
        names[THRESHOLD] = f"75 % {THRESHOLD}"
    how = "simulated, with the same rails"
    others = [
        Other(f"{name} without faults", how, run_agent(text, settled, trace, initial, horizon_s, seed, models))
        for text, name in names.items()
    ]
    constant = best_constant(settled.fleet, trace, horizon_s, seed)
    sizes = constant.policy.partition(":")[2].replace(",", " + ")
    return (*others, Other(f"best constant fleet: {sizes}", "simulated, chosen in hindsight", constant))
