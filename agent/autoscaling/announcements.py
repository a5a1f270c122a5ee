"""Announcements of a fleet's work: in the ledger as operators make them, or made by the schedule of its settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent.autoscaling.state import FleetStore
from agent.kernel.controls import checked_owner
from agent.kernel.text import duration_text, time_text
from domain.announcements import Announcement, Recurring
from domain.errors import BadInput, StateConflict, UnknownName
from domain.observations.autoscaling_scorer import ANNOUNCED_WITHIN_MIN, OVERDUE_GRACE_S
from domain.units import DAY_S, MINUTE_S

ANNOUNCEMENTS: Final = "announcements"
"""The key of a fleet's announcements in the ledger's state."""
MOST: Final = 200
"""Announcements that a fleet may have at a time, beside those of its schedule."""
LONGEST_AHEAD_S: Final = 31 * DAY_S
LONGEST_OVER_S: Final = DAY_S
MOST_JOBS: Final = 10**7
MOST_JOB_CORE_S: Final = 1e7
ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$"
KEPT_S: Final = DAY_S
"""How long an announcement is kept behind its end: a repeated one is recognised, and the fleet counts as one with
announcements."""
SEEN_AHEAD_S: Final = MINUTE_S * ANNOUNCED_WITHIN_MIN[-1]
MOST_SEEN: Final = 64
"""Announcements that stand in a decision's inputs, the next ones first."""


@dataclass(frozen=True, slots=True)
class Announced:
    """An announcement that an operator or a program made.

    owner: of the announcement. since: when it was made. in_minutes: as it was given, None where the time itself was.
    """

    id: str
    announcement: Announcement
    owner: str
    since: float
    in_minutes: float | None = None

    def over(self, now: float) -> bool:
        """Return whether it is kept no longer."""
        return self.announcement.at + self.announcement.over_s + KEPT_S < now


@dataclass(frozen=True, slots=True)
class Announcements:
    """What the ledger keeps of a fleet's announcements, by time."""

    announced: tuple[Announced, ...] = ()


def announce(store: FleetStore, fleet: str, made: Announced) -> tuple[Announced, bool]:
    """Keep an announcement, and return it with whether it is new; a repeated one is returned as it was first made.

    BadInput names what is wrong, StateConflict says that the id stands for other work or that there are too many.
    """
    _check(made)

    def change(before: Announcements) -> tuple[Announcements, str]:
        kept = tuple(one for one in before.announced if not one.over(made.since))
        known = next((one for one in kept if one.id == made.id), None)
        if known is not None:
            if not _same(known, made):
                remedy = "it belongs to other work: withdraw that first, or use another id"
                raise StateConflict("id", made.id, remedy)
            return before, ""
        if len(kept) >= MOST:
            raise StateConflict("id", made.id, f"{MOST} announcements of {fleet} are kept already: withdraw some")
        after = sorted((*kept, made), key=lambda one: (one.announcement.at, one.id))
        return Announcements(tuple(after)), f"{made.owner} announced {in_words(made.announcement)} ({made.id})"

    after = store.change(fleet, ANNOUNCEMENTS, Announcements, change, made.since)
    found = next(one for one in after.announced if one.id == made.id)
    return found, found is made


def withdraw(store: FleetStore, fleet: str, announcement_id: str, *, owner: str, now: float) -> Announced:
    """Take an announcement back and return it; UnknownName lists some of those there are."""
    by = checked_owner(owner)
    gone: list[Announced] = []

    def change(before: Announcements) -> tuple[Announcements, str]:
        gone[:] = [one for one in before.announced if one.id == announcement_id]
        if not gone:
            there = ", ".join(one.id for one in before.announced[:10] if not one.over(now)) or "none"
            raise UnknownName("id", announcement_id, f"announced for {fleet}: {there}")
        left = tuple(one for one in before.announced if one.id != announcement_id and not one.over(now))
        return Announcements(left), f"{by} withdrew {in_words(gone[0].announcement)} ({announcement_id})"

    store.change(fleet, ANNOUNCEMENTS, Announcements, change, now)
    return gone[0]


def kept(store: FleetStore, fleets: Sequence[str]) -> dict[str, Announcements]:
    """Return what is kept of each of these fleets' announcements, past ones included."""
    return store.under(fleets, ANNOUNCEMENTS, Announcements)


def to_come(found: Announcements, now: float) -> tuple[Announced, ...]:
    """Return the announcements whose end has not come, by time."""
    return tuple(one for one in found.announced if one.announcement.at + one.announcement.over_s >= now)


def seen(found: Announcements, schedule: Iterable[Recurring], now: float) -> tuple[Announcement, ...] | None:
    """Return what a decision at `now` sees: what comes within SEEN_AHEAD_S or may be overdue, by time.

    None where the fleet has no schedule and nothing was announced of late: there are no announcements there.
    """
    recurring = tuple(schedule)
    made = [one.announcement for one in found.announced if not one.over(now)]
    if not recurring and not made:
        return None
    for one in recurring:
        made += one.between(now - OVERDUE_GRACE_S - one.over_s, now + SEEN_AHEAD_S)
    near = [one for one in made if one.at + one.over_s + OVERDUE_GRACE_S >= now and one.at <= now + SEEN_AHEAD_S]
    near.sort(key=lambda one: (one.at, one.jobs, one.job_core_s, one.over_s))
    ahead = [one for one in near if one.at + one.over_s >= now]
    past = [one for one in near if one.at + one.over_s < now]
    # The next ones first, and of those past the newest, where there is no room for all.
    ahead = ahead[:MOST_SEEN]
    room = MOST_SEEN - len(ahead)
    return (*(past[-room:] if room else ()), *ahead)


def in_words(one: Announcement) -> str:
    """Return an announcement as a phrase."""
    over = f" over {duration_text(one.over_s)}" if one.over_s else ""
    jobs = "1 job" if one.jobs == 1 else f"{one.jobs} jobs"
    return f"{jobs} of {one.job_core_s:g} core-s at {time_text(one.at)}{over}"


def _same(known: Announced, made: Announced) -> bool:
    """Return whether a request repeats an earlier one; a time from now on moves with the request."""
    if known.in_minutes != made.in_minutes:
        return False
    if made.in_minutes is None:
        return known.announcement == made.announcement
    return replace(known.announcement, at=made.announcement.at) == made.announcement


def _check(made: Announced) -> None:
    work, now = made.announcement, made.since
    if re.fullmatch(ID, made.id) is None:
        raise BadInput("id", made.id, "give 1 to 100 letters, digits, . _ : and -, a letter or digit first")
    checked_owner(made.owner)
    if work.at + work.over_s < now:
        raise BadInput("at", work.at, f"it is over already: give a time after {now:.0f}, seconds since the epoch")
    if work.at > now + LONGEST_AHEAD_S:
        raise BadInput("at", work.at, f"give a time within {LONGEST_AHEAD_S / DAY_S:.0f} days")
    if work.jobs > MOST_JOBS:
        raise BadInput("jobs", work.jobs, f"give 1 to {MOST_JOBS}")
    if work.job_core_s > MOST_JOB_CORE_S:
        raise BadInput("job_core_s", work.job_core_s, f"give up to {MOST_JOB_CORE_S:g} core-seconds")
    if work.over_s > LONGEST_OVER_S:
        raise BadInput("over_minutes", work.over_s / MINUTE_S, f"give up to {LONGEST_OVER_S / MINUTE_S:.0f}")
