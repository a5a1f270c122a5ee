"""What a part does unless it says otherwise, and how subjects and decisions of several parts are found by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from agent.autoscaling.decision import AutoscalingPart
from agent.kernel import parts as installed
from agent.kernel.decision import (
    Capacity,
    Card,
    Decision,
    Host,
    Observation,
    Part,
    Services,
    Status,
    Summary,
    Turn,
    one_of,
    one_subject,
)
from agent.kernel.leads import Leads
from agent.kernel.parts import Parts, parts_of
from agent.kernel.store import DecisionStore, Record, add
from agent.kernel.turn import Severity, TurnReport
from agent.ledger import Ledger
from agent.ledger.journal import Kind
from agent.ledger.kept import StoredState
from agent.service.assembly import sink_of
from agent.settings import Settings
from domain.clock import BothTimes, VirtualClock
from domain.controls import Pause, PauseScope
from domain.decisions import Reason
from domain.errors import BadInput, ConfigurationError, Fenced, LedgerError, LedgerUnavailable, UnknownName
from tests.agent.rails.scenes import NOON


class Plain(Part):
    """A part that says nothing but its name."""

    name = "plain"
    subject_word = "desk"


class Busy(Part):
    """A part with subjects, capacity and groups of its own."""

    name = "busy"
    order = 5
    kept = StoredState("busy")

    def subjects(self) -> tuple[str, ...]:
        return ("north", "south")

    def capacity(self, subject: str) -> Capacity | None:
        return Capacity(free=1.0) if subject == "north" else None

    def retained(self, fleet: str) -> frozenset[str]:
        return frozenset({f"{fleet}-vm"})

    def groups(self) -> dict[tuple[str, str], str]:
        return {("north", "s"): "web-s"}


def a_host(ledger: Ledger, **about: object) -> Host:
    return Host(ledger, None, VirtualClock(NOON), **about)  # type: ignore[arg-type]


@pytest.fixture
def plain(ledger: Ledger) -> Plain:
    return Plain(a_host(ledger))


@pytest.fixture
def parts(ledger: Ledger) -> Parts:
    host = a_host(ledger)
    return Parts([Busy(host), Plain(host)], ledger)


def decide(
    ledger: Ledger, name: str, body: bytes = b'{"sentence":"3 tokens","reason":"accepted"}', **other: object
) -> Record:
    fields: dict[str, object] = {"decision": "plain", "subject": "desk", "at": NOON}
    made = Record(decision_id=name, body=body, **(fields | other))  # type: ignore[arg-type]
    with ledger.database.write() as connection:
        add(connection, [made])
    return made


def test_a_part_that_says_nothing_does_nothing(plain: Plain) -> None:
    report = TurnReport(NOON)
    assert plain.turn(Turn(NOON, BothTimes(NOON, 0.0), Leads(every=1), report)) == report
    assert plain.measure(report) is report
    below = object()
    assert plain.sink(below) is below  # type: ignore[arg-type,comparison-overlap]
    with ExitStack() as stack:
        plain.start(stack)
    plain.reload()
    for nothing in (plain.collectors(), plain.events(NOON), plain.chores(), plain.checks(), tuple(plain.readings())):
        assert tuple(nothing) == ()
    for mapping in (plain.groups(), plain.problems(), plain.unknown_vms(), plain.refused_claims()):
        assert mapping == {}
    assert plain.router() is None
    assert plain.capacity("desk") is None
    assert (*plain.files(None), *plain.preflight(None, None)) == ()  # type: ignore[arg-type]
    assert (plain.order, plain.kept, plain.sections, dict(plain.alarms)) == (100, None, (), {})


def test_a_host_of_a_verb_knows_of_nothing_beyond_the_ledger(ledger: Ledger) -> None:
    host = a_host(ledger)
    assert host.capacity("autoscaling", "web") is None
    assert host.groups() == {}
    assert host.leads().numbers == ()
    assert host.session is None
    for quiet in (host.fence([1]), host.problem("a", "b"), host.note(None, "a", "b"), host.adopt(None)):  # type: ignore[arg-type,func-returns-value]
        assert quiet is None


def test_its_subjects_are_those_that_the_ledger_knows(ledger: Ledger, plain: Plain) -> None:
    assert plain.subjects() == ()
    decide(ledger, "b", subject="counter")
    decide(ledger, "a")
    assert plain.subjects() == plain.managed() == ("counter", "desk")


def test_a_status_is_the_newest_decision_and_what_is_held(ledger: Ledger, plain: Plain) -> None:
    nothing = {"subject": "desk", "last_decision": None, "held": []}
    assert plain.status("desk", NOON) == Status("desk", ("desk  nothing was decided yet",), nothing)
    decide(ledger, "desk-1", number=1)
    decide(ledger, "desk-2", b'{"detail":"none left"}', number=2)
    ledger.pause(Plain.name, "desk", Pause(PauseScope.ALL, "ana", "stocktaking", NOON))
    held = "scaling paused by ana since 12:00:00 UTC until resumed (stocktaking)"
    lines = ("desk  desk-2: none left", f"  {held}")
    assert plain.status("desk", NOON) == Status(
        "desk", lines, {"subject": "desk", "last_decision": "desk-2", "held": [held]}
    )
    sentence = f"none left; {held}"
    assert plain.card("desk", NOON) == Card("desk", "desk desk", sentence=sentence, decision_id="desk-2")


def test_a_summary_is_the_sentence_and_the_reason_of_the_body(plain: Plain) -> None:
    def of(body: bytes) -> Summary:
        return plain.summary(Record("a", "plain", "desk", NOON, body))

    assert of(b'{"sentence":"yes","detail":"no","reason":"accepted"}') == Summary("yes", "accepted")
    assert of(b'{"sentence":"","detail":"no"}') == Summary("no", "")
    assert of(b"{}") == Summary("", "")


def test_an_explanation_has_the_body_and_the_inputs(ledger: Ledger, plain: Plain) -> None:
    explained = plain.explain(decide(ledger, "desk-1", inputs=b'{"waiting":3}'))
    assert explained.lines == ("desk-1  desk desk", "  3 tokens", "  reason accepted")
    assert explained.data == {"decision": {"sentence": "3 tokens", "reason": "accepted"}, "inputs": {"waiting": 3}}
    assert plain.explain(decide(ledger, "desk-2")).data["inputs"] is None


def test_a_part_that_keeps_no_inputs_cannot_decide_again(plain: Plain) -> None:
    with pytest.raises(BadInput, match=r"DECISION is 'plain': .* see trimtab explain"):
        plain.replay("desk", None, None)
    with pytest.raises(BadInput, match="--policy is 'eager'"):
        plain.what_if("desk", "eager", None, None)


def test_what_a_part_does_not_say_is_nothing(plain: Plain) -> None:
    settings, path = Settings(), Path("model.onnx")
    assert plain.page() is None
    assert list(Plain.mistakes(settings)) == []
    assert list(Plain.preflight(settings, None)) == list(Plain.arrivals(settings, None)) == []  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="plain has no models"):
        Plain.model(path)
    with pytest.raises(BadInput, match="order is 'pin': plain knows no such order"):
        plain.carry_out("pin", "desk", {}, NOON)


@pytest.mark.parametrize(
    ("wanted", "names", "meant"), [(None, ("a",), "a"), ("a", ("a",), "a"), ("b", ("a", "b"), "b")]
)
def test_the_only_name_is_meant_or_the_one_that_is_said(wanted: str | None, names: tuple[str, ...], meant: str) -> None:
    assert one_of(wanted, names, "desk", field="SUBJECT") == meant


@pytest.mark.parametrize(
    ("wanted", "names", "kind", "message"),
    [
        (None, ("a", "b"), BadInput, "SUBJECT is '': there are several desks, name one of: a, b"),
        ("c", ("a", "b"), UnknownName, "SUBJECT is 'c': choose one of: a, b"),
        ("c", ("a",), UnknownName, "SUBJECT is 'c': choose one of: a"),
        (None, (), BadInput, "SUBJECT is '': neither the ledger nor the settings know a desk"),
        ("c", (), UnknownName, "SUBJECT is 'c': neither the ledger nor the settings know a desk"),
    ],
)
def test_a_name_that_is_not_clear_lists_those_there_are(
    wanted: str | None, names: tuple[str, ...], kind: type[BadInput], message: str
) -> None:
    with pytest.raises(BadInput, match=f"^{re.escape(message)}") as caught:
        one_of(wanted, names, "desk", field="SUBJECT")
    assert type(caught.value) is kind


def test_the_subject_of_a_part_is_found_by_its_word(ledger: Ledger, plain: Plain) -> None:
    with pytest.raises(BadInput, match=r"SUBJECT is '': neither .* know a desk"):
        one_subject(plain, None)
    decide(ledger, "a")
    assert one_subject(plain, None) == one_subject(plain, "desk") == "desk"
    with pytest.raises(UnknownName, match="NAME is 'x': choose one of: desk"):
        one_subject(plain, "x", field="NAME")


def test_parts_are_a_sequence_and_found_by_name(parts: Parts) -> None:
    busy, plain = parts
    assert (len(parts), parts[0], parts[1]) == (2, busy, plain)
    assert parts.named("plain") is plain
    with pytest.raises(UnknownName, match="DECISION is 'x': choose one of: busy, plain"):
        parts.named("x")


def test_a_name_means_the_one_subject_that_has_it_and_several_are_listed(ledger: Ledger, parts: Parts) -> None:
    busy, plain = parts
    assert parts.meant("north", field="fleet") == parts.meant("busy/north", field="fleet") == (busy, "north")
    with pytest.raises(UnknownName, match=r"fleet is 'desk': .*: busy/north, busy/south$"):
        parts.meant("desk", field="fleet")
    decide(ledger, "a")
    decide(ledger, "b", subject="north")
    assert parts.meant("desk", field="fleet") == (plain, "desk")
    with pytest.raises(BadInput, match="choose one of: busy/north, plain/north"):
        parts.meant("north", field="fleet")
    assert parts.meant("plain/north", field="fleet") == (plain, "north")
    # No name means the only fleet: the part that turns first is none of them.
    with pytest.raises(UnknownName, match="DECISION is 'autoscaling'"):
        parts.meant(None, field="fleet")


def test_a_decision_is_found_with_its_part_or_said_not_to_be_installed(ledger: Ledger, parts: Parts) -> None:
    made = decide(ledger, "a")
    gone = decide(ledger, "b", decision="gone")
    assert parts.find("a") == (parts[1], made)
    assert parts.summary(made) == Summary("3 tokens", "accepted")
    assert parts.summary(gone) == Summary("gone is not installed", "")
    with pytest.raises(UnknownName, match="DECISION is 'gone'"):
        parts.find("b")


def test_a_vm_that_any_part_needs_is_retained(parts: Parts) -> None:
    assert [part.retained("web") for part in parts] == [{"web-vm"}, set()]
    assert parts.retained("web") == {"web-vm"}


def test_capacity_is_asked_of_a_part_by_its_name_and_subject(parts: Parts) -> None:
    assert parts.capacity("busy", "north") == Capacity(1.0, 0.0, 0.0)
    assert parts.capacity("busy", "south") is None
    assert parts.capacity("busy", "west") is None
    assert parts.capacity("plain", "north") is None
    assert parts.capacity("gone", "north") is None


def test_subjects_are_chosen_by_decision_by_name_or_all(ledger: Ledger, parts: Parts) -> None:
    decide(ledger, "a")
    decide(ledger, "b", subject="north")
    busy, plain = parts
    assert parts.choose(None, None) == [(busy, "north"), (busy, "south"), (plain, "desk"), (plain, "north")]
    assert parts.choose("plain", None) == [(plain, "desk"), (plain, "north")]
    assert parts.choose(None, "north") == [(busy, "north"), (plain, "north")]
    assert parts.choose("busy", "south") == [(busy, "south")]
    with pytest.raises(UnknownName, match=r"SUBJECT is 'x': .*: busy north, busy south, plain desk"):
        parts.choose(None, "x")
    with pytest.raises(UnknownName, match="DECISION is 'gone'"):
        parts.choose("gone", None)


def test_where_there_is_no_subject_none_can_be_chosen(ledger: Ledger) -> None:
    none = Parts([Plain(a_host(ledger))], ledger)
    assert none.choose(None, None) == []
    with pytest.raises(UnknownName, match=re.escape("choose one of: (none)")):
        none.choose(None, "x")


@pytest.fixture
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"plain": Plain, "busy": Busy}
    monkeypatch.setattr(installed, "installed", lambda group: tuple(found))

    def load(group: str, name: str, fits: object, wanted: str) -> type[Part]:
        assert fits(found[name])  # type: ignore[operator]
        assert not any(fits(other) for other in (object(), int, *found.values()) if other is not found[name])  # type: ignore[operator]
        return found[name]

    monkeypatch.setattr(installed, "load", load)
    installed.kinds.cache_clear()


def test_installed_parts_turn_in_their_order_and_ask_one_another(ledger: Ledger, two_kinds: None) -> None:
    try:
        assert installed.kinds() == (Busy, Plain)
        assert installed.kept() == (StoredState("busy"), StoredState("plain"))
        parts = parts_of(a_host(ledger))
        assert [part.name for part in parts] == ["busy", "plain"]
        assert parts[1].host.capacity("busy", "north") == Capacity(1.0)
        assert parts[1].host.groups() == {("north", "s"): "web-s"}
    finally:
        installed.kinds.cache_clear()


def test_the_products_own_parts_are_installed() -> None:
    installed.kinds.cache_clear()
    names = [kind.name for kind in installed.kinds()]
    assert {"autoscaling", "admission", "oversubscription"} <= set(names)
    assert [kind.name for kind in sorted(installed.kinds(), key=lambda kind: (kind.order, kind.name))] == names


def test_settings_of_its_own_come_from_the_environment(ledger: Ledger) -> None:
    from tests.agent.kernel.tokens.decision import TokenSettings, TokensPart

    part = TokensPart(a_host(ledger, environ={"TRIMTAB_TOKENS__TOKENS": "7"}))
    assert part.own_settings() == TokenSettings(tokens=7)
    with pytest.raises(ConfigurationError, match="TRIMTAB_TOKENS__TOKENS"):
        TokensPart(a_host(ledger, environ={"TRIMTAB_TOKENS__TOKENS": "many"})).own_settings()


def test_a_service_is_the_one_that_is_named_or_the_only_one() -> None:
    one, two = Services({"a": 1}), Services({"b": 2, "a": 1})
    assert one.one(None) == one.one("a") == two.one("a") == 1
    with pytest.raises(BadInput, match="pool is '': name one of: a, b"):
        two.one(None)
    with pytest.raises(UnknownName, match="pool is 'c': choose one of: a, b"):
        two.one("c")
    for wanted, words in ((None, "pool is '': name one of:"), ("c", "pool is 'c': choose one of:")):
        with pytest.raises(BadInput, match=re.escape(f"{words} (the settings have no pool")):
            Services[int]().one(wanted)


def test_subjects_in_the_settings_count_with_those_of_the_ledger_and_alone_are_managed(ledger: Ledger) -> None:
    class Configured(Plain):
        configured_in = "pools"

    decide(ledger, "a")
    host = a_host(ledger)
    settings = SimpleNamespace(pools={"north": 1, "south": 2})
    part = Configured(replace(host, settings=settings))  # type: ignore[arg-type]
    assert part.subjects() == ("desk", "north", "south")
    assert part.managed() == ("north", "south")
    offline = Configured(host)
    assert (offline.subjects(), offline.managed()) == (("desk",), ())
    plain = Plain(replace(host, settings=settings))  # type: ignore[arg-type]
    assert plain.subjects() == plain.managed() == ("desk",)


def a_turn(epoch: int) -> Turn:
    return Turn(NOON, BothTimes(NOON, 0.0), Leads(every=epoch), TurnReport(NOON))


def test_a_decision_is_recorded_with_its_number_and_event_by_the_leader_alone(ledger: Ledger, plain: Plain) -> None:
    body = {"reason": "accepted", "sentence": "two tokens"}
    first, second = ledger.take_epoch("one", NOON), ledger.take_epoch("two", NOON)
    with pytest.raises(Fenced):
        plain.record(a_turn(first), "desk", body)
    assert (plain.decisions.newest(), ledger.journal()) == ((), [])
    events = [plain.record(a_turn(second), "desk", body) for _ in range(2)]
    assert [event.about for event in events] == ["desk-plain1", "desk-plain2"]
    assert [entry.ref for entry in ledger.journal()] == ["desk-plain1", "desk-plain2"]
    assert plain.summary(plain.decisions.get("desk-plain2")) == Summary("two tokens", "accepted")


@pytest.mark.parametrize("letters", ["d", "", "D", "x1", "a-b"])
def test_a_part_whose_ids_another_decision_may_have_is_refused_at_the_start(letters: str) -> None:
    class Deferral(Part):
        name, id_letters = "deferral", "d"

    class Fleets(Part):
        name, id_letters = "autoscaling", ""

    Deferral.__module__ = Fleets.__module__ = "agent.deferral.decision"

    class Night(Part):
        name, id_letters = "placement", letters

    installed._check_letters([Deferral, Fleets])
    with pytest.raises(ConfigurationError, match="id_letters"):
        installed._check_letters([Night, Deferral, Fleets])


@pytest.mark.parametrize("order", [5, 200])
def test_a_part_of_any_order_gets_its_readings_before_the_one_that_takes_the_rest(ledger: Ledger, order: int) -> None:
    taken: dict[str, list[bytes]] = {"early": [], "rest": []}

    def sink_to(name: str, below: Any) -> Any:
        def append(paths: Any, values: Any, times: Any, now: float, peer: str = "") -> Any:
            ours = [path for path in paths if below is None or b".early." in path]
            taken[name] += ours
            rest = [path for path in paths if path not in ours]
            return below.append(rest, values, times, now, peer) if rest else ()

        return SimpleNamespace(append=append)

    class Early(Part):
        name = "early"

        def sink(self, below: Any) -> Any:
            return sink_to("early", below)

    class Rest(Part):
        name, takes_rest = "rest", True

        def sink(self, below: Any) -> Any:
            return sink_to("rest", None)

    assert AutoscalingPart.takes_rest
    early, rest = Early(a_host(ledger)), Rest(a_host(ledger))
    parts = (early, rest) if order < 10 else (rest, early)
    sink_of(parts).append([b"trimtab.early.x", b"trimtab.web.y"], [1.0, 2.0], [NOON, NOON], NOON)
    assert taken == {"early": [b"trimtab.early.x"], "rest": [b"trimtab.web.y"]}


class Ceiling(Part):
    """The smallest form: one decision a turn."""

    name, subject_word = "ceiling", "desk"
    gauges = {"share": "share of spot"}  # noqa: RUF012  # as docs/architecture.md has it
    share = 0.5

    def subjects(self) -> tuple[str, ...]:
        return ("north", "south")

    def decide(self, subject: str, seen: Observation, previous: Mapping[str, Any]) -> Decision | None:
        found = seen.capacity("busy", subject)
        if subject == "south" and found is None:
            raise ValueError("no capacity is known")
        reason = Reason("ceiling/steady") if previous.get("share") == self.share else Reason.ACCEPTED
        return Decision({"share": self.share}, f"{self.share:.0%} may be spot", reason, {"share": self.share})


def ceiling_turn(ledger: Ledger, host: Host, now: float = NOON) -> tuple[Ceiling, TurnReport]:
    part = Ceiling(host)
    return part, part.turn(Turn(now, BothTimes(now, 0.0), Leads(every=ledger.take_epoch("a", now)), TurnReport(now)))


def test_the_smallest_form_decides_is_recorded_and_replayed_from_its_observation(ledger: Ledger) -> None:
    host = a_host(ledger, capacity=lambda decision, subject: Capacity(free=4.0) if subject == "north" else None)
    part, first = ceiling_turn(ledger, host)
    _, second = ceiling_turn(ledger, host, NOON + 60.0)
    reasons = [(event.reason, event.subject.name) for event in (*first.events, *second.events)]
    # The trouble of one subject stops no other.
    failed = (Reason.INTERNAL_ERROR, "south")
    assert reasons == [(Reason.ACCEPTED, "north"), failed, (Reason("ceiling/steady"), "north"), failed]
    assert list(part.readings()) == [("ceiling_share", ("north",), 0.5)]
    newest = part.decisions.get("north-ceiling2")
    assert part.explain(newest).lines[2:] == (
        "  reason ceiling/steady",
        "  capacity of busy/north: free 4, leaving 0, pending 0, reserved 0",
    )
    # A host that knows of no capacity: what was read is on record.
    again = list(Ceiling(a_host(ledger)).replay("north", None, None))
    assert [(one.decision_id, one.same) for one in again] == [("north-ceiling1", True), ("north-ceiling2", True)]
    part.share = 0.25
    assert [one.same for one in part.replay("north", NOON + 1.0, None)] == [False]


def test_a_pause_holds_the_smallest_form_whatever_its_scope(ledger: Ledger) -> None:
    for scope in PauseScope:
        ledger.pause("ceiling", "north", Pause(scope, "ada", "audit", NOON))
        part, report = ceiling_turn(ledger, a_host(ledger))
        assert [event.reason for event in report.events if event.subject.name == "north"] == []
        assert len(part.held("north", NOON)) == 1
        ledger.resume("ceiling", "north", PauseScope.ALL, at=NOON, owner="ada")


def test_a_reason_of_another_package_is_read_back_from_the_journal(ledger: Ledger) -> None:
    host = a_host(ledger, capacity=lambda decision, subject: Capacity())
    ceiling_turn(ledger, host)
    ceiling_turn(ledger, host, NOON + 60.0)
    stored = [Reason(entry.body["reason"]) for entry in ledger.journal() if entry.kind is Kind.EVENT]
    assert Reason("ceiling/steady") in stored
    for wrong in ("steady", "ceiling/", "/steady", "Ceiling/steady", "ceiling/steady/more", 7):
        with pytest.raises(ValueError, match="is not a valid Reason"):
            Reason(wrong)


class Hostile(Part):
    """A part whose `decide` is set by each test."""

    name, subject_word = "hostile", "desk"
    gauges = {"share": "share"}  # noqa: RUF012
    alarms = {Reason.NO_CAPACITY: Severity.CRITICAL}  # noqa: RUF012

    def subjects(self) -> tuple[str, ...]:
        return ("north", "north", "south")

    def decide(self, subject: str, seen: Observation, previous: Mapping[str, Any]) -> Decision | None:
        return DECIDE[subject](seen, previous)


DECIDE: dict[str, Callable[[Observation, Any], Any]] = {}


def hostile_turn(ledger: Ledger, north: Callable[[Observation, Any], Any], now: float = NOON) -> TurnReport:
    DECIDE.update(north=north, south=lambda seen, previous: Decision({}, "south decides"))
    part = Hostile(a_host(ledger))
    return part.turn(Turn(now, BothTimes(now, 0.0), Leads(every=ledger.take_epoch("a", now)), TurnReport(now)))


def fails(error: Exception) -> Callable[[Observation, Any], Any]:
    def raised(seen: Observation, previous: Any) -> Any:
        raise error

    return raised


@pytest.mark.parametrize(
    "north",
    [
        lambda seen, previous: Decision({"sentence": "mine"}, "north"),
        lambda seen, previous: Decision({}, "north", gauges={"unknown": 1.0}),
        lambda seen, previous: Decision({}, "north", gauges={"share": "much"}),  # type: ignore[dict-item]
        lambda seen, previous: Decision({"a": float("nan")}, "north"),
        lambda seen, previous: Decision({"a": "x" * (64 * 2**20)}, "north"),
        lambda seen, previous: "north",
        fails(LedgerError("a body is damaged")),
        fails(LedgerUnavailable("of its own")),
        fails(Fenced("of its own")),
        fails(ValueError("no")),
    ],
    ids=["reserved", "gauge", "text", "nan", "huge", "type", "damaged", "unavailable", "fenced", "error"],
)
def test_what_decide_does_wrong_is_its_subjects_alone(ledger: Ledger, north: Callable[[Observation, Any], Any]) -> None:
    report = hostile_turn(ledger, north)
    assert report.failure is None
    assert [(event.subject.name, event.reason) for event in report.events] == [
        ("north", Reason.INTERNAL_ERROR),
        ("south", Reason.ACCEPTED),
    ]
    store = DecisionStore(ledger.database)
    assert (store.newest("hostile", "north"), len(store.newest("hostile", "south"))) == ((), 1)


def test_a_lasting_reason_that_is_an_alarm_is_one_alarm(ledger: Ledger) -> None:
    events = []
    for minute in range(3):
        report = hostile_turn(
            ledger, lambda seen, previous: Decision({}, "none left", Reason.NO_CAPACITY), NOON + 60.0 * minute
        )
        events += [(event.subject.name, event.about) for event in report.events if event.subject.name == "north"]
    assert events == [("north", "")] * 3


def test_a_decision_that_cannot_be_made_again_differs_and_the_others_are_replayed(ledger: Ledger) -> None:
    decide(ledger, "north-hostile1", decision="hostile", subject="north", number=1)
    hostile_turn(ledger, lambda seen, previous: Decision({}, "north"), NOON + 60.0)
    again = list(Hostile(a_host(ledger)).replay("north", None, None))
    assert [one.same for one in again] == [False, True]
    DECIDE["north"] = fails(ValueError("no"))
    assert [one.same for one in Hostile(a_host(ledger)).replay("north", None, None)] == [False, False]


class DeskSettings(BaseModel):
    """Settings with a value that `decide` can change."""

    desks: list[str] = ["north"]


class Careless(Part):
    """A part whose `decide` changes its arguments."""

    name, subject_word = "careless", "desk"
    settings_model = DeskSettings

    def subjects(self) -> tuple[str, ...]:
        return ("north",)

    def decide(self, subject: str, seen: Observation, previous: Mapping[str, Any]) -> Decision | None:
        counts = previous.get("counts", [])
        seen.settings.desks.append("late")
        counts.append(len(seen.settings.desks))
        return Decision({"counts": list(counts)}, f"{len(counts)} turns")


def test_the_record_holds_what_decide_was_given_whatever_it_changed(ledger: Ledger) -> None:
    for minute in range(3):
        now = NOON + 60.0 * minute
        part = Careless(a_host(ledger))
        part.turn(Turn(now, BothTimes(now, 0.0), Leads(every=ledger.take_epoch("a", now)), TurnReport(now)))
    assert [one.same for one in Careless(a_host(ledger)).replay("north", None, None)] == [True, True, True]
