"""Reading: one decision in full, lists, the journal from any point, inputs in order for replay."""

from typing import Any

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from domain.errors import BadInput
from tests.agent.ledger.records import START, made
from tests.golden import figures


def numbers(ledger: Ledger, **asked: Any) -> list[str]:
    return [row.decision.decision_id for row in FleetStore(ledger).decisions(**asked)]


def test_an_unknown_decision_names_the_ids_around_it(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(n) for n in (1, 2, 3, 7, 8, 9)])
    with pytest.raises(BadInput) as refused:
        FleetStore(ledger).decision("web-00000005")
    assert (refused.value.field, refused.value.value) == ("decision", "web-00000005")
    assert figures(refused.value.remedy.replace("-", " ")) == [2, 3, 7, 8]


def test_an_empty_ledger_says_that_it_is_empty(ledger: Ledger) -> None:
    with pytest.raises(BadInput, match="decision is 'web-1': no decision "):
        FleetStore(ledger).decision("web-1")


def test_decisions_are_listed_by_time_fleet_and_change(ledger: Ledger) -> None:
    for n in range(6):
        FleetStore(ledger).record([made(n, groups=("workers_2",) if n == 2 else ()), made(n, "api")])
    assert numbers(ledger, limit=3) == ["api-00000005", "web-00000005", "api-00000004"]
    assert numbers(ledger, fleet="web", newest_first=False, limit=2) == ["web-00000000", "web-00000001"]
    assert numbers(ledger, fleet="api", since=START + 60, until=START + 180) == ["api-00000002", "api-00000001"]
    assert numbers(ledger, changed_only=True) == numbers(ledger, fleet="web", changed_only=True) == ["web-00000002"]
    (row,) = FleetStore(ledger).decisions(changed_only=True)
    assert row.changed
    assert row.decision == made(2, groups=("workers_2",))[1].decision
    assert row.seq == FleetStore(ledger).decision("web-00000002").seq


def test_the_newest_decision_is_the_ledgers_whoever_wrote_it_and_is_read_once(url: str) -> None:
    def newest(store: FleetStore) -> dict[str, str]:
        return {fleet: made.decision_id for fleet, (_, made) in store.newest_of(["api", "web"]).items()}

    with Ledger.open(url) as our_ledger, Ledger.open(url) as their_ledger:
        ours, theirs = FleetStore(our_ledger), FleetStore(their_ledger)
        ours.record([made(1), made(1, "api")])
        assert newest(ours) == newest(theirs) == {"web": "web-00000001", "api": "api-00000001"}
        assert ours.newest_of(["web"]) == theirs.newest_of(["web"])
        theirs.record([made(2)])
        assert newest(ours) == newest(theirs) == {"web": "web-00000002", "api": "api-00000001"}
        (first,), (again,) = (ours.newest_of(["web"]).values() for _ in range(2))
        assert first[0] is again[0]
        assert first[0] == made(2)[0]
        assert ours.newest_of(["batch"]) == {}


def test_a_reader_resumes_the_journal_where_it_stopped(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(n, fleet) for n in range(3) for fleet in ("web", "api")])
    first = ledger.journal(limit=4)
    assert [entry.seq for entry in first] == [1, 2, 3, 4]
    assert [entry.seq for entry in ledger.journal(first[-1].seq)] == [5, 6]
    assert [entry.ref for entry in ledger.journal(2, subject="api")] == ["api-00000001", "api-00000002"]
    assert ledger.journal(6) == []
    assert first[0].body["sentence"] == "no change: the queue is covered"


def test_replay_gets_inputs_in_the_order_in_which_they_were_decided_even_over_a_clock_set_back(ledger: Ledger) -> None:
    times = [START, START + 60, START + 30, START + 90]
    records = [made(n, at=at) for n, at in enumerate(times)]
    for record in records:
        FleetStore(ledger).record([record, made(record[0].state.decisions, "api", at=record[0].now)])
    wanted = [(inputs, decided.decision) for inputs, decided in records]
    assert list(FleetStore(ledger).inputs("web")) == wanted
    assert list(FleetStore(ledger).inputs("web", START + 30, START + 90)) == wanted[1:3]
    assert list(FleetStore(ledger).inputs("nobody")) == []


def test_replay_of_more_than_one_chunk_misses_nothing_and_decisions_may_be_added_meanwhile(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(n) for n in range(450)])
    seen = []
    for inputs, _ in FleetStore(ledger).inputs("web"):
        if len(seen) == 100:
            FleetStore(ledger).record([made(450)])
        seen.append(inputs.decision_id)
    assert seen == [f"web-{n:08d}" for n in range(450)]
