"""Counts what each turn of the loop did: decisions, rails, intents, outcomes, events."""

from __future__ import annotations

from collections.abc import Callable

from agent.autoscaling.ports import TickReport
from agent.telemetry.values import Values
from agent.view.board import Standing
from domain.decisions import Decision, Outcome, Status, Verdict


class TurnCounter:
    """A listener of the board."""

    def __init__(self, values: Values, monotonic: Callable[[], float], interval_s: float) -> None:
        self._values = values
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._last_at: float | None = None

    def __call__(self, standing: Standing, report: TickReport) -> None:
        """Count a turn that has just ended."""
        values, now = self._values, self._monotonic()
        began_at = now - standing.last_duration_s
        if self._last_at is not None:
            missed = round((began_at - self._last_at) / self._interval_s) - 1
            values.count("trimtab_ticks_missed_total", by=max(0, missed))
        self._last_at = began_at
        values.count("trimtab_ticks_total")
        values.observe("trimtab_tick_duration_seconds", standing.last_duration_s)
        if report.failure:
            values.count("trimtab_tick_failures_total")
        for decision in report.decisions:
            self._count_decision(decision)
        for outcome in report.outcomes:
            if outcome.status is not Status.IN_PROGRESS:
                values.count("trimtab_outcomes_total", *_place(outcome), outcome.status, outcome.reason)
        for event in report.events:
            values.count("trimtab_events_total", event.fleet, event.reason)

    def _count_decision(self, decision: Decision) -> None:
        values, fleet = self._values, decision.fleet
        values.count("trimtab_decisions_total", fleet, decision.reason)
        values.count("trimtab_policy_failures_total", fleet, by=len(decision.policy_failures))
        for effect in decision.effects:
            if effect.verdict is not Verdict.PASSED:
                values.count("trimtab_rail_effects_total", fleet, effect.rail, effect.verdict, effect.reason or "")
        for intent in decision.intents:
            values.count("trimtab_intents_total", fleet, intent.group, intent.direction)


def _place(outcome: Outcome) -> tuple[str, str]:
    """Return fleet and group of an outcome, which its intent's id holds as `<fleet>-<number>.<group>`."""
    decision_id, _, group = outcome.intent_id.partition(".")
    return decision_id.rpartition("-")[0], group
