"""One kind of decision: a class, its `Part`; a `Decision` is one result of its `decide`.

The service holds a list of parts and names none of them. A part is made from a `Host`, offline (a verb that reads the
ledger) as in the daemon; `start` and what follows it are called in the daemon alone.

1. Required: `name`, `subject_word`, `subjects` and `decide`. Pause, mode, number, id, fence, record, event, gauges,
   card, status, explain and replay come with them.
2. Optional: everything else of `Part`; each method has a default.
3. Given: the fields of `Host`. The types of the answers follow at the end.

docs/architecture.md has an example, which is a test.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pydantic import BaseModel

from agent.kernel.guards import held_by_pause
from agent.kernel.leads import Leads
from agent.kernel.metrics import Section, gauge
from agent.kernel.rounds import Rounds
from agent.kernel.store import NOTHING, DecisionStore, Record, add, newest_number
from agent.kernel.turn import Severity, TurnReport, turn_subjects
from agent.ledger import Ledger, codec, journal
from agent.ledger.kept import StoredState
from agent.settings.location import models_location
from agent.settings.plug_ins import own_settings
from domain.clock import BothTimes, Clock
from domain.controls import Controls
from domain.decisions import Direction, Event, Mode, Reason
from domain.errors import BadInput, Fenced, LedgerError, Mistake, UnknownName
from domain.subject import Subject
from domain.units import HOUR_S

if TYPE_CHECKING:
    from fastapi import APIRouter

    from agent.kernel.checks import Account, Arrivals, CheckResult
    from agent.kernel.metrics import Reading
    from agent.kernel.page import PartPage
    from agent.settings import Settings
    from collectors.aws import AwsSession
    from collectors.base import Collector, SampleSink
    from collectors.intake import Conflict, RefusedClaim
    from collectors.vm_names import Place, UnknownVms


T = TypeVar("T")

NOTHING_YET: Final = "nothing was decided yet"


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation behind a decision. It is recorded with the decision, each capacity that was read included.

    now: epoch seconds. settings: of the part, None without. read: capacities by `decision/subject`.
    """

    now: float
    mode: Mode
    settings: Any
    read: dict[str, Capacity | None]
    capacity_of: CapacityOf

    def capacity(self, decision: str, subject: str) -> Capacity | None:
        """Return the capacity of another part's subject, None for an unknown part or subject."""
        return self.read.setdefault(f"{decision}/{subject}", self.capacity_of(decision, subject))

    def recorded(self, settings: Mapping[str, Any] | None, previous: Mapping[str, Any]) -> bytes:
        """Return its record, with settings and the previous body as plain data."""
        read = {key: None if found is None else asdict(found) for key, found in self.read.items()}
        body = {"now": self.now, "mode": self.mode, "settings": settings, "read": read, "previous": dict(previous)}
        return codec.encode_mapping(body)


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: plain data for JSON, a sentence for people, a reason, and the values of its gauges.

    reason: a built-in one, or Reason("<name>/<reason>"). changed: whether the decision calls for action.
    """

    body: Mapping[str, Any]
    sentence: str
    reason: Reason = Reason.ACCEPTED
    gauges: Mapping[str, float] = field(default_factory=dict)
    changed: bool = False

    def recorded(self, mode: Mode) -> Mapping[str, Any]:
        """Return the body of its record; BadInput for a key of the kernel in `body`."""
        gauges = {name: float(value) for name, value in self.gauges.items()}
        own = {"sentence": self.sentence, "reason": self.reason, "gauges": gauges, "mode": mode}
        if taken := sorted(own.keys() & self.body.keys()):
            raise BadInput("body", ", ".join(taken), "the kernel records these keys: choose other names")
        return {**self.body, **own}


class Part:
    """A decision's part of the agent; see the module.

    name: of the decision, as in `trimtab status NAME`. subject_word: what its subjects are called. gauges: meanings of
    the gauges of its decisions by name, each `trimtab_<name>_<gauge>`. order: parts turn in this order, equal ones by
    name. kept: its further state in the ledger. sections: its metrics.
    alarms: reasons of its events that are alarms. configured_in: the field of the agent's settings that describes its
    subjects by name, "" where they describe none. settings_model: of its own settings, TRIMTAB_<NAME>__..., None for a
    part whose settings are the agent's. model_suffixes: endings of the files that `model` reads. learns: whether
    `trimtab learn` makes rounds for its subjects.

    Of its paths below /api/v1/<name>/, with `*` for any one segment: asks, those that the token of an allocator may
    post to (it reads all of a decision that has some); lists, those whose body may list many. rehearsal:
    module and name, as `agent.rehearsal.admissions:SECTION`, of its section of `trimtab dry-run`, "" for none.

    id_letters: small letters in the ids of its decisions, before the number, that no other decision has; None for those
    of its name. takes_rest: whether its sink takes every reading that no other part takes, and passes none on.
    """

    name: ClassVar[str]
    subject_word: ClassVar[str] = "subject"
    gauges: ClassVar[Mapping[str, str]] = {}
    order: ClassVar[int] = 100
    kept: ClassVar[StoredState | None] = None
    kept_beside: ClassVar[tuple[StoredState, ...]] = ()
    sections: ClassVar[tuple[Section, ...]] = ()
    alarms: ClassVar[Mapping[Reason, Severity]] = {}
    configured_in: ClassVar[str] = ""
    settings_model: ClassVar[type[BaseModel] | None] = None
    model_suffixes: ClassVar[tuple[str, ...]] = ()
    learns: ClassVar[bool] = False
    asks: ClassVar[tuple[str, ...]] = ()
    lists: ClassVar[tuple[str, ...]] = ()
    rehearsal: ClassVar[str] = ""
    id_letters: ClassVar[str | None] = None
    takes_rest: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.gauges and "sections" not in vars(cls):
            named = [gauge(cls._metric(name), meaning, cls.subject_word) for name, meaning in cls.gauges.items()]
            cls.sections = (Section(cls.name.capitalize(), tuple(named)),)

    def __init__(self, host: Host) -> None:
        self.host = host
        self.decisions = DecisionStore(host.ledger.database)
        self.rounds: Rounds | None = self._rounds() if self.learns else None

    # Required

    def subjects(self) -> tuple[str, ...]:
        """Return the names of its subjects, from the settings and the ledger."""
        return tuple(sorted({*self.configured, *self.decisions.subjects(self.name)}))

    def decide(self, subject: str, seen: Observation, previous: Mapping[str, Any]) -> Decision | None:
        """Return a decision for a subject that nothing pauses, None for none in this turn.

        previous: the body of the subject's previous decision, empty before the first. Asked once a turn; a part that
        has a `turn` of another form is not asked.
        """
        return None

    # Optional

    def _rounds(self) -> Rounds:
        settings = self.host.settings
        hours = None if settings is None else settings.learning.max_age_hours
        return Rounds(
            self.name,
            models_location(self.host.environ) if settings is None else settings.models_directory,
            self.host.clock.monotonic,
            lambda subject: self.decisions.first_at(self.name, subject),
            max_age_s=None if hours is None else hours * HOUR_S,
        )

    def learning_events(self, now: float) -> Iterator[Event]:
        """Yield news of the rounds of its subjects; asked of the leader, which records it."""
        if self.rounds is not None:
            yield from self.rounds.events(now, self.managed())

    def own_settings(self) -> BaseModel:
        """Return its own settings, from TRIMTAB_<NAME>__<FIELD>; ConfigurationError names what is wrong with one."""
        assert self.settings_model is not None, "it has its own settings"
        return own_settings(self.name, self.settings_model, self.host.environ)

    def controls(self, subject: str) -> Controls:
        """Return what operators have switched for a subject."""
        return self.host.ledger.controls(self.name, subject)

    def held(self, subject: str, now: float) -> list[str]:
        """Return what operators hold of a subject now, a line each."""
        return held_lines(self.controls(subject), now)

    # What it is about

    @property
    def configured(self) -> Mapping[str, object]:
        """Its subjects in the settings, by name."""
        settings = self.host.settings
        found: Mapping[str, object] = getattr(settings, self.configured_in) if settings and self.configured_in else {}
        return found

    @classmethod
    def decides(cls, settings: Settings) -> bool:
        """Return whether the settings give it a subject; True for a decision whose settings describe none."""
        return not cls.configured_in or bool(getattr(settings, cls.configured_in))

    def managed(self) -> tuple[str, ...]:
        """Return the subjects that it decides for now: those of the settings, by default all."""
        return tuple(sorted(self.configured)) if self.configured_in else self.subjects()

    def written(self, subject: str) -> str:
        """Return the settings of a managed subject that are not their defaults, as JSON: equal on agents sharing it."""
        own = self.configured.get(subject)
        if own is None and self.settings_model is not None:
            own = self.own_settings()
        return own.model_dump_json(exclude_defaults=True) if isinstance(own, BaseModel) else ""

    def couples(self) -> Iterable[tuple[Subject, Subject]]:
        """Return pairs of subjects, of any decision, that read one another in process: one agent leads both."""
        return ()

    def capacity(self, subject: str) -> Capacity | None:
        """Return what it knows of a subject's capacity, None when nothing."""
        return None

    def groups(self) -> Mapping[tuple[str, str], str]:
        """Return the AWS name of every Auto Scaling group that it sizes, by subject and group key."""
        return {}

    def room(self, subject: str, application: str) -> ContainerRoom | None:
        """Return the room of a pool of hosts for containers of an application, None for no such pool; UnknownName."""
        return None

    def retained(self, subject: str) -> Set[str]:
        """Return the VMs of a fleet that must not be removed now; LedgerUnavailable where that is not known."""
        return frozenset()

    # In the daemon

    def start(self, stack: ExitStack) -> None:
        """Start what it needs; whatever must be stopped is given to the stack."""

    def sink(self, below: SampleSink) -> SampleSink:
        """Return where readings go: to this part what is its own, the others to `below`."""
        return below

    def subject_of(self, path: bytes) -> Subject | None:
        """Return the subject that a Graphite path has a reading of, None for none of this part."""
        return None

    def collectors(self) -> Sequence[Collector]:
        """Return the collectors that it needs beside the listener."""
        return ()

    def turn(self, turn: Turn) -> TurnReport:
        """Take its turn as the leader of subjects and return the report with its results. Raises LedgerError or Fenced.

        By default, decide for each subject that nothing pauses.
        """
        return self.turn_led(turn, lambda name, epoch: self._decided(turn, name))

    def turn_led(self, turn: Turn, call: Callable[[str, int], Sequence[Event]]) -> TurnReport:
        """Turn each managed subject that this process leads, by its name and epoch, and return the report with events.

        See `turn_subjects`; a call to AWS leaves only while the subject's epoch lasts.
        """
        led = {name: turn.leads.of(Subject(self.name, name)) for name in dict.fromkeys(self.managed())}

        def turned(name: str, epoch: int) -> Sequence[Event]:
            with self.host.acting(epoch):
                return call(name, epoch)

        calls = ((name, partial(turned, name, epoch)) for name, epoch in led.items() if epoch is not None)
        return turn_subjects(turn.report, self.name, calls)

    def _decided(self, turn: Turn, subject: str) -> Sequence[Event]:
        if held_by_pause(self.controls(subject), tuple(Direction), turn.now) is not None:
            return ()
        newest = self.decisions.newest(self.name, subject, limit=1)
        previous = newest[0].body if newest else b"{}"
        mode = Mode.OBSERVE if self.host.settings is None else self.host.settings.mode
        own = None if self.settings_model is None else self.own_settings()
        seen = Observation(turn.now, mode, own, {}, self.host.capacity)
        # Before `decide`, which may change its copies.
        settings = None if own is None else own.model_dump(mode="json")
        try:
            before = codec.decode_mapping(previous)
            made = self.decide(subject, seen, codec.decode_mapping(previous))
        except (LedgerError, Fenced) as error:
            # An error in the code of a plug-in must not end the turn of all others.
            raise RuntimeError(f"decide: {error}") from error
        if made is None:
            return ()
        if unknown := sorted(made.gauges.keys() - self.gauges.keys()):
            raise BadInput("gauges", ", ".join(unknown), "declare each with its meaning in `gauges` of the part")
        inputs = seen.recorded(settings, before)
        return [self.record(turn, subject, made.recorded(mode), inputs=inputs, changed=made.changed)]

    def record(
        self, turn: Turn, subject: str, body: Mapping[str, Any], *, inputs: bytes = NOTHING, changed: bool = False
    ) -> Event:
        """Write a decision of this turn, numbered, with its event, and return the event, which is about its id.

        An alarm has no id: the next decision for the same reason raises no second one.

        body: the decision, with its `reason` and `sentence`. Fenced once the subject's epoch is over: then nothing is
        written. LedgerUnavailable.
        """
        epoch = turn.leads.of(Subject(self.name, subject))
        if epoch is None:
            raise Fenced(f"{self.name} {subject} is led by another agent")
        with self.host.ledger.fenced(epoch) as connection:
            number = newest_number(connection, self.name, subject) + 1
            decision_id = f"{subject}-{self.letters()}{number}"
            made = Record(
                *(decision_id, self.name, subject, turn.now, codec.encode_mapping(body)),
                inputs=inputs,
                number=number,
                changed=changed,
            )
            reason, about = Reason(body["reason"]), Subject(self.name, subject)
            on_id = "" if reason in self.alarms else decision_id
            event = Event(about, turn.now, reason, str(body["sentence"]), on_id)
            add(connection, [made])
            journal.add(connection, [journal.event_row(event)])
        return event

    @classmethod
    def letters(cls) -> str:
        """Return the letters in the ids of its decisions."""
        return re.sub("[^a-z]", "", cls.name) if cls.id_letters is None else cls.id_letters

    def measure(self, report: TurnReport) -> TurnReport:
        """Only measure, while other agents lead everything, and return the report with the measurements."""
        return report

    def events(self, now: float) -> tuple[Event, ...]:
        """Return what came up outside its turn since the last call, for alarms and metrics."""
        return ()

    def chores(self) -> Iterable[Chore]:
        """Return the work to do beside the loop."""
        return ()

    def problems(self) -> Mapping[str, str]:
        """Return by a short name what a person should look into, "" for what is in order again."""
        return {}

    def reload(self) -> None:
        """Look again at the files that it reads, as SIGHUP asks."""

    def checks(self) -> Sequence[Check]:
        """Return further conditions of the agent's readiness."""
        return ()

    def unknown_vms(self) -> Mapping[Place, UnknownVms]:
        """Return by subject and group key what was reported under names that no inventory shows."""
        return {}

    def refused_claims(self) -> Mapping[tuple[str, str, str], RefusedClaim]:
        """Return by subject, group key and metric the readings that were beyond what is believed."""
        return {}

    def conflicts(self) -> Mapping[tuple[str, str, str], Conflict]:
        """Return by subject, group key and metric the readings that contradict others."""
        return {}

    # For people and programs

    def readings(self) -> Iterator[Reading]:
        """Yield the present values of its metrics, by default from each newest decision; raises LedgerError."""
        for subject in self.managed() if self.gauges else ():
            for newest in self.decisions.newest(self.name, subject, limit=1):
                for name, value in codec.decode_mapping(newest.body).get("gauges", {}).items():
                    yield self._metric(name), (subject,), value

    @classmethod
    def _metric(cls, gauge_name: str) -> str:
        return f"{cls.name}_{gauge_name}".replace("-", "_")

    def status(self, subject: str, now: float) -> Status:
        """Return a subject's state; by default its newest decision and what operators hold."""
        held = self.held(subject, now)
        newest = self.decisions.newest(self.name, subject, limit=1)
        last = f"{newest[0].decision_id}: {self.summary(newest[0]).sentence}" if newest else NOTHING_YET
        data = {"subject": subject, "last_decision": newest[0].decision_id if newest else None, "held": held}
        return Status(subject, (f"{subject}  {last}", *(f"  {line}" for line in held)), data)

    def card(self, subject: str, now: float) -> Card | None:
        """Return a subject's card for the page, None for no card; by default its newest decision and its pauses."""
        newest = self.decisions.newest(self.name, subject, limit=1)
        said = [self.summary(newest[0]).sentence if newest else NOTHING_YET, *self.held(subject, now)]
        decision_id = newest[0].decision_id if newest else ""
        return Card(subject, f"{self.subject_word} {subject}", sentence="; ".join(said), decision_id=decision_id)

    def page(self) -> PartPage | None:
        """Return what draws its subjects on the page in place of their cards, None where cards do."""
        return None

    def router(self) -> APIRouter | None:
        """Return its routes below /api/v1/<name>, None for no others than those that every part has."""
        return None

    def summary(self, record: Record) -> Summary:
        """Return a decision in short; by default the `sentence` (or `detail`) and `reason` of its body."""
        body = codec.decode_mapping(record.body)
        return Summary(str(body.get("sentence") or body.get("detail") or ""), str(body.get("reason", "")))

    def explain(self, record: Record) -> Explanation:
        """Return why a decision came out as it did; by default its sentence, reason and observed capacities."""
        body = codec.decode_mapping(record.body)
        inputs = codec.decode_mapping(record.inputs) if record.inputs else None
        summary = self.summary(record)
        lines = [f"{record.decision_id}  {self.subject_word} {record.subject}", f"  {summary.sentence}"]
        if summary.reason:
            lines.append(f"  reason {summary.reason}")
        for key, found in (inputs or {}).get("read", {}).items():
            plain = {name: sum(one.values()) if name == "leaving" else one for name, one in (found or {}).items()}
            known = [f"{name} {value:g}" for name, value in plain.items() if isinstance(value, int | float)]
            lines.append(f"  capacity of {key}: {', '.join(known) or 'unknown'}")
        return Explanation(tuple(lines), {"decision": body, "inputs": inputs})

    def replay(self, subject: str, since: float | None, until: float | None) -> Iterator[ReplayResult]:
        """Decide recorded decisions with since <= at < until again; BadInput where it keeps no inputs to do so."""
        if type(self).decide is Part.decide:
            raise BadInput("DECISION", self.name, "it records no inputs to decide again from: see trimtab explain ID")
        found = self.decisions.newest(self.name, subject, limit=sys.maxsize, since=since, until=until)
        return (self._again(self.decisions.get(record.decision_id)) for record in reversed(found))

    def _again(self, record: Record) -> ReplayResult:
        try:
            return self._decided_again(record)
        except Exception as error:
            # The settings or the code have changed since, or the inputs hold a masked secret.
            why = f"{type(error).__name__}: {error}" if record.inputs else "it was recorded without inputs"
            return ReplayResult(record.decision_id, False, f"not decided again: {why}", exact=True)

    def _decided_again(self, record: Record) -> ReplayResult:
        inputs = codec.decode_mapping(record.inputs)
        own = None if self.settings_model is None else self.settings_model.model_validate(inputs["settings"])
        read = {key: None if one is None else Capacity(**one) for key, one in inputs["read"].items()}
        seen = Observation(inputs["now"], Mode(inputs["mode"]), own, read, _unknown_capacity)
        decision = self.decide(record.subject, seen, inputs["previous"])
        body = codec.encode_mapping({} if decision is None else decision.recorded(seen.mode))
        same = body == record.body
        difference = "" if same else f"recorded {record.body.decode()}, again {body.decode()}"
        return ReplayResult(record.decision_id, same, difference, exact=True)

    def carry_out(self, verb: str, subject: str | None, given: Mapping[str, Any], now: float) -> Mapping[str, Any]:
        """Write an order that only this decision knows into the ledger while no agent runs; return its answer.

        given: the other fields of the route's body. BadInput for what it refuses, LedgerUnavailable for an order that
        only the running agent can carry out.
        """
        raise BadInput("order", verb, f"{self.name} knows no such order")

    def what_if(self, subject: str, policy: str, since: float | None, until: float | None) -> Explanation:
        """Return what another policy would have decided in place of the recorded decisions; BadInput where none can."""
        raise BadInput("--policy", policy, f"no other policy can be tried on {self.name}")

    @classmethod
    def model(cls, path: Path) -> ModelSummary:
        """Return what a model file holds, verified as before it is used; BadInput says why it would be refused."""
        raise BadInput("model file", str(path), f"{cls.name} has no models")

    @classmethod
    def mistakes(cls, settings: Settings) -> Sequence[Mistake]:
        """Return what is wrong with what the settings name for it, such as a model that a subject cannot use."""
        return ()

    @classmethod
    def files(cls, settings: Settings) -> Iterator[CheckResult]:
        """Yield whether the files of its settings can be used; no account is needed."""
        return iter(())

    @classmethod
    def preflight(cls, settings: Settings, account: Account) -> Iterator[CheckResult]:
        """Yield what was found about what it needs; no call that changes anything can leave."""
        return iter(())

    @classmethod
    def arrivals(cls, settings: Settings, arrivals: Arrivals) -> Iterator[CheckResult]:
        """Yield whether what it is measured by arrives at this host."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a part knows of the capacity behind a subject, in cores.

    free: cores that may still be asked for, None where that is not known. pending: asked for and not there yet.
    reserved: promised to something that has not come. spare: there, and used by nothing; None where that is not known.
    total: all cores, of which `spare` is a part, None where that is not known. leaving: VMs that go as soon as they
    may, by group, without the groups that have none. victims: VMs that an open scale-in may remove at any moment. kept:
    idle VMs that may not go, for instance by the protection of another party. rates: share of its requested cores that
    is reserved for a new VM, by subscriber; empty where everything is reserved in full.
    """

    free: float | None = None
    pending: float = 0.0
    reserved: float = 0.0
    spare: float | None = None
    total: float | None = None
    leaving: Mapping[str, int] = field(default_factory=dict)
    victims: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerRoom:
    """How many more containers of an application fit in a pool of hosts.

    cores: of each container. detail: the same in words, with the causes that keep hosts from taking more.
    """

    containers: int
    cores: int
    detail: str


RoomOf = Callable[[str, str], ContainerRoom | None]
"""Returns the room of a pool of hosts for an application; None for an unknown pool, UnknownName for the other."""


CapacityOf = Callable[[str, str], Capacity | None]
"""Returns the capacity of a subject by the names of part and subject; None for an unknown one."""


def _unknown_capacity(decision: str, subject: str) -> Capacity | None:
    return None


def _no_room(pool: str, application: str) -> ContainerRoom | None:
    return None


def _nothing(*values: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Host:
    """What a part is made from.

    settings: None where they cannot be read, as for a verb on a ledger alone. capacity: of the subjects of other parts.
    room: of a pool of hosts. retained: the VMs of a fleet that some part needs where they are. The others are the
    daemon's. session: the one road to AWS. fence: raises Fenced once this process may no longer act under these epochs.
    leads: the subjects that it leads. acting: a block whose calls to AWS leave under this epoch alone. is_elsewhere:
    whether a subject that it does not lead may be another agent's. note: records an event (reason, detail, subject).
    problem: sets a named operator-visible problem, or clears it with "". adopt: the agent works by these settings from
    now on.
    """

    ledger: Ledger
    settings: Settings | None
    clock: Clock
    capacity: CapacityOf = _unknown_capacity
    room: RoomOf = _no_room
    groups: Callable[[], Mapping[tuple[str, str], str]] = dict
    retained: Callable[[str], Set[str]] = lambda subject: frozenset()
    session: AwsSession | None = None
    fence: Callable[[Collection[int]], None] = _nothing
    leads: Callable[[], Leads] = Leads
    acting: Callable[[int], AbstractContextManager[object]] = nullcontext
    is_elsewhere: Callable[[Subject], bool] = lambda subject: False
    note: Callable[[Reason, str, Subject], None] = _nothing
    problem: Callable[[str, str], None] = _nothing
    adopt: Callable[[Settings], None] = _nothing
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the loop: now (epoch seconds), both clocks at that moment, the subjects it leads, and the report.

    report: of the parts that turned before this one.
    """

    now: float
    times: BothTimes
    leads: Leads
    report: TurnReport


@dataclass(frozen=True, slots=True)
class Chore:
    """Work beside the loop: its name, how often it is done, in seconds, and the call, which handles its own errors."""

    name: str
    every_s: float
    call: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of readiness: its name, whether it holds, and a sentence for people."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Status:
    """A subject's state: lines for people, and the same as plain data."""

    subject: str
    lines: tuple[str, ...]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Card:
    """A subject on the page: heading, badges (word, tone: good, held or bad), rows (name, value), and a sentence.

    problem: what is wrong with it, "" for nothing. decision_id: the decision that `sentence` is about, "" for none.
    """

    subject: str
    title: str
    badges: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    sentence: str = ""
    problem: str = ""
    decision_id: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a decision came out as it did: lines for people, and everything recorded about it as plain data."""

    lines: tuple[str, ...]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """A decision in a list: its sentence, its reason, and the guards that changed it, as (guard, sentence)."""

    sentence: str
    reason: str
    guards: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A recorded decision made again from its inputs: whether it is the same, and the lines that differ.

    exact: whether the same means the same bytes.
    """

    decision_id: str
    same: bool
    difference: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A verified model file: its card as plain data, and in short its input, output, network and limits."""

    data: Mapping[str, Any]
    sees: str = ""
    does: str = ""
    network: str = ""
    limits: str = ""


def one_subject(part: Part, wanted: str | None, *, field: str = "SUBJECT") -> str:
    """Return a part's subject that is meant; BadInput or UnknownName list those there are."""
    return one_of(wanted, part.subjects(), part.subject_word, field=field)


def one_of(wanted: str | None, names: Sequence[str], word: str, *, field: str) -> str:
    """Return the name meant: `wanted`, or the only one; BadInput or UnknownName list those there are, called `word`."""
    listed = ", ".join(names)
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is not None and wanted in names:
        return wanted
    if not names:
        remedy = f"neither the ledger nor the settings know a {word}: set one, start the agent"
    elif wanted is None:
        remedy = f"there are several {word}s, name one of: {listed}"
    else:
        remedy = f"choose one of: {listed}"
    raise (BadInput if wanted is None else UnknownName)(field, wanted or "", remedy)


def held_lines(controls: Controls, now: float) -> list[str]:
    """Return what operators hold now, a line each."""
    from agent.rails.permissions import pause_sentence, pinned_by

    lines = [pause_sentence(pause, now) for pause in controls.pauses if pause.active(now)]
    if controls.pin is not None and controls.pin.active(now):
        sizes = ", ".join(f"{key} {size}" for key, size in controls.pin.desired.items())
        lines.append(f"pinned at {sizes} {pinned_by(controls.pin, now)}")
    return lines


class Services(dict[str, T]):
    """The services of a decision's subjects by name; any thread may use them. word: of a subject."""

    word: ClassVar[str] = "pool"

    def one(self, name: str | None) -> T:
        """Return the service of that name, or the only one for None; BadInput or UnknownName list the names."""
        names = ", ".join(sorted(self)) or f"(the settings have no {self.word}: load them by TRIMTAB_CONFIG)"
        if name is None and len(self) == 1:
            return next(iter(self.values()))
        if name is None:
            raise BadInput(self.word, "", f"name one of: {names}")
        if name not in self:
            raise UnknownName(self.word, name, f"choose one of: {names}")
        return self[name]
