"""A decision on overselling as lines for people: rates, why, the risk, and whether the same comes out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kernel.decision import Card
from agent.kernel.text import columns, counted, time_text, words

if TYPE_CHECKING:
    from agent.oversubscription.choice import ChoiceInputs
    from agent.oversubscription.memory import PoolMemory
    from agent.oversubscription.pool import PoolView
    from agent.oversubscription.records import HourDecision, Publication, RateDecision, SubscriberRate


def rate_lines(decision: HourDecision | RateDecision, inputs: ChoiceInputs | None) -> list[str]:
    """Return the decision as lines; inputs: what an hour's rates rest on."""
    from agent.oversubscription.records import HourDecision

    return _hour(decision, inputs) if isinstance(decision, HourDecision) else _request(decision)


def _hour(decision: HourDecision, inputs: ChoiceInputs | None) -> list[str]:
    from agent.oversubscription.choice import choose

    rows: list[tuple[object, ...]] = [("subscriber", "rate", "before", "policy", "VMs", "24 h risk", "because")]
    for one in decision.subscribers:
        wanted = "failed" if one.wanted_rate is None else f"{one.wanted_rate:.2f}"
        rows.append(
            (
                one.subscriber,
                one.rate,
                one.previous_rate,
                wanted,
                one.vms,
                f"{one.risk_24h:.2g} h",
                ", ".join(map(str, one.reasons)),
                *_of_rule(decision, one),
            )
        )
    if decision.rule is not None:
        rows[0] = (*rows[0], "requests")
    machines: list[tuple[object, ...]] = [("machine", "peak hour", "chance then", "hot hours in a day")]
    machines += [
        (each.machine, f"{each.peak_hour}:00", f"{each.peak_probability:.2%}", f"{each.hot_hours:.2g}")
        for each in decision.risk.riskiest
    ]
    risk = decision.risk
    lines = [f"{decision.decision_id}  {time_text(decision.at)}  pool {decision.pool}", f"  {decision.detail}"]
    lines += ["", "Rates", *columns(rows), "", "Risk"]
    lines.append(f"  too many hot hours: {risk.violation:.2%} ({risk.violation_low:.2%} to {risk.violation_high:.2%})")
    lines.append(f"  machines: {risk.machines_used} used, at least {risk.machines_without} with everything reserved")
    lines += columns(machines)
    if decision.closed:
        lines.append(f"  closed to oversubscribed VMs: {', '.join(decision.closed)}")
    if decision.shadow is not None:
        shadow = decision.shadow
        would = shadow.failed or ", ".join(f"{name} {rate:g}" for name, rate in shadow.rates)
        lines += ["", f"On probation, decides nothing: {shadow.model} would have had {would}"]
    if inputs is not None:
        again = {choice.subscriber: choice.rate for choice in choose(inputs)}
        same = again == {one.subscriber: one.rate for one in decision.subscribers}
        lines += ["", f"Replayed from the record: {'the same rates' if same else f'OTHER RATES: {again}'}"]
    return lines


def _of_rule(decision: HourDecision, row: SubscriberRate) -> tuple[str, ...]:
    """Return whether the rule of the hour sets the rates of a subscriber's requests, nothing without a rule."""
    if decision.rule is None:
        return ()
    return ("by the rule" if row.held is None else f"at this rate: {words(row.held)}",)


def _request(decision: RateDecision) -> list[str]:
    from agent.oversubscription.request_rule import level_again
    from agent.oversubscription.shield import replayed

    rows: list[tuple[object, ...]] = [("rate", "machine", "hot hours in a day")]
    for one in decision.tried:
        risk = "no room" if one.hot_hours is None else f"{one.hot_hours:.2g}"
        rows.append((one.rate, one.machine or "none", risk))
    rate, _ = replayed(decision)
    beside = []
    if decision.shadow is not None:
        shadow = decision.shadow
        beside = [f"On probation, decides nothing: {shadow.model} would have answered {shadow.rate:g}"]
    again = "the same rate" if rate == decision.rate else f"ANOTHER RATE: {rate:g}"
    if (level := level_again(decision)) != decision.base_rate:
        again = f"ANOTHER LEVEL OF THE RULE: {level:g}"
    guard = [] if not decision.tried else ["", f"Levels ({decision.budget:g} hot hours allowed)", *columns(rows)]
    return [
        f"{decision.decision_id}  {time_text(decision.at)}  pool {decision.pool}",
        f"  {decision.detail}",
        f"  because: {', '.join(map(str, decision.reasons))}",
        *_levels_of_rule(decision),
        *guard,
        "",
        *beside,
        f"Replayed from the record: {again}",
    ]


def _levels_of_rule(decision: RateDecision) -> list[str]:
    """Return the levels that a rule refused and the one it chose, or why it did not decide; nothing without a rule."""
    from agent.oversubscription.records import Source

    if decision.held is not None:
        failed = decision.source is Source.FALLBACK
        instead = "Everything is reserved." if failed else "The hour's rate does, behind its guard."
        return ["", f"The rule does not decide: {words(decision.held)}. {instead}"]
    if decision.rule is None:
        return []
    rows: list[tuple[object, ...]] = [("level", "machine", "need", "margin s", "free f", "")]
    for one in decision.rule.seen:
        verdict = "chosen" if one is decision.rule.seen[-1] else "refused"
        figures = [f"{x:.3f}" for x in (one.need, one.margin, one.free) if x is not None] or ["no room", "", ""]
        rows.append((one.level, one.machine or "none", *figures, verdict))
    return ["", f"Rule (b + d of the hour: {decision.rule.wanted:.3f})", *columns(rows)]


def pool_lines(pool: str, hour: HourDecision | None, memory: PoolMemory, publication: Publication | None) -> list[str]:
    """Return a pool as lines: its newest hour, what was counted, and how far its rates were published."""
    if hour is None:
        return [f"{pool}  no hour was decided yet"]
    counts = memory.counts
    lines = [f"{pool}  {hour.decision_id}  {time_text(hour.at)}", f"  {hour.detail}"]
    if hour.rolled_back or hour.frozen:
        lines.append("  rolled back: everything is reserved" if hour.rolled_back else "  frozen: no rate goes down")
    rows = hour.subscribers
    lines += columns(
        [
            (r.subscriber, f"{r.rate:g}", f"{r.vms:,} VMs", ", ".join(map(str, r.reasons)), *_of_rule(hour, r))
            for r in rows
        ]
    )
    by_rule = f"{counts.ruled:,} by the rule, {counts.held:,} at the hour's rate, " if hour.rule is not None else ""
    lines.append(
        f"  answered {counts.requests:,} requests, {by_rule}{counts.interventions:,} raised by the shield, "
        f"{counts.rejects:,} without a machine"
    )
    if publication is not None:
        lines.append(f"  published: {publication.decision_id or 'not the newest hour'} to {publication.parameter}")
    return lines


def pool_card(view: PoolView) -> Card:
    """Return a pool's card: rates and risk of its newest hour."""
    title, hour = f"Pool {view.pool}", view.decision
    if hour is None:
        return Card(view.pool, title, sentence="No hour was decided yet.", problem=view.problem)
    badge = ("rolled back", "bad") if hour.rolled_back else ("frozen", "held") if hour.frozen else ("in force", "good")
    rows = [
        (
            row.subscriber,
            f"rate {row.rate:g}, {counted(row.vms, 'VM')}, {row.saved_cores:.1f} cores saved, {row.risk_24h:.2g} hot "
            f"hours a day: {'; requests '.join((', '.join(map(words, row.reasons)), *_of_rule(hour, row)))}",
        )
        for row in hour.subscribers
    ]
    rows += [
        (
            f"{each.machine} (closed)" if each.closed else each.machine,
            f"{each.hot_hours:.2g} hot hours a day, {each.cores_in_use:.1f} cores in use, worst at {each.peak_hour}:00 "
            f"({100 * each.peak_probability:.2f} %)",
        )
        for each in hour.risk.riskiest
    ]
    return Card(view.pool, title, (badge,), tuple(rows), hour.detail, view.problem, hour.decision_id)
