"""Recorded inputs decided again: by the same policy, which must give the same bytes, or by another, to see what if."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from agent.autoscaling.decide import DecisionInputs, decide
from agent.autoscaling.explain import sizes
from agent.autoscaling.policies.base import Policy
from agent.autoscaling.policies.fallback import STANDING_IN, Evaluate, Models, Proposer, evaluate_directly
from agent.autoscaling.policies.ppo_lstm import names_model, sha_of
from agent.kernel.decision import Explanation, ReplayResult
from agent.kernel.text import columns, time_text
from agent.ledger import codec
from agent.rails.state import LoopState, Memory
from domain.decisions import Decision, Proposal
from domain.errors import PolicyFailure
from domain.fleet import Fleet
from domain.snapshot import Snapshot
from domain.units import HOUR_S, MINUTE_S

Recorded = tuple[DecisionInputs, Decision]
MOST_LINES = 40
"""Differing minutes printed as text; --json has all."""
LATE = ("did not answer within", "is still at work on an earlier minute")
"""How a failure of a policy by the clock is worded, which no recorded input shows."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One recorded minute and what another policy would have decided on the same sizes and measurements."""

    inputs: DecisionInputs
    recorded: Decision
    other: Decision

    @property
    def differs(self) -> bool:
        """Whether another size would have come out."""
        return self.other.desired != self.recorded.desired

    def sizes(self, decision: Decision) -> tuple[int, ...]:
        """Return what was decided; what was there, when nothing could be decided."""
        known = self.inputs.state.known_desired
        return decision.desired or tuple(known.get(group.key, group.minimum) for group in self.inputs.fleet.groups)


@dataclass(frozen=True, slots=True)
class Summary:
    """A stretch of minutes: VM-hours and dollars as decided, scale-outs and scale-ins, for one policy."""

    vm_hours: float
    dollars: float
    outs: int
    ins: int


def replay(records: Iterable[Recorded], models: Models | None = None) -> Iterator[ReplayResult]:
    """Decide every record again with its own policy and state.

    models: where the models of learned policies are. Raises BadInput when one that decided then is not among them.
    """
    for inputs, decision in records:
        mine = None
        if models is not None:
            mine = _ModelsThen(models, inputs, decision)
            for name in (inputs.policy, *inputs.shadows):
                # Asked before deciding, where a model that is missing would pass for a policy that failed.
                if sha_of(name):
                    models.policy(name, inputs.fleet)
        again = decide(inputs, Proposer(_as_recorded(inputs, decision), models=mine)).decision
        before, after = codec.encode(decision), codec.encode(again)
        # Byte for byte, in the ledger's canonical JSON.
        difference = "" if before == after else _difference(before, after)
        yield ReplayResult(decision.decision_id, before == after, difference, exact=True)


def _difference(*decisions: bytes) -> str:
    """Return the lines that differ, the recorded ones marked -, those of the replay +."""
    before, after = (json.dumps(json.loads(made), indent=2, ensure_ascii=False).splitlines() for made in decisions)
    return "\n".join(difflib.unified_diff(before, after, "recorded", "replayed", lineterm="", n=1))


def what_if(records: Iterable[Recorded], policy: str, models: Models | None = None) -> Iterator[Alternative]:
    """Decide every record with another policy, live in mode and rails as recorded.

    Each minute starts from the sizes, measurements and cool-downs that were really there; only the policy's own memory
    and the count of minutes that proposed scale-in go on from its own last minute.
    """
    proposer = Proposer(evaluate_directly, models=models)
    state: LoopState | None = None
    for inputs, decision in records:
        memory: Memory = {} if state is None else state.memory
        streak = {} if state is None else state.in_streak
        if models is not None and names_model(policy):
            policy = models.policy(policy, inputs.fleet).name
        mine = replace(inputs, policy=policy, shadows=(), state=replace(inputs.state, memory=memory, in_streak=streak))
        decided = decide(mine, proposer)
        state = decided.state
        yield Alternative(inputs, decision, decided.decision)


def summaries(alternatives: Sequence[Alternative]) -> tuple[Summary, Summary]:
    """Return the summary of what was recorded and of the other policy.

    A decision counts from its time to the next one's; the last counts as long as the one before it, a single
    one for a minute.
    """
    times = [item.recorded.at for item in alternatives]
    spans = [after - before for before, after in itertools.pairwise(times)]
    spans.append(spans[-1] if spans else MINUTE_S)
    return (
        _summary(alternatives, spans, [item.recorded for item in alternatives]),
        _summary(alternatives, spans, [item.other for item in alternatives]),
    )


def comparison(fleet: str, policy: str, items: Sequence[Alternative]) -> Explanation:
    """Return what another policy would have decided on recorded minutes: those that differ, and both in sum."""
    differing = [item for item in items if item.differs]
    both = dict(zip(("recorded", "other"), summaries(items), strict=True))
    rows: list[tuple[object, ...]] = []
    for item in differing[:MOST_LINES]:
        requested = item.inputs.snapshot.requested if item.inputs.snapshot is not None else ()
        was, would = (sizes(item.inputs.fleet, requested, d.desired) for d in (item.recorded, item.other))
        rows.append((item.recorded.decision_id, time_text(item.recorded.at), was, would, item.other.sentence))
    lines = [f"{policy} on {len(items)} recorded minutes: {len(differing)} come out differently"]
    if rows:
        lines += columns([("decision", "at", "recorded", "would be", "why"), *rows])
    if len(differing) > len(rows):
        lines.append(f"  and {len(differing) - len(rows)} more (--json has all)")
    lines += ["", "As decided, minute by minute, each from the sizes that were really there:"]
    head = ("", "VM-hours", "dollars", "scale-outs", "scale-ins")
    words = {"recorded": "recorded", "other": "would be"}
    body = [(words[name], f"{s.vm_hours:.2f}", f"{s.dollars:.3f}", s.outs, s.ins) for name, s in both.items()]
    data = {
        "fleet": fleet,
        "policy": policy,
        "minutes": len(items),
        "differing": [
            {
                "id": item.recorded.decision_id,
                "at": item.recorded.at,
                "recorded": list(item.recorded.desired),
                "other": list(item.other.desired),
                "sentence": item.other.sentence,
            }
            for item in differing
        ],
        **{
            name: {"vm_hours": s.vm_hours, "dollars": s.dollars, "scale_outs": s.outs, "scale_ins": s.ins}
            for name, s in both.items()
        },
    }
    return Explanation((*lines, *columns([head, *body])), data)


def _summary(items: Sequence[Alternative], spans: Sequence[float], decisions: Sequence[Decision]) -> Summary:
    vm_seconds = dollars = 0.0
    outs = ins = 0
    for item, span, decision in zip(items, spans, decisions, strict=True):
        sizes, requested = item.sizes(decision), item.sizes(item.recorded)
        if item.inputs.snapshot is not None:
            requested = item.inputs.snapshot.requested
        prices = item.inputs.fleet.prices_per_hour
        vm_seconds += sum(sizes) * span
        dollars += sum(size * price for size, price in zip(sizes, prices, strict=True)) * span / HOUR_S
        outs += sum(sizes) > sum(requested)
        ins += sum(sizes) < sum(requested)
    return Summary(vm_seconds / HOUR_S, dollars, outs, ins)


class _ModelsThen:
    """The models as they were when a decision was made: a name that led to none then leads to none now."""

    def __init__(self, models: Models, inputs: DecisionInputs, decision: Decision) -> None:
        self._models, self._failures = models, _failures(inputs, decision)

    def resolve(self, text: str, fleet: Fleet) -> str:
        """Return the name as it was recorded."""
        return text

    def policy(self, text: str, fleet: Fleet) -> Policy:
        """Return the policy of that name; PolicyFailure in the words of then where there was none."""
        if sha_of(text):
            return self._models.policy(text, fleet)
        raise PolicyFailure(next(iter(self._failures.get(text, ())), f"policy {text}: no model was recorded"))


def _failures(inputs: DecisionInputs, decision: Decision) -> dict[str, tuple[str, ...]]:
    """Return the recorded failures by the policy that was asked, the live one or a shadow."""
    of_shadows = zip(inputs.shadows, decision.shadows, strict=False)
    return {inputs.policy: decision.policy_failures} | {
        name: tuple(proposal.detail.split(STANDING_IN)[1:]) for name, proposal in of_shadows
    }


def _as_recorded(inputs: DecisionInputs, decision: Decision) -> Evaluate:
    """Return an evaluator in which a policy that overran its deadline then does so again: the clock is no input."""
    failures = [failure for each in _failures(inputs, decision).values() for failure in each]

    def evaluate(policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        for failure in failures:
            if failure.startswith(tuple(f"{policy.name} {late}" for late in LATE)):
                raise PolicyFailure(failure)
        return evaluate_directly(policy, fleet, snapshot, memory)

    return evaluate
