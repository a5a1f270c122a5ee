"""What the ledger and AWS's call log say happened, for specifications of the whole loop."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agent.ledger.journal import Kind
from domain.decisions import Direction, Reason
from tests.faults.world import AGENT_KEY, World

SET = "SetDesiredCapacity"
TERMINATE = "TerminateInstanceInAutoScalingGroup"


def intents(world: World, direction: Direction | None = None) -> list[dict[str, Any]]:
    """Every intent that the ledger ever opened, in order."""
    bodies = [dict(entry.body) for entry in world.journal if entry.kind is Kind.INTENT]
    return [body for body in bodies if direction is None or body["direction"] == direction]


def carried_out(world: World, operation: str) -> list[dict[str, str]]:
    """Parameters of the agent's changing calls that took effect, answered or not, in order."""
    return [
        call["params"]
        for call in world.control.mutations(access_key=AGENT_KEY, operation=operation)
        if call["status"] == 200 or call["fault"] in ("timeout_after", "foreign_page")
    ]


def calls_per_minute(world: World) -> list[int]:
    """How many calls AWS saw from the agent in each tick."""
    by_tick = Counter(call["at"] for call in world.calls)
    return [by_tick.get(report.at - world.agent_clock.error_s, 0) for report in world.reports]


def told(world: World, reason: Reason) -> list[str]:
    """Sentences of the ledger's events with this reason."""
    return [event.detail for event in world.events if event.reason is reason]


def scale_ins(world: World) -> int:
    """How many calls of the agent took a VM away or lowered a size."""
    return world.count(TERMINATE)
