"""What came of a dry run: jobs, waits and cost, beside other policies on the same jobs, and what to try next."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from agent.policies.queue_rule import QueueRulePolicy
from agent.policies.threshold import ThresholdPolicy
from agent.rehearsal.counterfactual import Counterfactual, best_constant, run_policy
from domain.decisions import Reason
from domain.fleet import Fleet
from domain.workload import Trace


@dataclass(frozen=True, slots=True)
class Lived:
    """The run itself: policy, dollars of rent, jobs submitted and finished, seconds waited, jobs interrupted."""

    policy: str
    rent: float
    submitted: int
    finished: int
    mean_wait_s: float
    p95_wait_s: float
    interrupted: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The run, the others on the same jobs, and the required reasons that the ledger does not hold."""

    lived: Lived
    others: tuple[tuple[str, Counterfactual], ...]
    decisions: int
    changes: int
    missing: tuple[Reason, ...]
    ledger: str
    explain: str

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return {
            "kind": "summary",
            "lived": asdict(self.lived),
            "others": [{"name": name, **asdict(run), "cost": run.cost} for name, run in self.others],
            "decisions": self.decisions,
            "changes": self.changes,
            "missing": list(self.missing),
            "ledger": self.ledger,
            "next": list(self.next_commands()),
        }

    def next_commands(self) -> tuple[str, str]:
        """Return two commands worth trying."""
        return (
            f"trimtab explain {self.explain} --ledger {self.ledger}",
            f"trimtab replay --policy threshold --ledger {self.ledger}",
        )

    def table(self) -> Table:
        """Return the comparison as a table."""
        table = Table(title="the same jobs under other policies", title_justify="left")
        for heading in ("policy", "rent $", "against it", "mean wait", "p95 wait", "jobs done"):
            table.add_column(heading, justify="left" if heading == "policy" else "right")
        lived = self.lived
        table.add_row(
            f"this run: {lived.policy.partition(':')[0]}",
            f"{lived.rent:.3f}",
            "",
            f"{lived.mean_wait_s:.0f} s",
            f"{lived.p95_wait_s:.0f} s",
            f"{lived.finished}/{lived.submitted}",
            style="bold",
        )
        for name, run in self.others:
            ratio = f"{lived.rent / run.rent - 1.0:+.0%}" if run.rent else ""
            table.add_row(
                name,
                f"{run.rent:.3f}",
                ratio,
                f"{run.mean_wait_s:.0f} s",
                f"{run.p95_wait_s:.0f} s",
                str(run.jobs_finished),
            )
        return table


def compare(
    fleet: Fleet, trace: Trace, initial: tuple[int, ...], horizon_s: float, idle_s: float, seed: int
) -> tuple[tuple[str, Counterfactual], ...]:
    """Return the best constant fleet, the 75 % threshold and the queue rule on the same jobs, simulated."""
    threshold = run_policy(ThresholdPolicy(), fleet, trace, initial, horizon_s, idle_s, seed)
    queue_rule = run_policy(QueueRulePolicy(), fleet, trace, initial, horizon_s, idle_s, seed)
    constant = best_constant(fleet, trace, horizon_s, seed)
    sizes = constant.policy.partition(":")[2]
    return (
        (f"best constant fleet ({sizes}), simulated", constant),
        ("threshold 75 %, simulated", threshold),
        ("queue rule without faults, simulated", queue_rule),
    )
