"""Events of a fleet whose measurements do not fit together for minutes: what it decides is right by what it is sent.

Jobs wait while VMs are idle. A queue is reported the same while nothing works on it. VMs are busy and get no work done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from domain.decisions import Event, Reason
from domain.snapshot import Snapshot
from domain.subject import fleet_subject
from domain.units import MINUTE_S

WAITS_S: Final = 300.0
REPEATS_S: Final = 900.0
STUCK_S: Final = 1800.0
REPEAT_S: Final = 1200.0
"""An event comes again after so long while it lasts, which is within the quiet time of an alarm."""
NAMED: Final = 3
LASTS: Final = "<lasts>"
"""Stands in a sentence for how long it lasts."""

Stuck = Mapping[str, Sequence[str]]
"""By group key, the VMs that were busy for `STUCK_S` without a change of the work under way on them."""


@dataclass(slots=True)
class _Lasting:
    since: float
    is_like: object
    told_at: float | None = None
    due_at: float | None = None


@dataclass(slots=True)
class Stalls:
    """Since when each of them lasts, in memory: after a restart of the agent it is observed anew."""

    _lasting: dict[tuple[str, Reason, str], _Lasting] = field(default_factory=dict)

    def events(self, snapshot: Snapshot, stuck: Stuck, now: float) -> tuple[Event, ...]:
        """Return what has lasted for too long in the fleet of this minute, each once in `REPEAT_S`."""
        return (
            *self._told(snapshot, Reason.JOBS_NOT_TAKEN, "", WAITS_S, _waiting_beside_idle(snapshot), True, now),
            *self._told(snapshot, Reason.INPUT_REPEATS, "queue", REPEATS_S, *_repeated(snapshot), now),
            *(
                event
                for group in snapshot.groups
                for event in self._told(
                    snapshot, Reason.WORK_STUCK, group.key, 0.0, _at_no_work(stuck.get(group.key, ())), True, now
                )
            ),
        )

    def recorded(self) -> None:
        """Take the events of this minute as recorded: until then they are due again."""
        for lasting in self._lasting.values():
            lasting.told_at, lasting.due_at = lasting.due_at or lasting.told_at, None

    def leave(self, fleets: Set[str]) -> None:
        """Forget fleets that other agents lead."""
        self._lasting = {key: one for key, one in self._lasting.items() if key[0] not in fleets}

    def clock_stepped(self, step_s: float) -> None:
        """Shift the times by a step of the wall clock."""
        for lasting in self._lasting.values():
            lasting.since += step_s
            if lasting.told_at is not None:
                lasting.told_at += step_s

    def _told(
        self, snapshot: Snapshot, reason: Reason, subject: str, for_s: float, sentence: str, like: object, now: float
    ) -> Iterator[Event]:
        """Yield an event where something lasts for `for_s`; sentence: "" where it is not so. like: what must last."""
        key = snapshot.fleet, reason, subject
        known = self._lasting.get(key)
        if not sentence:
            self._lasting.pop(key, None)
            return
        if known is None or known.is_like != like:
            known = self._lasting[key] = _Lasting(snapshot.bin_end, like)
        lasts_s = snapshot.bin_end - known.since
        if lasts_s >= for_s and (known.told_at is None or now - known.told_at >= REPEAT_S):
            known.due_at = now
            yield Event(
                fleet_subject(snapshot.fleet),
                now,
                reason,
                sentence.replace(LASTS, f"for {lasts_s / MINUTE_S:.0f} min"),
                subject,
            )


def _waiting_beside_idle(snapshot: Snapshot) -> str:
    queue = snapshot.queue
    idle, warm = sum(group.idle for group in snapshot.groups), sum(snapshot.warm)
    if queue is None or queue.waiting == 0 or not idle or 2 * idle < warm:
        return ""
    return (
        f"{queue.waiting} jobs wait {LASTS} while {idle} of {warm} VMs are idle: look whether the workers take jobs, "
        "whether a VM is large enough for one, and whether the number of waiting jobs outlives its sender"
    )


def _repeated(snapshot: Snapshot) -> tuple[str, object]:
    queue = snapshot.queue
    busy = sum(group.busy_cores or 0.0 for group in snapshot.groups)
    # Without a VM jobs wait because none is there: a pause, a budget or a want of capacity says why.
    # Without VM reports none is known to be idle either.
    if queue is None or queue.waiting == 0 or busy > 0.0 or not any(snapshot.warm) or snapshot.without_reports:
        return "", None
    said = queue.waiting, queue.running, queue.oldest_wait_s, queue.submitted, queue.job_core_s
    return (
        f"the queue is reported the same {LASTS}, {queue.waiting} jobs waiting, and no VM is busy: look whether the "
        "job source still runs. statsd repeats a gauge whose sender has died, unless deleteGauges is true"
    ), said


def _at_no_work(vms: Sequence[str]) -> str:
    if not vms:
        return ""
    named = ", ".join(vms[:NAMED]) + (f" and {len(vms) - NAMED} more" if len(vms) > NAMED else "")
    return (
        f"{len(vms)} VMs are busy for {STUCK_S / MINUTE_S:.0f} min or more, and the work under way on them has not "
        f"changed: {named}. Look whether their workers hang; one that reports no work sends no work_core_seconds"
    )
