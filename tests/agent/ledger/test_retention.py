"""Retention: what is older than kept goes, open intents and their decisions stay, the file stops growing."""

import sqlite3
from pathlib import Path

import pytest

from agent.autoscaling.minutes import KEPT as MINUTES_KEPT
from agent.autoscaling.state import FleetStore
from agent.ledger import Kind, Ledger
from domain.controls import Pause, PauseScope
from domain.decisions import Reason, Status
from domain.errors import BadInput
from tests.agent.ledger.records import START, made, outcome_of

DAY_S = 86400.0
HOUR_S = 3600.0


def refs(ledger: Ledger) -> list[str]:
    return [entry.ref for entry in ledger.journal() if entry.kind is not Kind.EVENT]


def test_rows_older_than_kept_go_and_younger_stay(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(n) for n in range(100)])
    done = ledger.compact(START + 60.0 * 100, 60.0 * 10)
    assert (done.rows, done.finished) == (90, True)
    assert refs(ledger) == [f"web-{n:08d}" for n in range(90, 100)]
    with pytest.raises(BadInput, match="near it are web-00000090"):
        FleetStore(ledger).decision("web-00000089")
    assert [inputs.decision_id for inputs, _ in FleetStore(ledger).inputs("web")] == refs(ledger)


def test_open_intents_and_their_decisions_are_kept_at_any_age(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(0, groups=("workers_2",)), made(1, groups=("workers_4",)), made(2)])
    kept, closed = ledger.open_intents()
    FleetStore(ledger).record((), outcomes=[(kept, outcome_of(kept, Status.IN_PROGRESS, Reason.ACCEPTED))])
    FleetStore(ledger).record((), outcomes=[(closed, outcome_of(closed, Status.DONE, Reason.DONE))])
    assert ledger.compact(START + 400 * DAY_S, DAY_S).finished
    assert ledger.open_intents() == (kept,)
    record = FleetStore(ledger).decision("web-00000000")
    assert (record.inputs, record.decision) == (made(0)[0], made(0, groups=("workers_2",))[1].decision)
    assert len(record.intents[0].outcomes) == 1
    assert refs(ledger) == ["web-00000000", kept.intent_id, kept.intent_id]
    FleetStore(ledger).record((), outcomes=[(kept, outcome_of(kept, Status.DONE, Reason.DONE, at=START + 400 * DAY_S))])
    ledger.compact(START + 500 * DAY_S, DAY_S)
    assert refs(ledger) == []


def test_what_a_recently_closed_intent_came_from_stays_explained(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(0, groups=("workers_2",))])
    (intent,) = ledger.open_intents()
    FleetStore(ledger).record(
        (), outcomes=[(intent, outcome_of(intent, Status.DONE, Reason.DONE, at=START + 2 * HOUR_S))]
    )
    ledger.compact(START + 2.5 * HOUR_S, HOUR_S)
    assert FleetStore(ledger).decision("web-00000000").intents[0].outcomes[0].status is Status.DONE


def test_state_switches_and_the_settings_in_force_are_never_forgotten(ledger: Ledger) -> None:
    ledger.record_settings(START - 1, {"mode": "observe"})
    ledger.record_settings(START, {"mode": "act"})
    FleetStore(ledger).record([made(0)])
    ledger.pause("autoscaling", "web", Pause(PauseScope.ALL, "ana", "holiday", START))
    ledger.compact(START + 400 * DAY_S, DAY_S)
    assert [(e.kind, e.body["mode"]) for e in ledger.journal()] == [(Kind.SETTINGS, "act")]
    assert FleetStore(ledger).loop_state("web").decisions == 1
    assert len(ledger.controls("autoscaling", "web").pauses) == 1


def test_a_stamp_from_the_future_does_not_hold_back_what_came_after(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(0, at=START + 300 * DAY_S), made(1), made(2)])
    ledger.compact(START + DAY_S, HOUR_S)
    assert refs(ledger) == ["web-00000000"]


def test_a_large_backlog_is_taken_in_pieces(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(n) for n in range(100)])
    now = START + DAY_S
    first = ledger.compact(now, HOUR_S, batch=20, batches=2)
    assert (first.rows, first.finished, len(refs(ledger))) == (40, False, 60)
    rest = ledger.compact(now, HOUR_S, batch=20)
    assert (rest.rows, rest.finished) == (60, True)
    assert ledger.compact(now, HOUR_S).rows == 0


def test_journal_numbers_are_never_used_twice(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(n) for n in range(5)])
    ledger.compact(START + DAY_S, HOUR_S)
    FleetStore(ledger).record([made(5)])
    assert [entry.seq for entry in ledger.journal()] == [6]


def test_the_space_goes_back_to_the_disk_and_the_file_stops_growing(path: Path, ledger: Ledger) -> None:
    sizes = []
    for day in range(5):
        FleetStore(ledger).record([made(n) for n in range(day * 200, (day + 1) * 200)])
        compacted = ledger.compact(START + 60.0 * 200 * (day + 1), 60.0 * 200, [MINUTES_KEPT])
        sizes.append(sum(file.stat().st_size for file in path.parent.iterdir() if not file.name.endswith("-shm")))
    assert compacted.rows == 2 * 200
    assert compacted.bytes > 100_000
    assert sizes[-1] < 1.1 * sizes[1]


def test_a_file_that_cannot_shrink_is_compacted_all_the_same(path: Path, url: str) -> None:
    path.parent.mkdir()
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    with Ledger.open(url) as ledger:
        FleetStore(ledger).record([made(n) for n in range(50)])
        assert ledger.compact(START + DAY_S, HOUR_S).rows == 50
