"""A turn of the tuner for one fleet: watch the setting in use, tune, or do nothing, as is due.

Everything is read from the models directory and from the ledger, so that any process can do the next turn: the pointer
and its history have the setting in use and since when, the status of the last tuning its time. A setting in use is
compared with the rule of day 0 each hour of its first day, later every WATCHED_EVERY_H hours; after a loss the rule of
day 0 decides again, and nothing is tuned for REST_S. A tuning is due TUNED_EVERY_S after the last one and the last
change, and at once where too little was recorded the last time. A setting that a person forced is neither taken back
nor replaced: another one is proposed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import FORCED, ROLLED_BACK, Champion, Then, moment_text
from agent.models.queue_rule import load_rule, rule_file
from agent.models.rounds import Ending, RoundStatus, read_status, status_file
from domain.errors import BadInput
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from domain.units import DAY_S, HOUR_S
from trainer.learning.ledgers import NoRecord
from trainer.learning.lived_hours import loss_of
from trainer.learning.minutes import Record, read_record, read_record_since
from trainer.learning.recorded import shape_of
from trainer.learning.self_tuning import MOST_DAYS, Simulate, Tuning, missing, simulate, tune
from trainer.learning.subject import Learner, learner_of
from trainer.promotion.directory import USES, ModelsWriter, last_use, write_round

TUNED_EVERY_S: Final = 23.5 * HOUR_S
"""A little less than a day, so that an hourly call does not slip by an hour a day."""
WATCHED_EVERY_H: Final = 6.0
CALLED_WITHIN_H: Final = 1.25
"""Hours after each of these in which a call watches: more than one, so that late calls miss none."""
REST_S: Final = 7.0 * DAY_S
MOST_WATCHED_S: Final = 7.0 * DAY_S
WATCHED, TUNED, NOTHING = "watched", "tuned", "nothing"
APPROVED_BY_HAND: Final = 10.0 * 365.0 * 24.0
"""Hours of a proposal: a person takes it, or a later tuning replaces it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The work of a turn, the reason, and its outcome.

    outcome: of `Ending`, "continue" for a setting that stays, "" for nothing. tuning: see
    `trainer.learning.self_tuning.Tuning`; None where nothing was tuned.
    """

    did: str
    why: str
    outcome: str = ""
    tuning: Tuning | None = None

    @property
    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        more = {} if self.tuning is None else {"tuning": asdict(self.tuning)}
        return {"did": self.did, "why": self.why, "outcome": self.outcome, **more}


@dataclass(frozen=True, slots=True)
class Tuner:
    """The tuner of a fleet.

    day_0: the rule of the fleet's settings. use: a setting is put in use, else it is proposed. now_s: epoch seconds.
    plan: nothing is changed. read, read_since: of a ledger.
    """

    fleet: str
    source: str
    models: ModelsWriter
    day_0: RuleSetting
    use: bool
    now_s: float
    plan: bool = False
    play: Simulate = simulate
    read: Callable[[str, str, float], Record] = read_record
    read_since: Callable[[str, str, float, float | None], Record] = read_record_since

    @property
    def subject(self) -> Subject:
        """The fleet's queue rule in the models directory."""
        return Subject(QUEUE_RULE, self.fleet)

    def turn(self) -> Turn:
        """Watch or tune, as is due."""
        champion = self.models.champions().get(self.subject)
        history = self.models.history(self.subject)
        begun_s = time.process_time()
        is_due = self._is_tuned_now(champion)
        if champion is not None and not is_forced(champion, history):
            since_s = changed_at(history)
            if is_watched((self.now_s - (since_s if champion.at_s is None else champion.at_s)) / HOUR_S):
                found = self._watch(champion, since_s)
                if found.outcome == Ending.ROLLED_BACK or not is_due:
                    return found
        rest_s = rests_until(history, self.now_s) - self.now_s
        if rest_s > 0.0:
            return Turn(NOTHING, f"the last setting was taken back: none is sought for {rest_s / HOUR_S:.0f} h")
        return self.tuned(begun_s) if is_due else Turn(NOTHING, "nothing is due")

    def out_of_time(self, cpu_s: float) -> Turn:
        """End a turn whose time of a processor is used up; the next tuning is due in a day."""
        return self._ended(Ending.BUDGET, f"too many jobs to be replayed in {cpu_s:.0f} s of a processor")

    @property
    def _last(self) -> RoundStatus | None:
        """The status of the last tuning."""
        try:
            return read_status(status_file(self.models.path, self.subject))
        except (OSError, BadInput):
            return None

    def _is_tuned_now(self, champion: Champion | None) -> bool:
        # A stop between a promotion and its status must not tune twice a day.
        changed_s = None if champion is None else champion.at_s
        if changed_s is not None and self._is_within_a_day(changed_s):
            return False
        last = self._last
        return last is None or last.outcome is Ending.TOO_LITTLE or not self._is_within_a_day(last.at)

    def _is_within_a_day(self, at_s: float) -> bool:
        # A clock that was set back does not postpone a tuning.
        return 0.0 <= self.now_s - at_s < TUNED_EVERY_S

    def _watch(self, champion: Champion, changed_s: float) -> Turn:
        last = self._last
        most_s = DAY_S if last is not None and last.outcome is Ending.BUDGET else MOST_WATCHED_S
        since_s = max(changed_s, self.now_s - most_s) if changed_s <= self.now_s else self.now_s - most_s
        try:
            learner = self._learner(self._since(min(changed_s, since_s), since_s))
        except NoRecord as none:
            return Turn(WATCHED, str(none), "continue")
        found = loss_of(learner, self.day_0, since_s, play=self.play, changed_s=min(changed_s, since_s))
        if not found.is_loss:
            return Turn(WATCHED, found.reason, "continue")
        if not self.plan:
            self._back_to_day_0(champion, found.reason)
            self._leave(Ending.ROLLED_BACK, found.reason)
        return Turn(WATCHED, found.reason, Ending.ROLLED_BACK)

    def _since(self, changed_s: float, since_s: float) -> Record:
        """Return the record since a moment, and of the day before the rule of day 0 was replaced."""
        if since_s - changed_s <= 0.0:
            return self.read_since(self.source, self.fleet, changed_s - DAY_S, None)
        recorded = self.read_since(self.source, self.fleet, since_s, None)
        try:
            before = self.read_since(self.source, self.fleet, changed_s - DAY_S, changed_s)
        except NoRecord:
            return recorded
        return joined(before, recorded)

    def _back_to_day_0(self, champion: Champion, why: str) -> None:
        """Take back all tuned settings at once, and a proposal; BadInput where a person has changed it meanwhile."""
        at, subject = moment_text(self.now_s), self.subject
        self.models.to_day_0(at, subject, why, of=champion.model)
        if subject in self.models.probationers():
            self.models.end_probation(subject, why, at)

    def _in_use(self, champion: Champion | None) -> tuple[RuleSetting, str]:
        """Return the setting that decides, and why the champion does not, "" where it does."""
        if champion is None:
            return self.day_0, ""
        try:
            self.models.check(self.subject, champion)
            found = load_rule(self.models.file_of(champion.model))
            if found.fleet != self.fleet:
                raise BadInput("fleet", found.fleet, f"it is not {self.fleet}")
        except BadInput as fault:
            return self.day_0, f"{champion.model[:12]} cannot decide ({fault.remedy}), the rule of day 0 does; "
        return found.rule, ""

    def tuned(self, begun_s: float | None = None) -> Turn:
        """Tune, due or not; begun_s: of `time.process_time`, where its time of a processor begins, None for now."""
        champion = self.models.champions().get(self.subject)
        now, unused = self._in_use(champion)
        try:
            recorded = self.read(self.source, self.fleet, MOST_DAYS)
        except NoRecord as none:
            return self._ended(Ending.TOO_LITTLE, str(none))
        too_little = missing(recorded)
        if too_little:
            return self._ended(Ending.TOO_LITTLE, too_little)
        found = tune(self._learner(recorded), now, play=self.play, begun_s=begun_s)
        found = replace(found, why=f"{unused}{found.why}")
        waits = self.models.probationers().get(self.subject)
        if found.setting is None:
            if waits is not None and not self.plan:
                self.models.end_probation(self.subject, found.why, moment_text(self.now_s))
            return self._ended(Ending.KEPT, found.why, found)
        forced = champion is not None and is_forced(champion, self.models.history(self.subject))
        is_used = self.use and found.may_be_used and not forced
        if self.plan:
            return Turn(TUNED, found.why, Ending.PROMOTED if is_used else Ending.PROBATION, found)
        return self._put(champion, found, found.setting, is_used)

    def _put(self, champion: Champion | None, found: Tuning, setting: RuleSetting, is_used: bool) -> Turn:
        """Put a setting in use, or propose it."""
        at, beaten = moment_text(self.now_s), None if champion is None else champion.model
        model = rule_file(self.fleet, setting)
        report = self.models.store_report(_body(model.sha256, beaten, found, setting), self.subject, at)
        waits = self.models.probationers().get(self.subject)
        if is_used:
            self.models.promote(model, self.subject, report, at, load_rule, beaten=beaten)
            if waits is not None and waits.model != model.name:
                self.models.end_probation(self.subject, "a newer setting takes its place", at)
            return self._ended(Ending.PROMOTED, found.why, found)
        self.models.put_on_probation(
            model,
            self.subject,
            report,
            self.now_s,
            APPROVED_BY_HAND,
            Then.APPROVE,
            load_rule,
            beaten=beaten,
            replaces=None if waits is None else waits.model,
        )
        return self._ended(Ending.PROBATION, found.why, found)

    def _learner(self, recorded: Record) -> Learner:
        shelf = ModelShelf(self.models.path)
        return learner_of(recorded, None, shelf, usual_s=self.day_0.idle_s, only_rules=True)

    def _ended(self, outcome: Ending, why: str, found: Tuning | None = None) -> Turn:
        self._leave(outcome, why)
        return Turn(TUNED, why, outcome, found)

    def _leave(self, outcome: Ending, why: str) -> None:
        if not self.plan:
            write_round(self.models.path, self.subject, outcome, why, self.now_s)


def is_watched(hours: float) -> bool:
    """Return whether a setting is watched now, hours after the last change; below 0 where the clock was set back."""
    return hours < 0.0 or 1.0 <= hours < 24.0 + CALLED_WITHIN_H or hours % WATCHED_EVERY_H < CALLED_WITHIN_H <= hours


def is_forced(champion: Champion, history: list[dict[str, Any]]) -> bool:
    """Return whether a champion came into use by a person's choice, without an evaluation."""
    return last_use(champion.model, history) == FORCED


def changed_at(history: list[dict[str, Any]]) -> float:
    """Return since when a tuned setting decides, epoch seconds: the first change after the rule of day 0 decided."""
    since = None
    for line in history:
        if line.get("event") == ROLLED_BACK and not line.get("model"):
            since = None
        elif since is None and line.get("event") in USES:
            since = Champion("", at=line.get("at")).at_s
    return 0.0 if since is None else since


def rests_until(history: list[dict[str, Any]], now_s: float) -> float:
    """Return until when nothing is tuned, epoch seconds: REST_S after the last rollback, by hand or by the watch.

    A rollback that lies in the future, by a clock that was set back, counts as none.
    """
    ends = [Champion("", at=line.get("at")).at_s for line in history if line.get("event") == ROLLED_BACK]
    return max((end + REST_S for end in ends if end is not None and end <= now_s), default=0.0)


def joined(before: Record, after: Record) -> Record:
    """Return two records of a fleet as one; the later one alone where the fleet had other groups before."""
    if shape_of(before.fleet) != shape_of(after.fleet):
        return after
    # The newest limits are in a record once.
    earlier = tuple(
        tuple(replace(one, under=replace(one.under, limits=one.under.limits or before.limits)) for one in stretch)
        for stretch in before.stretches
    )
    return replace(after, stretches=(*earlier, *after.stretches))


def _body(sha256: str, beaten: str | None, found: Tuning, setting: RuleSetting) -> Mapping[str, Any]:
    """Return the body of a sealed report."""
    return {
        "passed": True,
        "reasons": [],
        "challenger": {"sha256": sha256},
        "champion": {"sha256": None if beaten is None else Path(beaten).stem},
        "self_tuning": {
            "from": _values(found.now),
            "to": _values(setting),
            "gain": {"share": found.gain, "low": found.low, "high": found.high},
            "dollars_a_month": found.dollars_a_month,
            "hours": found.hours,
            "why": found.why,
            "off": found.off,
        },
    }


def _values(setting: RuleSetting) -> dict[str, float | None]:
    return {"horizon_s": setting.horizon_s, "idle_s": setting.idle_s, "job_core_s": setting.job_core_s or None}
