"""Subjects of one name, one in each decision: nothing of one is taken for another's, from the ledger to the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.alarms.book import AlarmBook
from agent.kernel.turn import TurnReport
from agent.ledger import Kind
from agent.web.feed import concerns
from domain.clock import VirtualClock
from domain.controls import Pause, PauseScope
from domain.decisions import Event, Reason
from domain.subject import AGENT, Subject
from tests.contract.cases import SETTINGS, START
from tests.contract.running import TOKENS, RunningAgent, running


@pytest.fixture
def agent(toy: None, short: Path) -> Iterator[RunningAgent]:
    settings = {name: {"web": next(iter(described.values()))} for name, described in SETTINGS.items()}
    http = {"socket": short / "one.sock", **TOKENS}
    url = f"sqlite:///{short}/one.db"
    with running(url, VirtualClock(START), directory=short, http=http, **settings) as made:
        yield made


def test_subjects_of_one_name_share_no_event_alarm_pause_metric_or_row(agent: RunningAgent) -> None:
    subjects = [Subject(part.name, "web") for part in agent.parts if "web" in part.subjects()]
    assert len(subjects) == 5
    events = [Event(one, START, Reason.LEARNING_OVERDUE, f"of {one.decision}") for one in subjects]
    with agent.client() as client, agent.client("") as root:
        agent.ledger.record_events([*events, Event(AGENT, START, Reason.STARTED, "of the agent")])
        report = TurnReport(START, events=tuple(events))
        for listener in agent.board.turned(report, 0.1):
            listener(agent.board.read(), report)
        exposed = root.get("/metrics").text

        def listed(**asked: str) -> list[str]:
            return [row["body"]["detail"] for row in client.get("/events", params=asked).json()["events"]]

        rows = client.get("/events").json()["events"]
        for one in subjects:
            own = f"of {one.decision}"
            assert listed(decision=one.decision, subject="web") == [own]
            newest = agent.ledger.latest((Kind.EVENT,), up_to_seq=99, subject=one)
            assert [row.subject for row in newest] == [AGENT, one]
            shown = [row for row in agent.view.journal().events if concerns(row, one)]
            assert [row.body["detail"] for row in shown] == [own, "of the agent"]
            labels = f'decision="{one.decision}",reason="learning_overdue",subject="web"'
            assert f"trimtab_events_total{{{labels}}} 1.0" in exposed
        assert listed(fleet="web") == ["of autoscaling"]
        assert [row["fleet"] for row in rows] == ["web" if row["decision"] == "autoscaling" else None for row in rows]
    alarms = AlarmBook().turn(report)
    assert sorted(alarm.subject for alarm in alarms) == sorted(subjects)
    assert sorted(alarm.sentence.split(": ")[0] for alarm in alarms) == sorted(
        f"[warning] {one.path}" for one in subjects
    )


def test_a_pause_is_recorded_for_its_own_subject_alone(agent: RunningAgent) -> None:
    for part in agent.parts:
        if "web" not in part.subjects():
            continue
        agent.ledger.pause(part.name, "web", Pause(PauseScope.ALL, "ada", "a drill", START))
        assert [one.name for one in agent.parts if one.held("web", START)] == [part.name]
        (last,) = agent.ledger.journal(agent.ledger.newest_seq() - 1)
        assert last.subject == Subject(part.name, "web")
        assert agent.ledger.resume(part.name, "web", PauseScope.ALL, at=START, owner="ada")
