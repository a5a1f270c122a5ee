"""A deferral pool and its decisions as lines for people, and its card on the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.deferral.settings import PoolMode
from agent.kernel.decision import Card
from agent.kernel.text import columns, counted, time_text

if TYPE_CHECKING:
    from agent.deferral.capacity import ExpectedCores
    from agent.deferral.look import PoolView
    from agent.deferral.records import Comparison, RefusedMessage, StepDecision

SHOWN = 20
"""Jobs of a decision that are listed."""


def step_lines(made: StepDecision) -> list[str]:
    """Return a step as lines: capacity, policies that were asked, starts with their scores, and who waits."""
    lines = [f"{made.decision_id}  {time_text(made.at)}  deferral {made.pool}, step {made.step}", f"  {made.detail}"]
    known = "not known" if made.capacity is None else f"{made.capacity} cores"
    how = "" if made.capacity is None else (", measured" if made.measured else ", held from an earlier step")
    lines.append(f"  capacity {known}{how} ({made.source}); {made.margin} kept free, {made.running} taken")
    if made.skipped:
        lines.append(f"  {counted(made.skipped, 'step')} before it were not decided")
    if made.drain_by is not None:
        lines.append(f"  no job may run beyond step {made.drain_by}")
    if made.violation:
        lines.append(f"  jobs run on {made.violation} cores more than there are")
    if made.expired:
        lines.append(f"  not started in their window: {', '.join(made.expired[:SHOWN])}")
    if made.tried:
        rows: list[tuple[object, ...]] = [("policy", "ms", "answer")]
        rows += [(one.policy, f"{one.took_ms:.1f}", one.failure or "decides") for one in made.tried]
        lines += ["", "Policies", *columns(rows)]
    if made.starts:
        rows = [("job", "cores", "steps", "delay", "score", "rank")]
        rows += [
            (one.job_id, str(one.cores), str(one.duration), str(one.delay), _score(one.score), str(one.rank))
            for one in made.starts[:SHOWN]
        ]
        lines += ["", "Starts", *columns(rows)]
        if len(made.starts) > SHOWN:
            lines.append(f"  and {len(made.starts) - SHOWN} more")
    begun = {one.job_id for one in made.starts}
    left = [(one.job_id, _score(one.score)) for one in made.best if one.job_id not in begun]
    if left:
        lines += ["", "Could start and wait, by score", *columns(left[:SHOWN])]
    versions = ", ".join(f"{name} {text}" for name, text in made.versions.items())
    return [
        *lines,
        "",
        f"  {counted(made.future, 'job')} may not start yet; state {made.state_hash or 'none'}; {versions}",
    ]


def comparison_lines(made: Comparison) -> list[str]:
    """Return a day's comparison of two policies as lines."""
    return [f"{made.decision_id}  {time_text(made.at)}  deferral {made.pool}", f"  {made.detail}"]


def refusal_lines(made: RefusedMessage) -> list[str]:
    """Return a message that is no job as lines."""
    return [
        f"{made.decision_id}  {time_text(made.at)}  deferral {made.pool}",
        f"  {made.detail}",
        f"  the message: {made.body[:2000]}",
    ]


def pool_lines(view: PoolView, newest: Sequence[str]) -> list[str]:
    """Return a pool as lines: capacity, jobs, how the policies fare, and the newest decisions."""
    totals = view.totals
    lines = [f"{view.pool}  {_room(view)}, policy {view.policy}"]
    if view.mode is PoolMode.OBSERVE:
        lines.append("  observe: decisions are advice, nothing is started and no queue is touched")
    stages = ", ".join(f"{number:,} {stage}" for stage, number in view.jobs.items() if number) or "none"
    lines.append(f"  jobs: {stages}; next step {time_text(view.next_at)}")
    lines.append(
        f"  since the beginning: {totals.started:,} started with {totals.started_core_steps:,} core-steps, "
        f"{totals.expired:,} expired with {totals.expired_core_steps:,}, {totals.cancelled:,} cancelled, "
        f"{totals.refused:,} refused"
    )
    lines.append(
        f"  beyond the capacity: {totals.violation_core_steps:,} core-steps in {totals.violation_steps:,} steps; "
        f"{view.budget_used:.0%} of the day's budget"
    )
    if totals.repeated_starts or totals.duplicates:
        lines.append(
            f"  perhaps sent twice: {totals.repeated_starts:,}; messages received twice: {totals.duplicates:,}"
        )
    if view.coverage:
        shares = ", ".join(f"{quantile}: {share:.0%}" for quantile, share in view.coverage.items())
        lines.append(f"  forecast kept by quantile, nominal 90%: {shares}")
    if view.expected is not None:
        lines.append(f"  forecast of the step after step {view.step}: {_expected(view.expected)}")
    if view.at_risk:
        lines.append(f"  may not start in their window: {', '.join(view.at_risk[:SHOWN])}")
    if view.drain is not None:
        lines.append(f"  drain: no job beyond step {view.drain.by_step}, {view.drain.owner}: {view.drain.reason}")
    if view.problem:
        lines.append(f"  {view.problem}")
    return [*lines, *(f"  {text}" for text in newest)]


def pool_card(view: PoolView, newest: StepDecision | None, *, paused: bool) -> Card:
    """Return a pool's card: capacity, what runs and waits, and the newest decision."""
    badges = [("observe: advice only", "held")] if view.mode is PoolMode.OBSERVE else []
    badges += [("paused", "held")] if paused else []
    badges.append(("look into it", "bad") if view.problem else ("in order", "good"))
    rows = [
        ("capacity", _room(view)),
        ("policy", view.policy + (f", shadow {view.shadow}" if view.shadow else "")),
        ("waiting", counted(view.jobs["waiting"], "job")),
        ("running", f"{counted(view.jobs['running'] + view.jobs['starting'], 'job')}, {counted(view.running, 'core')}"),
        ("started", f"{counted(view.totals.started, 'job')}, {counted(view.totals.started_core_steps, 'core-step')}"),
        ("expired", f"{counted(view.totals.expired, 'job')}, {counted(view.totals.expired_core_steps, 'core-step')}"),
        ("violation budget used", f"{view.budget_used:.0%}"),
    ]
    if view.expected is not None:
        rows.append(("forecast", _expected(view.expected)))
    if view.at_risk:
        rows.append(("at risk", counted(len(view.at_risk), "job")))
    return Card(
        view.pool,
        f"Deferral {view.pool}",
        tuple(badges),
        tuple(rows),
        "Nothing was decided yet." if newest is None else newest.detail,
        view.problem,
        "" if newest is None else newest.decision_id,
    )


def _room(view: PoolView) -> str:
    if view.capacity is None:
        return "capacity not known"
    kept = f", {view.margin:,} kept free" if view.margin else ""
    how = "" if view.measured else " (held)"
    return f"{view.free:,} of {view.capacity:,} cores free{how}{kept}"


def _expected(expected: ExpectedCores) -> str:
    between = "" if expected.low is None or expected.high is None else f", {expected.low:.0f} to {expected.high:.0f}"
    return f"{expected.cores:.0f} cores{between}"


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.4g}"
