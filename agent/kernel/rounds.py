"""What the agent says of learning, for any decision: when a subject last learnt, what is on probation, and alarms.

The rounds are made by `trimtab learn`, in a process of its own; here only what it left beside the models is read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.kernel.metrics import Reading
from agent.kernel.text import duration_text, time_text
from agent.models.directory import ModelsDirectory, Probationer
from agent.models.rounds import Ending, RoundStatus, read_rounds
from domain.decisions import Event, Reason
from domain.errors import BadInput
from domain.subject import Subject
from domain.units import DAY_S

LOOK_EVERY_S: Final = 10.0
REPEAT_S: Final = 1200.0
"""The event of an overdue round comes again after so long, which is within the quiet time of an alarm."""
NEWS_S: Final = DAY_S
"""A promotion that was rolled back longer ago is no news when the agent starts."""

FirstAt = Callable[[str], float | None]
"""Returns when the first decision of a subject was recorded, epoch seconds; None where there is none."""


@dataclass(frozen=True, slots=True)
class _Found:
    rounds: Mapping[str, RoundStatus] = field(default_factory=dict)
    probation: Mapping[str, Probationer] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    problem: str = ""


class Rounds:
    """The rounds of learning of one decision's subjects, read again every ten seconds; safe to use from any thread.

    max_age_s: from which age of the last good end an event is due, None for none.
    """

    def __init__(
        self,
        decision: str,
        directory: Path,
        monotonic: Callable[[], float],
        first_at: FirstAt,
        *,
        max_age_s: float | None = None,
    ) -> None:
        self.decision, self._directory, self._monotonic = decision, directory, monotonic
        self._first_at, self._max_age_s = first_at, max_age_s
        self._lock = threading.Lock()
        self._looked_at: float | None = None
        self._found = _Found()
        self._raised_at: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def _look(self) -> _Found:
        with self._lock:
            now = self._monotonic()
            if self._looked_at is None or not 0.0 <= now - self._looked_at < LOOK_EVERY_S:
                self._looked_at = now
                rounds, problems = read_rounds(self._directory, self.decision)
                directory, probation, own = ModelsDirectory(self._directory), {}, frozenset[str]()
                # What is wrong with the pointer is told where its models are taken up.
                with contextlib.suppress(BadInput):
                    named = directory.probationers().items()
                    probation = {one.name: held for one, held in named if one.decision == self.decision}
                    own = frozenset(one.name for one in directory.champions() if one.decision == self.decision)
                self._found = _Found(rounds, probation, own, "; ".join(problems))
            return self._found

    @property
    def problem(self) -> str:
        """What is wrong with the files, "" for nothing."""
        return self._look().problem

    def last(self, subject: str) -> RoundStatus | None:
        """Return the end of a subject's last round, None before the first."""
        return self._look().rounds.get(subject)

    def probation(self, subject: str) -> Probationer | None:
        """Return the model on probation that the pointer names for a subject, None for none.

        One for all subjects is that of those without a champion of their own.
        """
        found = self._look()
        return found.probation.get(subject) or (None if subject in found.own else found.probation.get(""))

    def line(self, subject: str, now: float) -> str:
        """Return in a sentence when a subject last learnt and what is on probation; "" where there is neither."""
        last, held = self.last(subject), self.probation(subject)
        said = []
        if last is not None:
            words = last.outcome.value.replace("_", " ")
            said.append(f"last learnt {time_text(last.at)}: {words}" + (f", {last.sentence}" if last.sentence else ""))
        if held is not None:
            end = f"until {time_text(held.until)}" if now < held.until else f"since {time_text(held.since)}, hours over"
            said.append(f"{held.model[:12]} is on probation {end}")
        return "; ".join(said)

    def events(self, now: float, subjects: Iterable[str]) -> tuple[Event, ...]:
        """Return an event for each of these subjects that has not learnt for too long or was rolled back; one thread.

        LedgerError when the first decision of a subject that never learnt cannot be read.
        """
        found = self._look()
        events = []
        for subject in subjects:
            last = found.rounds.get(subject)
            if overdue := self._overdue(subject, last, now):
                events.append(self._event(subject, now, Reason.LEARNING_OVERDUE, overdue))
            if last is None or last.outcome is not Ending.ROLLED_BACK or self._told.get(subject) == last.at:
                continue
            self._told[subject] = last.at
            if now - last.at < NEWS_S:
                events.append(self._event(subject, now, Reason.PROMOTION_ROLLED_BACK, last.sentence or "rolled back"))
        return tuple(events)

    def _overdue(self, subject: str, last: RoundStatus | None, now: float) -> str:
        """Return why a subject's learning is overdue where an event about it is due, else ""."""
        raised_at = self._raised_at.get(subject)
        # A clock that was set back must not silence it.
        if self._max_age_s is None or (raised_at is not None and 0.0 <= now - raised_at < REPEAT_S):
            return ""
        good_at = None if last is None else last.good_at
        since = self._first_at(subject) if good_at is None else good_at
        if since is None or now - since <= self._max_age_s:
            return ""
        self._raised_at[subject] = now
        ended = "no round of learning ever judged to its end"
        if good_at is not None:
            ended = f"the last round of learning that judged to its end is {duration_text(now - good_at)} old"
        limit = f"more than {duration_text(self._max_age_s)} (TRIMTAB_LEARNING__MAX_AGE_HOURS)"
        why = "none was made"
        if last is not None:
            why = f"the last one ended {last.outcome}" + (f": {last.sentence}" if last.sentence else "")
        return f"{ended}, {limit}; {why}; look at `journalctl -u trimtab-learn`"

    def _event(self, subject: str, now: float, reason: Reason, detail: str) -> Event:
        return Event(Subject(self.decision, subject), now, reason, detail)

    def readings(self) -> Iterator[Reading]:
        """Yield when each subject's last round and last good one ended, how, what it took, and what is on probation."""
        found = self._look()
        for subject, last in found.rounds.items():
            labels = (self.decision, subject)
            yield "learn_last_end_timestamp_seconds", labels, last.at
            if last.good_at is not None:
                yield "learn_last_good_end_timestamp_seconds", labels, last.good_at
            for ending in Ending:
                yield "learn_outcome", (*labels, ending.value), last.outcome is ending
            yield "learn_cpu_seconds", labels, last.cpu_s
        for subject in found.rounds.keys() | found.probation.keys():
            yield "learn_probation", (self.decision, subject or "all"), subject in found.probation
