"""Recording: decisions, intents, state and events become durable together, and a group never has two open intents."""

from dataclasses import replace

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Kind, Ledger
from agent.rails.state import LoopState
from domain.decisions import Event, Outcome, Reason, Status
from domain.errors import BadInput, Fenced, IntentConflict, LedgerError
from domain.subject import fleet_subject
from tests.agent.ledger.records import START, intent_of, made, outcome_of


def everything(ledger: Ledger) -> tuple[object, ...]:
    return (
        ledger.journal(),
        ledger.open_intents(),
        FleetStore(ledger).loop_state("web"),
        FleetStore(ledger).loop_state("api"),
    )


def test_what_was_recorded_is_there_for_the_next_process(url: str, ledger: Ledger) -> None:
    inputs, decided = made(3, groups=("workers_2", "workers_8"))
    event = Event(fleet_subject("web"), START, Reason.STARTED, "the agent started", "agent")
    FleetStore(ledger).record([(inputs, decided)], events=[event])
    ledger.close()
    with Ledger.open(url) as reopened:
        record = FleetStore(reopened).decision("web-00000003")
        assert (record.inputs, record.decision) == (inputs, decided.decision)
        assert FleetStore(reopened).loop_state("web") == decided.state
        assert reopened.open_intents() == reopened.open_intents("web") == decided.decision.intents
        assert reopened.open_intents("api") == ()
        assert [(e.kind, e.ref, e.reason) for e in reopened.journal()] == [
            (Kind.DECISION, "web-00000003", "queue_grew"),
            (Kind.INTENT, "web-00000003-workers_2", "queue_grew"),
            (Kind.INTENT, "web-00000003-workers_8", "queue_grew"),
            (Kind.EVENT, "agent", "started"),
        ]


def test_a_fleet_never_seen_has_an_empty_memory(ledger: Ledger) -> None:
    assert FleetStore(ledger).loop_state("web") == LoopState()
    assert FleetStore(ledger).fleets() == ()


def test_a_named_state_takes_the_place_of_the_decisions(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(1)], states={"web": LoopState(decisions=9), "api": LoopState(decisions=4)})
    assert (FleetStore(ledger).loop_state("web").decisions, FleetStore(ledger).loop_state("api").decisions) == (9, 4)
    assert FleetStore(ledger).fleets() == ("api", "web")


def test_a_second_open_intent_for_a_group_is_refused_and_nothing_of_its_batch_stays(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(1, groups=("workers_2",))])
    before = everything(ledger)
    with pytest.raises(IntentConflict, match="open intent web-00000001-workers_2"):
        FleetStore(ledger).record(
            [made(1, "api"), made(2, groups=("workers_4", "workers_2"))],
            events=[Event(fleet_subject("web"), START, Reason.DONE, "")],
        )
    assert everything(ledger) == before


def test_two_intents_for_one_group_in_one_batch_are_refused(ledger: Ledger) -> None:
    before = everything(ledger)
    with pytest.raises(IntentConflict, match="workers_2 of fleet web"):
        FleetStore(ledger).record([made(1, groups=("workers_2",)), made(2, groups=("workers_2",))])
    assert everything(ledger) == before


def test_the_same_group_key_in_another_fleet_is_another_group(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(1, groups=("workers_2",)), made(1, "api", groups=("workers_2",))])
    assert [intent.fleet for intent in ledger.open_intents()] == ["api", "web"]


def test_a_decision_is_recorded_once(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(1)])
    before = everything(ledger)
    with pytest.raises(LedgerError, match="contradicts one it has"):
        FleetStore(ledger).record([made(1, "api"), made(1)])
    assert everything(ledger) == before


def test_a_decision_is_recorded_with_its_own_inputs(ledger: Ledger) -> None:
    with pytest.raises(BadInput, match="not those of web-00000001"):
        FleetStore(ledger).record([(made(1)[0], made(2)[1])])


def test_what_cannot_be_stored_leaves_nothing_behind(ledger: Ledger) -> None:
    inputs, decided = made(1)
    broken = replace(decided, state=LoopState(last_busy_at=float("nan")))
    before = everything(ledger)
    with pytest.raises(BadInput, match="use None for an absent number"):
        FleetStore(ledger).record([(inputs, broken)])
    assert everything(ledger) == before


def test_an_intent_of_an_epoch_that_is_over_is_fenced(ledger: Ledger) -> None:
    old = ledger.take_epoch("host-a:1", START)
    new = ledger.take_epoch("host-b:2", START + 1)
    with pytest.raises(Fenced, match=r"epoch 1 .* host-b:2 .* epoch 2"):
        FleetStore(ledger).record([made(1, groups=("workers_2",), epoch=old)])
    FleetStore(ledger).record([made(1, groups=("workers_2",), epoch=new)])
    assert len(ledger.open_intents()) == 1


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_one_decision_of_an_epoch_that_is_over_fences_all_that_are_written_with_it(
    ledger: Ledger, order: tuple[int, int]
) -> None:
    ledger.take_epoch("host-a:1", START)
    ledger.take_epoch("host-b:2", START + 1)
    first, second = order
    with pytest.raises(Fenced, match="epoch 1 is over"):
        FleetStore(ledger).record([made(1, "web", epoch=first), made(1, "api", epoch=second)])
    assert FleetStore(ledger).decisions() == []


def test_a_final_outcome_closes_its_intent_and_frees_the_group(ledger: Ledger) -> None:
    _, decided = made(1, groups=("workers_2",))
    FleetStore(ledger).record([made(1, groups=("workers_2",))])
    (intent,) = decided.decision.intents
    assert FleetStore(ledger).last_outcome(intent.intent_id) is None
    waiting = outcome_of(intent, Status.IN_PROGRESS, Reason.ACCEPTED)
    FleetStore(ledger).record((), outcomes=[(intent, waiting)], states={"web": LoopState(decisions=7)})
    assert ledger.open_intents() == (intent,)
    done = outcome_of(intent, Status.DONE, Reason.DONE, achieved=2, at=START + 90)
    FleetStore(ledger).record(
        (), [Event(fleet_subject("web"), START + 90, Reason.CAPACITY_RETURNED, "warm")], outcomes=[(intent, done)]
    )
    assert ledger.open_intents() == ()
    assert FleetStore(ledger).last_outcome(intent.intent_id) == done
    (record,) = FleetStore(ledger).decision("web-00000001").intents
    assert (record.outcomes, record.is_open) == ((waiting, done), False)
    assert FleetStore(ledger).loop_state("web").decisions == 7
    FleetStore(ledger).record([made(2, groups=("workers_2",))])


@pytest.mark.parametrize("status", list(Status))
def test_only_final_statuses_close(ledger: Ledger, status: Status) -> None:
    FleetStore(ledger).record([made(1, groups=("workers_2",))])
    (intent,) = ledger.open_intents()
    FleetStore(ledger).record((), outcomes=[(intent, outcome_of(intent, status, Reason.ACCEPTED))])
    assert (ledger.open_intents() == ()) is status.final
    assert FleetStore(ledger).decision("web-00000001").intents[0].is_open is not status.final


def outcomes_in_journal(ledger: Ledger) -> list[str]:
    return [entry.reason for entry in ledger.journal() if entry.kind is Kind.OUTCOME]


def test_an_outcome_that_says_the_same_again_adds_no_row(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(1, groups=("workers_2",))])
    (intent,) = ledger.open_intents()
    looks: list[Outcome] = [
        outcome_of(intent, Status.IN_PROGRESS, Reason.ACCEPTED, at=START + 60.0 * minute) for minute in range(5)
    ]
    for look in looks:
        FleetStore(ledger).record((), outcomes=[(intent, look)])
    assert outcomes_in_journal(ledger) == ["accepted"]
    assert FleetStore(ledger).last_outcome(intent.intent_id) == looks[-1]
    FleetStore(ledger).record(
        (), outcomes=[(intent, outcome_of(intent, Status.IN_PROGRESS, Reason.PARTIAL, achieved=1))]
    )
    assert outcomes_in_journal(ledger) == ["accepted", "partial"]


def test_a_closed_intent_stays_closed_and_a_late_word_is_still_written_down(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(1, groups=("workers_2",))])
    (intent,) = ledger.open_intents()
    failed = outcome_of(intent, Status.FAILED, Reason.NO_CAPACITY)
    FleetStore(ledger).record((), outcomes=[(intent, failed)])
    FleetStore(ledger).record((), outcomes=[(intent, outcome_of(intent, Status.IN_PROGRESS, Reason.ACCEPTED))])
    assert ledger.open_intents() == ()
    assert FleetStore(ledger).last_outcome(intent.intent_id) == failed
    assert outcomes_in_journal(ledger) == ["no_capacity", "accepted"]


def test_an_outcome_without_a_recorded_intent_is_refused_with_all_that_came_along(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(1, groups=("workers_2",))])
    (known,) = ledger.open_intents()
    stranger = intent_of("web-00000099", "web", "workers_4")
    done = [(intent, outcome_of(intent, Status.DONE, Reason.DONE)) for intent in (known, stranger)]
    before = everything(ledger)
    with pytest.raises(LedgerError, match="intent web-00000099-workers_4 "):
        FleetStore(ledger).record((), outcomes=done, states={"web": LoopState(decisions=50)})
    assert everything(ledger) == before


def test_settings_are_written_when_they_change(ledger: Ledger) -> None:
    ledger.record_settings(START, {"mode": "act", "fleets": {"web": 1}})
    ledger.record_settings(START + 1, {"fleets": {"web": 1}, "mode": "act"})
    ledger.record_settings(START + 2, {"mode": "observe", "fleets": {"web": 1}})
    entries = ledger.journal()
    assert [(e.kind, e.at, e.body["mode"], e.reason) for e in entries] == [
        (Kind.SETTINGS, START, "act", Reason.SETTINGS_RECORDED),
        (Kind.SETTINGS, START + 2, "observe", Reason.SETTINGS_CHANGED),
    ]
    assert FleetStore(ledger).fleets() == ()
