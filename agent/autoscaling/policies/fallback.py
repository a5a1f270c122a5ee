"""The fallback order: the fleet's own policy within its deadline, then queue rule, threshold and hold.

Shadows are asked in the same order, but from a share of the turn that all of them have together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from agent.autoscaling.policies.base import InputAbsent, Policy, hold
from agent.autoscaling.policies.ppo_lstm import LearnedPolicy, names_model
from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.policies.rules import (
    ConstantPolicy,
    HoldPolicy,
    QueueRulePolicy,
    SignalTrackingPolicy,
    TargetTrackingPolicy,
    ThresholdPolicy,
)
from agent.autoscaling.policies.scorer import ScorerPolicy
from agent.kernel.deadline import Deadlines, Late, StillRunning
from agent.rails.state import Memory
from domain.decisions import Origin, Proposal, Reason
from domain.errors import BadInput, PolicyFailure, TrimtabError
from domain.fleet import Fleet
from domain.snapshot import Snapshot

FALLBACKS: tuple[Policy, ...] = (QueueRulePolicy(), ThresholdPolicy(low=0.5, periods=3), HoldPolicy())
"""The first one takes the fleet's own settings of the queue rule, where the snapshot has them."""

ARITHMETIC = (
    QueueRulePolicy,
    ThresholdPolicy,
    TargetTrackingPolicy,
    SignalTrackingPolicy,
    ConstantPolicy,
    HoldPolicy,
)
"""Rules that compute a few numbers per group and cannot hang: no thread is started for them."""

SHADOW_S: Final = 0.25
"""So long a turn waits for one shadow of a fleet."""
SHADOWS_S: Final = 1.0
"""So long it waits for all shadows of all fleets together, after every fleet's own policy has answered."""

MOST_VMS = 1_000_000
"""A size beyond this is a mistake of the policy; those below are for the rails to bound."""

STANDING_IN: Final = "; standing in: "
"""Comes in a proposal's text before the failure of the policy that was asked: another one made the proposal."""

Evaluate = Callable[[Policy, Fleet, Snapshot, Memory], tuple[Proposal, Memory]]
"""Runs one policy; raises PolicyFailure when it fails in any way."""


@dataclass(frozen=True, slots=True)
class ProposalResult:
    """What was proposed in the end, the live policy's next memory, and a sentence for each policy that failed."""

    proposal: Proposal
    memory: Memory
    failures: tuple[str, ...] = ()


class Models(Protocol):
    """Where learned policies come from; both raise BadInput that says why there is none."""

    def resolve(self, text: str, fleet: Fleet) -> str:
        """Return the name with the model's SHA-256 for a name such as `learned`, as it stands for this fleet now."""
        ...

    def policy(self, text: str, fleet: Fleet) -> Policy:
        """Return the policy of that name."""
        ...


class Proposer:
    """Evaluates policies by name and falls back when one fails.

    known: policies that no name can describe. models: where learned ones come from; without it they all fail. shadows:
    the time that shadows have in a turn; without it they are evaluated as the live policy is.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        known: Mapping[str, Policy] | None = None,
        models: Models | None = None,
        shadows: ShadowTime | None = None,
    ) -> None:
        self._evaluate = evaluate
        self._known = dict(known or {})
        self._models = models
        self._shadows = shadows

    def begin_turn(self) -> None:
        """Give the shadows of a turn that begins the whole of their time again."""
        if self._shadows is not None:
            self._shadows.begin()

    def resolve(self, name: str, fleet: Fleet) -> str:
        """Return the name under which a minute of this policy is recorded: a learned one's names its model.

        A name that leads to no model stays as it is: `propose` then says why, and falls back.
        """
        if name in self._known or self._models is None or not names_model(name):
            return name
        try:
            return self._models.resolve(name, fleet)
        except TrimtabError:
            return name

    def propose(self, name: str, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> ProposalResult:
        """Return the first usable proposal. Absent input is no failure of the policy: the fleet is held."""
        return self._first_usable(name, fleet, snapshot, memory, self._evaluate)

    def propose_aside(self, name: str, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> ProposalResult:
        """Return the same for a shadow, which has what is left of the shadows' time."""
        evaluate = self._evaluate if self._shadows is None else self._shadows.evaluate
        return self._first_usable(name, fleet, snapshot, memory, evaluate)

    def _first_usable(
        self, name: str, fleet: Fleet, snapshot: Snapshot, memory: Memory, evaluate: Evaluate
    ) -> ProposalResult:
        failures: list[str] = []
        for policy in self._candidates(name, fleet, snapshot, failures):
            try:
                proposal, after = evaluate(policy, fleet, snapshot, memory if not failures else {})
            except InputAbsent as absent:
                return ProposalResult(
                    hold(fleet, snapshot, policy.name, Reason.STALE_INPUT, str(absent)), memory, tuple(failures)
                )
            except PolicyFailure as failure:
                failures.append(str(failure))
                continue
            if failures:
                detail = f"{proposal.detail}{STANDING_IN}{failures[0]}"
                return ProposalResult(replace(proposal, detail=detail), memory, tuple(failures))
            return ProposalResult(proposal, after)
        raise AssertionError("the hold policy always answers")

    def _candidates(self, name: str, fleet: Fleet, snapshot: Snapshot, failures: list[str]) -> tuple[Policy, ...]:
        rules, terms = FALLBACKS, snapshot.terms
        if terms is not None:
            rules = (QueueRulePolicy(terms.horizon_s, terms.job_core_s), *FALLBACKS[1:])
        try:
            live = self._known.get(name) or self._named(name, fleet)
        except TrimtabError as error:
            failures.append(str(error))
            return rules
        return (live, *(p for p in rules if type(p) is not type(live)))

    def _named(self, name: str, fleet: Fleet) -> Policy:
        if not names_model(name):
            return policy_from_name(name)
        if self._models is None:
            raise BadInput("policy", name, "no models are at hand here: name a rule")
        return self._models.policy(name, fleet)


def evaluate_directly(policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
    """Run the policy in this thread without a deadline, as replay does; PolicyFailure when it fails."""
    try:
        proposal, after = policy.decide(fleet, snapshot, dict(memory))
        fault = _fault_of_proposal(fleet, proposal) or _fault_of_memory(after)
    except PolicyFailure:
        raise
    except Exception as error:
        raise PolicyFailure(f"{policy.name} raised {type(error).__name__}: {error}") from error
    if fault is not None:
        raise PolicyFailure(f"{policy.name} {fault}")
    return proposal, after


def _fault_of_proposal(fleet: Fleet, answer: object) -> str | None:
    """Return what makes a proposal unusable: anything that the rails or the ledger could not take as it is."""
    if not isinstance(answer, Proposal):
        return f"returned {_shown(answer)}: a proposal was expected"
    proposal: Any = answer
    desired = proposal.desired
    if not isinstance(desired, tuple) or len(desired) != len(fleet.groups):
        return f"proposed {_shown(desired)} for {len(fleet.groups)} groups"
    if any(type(size) is not int or not 0 <= size <= MOST_VMS for size in desired):
        return f"proposed {_shown(desired)}: sizes must be whole numbers from 0 to {MOST_VMS}"
    if proposal.fleet != fleet.name:
        return f"proposed sizes for the fleet {_shown(proposal.fleet)} when asked for {fleet.name}"
    if proposal.origin is not Origin.POLICY:
        return f"gave its proposal out as a {_shown(proposal.origin)}, which would pass rails that hold a policy"
    if not (isinstance(proposal.reason, Reason) and isinstance(proposal.counts_pending, bool)):
        return f"gave {_shown(proposal.reason)} as its reason"
    if not (_is_text(proposal.detail) and _is_text(proposal.policy)):
        return "returned a detail that is not text"
    return None


def _fault_of_memory(memory: object) -> str | None:
    usable = isinstance(memory, Mapping) and all(
        _is_text(key)
        and isinstance(values, tuple)
        and all(isinstance(value, float) and math.isfinite(value) for value in values)
        for key, values in memory.items()
    )
    return None if usable else f"returned the memory {_shown(memory)}: tuples of finite floats by name were expected"


def _is_text(value: object) -> bool:
    """Return whether the value is a string that the ledger can store: lone surrogates have no UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeError:
        return False
    return True


def _shown(value: object) -> str:
    return ascii(value)[:80]


def evaluate_within(deadline_s: float | Callable[[], float]) -> Evaluate:
    """Return an evaluator that gives up on a policy after `deadline_s` of wall time, asked for anew if it is a call.

    The policy runs in a daemon thread of its own: one that hangs is left behind and keeps neither the loop nor the
    process from ending. While it hangs it is not started again, so that there is one such thread per policy and fleet
    and not one per minute. A network that does not end is stopped. Our own rules are pure arithmetic and run in the
    caller's.
    """
    deadlines = Deadlines()

    def evaluate(policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        # The very classes: a subclass may do anything.
        if type(policy) in ARITHMETIC:
            return evaluate_directly(policy, fleet, snapshot, memory)
        within_s = deadline_s() if callable(deadline_s) else deadline_s
        if within_s <= 0.0:
            raise PolicyFailure(f"{policy.name} did not answer within 0 s, which is what others left it")
        call = partial(evaluate_directly, policy, fleet, snapshot, memory)
        try:
            return deadlines.call((policy.name, fleet.name), policy.name, call, within_s)
        except StillRunning:
            raise PolicyFailure(f"{policy.name} is still at work on an earlier minute") from None
        except Late:
            if isinstance(policy, LearnedPolicy | ScorerPolicy):
                policy.model.give_up()
            raise PolicyFailure(f"{policy.name} did not answer within {within_s:.3g} s") from None

    return evaluate


class ShadowTime:
    """Evaluates shadows within a time that those of all fleets have together in a turn.

    each_s, all_s: seconds of wall time for one, and for all. One that hangs costs this once: while it does it is not
    started again.
    """

    def __init__(
        self, each_s: float = SHADOW_S, all_s: float = SHADOWS_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._each_s, self._all_s, self._monotonic = each_s, all_s, monotonic
        self._left_s = all_s
        self._within = evaluate_within(lambda: min(self._each_s, self._left_s))

    def begin(self) -> None:
        """Begin a turn, with the whole of the time."""
        self._left_s = self._all_s

    def evaluate(self, policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Return the shadow's proposal and memory; PolicyFailure when it fails, or when no time is left."""
        began = self._monotonic()
        try:
            return self._within(policy, fleet, snapshot, memory)
        finally:
            self._left_s -= self._monotonic() - began
