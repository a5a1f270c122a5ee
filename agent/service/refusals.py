"""What the agent's inputs refused or contradicted since the last turn, as events for the journal and for alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from collectors.aws_clock import ClockCheck
from collectors.intake import Conflict, IntakeCounters, RefusedClaim
from collectors.vm_names import UnknownVms
from domain.decisions import Event, Reason
from domain.subject import AGENT, Subject

REPEAT_S: Final = 1200.0
"""An event comes again after so long while its refusals go on, which is within the quiet time of an alarm."""

Counted = tuple[Subject, str, int, str]
"""Subject, input of it, refusals since the start, and the sentence that follows their number."""


class RejectedInputEvents:
    """Compares counters of refusals with those of the turn before; one thread (the loop's) calls it."""

    def __init__(
        self,
        intake: Callable[[], IntakeCounters],
        claims: Callable[[], Mapping[tuple[Subject, str, str], RefusedClaim]],
        unknown_vms: Callable[[], Mapping[tuple[Subject, str], UnknownVms]],
        conflicts: Callable[[], Mapping[tuple[Subject, str, str], Conflict]],
        clock: ClockCheck,
    ) -> None:
        self._intake, self._claims, self._unknown_vms, self._conflicts = intake, claims, unknown_vms, conflicts
        self._clock = clock
        self._counts: dict[tuple[Reason, Subject, str], int] = {}
        self._raised_at: dict[tuple[Reason, Subject, str], float] = {}

    def events(self, now: float) -> tuple[Event, ...]:
        """Return an event for each kind of refusal that has grown, at most one in `REPEAT_S` for each."""
        return (
            *self._grown(now, Reason.SENDER_REFUSED, self._senders()),
            *self._grown(now, Reason.SENDER_REFUSED, self._unknown()),
            *self._grown(now, Reason.CLAIM_REFUSED, self._refused_claims()),
            *self._grown(now, Reason.INPUT_CONFLICT, self._contradictions()),
            *self._grown(now, Reason.CLOCK_WRONG, self._differing()),
        )

    def _grown(self, now: float, reason: Reason, counted: Iterator[Counted]) -> Iterator[Event]:
        for subject, about, count, sentence in counted:
            key = reason, subject, about
            raised_at = self._raised_at.get(key)
            # A clock that was set back must not silence it.
            quiet = raised_at is not None and 0.0 <= now - raised_at < REPEAT_S
            new = count - self._counts.get(key, 0)
            if new > 0 and not quiet:
                self._counts[key], self._raised_at[key] = count, now
                yield Event(subject, now, reason, f"{new} {sentence}", about)

    def _senders(self) -> Iterator[Counted]:
        intake = self._intake()
        foreign = intake.connections_foreign + intake.datagrams_foreign
        yield (
            AGENT,
            "networks",
            foreign,
            "connections or datagrams refused, the last from "
            f"{intake.last_foreign or 'nowhere'}: outside TRIMTAB_LISTENER__NETWORKS; add the subnet if it is yours",
        )
        yield (
            AGENT,
            "connections",
            intake.connections_refused + intake.connections_displaced,
            "connections refused or closed at the limit, the last of "
            f"{intake.last_crowded or 'an unknown peer'}: close idle "
            "connections, or raise TRIMTAB_LISTENER__MAX_CONNECTIONS or CONNECTIONS_PER_PEER",
        )

    def _unknown(self) -> Iterator[Counted]:
        for (subject, group), unknown in self._unknown_vms().items():
            where = f"the group {group}" if group else f"the inventory of the pool {subject.name}"
            yield (
                subject,
                group or "inventory",
                unknown.refused,
                f"readings or names of VMs refused that are not in {where}, the last {unknown.name[:80]!r} of "
                f"{unknown.peer or 'a collector'}: a VM reports under its instance id and its group's key",
            )

    def _refused_claims(self) -> Iterator[Counted]:
        for (subject, group, metric), refused in self._claims().items():
            about = f"{group}.{metric}"
            whom = f"from {refused.peer}" if refused.peer else "from a collector"
            setting = f" (TRIMTAB_FLEETS__{subject.name}__CLAIMS__{refused.bound})" if refused.bound else ""
            yield (
                subject,
                about,
                refused.count,
                f"readings of {about} refused, the last of {refused.value:g} {whom}: "
                + ("none is below 0" if refused.value < 0.0 else f"0 to {refused.limit:g} is believed{setting}")
                + "; they count as absent",
            )

    def _differing(self) -> Iterator[Counted]:
        if difference := self._clock.difference:
            yield AGENT, "clock", self._clock.differing, f"answers of AWS have another time: {difference}"

    def _contradictions(self) -> Iterator[Counted]:
        for (subject, group, metric), found in self._conflicts().items():
            about = f"{group}.{metric}"
            yield subject, about, found.count, f"readings of {about} contradict others: {found.detail}"
