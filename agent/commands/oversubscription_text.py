"""A decision on overselling as lines for people: rates, why, the risk, and whether the same comes out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.commands.options import time_text

if TYPE_CHECKING:
    from agent.oversubscription.choice import ChoiceInputs
    from agent.oversubscription.records import HourDecision, RateDecision


def rate_lines(decision: HourDecision | RateDecision, inputs: ChoiceInputs | None) -> list[str]:
    """Return the decision as lines; inputs: what an hour's rates rest on."""
    from agent.oversubscription.records import HourDecision

    return _hour(decision, inputs) if isinstance(decision, HourDecision) else _request(decision)


def _hour(decision: HourDecision, inputs: ChoiceInputs | None) -> list[str]:
    from agent.commands.output import columns
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
            )
        )
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
        lines.append(f"  closed to oversold VMs: {', '.join(decision.closed)}")
    if inputs is not None:
        again = {choice.subscriber: choice.rate for choice in choose(inputs)}
        same = again == {one.subscriber: one.rate for one in decision.subscribers}
        lines += ["", f"Decided again from what is recorded: {'the same rates' if same else f'OTHER RATES: {again}'}"]
    return lines


def _request(decision: RateDecision) -> list[str]:
    from agent.commands.output import columns
    from agent.oversubscription.shield import replayed

    rows: list[tuple[object, ...]] = [("rate", "machine", "hot hours in a day")]
    for one in decision.tried:
        risk = "no room" if one.hot_hours is None else f"{one.hot_hours:.2g}"
        rows.append((one.rate, one.machine or "none", risk))
    rate, _ = replayed(decision)
    again = "the same rate" if rate == decision.rate else f"ANOTHER RATE: {rate:g}"
    return [
        f"{decision.decision_id}  {time_text(decision.at)}  pool {decision.pool}",
        f"  {decision.detail}",
        f"  because: {', '.join(map(str, decision.reasons))}",
        "",
        f"Levels ({decision.budget:g} hot hours allowed)",
        *columns(rows),
        "",
        f"Decided again from what is recorded: {again}",
    ]
