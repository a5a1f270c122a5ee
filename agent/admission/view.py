"""A decision on admission as lines for people: the verdict, where room is least, who fills the cluster, the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.admission.records import PriorKind
from agent.kernel.decision import Card
from agent.kernel.text import columns, time_text
from domain.decisions import Mode
from domain.units import HOURS_PER_DAY, HOURS_PER_YEAR

if TYPE_CHECKING:
    from agent.admission.cluster import Gauges
    from agent.admission.records import AdmissionDecision, Contributor, PriorSource


def sentence(decision: AdmissionDecision) -> str:
    """Return a decision in one line, for the journal."""
    return f"{decision.cluster}: {outcome(decision)}"


def outcome(decision: AdmissionDecision) -> str:
    """Return a deployment's decision and the reason, without its cluster."""
    verb = ("would admit" if decision.admit else "would refuse") if decision.advice else ""
    verb = verb or ("admitted" if decision.admit else "refused")
    return f"{verb} {decision.deployment_id} with {decision.cores} cores: {decision.detail}"


def admission_lines(decision: AdmissionDecision) -> list[str]:
    """Return the decision as lines."""
    verdict = "admitted" if decision.admit else f"refused ({decision.reason})"
    if decision.advice:
        verdict = f"would be {verdict}; this is advice, nothing was reserved"
    lines = [
        f"{decision.decision_id}  {time_text(decision.at)}  cluster {decision.cluster}",
        f"  {decision.deployment_id} with {decision.cores:,} cores: {verdict}",
        f"  {decision.detail}",
        "",
        "Seen",
        f"  {decision.total_cores:,} of {decision.capacity_cores:,} cores were reserved by {decision.live:,} "
        "deployments",
        *([f"  {decision.deferred_cores:,} more are held by deferred jobs"] if decision.deferred_cores else []),
        f"  estimated by {_prior(decision.prior)}",
    ]
    lines += [f"  {line}" for line in _named(decision)]
    if decision.requested_by:
        lines.append(f"  asked for by {decision.requested_by}")
    lines += ["", "Rule", *columns(_rule(decision))]
    if decision.binding_hours is not None:
        lines += ["", f"Least room: {span(decision.binding_hours)} ahead", *columns(_binding(decision))]
        lines += ["", "Largest there", *columns(_largest(decision.top_expected, decision.top_variance))]
    if decision.shadow is not None:
        shadow = decision.shadow
        would = "would admit it" if shadow.admit else f"would refuse it: {shadow.reason}"
        lines += ["", f"On probation, decides nothing: {shadow.model[:12]} {shadow.failed or would}"]
    lines += ["", f"Took {decision.evaluation_us / 1000.0:.2f} ms; {decision.refreshed} futures were recomputed"]
    return lines


def span(hours: float) -> str:
    """Return a horizon in words: 0.5 h, 3 days, 1.2 years."""
    if hours < 2 * HOURS_PER_DAY:
        return f"{hours:.3g} h"
    if hours < HOURS_PER_YEAR:
        return f"{hours / HOURS_PER_DAY:.3g} days"
    return f"{hours / HOURS_PER_YEAR:.2g} years"


def _prior(prior: PriorSource) -> str:
    if prior.labels:
        kinds = ", ".join(f"{label.label} {label.weight:.0%}" for label in prior.labels)
        return f"the kinds that it may be of: {kinds}"
    if prior.observations:
        return f"the population and {prior.observations:g} observations of each kind of event"
    if prior.kind is PriorKind.LABEL:
        return "what its label was like, within its owner and the population"
    if prior.kind is PriorKind.OWNER:
        return "what its owner's deployments were like, within the population"
    return "the population alone"


def _named(decision: AdmissionDecision) -> list[str]:
    names = [f"{word} {name}" for word, name in (("label", decision.label), ("owner", decision.owner)) if name]
    named = decision.prior.named
    if not names or named is None:
        return [", ".join(names)] if names else []
    parts = []
    if decision.label:
        parts.append(f"label {decision.label}: {named.of_label:,.1f} deployments before it")
    if decision.owner:
        parts.append(f"owner {decision.owner}: {named.of_owner:,.1f}")
    lines = [f"{', '.join(parts)}; one that ended {named.half_life_days:g} days ago counts half"]
    if decision.prior.kind in (PriorKind.LABEL, PriorKind.OWNER):
        law = named.law
        life, size = law.mu_rate / law.mu_shape, 1.0 + law.sig_shape / law.sig_rate
        lines.append(f"expected of it: a core lasts {span(life)}, a request is for {size:,.3g} cores")
    return lines


def _rule(decision: AdmissionDecision) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("policy", decision.policy)]
    if decision.threshold_cores is not None:
        rows.append(("threshold", f"{decision.threshold_cores:,.0f} cores"))
    if decision.marginal_bands:
        rows.append(("too small to count in", ", ".join(decision.marginal_bands).replace("_", " ")))
    return [*rows, ("configuration", decision.config_hash)]


def _binding(decision: AdmissionDecision) -> list[tuple[object, ...]]:
    sgamma = "not known" if decision.sgamma is None else f"{decision.sgamma:.2g}"
    peak = f"{decision.peak_utilisation or 0.0:.1%} of the capacity, {span(decision.peak_hours or 0.0)} ahead"
    return [
        ("band", decision.binding_band.replace("_", " ")),
        ("expected", f"{decision.expected_cores or 0.0:,.1f} cores"),
        ("standard deviation", f"{decision.sd_cores or 0.0:,.1f} cores"),
        ("room left by the rule", f"{decision.slack_cores or 0.0:,.1f} cores"),
        ("chance to exceed, at most", f"{decision.cantelli or 0.0:.2g}"),
        ("chance to exceed, estimated", sgamma),
        ("largest expected share", peak),
    ]


def _largest(means: tuple[Contributor, ...], variances: tuple[Contributor, ...]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("by expected cores", "", "by variance", "")]
    rows += [
        (mean.deployment_id, f"{mean.amount:,.1f}", spread.deployment_id, f"{spread.amount:,.0f}")
        for mean, spread in zip(means, variances, strict=True)
    ]
    return rows


def _rows(gauges: Gauges) -> list[tuple[str, str]]:
    share = gauges.total_cores / gauges.capacity_cores
    return [
        ("cores taken", f"{gauges.total_cores:,} of {gauges.capacity_cores:,} ({share:.1%})"),
        ("deployments", f"{gauges.live:,} live, {gauges.reserved:,} admitted and not started"),
        ("rule", gauges.policy if gauges.safe else f"{gauges.policy}, broken by those inside"),
        *((f"room: {band.replace('_', ' ')}", f"{cores:,.0f}") for band, cores in gauges.worst_slack_cores.items()),
        (
            "this month",
            f"{gauges.failures_month_to_date:,} of {gauges.requests_month_to_date:,} requests for more cores refused, "
            f"{gauges.sla_budget_used:.0%} of the SLA",
        ),
    ]


def cluster_lines(gauges: Gauges, newest: tuple[AdmissionDecision, ...]) -> list[str]:
    """Return a cluster as lines: cores taken, room left in each band of time, the promise, the newest decisions."""
    rows: list[tuple[object, ...]] = [
        *_rows(gauges),
        ("mode", "act" if gauges.mode is Mode.ACT else "observe: requests get advice, nothing is reserved"),
    ]
    made = [
        (
            d.decision_id,
            time_text(d.at),
            d.deployment_id,
            f"{d.cores:,}",
            ("would be " if d.advice else "") + ("admitted" if d.admit else str(d.reason)),
        )
        for d in newest
    ]
    return [f"{gauges.cluster}", *columns(rows), "", "Newest decisions", *(columns(made) or ["  none yet"])]


def cluster_card(gauges: Gauges, newest: tuple[AdmissionDecision, ...], *, paused: bool) -> Card:
    """Return a cluster's card: cores taken, room, and whether its rule holds; newest: its last decision, if any."""
    badges = [("observe: advice only", "held")] if gauges.mode is Mode.OBSERVE else []
    badges += [("safe", "good") if gauges.safe else ("breaks its rule", "bad")]
    badges += [("paused", "held")] if paused else []
    sentence, decision_id = (
        (outcome(newest[0]), newest[0].decision_id) if newest else ("Nothing was requested yet.", "")
    )
    title = f"Cluster {gauges.cluster}"
    return Card(gauges.cluster, title, tuple(badges), tuple(_rows(gauges)), sentence, decision_id=decision_id)
