"""The fallback order: the fleet's own policy within its deadline, then queue rule, threshold and hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread

from agent.policies.base import InputAbsent, Policy, hold
from agent.policies.fixed import ConstantPolicy, HoldPolicy
from agent.policies.queue_rule import QueueRulePolicy
from agent.policies.registry import policy_from_name
from agent.policies.target_tracking import TargetTrackingPolicy
from agent.policies.threshold import ThresholdPolicy
from agent.state import Memory
from domain.decisions import Proposal, Reason
from domain.errors import PolicyFailure, TrimtabError
from domain.fleet import Fleet
from domain.snapshot import Snapshot

FALLBACKS: tuple[Policy, ...] = (QueueRulePolicy(), ThresholdPolicy(low=0.5, periods=3), HoldPolicy())

ARITHMETIC = (QueueRulePolicy, ThresholdPolicy, TargetTrackingPolicy, ConstantPolicy, HoldPolicy)
"""Rules that compute a few numbers per group and cannot hang: no thread is started for them."""

Evaluate = Callable[[Policy, Fleet, Snapshot, Memory], tuple[Proposal, Memory]]
"""Runs one policy; raises PolicyFailure when it fails in any way."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """What was proposed in the end, the live policy's next memory, and a sentence for each policy that failed."""

    proposal: Proposal
    memory: Memory
    failures: tuple[str, ...] = ()


class Proposer:
    """Evaluates policies by name and falls back when one fails; `known` holds policies that no name can describe."""

    def __init__(self, evaluate: Evaluate, known: Mapping[str, Policy] | None = None) -> None:
        self._evaluate = evaluate
        self._known = dict(known or {})

    def propose(self, name: str, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> Proposed:
        """Return the first usable proposal. Absent input is no failure of the policy: the fleet is held."""
        failures: list[str] = []
        for policy in self._candidates(name, failures):
            try:
                proposal, after = self._evaluate(policy, fleet, snapshot, memory if not failures else {})
            except InputAbsent as absent:
                return Proposed(
                    hold(fleet, snapshot, policy.name, Reason.STALE_INPUT, str(absent)), memory, tuple(failures)
                )
            except PolicyFailure as failure:
                failures.append(str(failure))
                continue
            if failures:
                detail = f"{proposal.detail}; standing in: {failures[0]}"
                return Proposed(replace(proposal, detail=detail), memory, tuple(failures))
            return Proposed(proposal, after)
        raise AssertionError("the hold policy always answers")

    def _candidates(self, name: str, failures: list[str]) -> tuple[Policy, ...]:
        try:
            live = self._known.get(name) or policy_from_name(name)
        except TrimtabError as error:
            failures.append(str(error))
            return FALLBACKS
        return (live, *(p for p in FALLBACKS if type(p) is not type(live)))


def evaluate_directly(policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
    """Run the policy in this thread without a deadline, as replay does; PolicyFailure when it fails."""
    try:
        proposal, after = policy.decide(fleet, snapshot, memory)
    except PolicyFailure:
        raise
    except Exception as error:
        raise PolicyFailure(f"{policy.name} raised {type(error).__name__}: {error}") from error
    _check(policy, fleet, proposal)
    return proposal, after


def _check(policy: Policy, fleet: Fleet, proposal: Proposal) -> None:
    desired = proposal.desired
    if len(desired) != len(fleet.groups):
        raise PolicyFailure(f"{policy.name} proposed {len(desired)} sizes for {len(fleet.groups)} groups")
    for size in desired:
        if type(size) is not int or size < 0:
            raise PolicyFailure(f"{policy.name} proposed {desired}: sizes must be whole numbers of at least 0")


def evaluate_within(deadline_s: float) -> Evaluate:
    """Return an evaluator that gives up on a policy after `deadline_s` of wall time.

    The policy runs in a daemon thread of its own: one that hangs is left behind and keeps neither the loop nor the
    process from ending. Our own rules are pure arithmetic and run in the caller's.
    """

    def evaluate(policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        # The very classes: a subclass may do anything.
        if type(policy) in ARITHMETIC:
            return evaluate_directly(policy, fleet, snapshot, memory)
        answers: SimpleQueue[tuple[Proposal, Memory] | PolicyFailure] = SimpleQueue()

        def run() -> None:
            try:
                answers.put(evaluate_directly(policy, fleet, snapshot, memory))
            except PolicyFailure as failure:
                answers.put(failure)

        Thread(target=run, name=f"policy {policy.name}", daemon=True).start()
        try:
            answer = answers.get(timeout=deadline_s)
        except Empty:
            raise PolicyFailure(f"{policy.name} did not answer within {deadline_s:g} s") from None
        if isinstance(answer, PolicyFailure):
            raise answer
        return answer

    return evaluate
