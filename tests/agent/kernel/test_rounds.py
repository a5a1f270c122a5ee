"""What the agent says of learning: alarms that last as long as their cause, metrics, and a line for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.alarms.book import AlarmBook
from agent.kernel.rounds import LOOK_EVERY_S, NEWS_S, REPEAT_S, Rounds
from agent.kernel.turn import TurnReport
from agent.models.rounds import Ending, status_file
from domain.decisions import Event, Reason
from domain.subject import Subject
from domain.units import DAY_S, HOUR_S
from tests.agent.models.making import NOTHING, preferring
from tests.agent.models.test_probation import SINCE_S, tried
from tests.golden import figures
from trainer.promotion.directory import ModelsWriter, write_round

NOON = SINCE_S + HOUR_S
WEB = Subject("autoscaling", "web")


@dataclass
class Watched:
    """Rounds over a directory, with a clock that is set, and the oldest decision of each subject."""

    directory: Path
    max_age_s: float | None = 48 * HOUR_S
    decision: str = "autoscaling"
    first: dict[str, float] = field(default_factory=dict)
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        self.rounds = Rounds(
            self.decision,
            self.directory,
            lambda: self.clock_s,
            self.first.get,
            max_age_s=self.max_age_s,
        )

    def ended(self, ending: Ending, at: float, sentence: str = "", cpu_s: float = 0.0) -> None:
        """Let a round end, and let the agent see it."""
        write_round(self.directory, Subject(self.decision, "web"), ending, sentence, at, cpu_s)
        self.clock_s += LOOK_EVERY_S

    def events(self, now: float) -> tuple[Event, ...]:
        return self.rounds.events(now, ["web"])


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_last_good_round_that_is_too_old_is_an_event_again_and_again_until_there_is_a_good_one(
    watched: Watched,
) -> None:
    watched.ended(Ending.KEPT, NOON)
    assert watched.events(NOON + 48 * HOUR_S) == ()
    late = NOON + 49 * HOUR_S
    (event,) = watched.events(late)
    assert (event.subject.name, event.reason, event.about) == ("web", Reason.LEARNING_OVERDUE, "")
    assert figures(event.detail)[:3] == [2, 1, 2]
    assert watched.events(late + REPEAT_S - 1.0) == ()
    watched.ended(Ending.TOO_LITTLE, late, "four windows, ten are needed")
    (event,) = watched.events(late + REPEAT_S)
    assert "ended too_little: four windows, ten are needed" in event.detail
    watched.ended(Ending.REFUSED, late + REPEAT_S)
    assert watched.events(late + 2 * REPEAT_S) == ()


def test_the_alarm_lasts_as_long_as_its_cause(watched: Watched) -> None:
    watched.ended(Ending.KEPT, NOON)
    book, now = AlarmBook(), NOON + 49 * HOUR_S
    sent = [alarm for minute in range(90) for alarm in book.turn(_report(now + 60.0 * minute, watched))]
    assert [(alarm.reason, alarm.resolved, alarm.subject.name) for alarm in sent] == [
        (Reason.LEARNING_OVERDUE, False, "web"),
        (Reason.LEARNING_OVERDUE, False, "web"),
    ]
    watched.ended(Ending.KEPT, now + 5400.0)
    sent = [alarm for minute in range(90, 130) for alarm in book.turn(_report(now + 60.0 * minute, watched))]
    assert [alarm.resolved for alarm in sent] == [True]


def _report(at: float, watched: Watched) -> TurnReport:
    return TurnReport(at, events=watched.events(at))


def test_a_clock_that_was_set_back_does_not_silence_it(watched: Watched) -> None:
    watched.ended(Ending.KEPT, NOON)
    assert len(watched.events(NOON + 10 * DAY_S)) == 1
    assert len(watched.events(NOON + 5 * DAY_S)) == 1


def test_a_subject_that_never_learnt_is_overdue_by_the_age_of_its_first_decision(watched: Watched) -> None:
    assert watched.events(NOON + 100 * DAY_S) == ()
    watched.first["web"] = NOON
    assert watched.events(NOON + 48 * HOUR_S) == ()
    (event,) = watched.events(NOON + 49 * HOUR_S)
    assert figures(event.detail) == [2]
    assert "; none was made; " in event.detail


def test_without_the_setting_no_round_is_too_old(tmp_path: Path) -> None:
    watched = Watched(tmp_path, max_age_s=None, first={"web": 0.0})
    watched.ended(Ending.FAILED, NOON)
    assert watched.events(NOON + 1000 * DAY_S) == ()


def test_a_promotion_that_was_rolled_back_is_reported_once_and_a_day_later_no_more(tmp_path: Path) -> None:
    watched = Watched(tmp_path, max_age_s=None)
    watched.ended(Ending.ROLLED_BACK, NOON, "web cost 9 % more than predicted, at least 4 %")
    (event,) = watched.events(NOON + 60.0)
    assert (event.reason, event.detail) == (
        Reason.PROMOTION_ROLLED_BACK,
        "web cost 9 % more than predicted, at least 4 %",
    )
    assert watched.events(NOON + 120.0) == ()
    watched.ended(Ending.ROLLED_BACK, NOON + HOUR_S, "again")
    assert [event.detail for event in watched.events(NOON + HOUR_S)] == ["again"]
    assert Watched(tmp_path, max_age_s=None).events(NOON + HOUR_S + NEWS_S) == ()


def test_an_event_is_of_the_subject_of_its_decision(tmp_path: Path) -> None:
    watched = Watched(tmp_path, decision="placement")
    watched.ended(Ending.ROLLED_BACK, NOON, "dearer")
    assert [event.subject for event in watched.events(NOON)] == [Subject("placement", "web")]


def test_the_metrics_say_when_how_and_what_it_took(watched: Watched) -> None:
    watched.ended(Ending.PROMOTED, NOON)
    watched.ended(Ending.BUDGET, NOON + 60.0, cpu_s=601.5)
    found = {(name, labels): value for name, labels, value in watched.rounds.readings()}
    labels = ("autoscaling", "web")
    assert found[("learn_last_end_timestamp_seconds", labels)] == NOON + 60.0
    assert found[("learn_last_good_end_timestamp_seconds", labels)] == NOON
    assert (found[("learn_cpu_seconds", labels)], found[("learn_probation", labels)]) == (601.5, False)
    outcomes = {name[-1]: value for (metric, name), value in found.items() if metric == "learn_outcome"}
    assert [name for name, value in outcomes.items() if value] == ["budget"]
    assert set(outcomes) == set(Ending)


def test_a_line_says_when_it_last_learnt_and_until_when_a_model_is_on_probation(
    watched: Watched, tmp_path: Path
) -> None:
    assert watched.rounds.line("web", NOON) == ""
    (tmp_path / "made").mkdir()
    one = tried(ModelsWriter(tmp_path), preferring(tmp_path / "made", NOTHING))
    watched.ended(Ending.PROBATION, SINCE_S, "it costs 4 % less")
    learnt, until = watched.rounds.line("web", NOON).split("; ")
    assert all(part in learnt for part in ("2026-03-01 12:00:00 UTC", "probation", "it costs 4 % less"))
    assert (until[:12], until[-23:]) == (one.model[:12], "2026-03-04 12:00:00 UTC")
    assert "since 2026-03-01 12:00:00 UTC" in watched.rounds.line("web", one.until)
    assert ("learn_probation", ("autoscaling", "web"), True) in set(watched.rounds.readings())


def test_a_damaged_status_is_a_problem_and_no_error(watched: Watched, tmp_path: Path) -> None:
    status_file(tmp_path, WEB).write_text("{")
    assert "learn-autoscaling-web.json is not readable" in watched.rounds.problem
    assert (watched.events(NOON), list(watched.rounds.readings()), watched.rounds.line("web", NOON)) == ((), [], "")
    status_file(tmp_path, WEB).unlink()
    assert "not readable" in watched.rounds.problem
    watched.clock_s += LOOK_EVERY_S
    assert watched.rounds.problem == ""
