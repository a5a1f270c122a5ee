"""Outcomes from AWS's responses: one mapping of failure classes for every step of an action."""

from __future__ import annotations

from dataclasses import dataclass

from actuators.base import Refusal
from domain.decisions import CapacityShortage, Direction, Intent, Outcome, Reason, Status
from domain.errors import CloudError, FailureClass
from domain.observed import GroupObserved

REMEDY = {
    FailureClass.CREDENTIALS: "check the agent's role and its policy (deploy/), then `trimtab preflight`",
    FailureClass.PERMANENT: "AWS refuses this request; see its message",
    FailureClass.UNSUPPORTED: "the group is not sized until that is changed; `trimtab preflight` checks it",
}

_REASONS = {
    FailureClass.THROTTLE: (Status.IN_PROGRESS, Reason.THROTTLED),
    FailureClass.UNAVAILABLE: (Status.IN_PROGRESS, Reason.UNAVAILABLE),
    FailureClass.UNKNOWN_OUTCOME: (Status.UNKNOWN, Reason.UNKNOWN_OUTCOME),
    FailureClass.CAPACITY: (Status.FAILED, Reason.NO_CAPACITY),
    FailureClass.CREDENTIALS: (Status.FAILED, Reason.CREDENTIALS),
    FailureClass.PERMANENT: (Status.FAILED, Reason.PERMANENT_FAILURE),
    FailureClass.READ_ONLY: (Status.SKIPPED, Reason.OBSERVE_MODE),
    FailureClass.UNSUPPORTED: (Status.FAILED, Reason.GROUP_UNSUPPORTED),
}


def asked(intent: Intent) -> int:
    """Return how many VMs the intent adds, removes or replaces."""
    return intent.target - intent.before if intent.direction is Direction.OUT else len(intent.victims)


def achieved(intent: Intent, group: GroupObserved) -> int:
    """Return how many of them the group shows as done: VMs there beyond `before`, or victims out of service."""
    if intent.direction is Direction.OUT:
        return max(0, min(asked(intent), len(group.serving) - intent.before))
    serving = {instance.vm for instance in group.serving}
    return min(asked(intent), sum(vm not in serving for vm in intent.candidates))


def is_booting(intent: Intent, outcome: Outcome) -> bool:
    """Return whether AWS has launched every VM of an open scale-out, and none has ended before service."""
    launched = outcome.status is Status.IN_PROGRESS and outcome.reason is Reason.ACCEPTED
    follows = intent.direction is Direction.OUT or intent.follows_launches
    return launched and follows and outcome.achieved >= asked(intent)


@dataclass(frozen=True, slots=True)
class Report:
    """Writes the outcomes of one intent at one moment."""

    intent: Intent
    now: float

    def skipped(self, reason: Reason, detail: str) -> Outcome:
        """Nothing was done and nothing will be."""
        return self._outcome(Status.SKIPPED, reason, 0, detail)

    def waiting(
        self,
        reason: Reason,
        done: int,
        detail: str,
        failure: FailureClass | None = None,
        shortages: tuple[CapacityShortage, ...] = (),
    ) -> Outcome:
        """Not over: to be followed at the next tick."""
        return self._outcome(Status.IN_PROGRESS, reason, done, detail, failure, shortages)

    def done(self, detail: str) -> Outcome:
        """All of it."""
        return self._outcome(Status.DONE, Reason.DONE, asked(self.intent), detail)

    def ended(
        self,
        reason: Reason,
        done: int,
        detail: str,
        failure: FailureClass | None = None,
        shortages: tuple[CapacityShortage, ...] = (),
    ) -> Outcome:
        """Over without all of it: PARTIAL with something achieved, else FAILED."""
        return self._outcome(Status.PARTIAL if done else Status.FAILED, reason, done, detail, failure, shortages)

    def refused(self, refusal: Refusal, done: int) -> Outcome:
        """Not sent: over, as partial or skipped, or open when it is to be tried again."""
        if not refusal.over:
            return self.waiting(refusal.reason, done, refusal.detail)
        if done:
            return self.ended(refusal.reason, done, refusal.detail)
        return self.skipped(refusal.reason, refusal.detail)

    def after(self, error: CloudError, done: int, vm_type: str, detail: str = "") -> Outcome:
        """Return what a failed call means for the intent, with `done` VMs achieved before it."""
        status, reason = _REASONS[error.failure]
        if done and status.final:
            status = Status.PARTIAL
        remedy = REMEDY.get(error.failure)
        text = "; ".join(part for part in (detail, str(error), remedy) if part)
        short = (CapacityShortage(vm_type, ""),) if error.failure is FailureClass.CAPACITY else ()
        return self._outcome(status, reason, done, text, error.failure, short)

    def _outcome(
        self,
        status: Status,
        reason: Reason,
        done: int,
        detail: str,
        failure: FailureClass | None = None,
        shortages: tuple[CapacityShortage, ...] = (),
    ) -> Outcome:
        return Outcome(
            self.intent.intent_id, status, reason, asked(self.intent), done, self.now, detail, failure, shortages
        )
