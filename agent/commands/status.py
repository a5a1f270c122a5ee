"""`trimtab status`: each fleet as the ledger knows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from agent.commands.options import (
    FleetOption,
    JsonOption,
    LedgerOption,
    duration_text,
    examples,
    print_json,
    time_text,
)

if TYPE_CHECKING:
    from agent.autoscaling.status import FleetStatus
    from domain.snapshot import QueueSnapshot

LATE_S = 180.0
"""Three ticks of the usual length without a decision."""


def status(fleet: FleetOption = None, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Show each fleet: mode and policy, sizes, queue, cost, the last decision, and what holds it."""
    from agent.autoscaling.explain import plain
    from agent.autoscaling.status import fleet_status
    from agent.commands.ledger import fleets, one_fleet, open_ledger
    from agent.commands.output import show

    now = time.time()
    with open_ledger(ledger) as book:
        names = fleets(book)
        chosen = (one_fleet(fleet, names),) if fleet else names
        found = [fleet_status(book, name, now) for name in chosen]
    if as_json:
        print_json({"at": now, "fleets": [plain(item) for item in found]})
        return
    lines: list[str] = []
    for item in found:
        lines += [*text(item, now), ""]
    show(lines[:-1] or ["no fleet: nothing was decided yet, and the settings describe none"])


def text(known: FleetStatus, now: float) -> list[str]:
    """Return one fleet's status as lines."""
    from agent.commands.output import columns

    if known.last_tick_at is None or known.last_decision is None:
        return [f"{known.fleet}  never ticked", *_held(known, now)]
    age_s = now - known.last_tick_at
    ticked = f"last tick {duration_text(age_s)} ago" if age_s >= 0 else f"last tick {time_text(known.last_tick_at)}"
    late = ", stale: is the agent running?" if age_s > LATE_S else ""
    shadow = f", shadow {known.shadow}" if known.shadow else ""
    lines = [f"{known.fleet}  {known.mode}  {ticked}{late}", f"  policy {known.policy}{shadow}"]
    rows: list[tuple[object, ...]] = [
        ("group", "type", "requested", "observed", "warm", "booting", "overdue", "silent", "bounds", "decided")
    ]
    for group in known.groups:
        counts = (group.requested, group.observed, group.warm, group.booting, group.overdue, group.silent)
        sizes = [("?" if size is None else size) for size in counts]
        bounds = f"{group.minimum}..{group.maximum}"
        decided = "" if group.desired in (None, group.requested) else f"-> {group.desired}"
        rows.append((group.key, group.vm_type, *sizes, bounds, decided))
    lines += columns(rows)
    lines.append(f"  reports: {_reports(known)}")
    lines.append(f"  queue: {_queue(known.queue)}")
    hourly = "?" if known.cost_per_hour is None else f"{known.cost_per_hour:.3f}"
    lines.append(f"  cost: ${hourly} an hour, ${known.cost_today:.2f} today (UTC)")
    lines.append(f"  {known.last_decision.id}: {known.last_decision.sentence}")
    return lines + _held(known, now)


def _reports(known: FleetStatus) -> str:
    """Return the coverage with what it is a share of, and the ages of the newest VM report and queue report."""
    if known.coverage is None or known.due is None:
        return "not measured"
    due = "1 VM" if known.due == 1 else f"{known.due} VMs"
    share = f"{known.reported} of {due} due reported ({known.coverage:.0%})" if known.due else "no VM is due"
    ages = [
        f"no report of {what}" if age_s is None else f"newest of {what} {duration_text(age_s)} old"
        for what, age_s in (("a VM", known.vm_age_s), ("the queue", known.queue_age_s))
    ]
    return "; ".join([share, *ages])


def _queue(queue: QueueSnapshot | None) -> str:
    if queue is None:
        return "not measured"
    oldest = "" if queue.oldest_wait_s is None else f", the oldest for {queue.oldest_wait_s:.0f} s"
    return f"{queue.waiting} wait{oldest}; {queue.running} run"


def _held(known: FleetStatus, now: float) -> list[str]:
    """Return what holds the fleet or is under way."""
    lines = []
    for pause in known.pauses:
        end = "until resumed" if pause.until is None else f"for {duration_text(pause.until - now)} more"
        lines.append(f"  paused ({pause.scope}) by {pause.owner} {end}: {pause.reason}")
    if (pin := known.pin) is not None:
        sizes = ", ".join(f"{key} {size}" for key, size in pin.desired.items())
        more = duration_text(pin.until - now)
        lines.append(f"  pinned at {sizes} by {pin.owner} for {more} more: {pin.reason}")
    for intent in known.open_intents:
        what = f"{intent.group} {intent.before} -> {intent.target}"
        since = duration_text(now - intent.created_at)
        lines.append(f"  under way: {intent.intent_id}: {what} ({intent.direction}), for {since}")
    for breaker in known.breakers:
        end = f"open for {duration_text(breaker.open_until - now)} more" if breaker.open else "closed"
        lines.append(f"  circuit breaker of {breaker.group}: {breaker.failures} failures in a row, {end}")
    for mark in known.capacity_marks:
        zone = mark.zone or "any zone"
        more = duration_text(mark.until - now)
        lines.append(f"  no capacity: {mark.vm_type} in {zone}, not asked again for {more}")
    for cooldown in known.cooldowns:
        more = duration_text(cooldown.until - now)
        lines.append(f"  cooling down: {cooldown.group} scale-{cooldown.direction} for {more} more")
    return lines


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.command(epilog=examples("trimtab status", "trimtab status --fleet web --json"))(status)
