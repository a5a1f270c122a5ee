"""Why a decision came out as it did: what was seen, who proposed what, what each rail did, and what AWS did of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.sentence import oldest_wait, plain_sentence
from agent.autoscaling.state import DecisionRecord
from agent.autoscaling.view import units_text
from agent.kernel.text import columns, counted, in_minutes, time_text
from agent.ledger.codec import plain
from agent.rails.inputs import SCALE_IN_WAITS
from agent.rails.schedule import coming_text, opened
from domain.decisions import Direction, Intent, Outcome, Proposal, RailEffect, Verdict
from domain.errors import FailureClass
from domain.fleet import Fleet, vms
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Step:
    """One rail's turn: its place in the order, what it did, the groups whose size it changed, and its sentence."""

    number: int
    rail: str
    verdict: Verdict
    change: str
    sentence: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """Something that happened after the decision: when, to which intent, and in words."""

    at: float
    intent_id: str
    what: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision in words.

    `sentence` is the plain one of every list, `seen` are sentences on the inputs. `shadows` are what was proposed and
    not done. `steps` are the rails in order. `timeline` holds each intent's beginning and every outcome, in time order.
    """

    decision_id: str
    at: float
    mode: str
    sentence: str
    seen: tuple[str, ...]
    proposal: str
    shadows: tuple[str, ...]
    failures: tuple[str, ...]
    steps: tuple[Step, ...]
    timeline: tuple[TimelineEntry, ...]
    open_intents: tuple[str, ...]


def explain(record: DecisionRecord) -> Explanation:
    """Return the decision in words."""
    decision, inputs = record.decision, record.inputs
    begun = [TimelineEntry(i.created_at, i.intent_id, _intent(i)) for i in decision.intents]
    outcomes = [TimelineEntry(o.at, o.intent_id, _outcome(o)) for r in record.intents for o in r.outcomes]
    return Explanation(
        decision_id=decision.decision_id,
        at=decision.at,
        mode=decision.mode.value,
        sentence=plain_sentence(decision, inputs),
        seen=tuple(_seen(inputs)),
        proposal=_proposal(inputs, decision.proposal),
        shadows=tuple(_proposal(inputs, shadow) for shadow in decision.shadows),
        failures=decision.policy_failures,
        steps=tuple(_step(n, inputs.fleet, effect) for n, effect in enumerate(decision.effects, start=1)),
        timeline=tuple(sorted(begun + outcomes, key=lambda entry: entry.at)),
        open_intents=tuple(r.intent.intent_id for r in record.intents if r.is_open),
    )


def as_data(record: DecisionRecord) -> dict[str, Any]:
    """Return everything recorded about a decision as plain data for JSON."""
    return {
        "seq": record.seq,
        "decision": plain(record.decision),
        "inputs": plain(record.inputs),
        "intents": [
            {"intent": plain(r.intent), "open": r.is_open, "outcomes": [plain(o) for o in r.outcomes]}
            for r in record.intents
        ],
    }


def sizes(fleet: Fleet, before: tuple[int, ...], after: tuple[int, ...]) -> str:
    """Return the groups whose size changes as `key 1 -> 2, ...`, or `no change`."""
    if len(before) != len(after) or len(after) != len(fleet.groups):
        return "no change"
    moved = [f"{g.key} {b} -> {a}" for g, b, a in zip(fleet.groups, before, after, strict=True) if a != b]
    return ", ".join(moved) or "no change"


def _reports(snapshot: Snapshot) -> str:
    if snapshot.due is None:
        age = "no sample ever" if snapshot.age_s is None else f"newest sample {snapshot.age_s:.0f} s old"
        return f"{snapshot.coverage:.0%} of the VMs due reported, {age}"
    share = f"{snapshot.reported} of {vms(snapshot.due)} due reported ({snapshot.coverage:.0%})"
    if not snapshot.due:
        share = SCALE_IN_WAITS if snapshot.without_reports else "no VM was due to report"
    ages = [
        f"no report of {what} ever" if age_s is None else f"newest report of {what} {age_s:.0f} s old"
        for what, age_s in (("a VM", snapshot.vm_age_s), ("the queue", snapshot.queue_age_s))
    ]
    return ", ".join([share, *ages])


def _seen(inputs: DecisionInputs) -> list[str]:
    snapshot = inputs.snapshot
    if snapshot is None:
        failure = inputs.cloud_failure
        if failure is not None and failure.failure is FailureClass.UNSUPPORTED:
            return [failure.detail]
        return [f"AWS could not be read: {failure.failure}: {failure.detail}" if failure else "nothing could be read"]
    lines = [_reports(snapshot)]
    lines += [f"{g.key}: AWS counts {units_text(g)}" for g in snapshot.groups if g.requested_units is not None]
    if snapshot.cpu_mean is not None:
        p90 = "" if snapshot.cpu_p90 is None else f", 90th percentile {snapshot.cpu_p90:.1%}"
        lines.append(f"CPU {snapshot.cpu_mean:.1%} in the mean{p90}")
    if (queue := snapshot.queue) is not None:
        waiting = ", ".join(filter(None, [counted(queue.waiting, "job waits", "jobs wait"), oldest_wait(queue)]))
        lines.append(f"{waiting}; {queue.running} run; {queue.submitted_recent} came this minute")
    lines += [
        f"signal {one.signal.name} {one.value:.4g}, its target {one.signal.target:.4g} ({one.signal.kind})"
        for one in snapshot.signals
        if one.value is not None
    ]
    if snapshot.absent:
        lasting = f" ({snapshot.stale_bins} minutes in a row)" if snapshot.stale_bins else ", not needed"
        lines.append(f"absent: {', '.join(snapshot.absent)}{lasting}")
    lines += [f"window {one.name} {coming_text(one, inputs.now)}" for one in opened(inputs.windows, inputs.now)]
    if inputs.tuned:
        lines.append(f"queue rule tuned: {inputs.tuned}")
    if inputs.in_flight:
        lines.append(f"an earlier intent was still open for: {', '.join(inputs.in_flight)}")
    if inputs.interrupted:
        lines.append(f"about to be taken away by AWS: {', '.join(vm for _, vm in inputs.interrupted)}")
    return lines


def _proposal(inputs: DecisionInputs, proposal: Proposal) -> str:
    requested = inputs.snapshot.requested if inputs.snapshot is not None else ()
    change = sizes(inputs.fleet, requested, proposal.desired)
    return f"{proposal.policy}: {change} ({proposal.reason}): {proposal.detail}".removesuffix(": ")


def _step(number: int, fleet: Fleet, effect: RailEffect) -> Step:
    change = "" if effect.before == effect.after else sizes(fleet, effect.before, effect.after)
    return Step(number, effect.rail, effect.verdict, change, in_minutes(effect.detail))


def _intent(intent: Intent) -> str:
    victims = f", of these VMs: {', '.join(intent.victims)}" if intent.victims else ""
    if intent.direction is Direction.REPLACE:
        return f"intent: {intent.group} keeps {intent.target}, replacing {', '.join(intent.victims)}"
    return f"intent: {intent.group} {intent.before} -> {intent.target} (scale {intent.direction}){victims}"


def _outcome(outcome: Outcome) -> str:
    head = f"{outcome.status.value.replace('_', ' ')}: {outcome.achieved} of {outcome.asked} ({outcome.reason})"
    return f"{head}: {outcome.detail}" if outcome.detail else head


def explanation_lines(explanation: Explanation, record: DecisionRecord) -> list[str]:
    """Return the explanation as lines."""
    lines = [
        f"{explanation.decision_id}  {time_text(explanation.at)}  {explanation.mode}",
        f"  {explanation.sentence}",
        "",
        "Seen",
    ]
    if record.inputs.snapshot is not None:
        lines += columns(_groups(record.inputs.fleet, record.inputs.snapshot))
    lines += [f"  {sentence}" for sentence in explanation.seen]
    lines += ["", "Proposed", f"  {explanation.proposal}"]
    lines += [f"  (shadow, not done) {shadow}" for shadow in explanation.shadows]
    lines += [f"  a policy failed: {failure}" for failure in explanation.failures]
    lines += ["", "Rails"]
    rails = [(step.number, step.rail, step.verdict.value, step.change, step.sentence) for step in explanation.steps]
    lines += columns(rails) or ["  none was asked"]
    lines += ["", "Done"]
    lines += columns([(time_text(h.at), h.intent_id, h.what) for h in explanation.timeline]) or [
        "  nothing: no intent came of it"
    ]
    lines += [f"  {intent_id} is still open" for intent_id in explanation.open_intents]
    return lines


def _groups(fleet: Fleet, snapshot: Snapshot) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("group", "type", "requested", "in service", "warm", "booting", "idle", "CPU")]
    for group, seen in zip(fleet.groups, snapshot.groups, strict=True):
        cpu = "absent" if seen.cpu_mean is None else f"{seen.cpu_mean:.1%}"
        numbers = (seen.requested, seen.in_service, seen.warm, seen.booting, seen.idle_long)
        rows.append((group.key, group.vm_type.name, *numbers, cpu))
    return rows
