"""A placement pool and its decisions as lines for people, and its card on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agent.kernel.decision import Card
from agent.kernel.text import columns, counted, duration_text, time_text
from agent.placement.curves import drawing
from agent.placement.records import LIFETIME
from domain.decisions import Mode
from domain.rules.placement.lifetimes import PRIOR_COUNT, LifetimeRule

if TYPE_CHECKING:
    from agent.placement.advice import PolicyAdvice
    from agent.placement.curves import LifeCurve
    from agent.placement.look import PoolView
    from agent.placement.records import Candidate, Comparison, LifetimeReason, MoveDecision, PlacementDecision
    from agent.placement.state import Made

SHOWN = 20
"""Containers or moves of a decision that are listed."""
MOST_CURVES = 5
"""Survival curves that are drawn: of the applications with the most ended containers."""


def request_lines(made: PlacementDecision) -> list[str]:
    """Return a decision on a request as lines: hosts, why the first one, and what kept others from taking it."""
    lines = [f"{made.decision_id}  {time_text(made.at)}  placement {made.pool}", f"  {made.detail}"]
    lines.append(f"  request {made.request_id}, policy {made.policy}, {counted(made.open_hosts, 'host')} open with it")
    lines += _rate_lines(made.rate)
    if made.replaced:
        lines.append(f"  best fit decided: {made.replaced}")
    if made.outside:
        lines.append(f"  in its training {made.policy} saw no {', no '.join(made.outside)}")
    if made.containers:
        rows: list[tuple[object, ...]] = [("container", "host", "score", "second", "its score", "feasible", "opened")]
        rows += [
            (
                str(one.index),
                one.host,
                _score(one.score),
                one.runner_up or "none",
                _score(one.runner_up_score),
                str(one.feasible),
                "yes" if one.opened else "",
            )
            for one in made.containers[:SHOWN]
        ]
        lines += ["", "Hosts", *columns(rows)]
        if len(made.containers) > SHOWN:
            lines.append(f"  and {len(made.containers) - SHOWN} more containers")
    if made.lifetime is not None:
        lines += ["", "By lifetime", *lifetime_lines(made.lifetime, made)]
    elif made.best:
        lines += ["", "Best hosts for the first container", *candidate_lines(made.best)]
    if made.infeasible:
        whose = "the container that found none" if made.unplaced else "the first container"
        lines += ["", f"Hosts that could not take {whose}", *reason_lines(made.infeasible)]
    return lines


def _rate_lines(rate: float) -> list[str]:
    return [] if rate == 1.0 else [f"  oversubscription: hosts have their cores / {rate:g}, {rate:.0%} are reserved"]


def lifetime_lines(reason: LifetimeReason, made: PlacementDecision) -> list[str]:
    """Return the comparison of the chosen host with the second one by `lifetime` as lines."""
    expected = "no lifetime is expected"
    if made.lifetime_s is not None and reason.life_s is not None:
        source = f"by the {made.lifetime_from}"
        expected = f"expected {duration_text(made.lifetime_s)} {source}, predicted {duration_text(reason.life_s)}"
    parts = ("extension", "gap", *(("residual", "cores", "age") if reason.rule is LifetimeRule.WEIGHTS else ()))
    rows: list[tuple[object, ...]] = [("host", "ends in", *parts, "opening")]
    rows += [
        (
            one.host,
            "not known" if one.left_s is None else duration_text(one.left_s),
            *(f"{getattr(one, part):.4g}" for part in parts),
            one.opening or "closed",
        )
        for one in reason.hosts
    ]
    return [f"  rule {reason.rule} (R2 {reason.r2:.2f}): {expected}", *columns(rows)]


def candidate_lines(best: Sequence[Candidate]) -> list[str]:
    """Return hosts with their scores and the terms of each as lines."""
    return columns(
        [
            (one.host, _score(one.score), ", ".join(f"{name} {value:.4g}" for name, value in one.terms.items()))
            for one in best
        ]
    )


def reason_lines(reasons: Mapping[str, int]) -> list[str]:
    """Return numbers of hosts by the reason for which they cannot take a container as lines."""
    pairs = list(reasons.items())
    return columns([(reason, number) for reason, number in sorted(pairs, key=lambda pair: (-pair[1], pair[0]))])


def move_lines(made: MoveDecision) -> list[str]:
    """Return what became of the containers of a host that failed as lines."""
    rows: list[tuple[object, ...]] = [("request", "container", "application", "host now")]
    rows += [(one.request_id, str(one.index), one.application, one.host or "none") for one in made.moves[:SHOWN]]
    lines = [f"{made.decision_id}  {time_text(made.at)}  placement {made.pool}", f"  {made.detail}", *columns(rows)]
    return [*lines, f"  and {len(made.moves) - SHOWN} more"] if len(made.moves) > SHOWN else lines


def comparison_lines(made: Comparison) -> list[str]:
    """Return a day's comparison of two policies as lines."""
    return [f"{made.decision_id}  {time_text(made.at)}  placement {made.pool}", f"  {made.detail}"]


def pool_lines(view: PoolView, newest: Sequence[str], curves: Mapping[str, LifeCurve]) -> list[str]:
    """Return a pool as lines: hosts, how full they are, what is reserved, and the newest decisions."""
    figures, head = view.figures, view.head
    hosts = ", ".join(f"{number:,} {state}" for state, number in figures.hosts.items() if number) or "none"
    lines = [f"{view.pool}  {_open_words(view)}, policy {view.policy}"]
    if view.mode is Mode.OBSERVE:
        lines.append("  observe: requests are answered by advice, nothing is reserved")
    if head.switch is not None:
        lines.append(f"  switched to {head.switch.policy} by {head.switch.owner}: {head.switch.reason}")
    lines.append(f"  hosts: {hosts}; {counted(figures.containers, 'container')}, {figures.cores:,} cores")
    lines += _rate_lines(head.rate)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in figures.allocation.items())
    lines.append(f"  taken of open hosts: {shares}; {figures.free_cores:,} cores are free in all")
    rooms = ", ".join(f"{cores}: {number}" for cores, number in figures.headroom.items())
    lines.append(f"  open hosts by least number of free cores: {rooms}; stranded {figures.stranded:.1%}")
    lines.append(
        f"  reserved and not confirmed: {counted(view.unconfirmed, 'request')}, {view.reserved_cores:,} cores; "
        f"{view.reservations - view.unconfirmed:,} requests run"
    )
    if view.pending_cores:
        lines.append(f"  on their way: {view.pending_cores:g} cores")
    if view.head.hinted or view.policy == LIFETIME:
        lines.append(f"  expected lifetimes: {_lifetime_words(view)}")
    lines += [f"  lifetimes of {one.application}: {drawing(one)}" for one in most_ended(curves)]
    if view.advice is not None:
        lines.append(f"  advice of {time_text(view.advice.at)}: {advice_words(view.advice, view.at)}")
    if view.training_distance:
        lines.append(f"  distance from the policy's training data (0 to 1): {_distances(view)}")
    if head.refused:
        why = ", ".join(f"{reason} {number:,}" for reason, number in head.refusals.items())
        lines.append(f"  found no host: {head.refused:,} containers ({why})")
    if figures.in_violation:
        lines.append(f"  {figures.in_violation} hosts hold containers that may not run there now")
    if view.problem:
        lines.append(f"  {view.problem}")
    return [*lines, *(f"  {text}" for text in newest)]


def pool_card(view: PoolView, newest: Made | None, *, paused: bool, curves: Mapping[str, LifeCurve]) -> Card:
    """Return a pool's card: open hosts against the lower bound, how full they are, and the newest decision."""
    figures = view.figures
    badges = [("observe: advice only", "held")] if view.mode is Mode.OBSERVE else []
    badges += [("paused", "held")] if paused else []
    badges.append(("look into it", "bad") if view.problem else ("in order", "good"))
    hosts = ", ".join(f"{number:,} {state}" for state, number in figures.hosts.items() if number) or "none"
    rows = [
        ("open hosts", _open_words(view)),
        ("hosts", hosts),
        ("policy", view.policy),
        ("containers", f"{figures.containers:,}, {counted(figures.cores, 'core')}"),
        *((f"{name} taken of open hosts", f"{share:.1%}") for name, share in figures.allocation.items()),
        ("reserved, not confirmed", f"{counted(view.unconfirmed, 'request')}, {counted(view.reserved_cores, 'core')}"),
        ("free cores", f"{figures.free_cores:,}, stranded {figures.stranded:.1%}"),
    ]
    if view.pending_cores:
        rows.append(("on their way", f"{view.pending_cores:g} cores"))
    if view.head.hinted:
        rows.append(("expected lifetimes", _lifetime_words(view)))
    rows += [(f"lifetimes of {one.application}", drawing(one)) for one in most_ended(curves)]
    if view.advice is not None:
        rows.append(("advice", advice_words(view.advice, view.at)))
    if view.training_distance:
        rows.append(("distance from its training", _distances(view)))
    if view.head.refused:
        rows.append(("found no host", counted(view.head.refused, "container")))
    return Card(
        view.pool,
        f"Placement {view.pool}",
        tuple(badges),
        tuple(rows),
        "Nothing was requested yet." if newest is None else newest.detail,
        view.problem,
        "" if newest is None else newest.decision_id,
    )


def most_ended(curves: Mapping[str, LifeCurve]) -> list[LifeCurve]:
    """Return the curves that are shown, of the applications whose containers ended most."""
    return sorted(curves.values(), key=lambda one: (-one.ended, one.application))[:MOST_CURVES]


def advice_words(advice: PolicyAdvice, now: float) -> str:
    """Return the policy that a replay of the record advises, its figures, and its age where it is old."""
    days = advice.old_days(now)
    old = f"; {days} days old: run trimtab learn placement" if days else ""
    return f"{f'POLICY={advice.advised}' if advice.advised else f'stay with {advice.policy}'}: {advice.why}{old}"


def _open_words(view: PoolView) -> str:
    figures = view.figures
    return f"{figures.open_hosts:,} open, at least {figures.lower_bound:,} needed ({figures.gap:+.1%})"


def _lifetime_words(view: PoolView) -> str:
    known, head = view.lifetimes, view.head
    share = f"{head.hinted:,} of {counted(head.requests, 'request')}"
    return (
        f"{share}; rule {known.rule}, R2 {known.r2:.2f}, a {known.a:.2f}, b {known.b:.2f}, s {known.s:.2f} "
        f"by {known.observations:,.0f} observations"
        f"{', most of them assumed: R2 begins at 0' if known.observations < 2.0 * PRIOR_COUNT else ''}"
    )


def _distances(view: PoolView) -> str:
    return ", ".join(f"{part} {distance:.2f}" for part, distance in view.training_distance.items())


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.4g}"
