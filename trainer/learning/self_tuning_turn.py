"""A turn of the tuner for one fleet: watch the setting in use, tune, or do nothing, as is due.

Everything is read from the models directory and from the ledger, so that any process can do the next turn: the pointer
and its history have the setting in use and since when, the status of the last tuning its time. A setting in use is
compared with the rule of day 0 each hour of its first day, later every WATCHED_EVERY_H hours; after a loss the rule of
day 0 decides again, and nothing is tuned for REST_S. A tuning is due after TUNED_EVERY_S, and at once where too little
was recorded the last time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import ROLLED_BACK, Champion, Then, moment_text
from agent.models.queue_rule import load_rule, rule_file
from agent.models.rounds import Ending, read_status, status_file
from domain.errors import BadInput
from domain.rules.autoscaling import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from domain.units import DAY_S, HOUR_S
from trainer.learning.ledgers import NoRecord
from trainer.learning.minutes import Record, read_record, read_record_since
from trainer.learning.self_tuning import MOST_DAYS, Simulate, Tuning, loss_of, missing, simulate, tune
from trainer.learning.subject import Learner, learner_of
from trainer.promotion.directory import ModelsWriter, write_round

TUNED_EVERY_S: Final = 23.5 * HOUR_S
"""A little less than a day, so that an hourly call does not slip by an hour a day."""
WATCHED_EVERY_H: Final = 6
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
    read_since: Callable[[str, str, float], Record] = read_record_since

    @property
    def subject(self) -> Subject:
        """The fleet's queue rule in the models directory."""
        return Subject(QUEUE_RULE, self.fleet)

    def turn(self) -> Turn:
        """Watch or tune, as is due."""
        champion = self.models.champions().get(self.subject)
        history = self.models.history(self.subject)
        if champion is not None:
            since_s = changed_at(history)
            if self._is_watched_now(since_s if champion.at_s is None else champion.at_s):
                found = self._watch(champion, since_s)
                if found.outcome == Ending.ROLLED_BACK or not self._is_tuned_now:
                    return found
        rest_s = rests_until(history) - self.now_s
        if rest_s > 0.0:
            return Turn(NOTHING, f"the last setting was taken back: none is sought for {rest_s / HOUR_S:.0f} h")
        return self.tuned() if self._is_tuned_now else Turn(NOTHING, "nothing is due")

    def _is_watched_now(self, changed_s: float) -> bool:
        hours = int((self.now_s - changed_s) // HOUR_S)
        return hours >= 1 and (hours <= 24 or hours % WATCHED_EVERY_H == 0)

    @property
    def _is_tuned_now(self) -> bool:
        try:
            last = read_status(status_file(self.models.path, self.subject))
        except (OSError, BadInput):
            return True
        # A clock that was set back does not postpone it.
        return last.outcome is Ending.TOO_LITTLE or not 0.0 <= self.now_s - last.at < TUNED_EVERY_S

    def _watch(self, champion: Champion, since_s: float) -> Turn:
        since_s = max(since_s, self.now_s - MOST_WATCHED_S)
        try:
            learner = self._learner(self.read_since(self.source, self.fleet, since_s - DAY_S))
        except NoRecord as none:
            return Turn(WATCHED, str(none), "continue")
        found = loss_of(learner, self.day_0, since_s, play=self.play)
        if not found.is_loss:
            return Turn(WATCHED, found.reason, "continue")
        if not self.plan:
            self._back_to_day_0(found.reason)
            self._leave(Ending.ROLLED_BACK, found.reason)
        return Turn(WATCHED, found.reason, Ending.ROLLED_BACK)

    def _back_to_day_0(self, why: str) -> None:
        """Take back all tuned settings at once, and a proposal."""
        at, subject = moment_text(self.now_s), self.subject
        self.models.to_day_0(at, subject, why)
        if subject in self.models.probationers():
            self.models.end_probation(subject, why, at)

    def tuned(self) -> Turn:
        """Tune, due or not."""
        champion = self.models.champions().get(self.subject)
        now = self.day_0 if champion is None else load_rule(self.models.file_of(champion.model)).rule
        try:
            recorded = self.read(self.source, self.fleet, MOST_DAYS)
        except NoRecord as none:
            return self._ended(Ending.TOO_LITTLE, str(none))
        too_little = missing(recorded)
        if too_little:
            return self._ended(Ending.TOO_LITTLE, too_little)
        found = tune(self._learner(recorded), now, play=self.play)
        waits = self.models.probationers().get(self.subject)
        if found.setting is None:
            if waits is not None and not self.plan:
                self.models.end_probation(self.subject, found.why, moment_text(self.now_s))
            return self._ended(Ending.KEPT, found.why, found)
        if self.plan:
            return Turn(
                TUNED, found.why, Ending.PROMOTED if self.use and found.may_be_used else Ending.PROBATION, found
            )
        return self._put(champion, found, found.setting)

    def _put(self, champion: Champion | None, found: Tuning, setting: RuleSetting) -> Turn:
        """Put a setting in use, or propose it."""
        at, beaten = moment_text(self.now_s), None if champion is None else champion.model
        model = rule_file(self.fleet, setting)
        report = self.models.store_report(_body(model.sha256, beaten, found, setting), self.subject, at)
        waits = self.models.probationers().get(self.subject)
        if waits is not None:
            self.models.end_probation(self.subject, "a newer setting takes its place", at)
        if self.use and found.may_be_used:
            self.models.promote(model, self.subject, report, at, load_rule, beaten=beaten)
            return self._ended(Ending.PROMOTED, found.why, found)
        self.models.put_on_probation(
            model, self.subject, report, self.now_s, APPROVED_BY_HAND, Then.APPROVE, load_rule, beaten=beaten
        )
        return self._ended(Ending.PROBATION, found.why, found)

    def _learner(self, recorded: Record) -> Learner:
        return learner_of(recorded, None, ModelShelf(self.models.path), usual_s=self.day_0.idle_s)

    def _ended(self, outcome: Ending, why: str, found: Tuning | None = None) -> Turn:
        self._leave(outcome, why)
        return Turn(TUNED, why, outcome, found)

    def _leave(self, outcome: Ending, why: str) -> None:
        if not self.plan:
            write_round(self.models.path, self.subject, outcome, why, self.now_s)


def changed_at(history: list[dict[str, Any]]) -> float:
    """Return since when a tuned setting decides, epoch seconds: the first change after the rule of day 0 decided."""
    since = None
    for line in history:
        if line.get("event") == ROLLED_BACK and not line.get("model"):
            since = None
        elif since is None:
            since = Champion("", at=line.get("at")).at_s if line.get("event") != ROLLED_BACK else None
    return 0.0 if since is None else since


def rests_until(history: list[dict[str, Any]]) -> float:
    """Return until when nothing is tuned, epoch seconds: REST_S after the last rollback, by hand or by the watch."""
    ends = [Champion("", at=line.get("at")).at_s for line in history if line.get("event") == ROLLED_BACK]
    return max((end + REST_S for end in ends if end is not None), default=0.0)


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
