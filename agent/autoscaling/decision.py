"""What autoscaling brings to the agent: the fleets, their loop, and what people and programs see of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import structlog

from agent.autoscaling import minutes
from agent.autoscaling.fleets import ManagedFleet, claims_of, managed_fleets
from agent.autoscaling.plug_ins import ActuatorHost, ActuatorKind, Inputs, actuator_of
from agent.autoscaling.report import MinuteReport, with_fleets
from agent.autoscaling.self_tuning import LOOK_EVERY_S, SelfTuning
from agent.autoscaling.state import KEPT, FleetStore
from agent.autoscaling.tuned_rules import TunedRules
from agent.kernel.decision import (
    Capacity,
    Card,
    Check,
    Chore,
    Explanation,
    Host,
    ModelSummary,
    Part,
    ReplayResult,
    Status,
    Summary,
    Turn,
    one_of,
    one_subject,
)
from agent.kernel.leads import Leads
from agent.kernel.store import Record
from agent.kernel.turn import Severity, TurnReport
from agent.ledger import codec
from agent.settings.fleet import PolicyName, SelfTune
from agent.settings.location import models_location, promotion_key_location
from agent.settings.model import OWN_ACTUATOR, learned_policies
from agent.settings.plug_ins import ACTUATORS, installed, refused
from domain.decisions import Decision, Direction, Event, Mode, Reason, Verdict
from domain.errors import ConfigurationError, Mistake, StateConflict, TrimtabError
from domain.fleet import Fleet, Group
from domain.samples import fleet_of
from domain.snapshot import GroupSnapshot, Snapshot
from domain.subject import AUTOSCALING, QUEUE_RULE, Subject, fleet_subject

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import APIRouter

    from actuators.base import Actuator
    from actuators.drain import DrainSettings
    from agent.autoscaling.api import VmReport
    from agent.autoscaling.fleet_finder import FleetFinder
    from agent.autoscaling.loop import Loop, ResizesSince
    from agent.autoscaling.model_watch import ModelWatch
    from agent.autoscaling.page import FleetPage
    from agent.autoscaling.policies.learned_models import ModelShelf
    from agent.autoscaling.snapshot.series import ClaimKey, SeriesStore
    from agent.kernel.checks import Account, Arrivals, CheckResult
    from agent.kernel.metrics import Reading
    from agent.models.directory import Champion
    from agent.settings import Settings
    from collectors.aws import AwsSession
    from collectors.base import Collector, SampleSink
    from collectors.intake import Conflict, RefusedClaim
    from collectors.interruptions import InterruptionQueue
    from collectors.vm_names import Place, UnknownVms
    from domain.announcements import Recurring
    from domain.clock import Clock

log = structlog.get_logger(__name__)

POLICY_DEADLINE_S: Final = 1.0
MODELS_PATIENCE_S: Final = 20.0
"""So long a start waits for the models that decide; what takes longer is taken up in a later minute."""
REPORTING_WITHIN_INTERVALS: Final = 6
TURN_PATIENCE_S: Final = 0.5
"""So long a turn waits for a model that it has not seen before; it goes on with the one before, or the rules."""
SPARE_FRESH_S: Final = 600.0
"""Spare cores that were measured longer ago are not known."""
_WAITS: Final = frozenset(
    (Reason.BUSY, Reason.COOLING_DOWN, Reason.IN_FLIGHT, Reason.PROTECTED, Reason.REMOVAL_REFUSED)
)
"""Reasons for which a scale-in that the policy proposes waits until a VM may go."""


class AutoscalingPart(Part):
    """The fleets of one agent. `attach` gives it a loop and its series; in the daemon `start` makes them."""

    name = AUTOSCALING
    subject_word = "fleet"
    id_letters = ""
    takes_rest = True
    order = 10
    kept = KEPT
    kept_beside = (minutes.KEPT,)
    configured_in = "fleets"
    model_suffixes = (".onnx",)
    learns = True
    alarms = MappingProxyType(
        {
            Reason.POLICY_FAILED: Severity.WARNING,
            Reason.JOBS_NOT_TAKEN: Severity.WARNING,
            Reason.INPUT_REPEATS: Severity.WARNING,
            Reason.WORK_STUCK: Severity.WARNING,
            Reason.CAPACITY_LOST: Severity.WARNING,
            Reason.DRAIN_TIMED_OUT: Severity.WARNING,
            Reason.DRIFT_REPORTED: Severity.WARNING,
            Reason.LATE_CALL: Severity.WARNING,
            Reason.SETTING_PROPOSED: Severity.INFO,
            Reason.SELF_TUNING_FAILED: Severity.WARNING,
        }
    )

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.store = FleetStore(host.ledger)
        self._loop: Loop | None = None
        self._series: SeriesStore | None = None
        self._settings = host.settings
        self.models: ModelShelf | None = None
        models = models_location(host.environ) if self._settings is None else self._settings.models_directory
        self._rules = TunedRules(
            models,
            key=None if self._settings is None else self._settings.promotion_key,
        )
        self.snapshots: dict[str, Snapshot] = {}
        self._last: dict[str, Decision] = {}
        self.minute = MinuteReport(-math.inf)
        self._watch: ModelWatch | None = None
        self._tuning = SelfTuning(self.tunable, host.clock, host.environ, models)
        self._finder: FleetFinder | None = None
        self._inputs: Inputs | None = None

    @property
    def loop(self) -> Loop:
        """The loop over the fleets; only in the daemon."""
        assert self._loop is not None, "the part was not started"
        return self._loop

    @property
    def series(self) -> SeriesStore:
        """The readings; only in the daemon."""
        assert self._series is not None, "the part was not started"
        return self._series

    def attach(self, loop: Loop, series: SeriesStore) -> None:
        """Take a loop and its series that were made elsewhere."""
        self._loop, self._series, self.store = loop, series, loop.store

    # What it is about

    @property
    def _managed_fleets(self) -> Sequence[ManagedFleet]:
        return () if self._loop is None else self._loop.fleets

    @property
    def _measured(self) -> Sequence[ManagedFleet]:
        return () if self._loop is None else self._loop.measured

    @property
    def _fleets(self) -> Sequence[Fleet]:
        return [managed.fleet for managed in self._managed_fleets]

    @classmethod
    def decides(cls, settings: Settings) -> bool:
        """Return whether fleets are described, or looked for by their tags."""
        return bool(settings.fleets) or settings.discovery.enabled

    def subjects(self) -> tuple[str, ...]:
        """Return every fleet that is managed, configured or known to the ledger, by name."""
        configured = () if self._settings is None else self._settings.fleets
        return tuple(sorted({*self.store.fleets(), *(fleet.name for fleet in self._fleets), *configured}))

    def managed(self) -> tuple[str, ...]:
        """Return the fleets that are sized now."""
        return tuple(fleet.name for fleet in self._fleets)

    @property
    def configured(self) -> Mapping[str, object]:
        """The fleets of the settings, or the fleets found by their tags."""
        return {} if self._settings is None else self._settings.fleets

    def capacity(self, subject: str) -> Capacity | None:
        """Return the cores that a fleet may still grow by, those on their way, and its groups."""
        record = self.store.newest(subject)
        if record is None or record.inputs.snapshot is None:
            return None
        pairs = list(zip(record.inputs.fleet.groups, record.inputs.snapshot.groups, strict=True))
        intents = self.host.ledger.open_intents(subject)
        asked = {one.group: one.target for one in intents if one.direction is Direction.OUT}
        ins = [one for one in intents if one.direction is Direction.IN]
        going = {one.group: len(one.victims) for one in ins}
        left = self._leaving(record.decision, record.inputs.snapshot.taken_at, pairs)
        wanted = [max(seen.requested, asked.get(group.key, 0)) for group, seen in pairs]
        return Capacity(
            free=sum(
                max(0, group.maximum - n) * group.vm_type.cores for (group, _), n in zip(pairs, wanted, strict=True)
            ),
            pending=sum(
                max(0, n - seen.in_service) * group.vm_type.cores
                for (group, seen), n in zip(pairs, wanted, strict=True)
            ),
            spare=self._spare(record.inputs.snapshot.taken_at, pairs),
            total=float(sum(seen.warm * group.vm_type.cores for group, seen in pairs)),
            leaving={
                group.key: number
                for group, _ in pairs
                if (number := max(left.get(group.key, 0), going.get(group.key, 0))) > 0
            },
            victims=tuple(vm for one in ins for vm in one.candidates),
            kept=tuple(one.vm for _, seen in pairs for one in seen.refused),
        )

    def _leaving(
        self, decision: Decision, taken_at: float, pairs: Sequence[tuple[Group, GroupSnapshot]]
    ) -> dict[str, int]:
        """Return the VMs of each group that go, or that the rails keep only until one may go."""
        # A policy, a pin or a smaller maximum asks for less, and the last rails hold VMs only until they may go.
        spoke = [one for one in reversed(decision.effects) if one.reason is not None]
        waits = list(takewhile(lambda one: one.reason in _WAITS, spoke))
        size = waits[-1].before if waits else decision.desired
        if not 0.0 <= self.host.clock.now() - taken_at <= SPARE_FRESH_S or len(size) != len(pairs):
            return {}
        return {group.key: max(0, seen.requested - n) for (group, seen), n in zip(pairs, size, strict=True)}

    def _spare(self, taken_at: float, pairs: Sequence[tuple[Group, GroupSnapshot]]) -> float | None:
        """Return the cores of warm VMs that are not busy, None where they were not measured lately."""
        late = not 0.0 <= self.host.clock.now() - taken_at <= SPARE_FRESH_S
        if late or any(seen.warm and seen.busy_cores is None for _, seen in pairs):
            return None
        cores = sum(seen.warm * group.vm_type.cores - (seen.busy_cores or 0.0) for group, seen in pairs)
        return max(0.0, float(cores))

    def groups(self) -> Mapping[tuple[str, str], str]:
        """Return the AWS name of every group of the managed fleets."""
        return {(fleet.name, group.key): group.name for fleet in self._fleets for group in fleet.groups}

    def one(self, name: str | None) -> str:
        """Return the fleet meant; BadInput or UnknownName list those there are."""
        return one_subject(self, name, field="fleet")

    def vms(self, name: str) -> tuple[VmReport, ...]:
        """Return which VMs of a fleet report, by group and VM.

        UnknownName lists the fleets managed now; StateConflict for one that another agent leads.
        """
        fleet = one_of(name, sorted(self.managed()), "fleet", field="fleet")
        found = self.vms_of([fleet])
        if fleet not in found:
            raise StateConflict("fleet", fleet, "ask the agent that leads it, which alone reads its VMs: see led_by")
        return found[fleet]

    def vms_of(self, names: Collection[str]) -> dict[str, tuple[VmReport, ...]]:
        """Return which VMs of these fleets report, by fleet, group and VM.

        Nothing of one that is not managed now or that another agent leads.
        """
        return {one.fleet.name: self._reports(one.fleet) for one in self._measured if one.fleet.name in names}

    def _reports(self, fleet: Fleet) -> tuple[VmReport, ...]:
        from agent.autoscaling.api import VmReport

        assert self._settings is not None, "the daemon has settings"
        fresh_after = self.host.clock.now() - REPORTING_WITHIN_INTERVALS * self._settings.sample_interval_s
        reports = []
        for group, vms in self.loop.aggregator.vms(fleet).items():
            for vm in sorted(vms):
                at = self.series.newest_sample(fleet.name, group, vm)
                reports.append(VmReport(group, vm, at is not None and at >= fresh_after, at))
        return tuple(reports)

    def schedule(self, name: str) -> tuple[Recurring, ...]:
        """Return the work that the settings announce for a fleet."""
        fleet = None if self._settings is None else self._settings.fleets.get(name)
        return () if fleet is None else fleet.announced_work

    # In the daemon

    def start(self, stack: ExitStack) -> None:
        """Make the loop that the settings ask for; ConfigurationError when a model that decides cannot be had."""
        from agent.autoscaling.inputs import series_of
        from agent.autoscaling.loop import Loop
        from agent.autoscaling.model_watch import ModelWatch
        from agent.autoscaling.policies.fallback import Proposer, ShadowTime, evaluate_within
        from agent.autoscaling.policies.ppo_lstm import MODEL
        from agent.autoscaling.snapshot.aggregate import Aggregator

        host, settings, session = self.host, self._settings, self._session
        assert settings is not None, "the daemon has settings"
        fleets = managed_fleets(settings, host.environ)
        series = series_of(settings, [managed.fleet for managed in fleets])
        models = self.models = ready_models(settings)
        self._rules.shelf.patience_s = MODELS_PATIENCE_S
        self._rules.take_up(fleets)
        self._rules.shelf.patience_s = TURN_PATIENCE_S
        loop = Loop(
            fleets,
            self.store,
            self._actuator(settings, fleets),
            Aggregator(series, host.retained),
            Proposer(evaluate_within(POLICY_DEADLINE_S), models=models, shadows=ShadowTime()),
            host.clock,
            settings.mode,
            host.leads(),
            protect_busy=settings.protect_busy,
            interruptions=interruption_source(settings, session, host.clock),
            fence=host.fence,
            acting=host.acting,
            is_elsewhere=host.is_elsewhere,
            probationer=models.probationer,
            tuned=self._rules.take_up,
            resized=self._resizes(),
            listening_since=host.clock.now(),
        )
        self.attach(loop, series)
        file = settings.learned.model_file
        ready = None if file is None else f"{MODEL}:{file}"
        self._watch = ModelWatch(models, host.problem, host.note, lambda: loop.fleets, ready)
        self._take_last_decided(fleets)
        stack.callback(self._tuning.stop)
        if settings.discovery.enabled and not settings.fleets:
            from agent.autoscaling.fleet_finder import FleetFinder

            # Fleets that are described are meant, and no others.
            self._finder = FleetFinder(settings, session, host.problem)

    def _take_last_decided(self, fleets: Sequence[ManagedFleet]) -> dict[str, float]:
        """Read the policy and setting of each fleet's last decision, for only a change is an event; return its time."""
        from agent.autoscaling.policies.ppo_lstm import names_model

        last = self.store.newest_of([one.fleet.name for one in fleets])
        self._rules.decided({name: inputs.tuned for name, (inputs, _) in last.items()})
        if self._watch is not None:
            # In a window of the schedule another policy than the fleet's own may have decided.
            models = {name: inputs.policy for name, (inputs, _) in last.items() if names_model(inputs.policy)}
            self._watch.decided.update(models)
        return {name: made.at for name, (_, made) in last.items()}

    def sink(self, below: SampleSink) -> SampleSink:
        """Return the series of the fleets, behind the map of other senders' names where there is one."""
        settings = self._settings
        if settings is None or settings.input_map is None:
            return self.series
        from agent.autoscaling.inputs import behind_map, inputs_of

        self._inputs = inputs_of(settings)
        assert self._inputs is not None, "a map is set"
        self.loop.hosts = self._inputs.hosts
        return behind_map(self.series, self._inputs)

    def subject_of(self, path: bytes) -> Subject | None:
        """Return the fleet of a path; of a mapped one where its rule or the path itself names the fleet."""
        text = path.decode("utf-8", "replace")
        name = fleet_of(text) or (self._inputs.map.fleet_of(text) if self._inputs is not None else "")
        return fleet_subject(name) if name in self.managed() else None

    def collectors(self) -> Sequence[Collector]:
        """Return the collectors of every fleet."""
        from agent.autoscaling.inputs import collectors_of

        assert self._settings is not None
        return collectors_of(
            self._settings, self._fleets, self._session, self.host.clock, self.host.environ, self._inputs
        )

    def turn(self, turn: Turn) -> TurnReport:
        """Turn the loop of every fleet that this agent leads once, and measure those that no agent leads."""
        self.minute = MinuteReport(turn.now)
        finder = self._finder
        if finder is not None and not finder.known:
            # Turned without fleets, it would close the open intents as those of no fleet.
            return turn.report
        if finder is not None and (changed := finder.changed) is not None:
            self._manage(changed, finder)
        subjects = {one.fleet.name: fleet_subject(one.fleet.name) for one in self._managed_fleets}
        led = {name: epoch for name, of in subjects.items() if (epoch := turn.leads.of(of)) is not None}
        taken = [
            one
            for one in self._managed_fleets
            if (epoch := led.get(one.fleet.name)) is not None and epoch != self.loop.leads.of(subjects[one.fleet.name])
        ]
        if taken:
            assert self._settings is not None
            actuator = self._actuator(self._settings, self.loop.fleets, taken)
            self.loop.take_over(turn.leads, actuator, self._resizes(), self._take_last_decided(taken))
        self.loop.follow(turn.leads)
        minute = self.loop.turn(turn.now, turn.times)
        if len(self.loop.measured) > len(led):
            others = self.loop.measure(turn.now)
            minute = replace(
                minute, snapshots=(*minute.snapshots, *others.snapshots), unread=(*minute.unread, *others.unread)
            )
        return self.take(turn.report, minute)

    def measure(self, report: TurnReport) -> TurnReport:
        """Fold the minute of every fleet that no other agent leads; nothing is decided."""
        finder = self._finder
        if finder is not None and (changed := finder.changed) is not None:
            self._manage(changed, finder)
        self.loop.follow(Leads(others=self.host.leads().others))
        return self.take(report, self.loop.measure(report.at))

    def take(self, report: TurnReport, minute: MinuteReport) -> TurnReport:
        """Retain each fleet's newest snapshot and decision; return the turn's report with the minute's records."""
        managed = {one.fleet.name for one in self._measured}
        snapshots = {**self.snapshots, **{one.fleet: one for one in minute.snapshots}}
        last = {**self._last, **{one.fleet: one for one in minute.decisions}}
        # Cores and cost of a group that launches something else are not those of the settings.
        unlike = {one.fleet for one in minute.decisions if one.reason is Reason.GROUP_UNSUPPORTED}
        self.minute = minute
        self.snapshots = {name: one for name, one in snapshots.items() if name in managed - unlike}
        self._last = {name: one for name, one in last.items() if name in managed}
        return with_fleets(report, minute)

    def _manage(self, settings: Settings, finder: FleetFinder) -> None:
        """Manage the fleets that were found; LedgerError when that must be tried again."""
        assert self._settings is not None
        before, after = self._settings.fleets, settings.fleets
        fleets = managed_fleets(settings, self.host.environ)
        self.loop.actuator = self._actuator(settings, fleets)
        self.series.watch([managed.fleet for managed in fleets], claims_of(settings))
        self.loop.fleets, self._settings = fleets, settings
        self.host.adopt(settings)
        finder.taken(settings)
        leads = self.host.leads()
        if not leads.numbers:
            # The leaders find them too.
            return
        for name in sorted(after.keys() - before.keys()):
            groups = ", ".join(f"{group.name} ({group.vm_type})" for _, group in after[name].ordered_groups)
            self.host.note(Reason.FLEET_FOUND, f"found by its tags: {groups}", fleet_subject(name))
        for name in sorted(name for name in before.keys() - after.keys() if leads.of(fleet_subject(name)) is not None):
            why = finder.refused.get(name, "no group carries its tag any more")
            self.host.note(Reason.FLEET_GONE, f"{why}: it is left as it is", fleet_subject(name))

    def _actuator(
        self, settings: Settings, fleets: tuple[ManagedFleet, ...], taken: Sequence[ManagedFleet] = ()
    ) -> Actuator:
        """Return the actuator of the settings; the ledger has its protection and busy drains.

        taken: fleets of another leader until now, because of which it replaces the loop's.
        ConfigurationError for wrong settings of its kind and for a package that cannot be used.
        """
        kind, own = actuator_of(settings, self.host.environ)
        others = self.host.leads().others
        names = [one.fleet.name for one in fleets if fleet_subject(one.fleet.name) not in others]
        states = self.store.loop_states(names).values()
        host = ActuatorHost(
            tuple(managed.fleet for managed in fleets),
            settings,
            own,
            self._session,
            self.host.clock,
            protected=frozenset(vm for state in states for vm in state.protected),
            known_busy=frozenset(vm for state in states for vm in state.busy),
            before=self.loop.actuator if taken else None,
            taken=tuple(one.fleet for one in taken),
        )
        try:
            return kind.make(host)
        except TrimtabError:
            raise
        except Exception as error:
            remedy = f"it cannot be made ({type(error).__name__}: {error}): mend it, or choose another TRIMTAB_ACTUATOR"
            raise refused(ACTUATORS, installed(ACTUATORS)[settings.actuator], remedy) from error

    @property
    def _session(self) -> AwsSession:
        assert self.host.session is not None, "the daemon has a session"
        return self.host.session

    def _resizes(self) -> ResizesSince | None:
        """Return what reads AWS's own changes of size; None where another package's actuator sizes other things."""
        from actuators.activities import read_resizes

        session, settings = self.host.session, self._settings
        assert settings is not None, "the daemon has settings"
        if session is None or settings.actuator != OWN_ACTUATOR:
            return None
        return lambda names, since: read_resizes(session, names, since)

    def events(self, now: float) -> tuple[Event, ...]:
        """Look at the models in use; what changed is recorded by the host."""
        if self._watch is not None:
            self._watch.look()
        return ()

    def reload(self) -> None:
        """Look at the models directory at once, also at files that were refused before."""
        if self._watch is not None:
            self._watch.reload()
        self._rules.reload()

    def learning_events(self, now: float) -> Iterator[Event]:
        """Yield news of rounds, and of the settings of the queue rule."""
        yield from super().learning_events(now)
        yield from self._rules.events(now, self._managed_fleets)
        yield from self._tuning.events(now)

    def problems(self) -> Mapping[str, str]:
        """Return which settings of the queue rule are refused, and which fleets cannot be tuned."""
        refused = "; ".join(dict.fromkeys(filter(None, map(self._rules.refusal, self._managed_fleets))))
        return {QUEUE_RULE: refused, "self-tuning": self._tuning.problem()}

    def tunable(self) -> tuple[str, ...]:
        """Return the fleets whose rule is to be tuned now: of the settings, in act mode, and led by this agent.

        Only where the queue rule decides: a record of a scorer's decisions cannot show that a replay of the rule holds.
        """
        settings = self.host.settings
        if settings is None or settings.mode is not Mode.ACT:
            return ()
        leads = self.host.leads()
        named = ((one, settings.fleets.get(one.fleet.name)) for one in self._managed_fleets if one.follows)
        return tuple(
            one.fleet.name
            for one, of in named
            if of is not None
            and of.policy is PolicyName.QUEUE_RULE
            and of.self_tune is not SelfTune.OFF
            and leads.of(fleet_subject(one.fleet.name)) is not None
        )

    def chores(self) -> Iterable[Chore]:
        """Return the start of tuning processes, and the search for tagged fleets, where it is asked for."""
        yield Chore("self-tuning", LOOK_EVERY_S, self._tuning.look)
        if self._finder is not None:
            from agent.autoscaling import fleet_finder

            yield Chore("discovery", fleet_finder.LOOK_EVERY_S, self._finder.look)

    def checks(self) -> Sequence[Check]:
        """Return which model is held ready; a refused one does not make the agent unready: another decides."""
        watch = self._watch
        if watch is None or not (watch.model or watch.refusal):
            return (Check("model", True, "none is set"),)
        if watch.refusal:
            instead = f"{watch.model[:12]} stays" if watch.model else "the rules decide"
            return (Check("model", True, f"refused, {instead}: {watch.refusal}"),)
        return (Check("model", True, f"{watch.model[:12]} is ready"),)

    def unknown_vms(self) -> Mapping[Place, UnknownVms]:
        """Return what was reported under names that no group of a fleet shows."""
        return {} if self._series is None else self._series.unknown_vms()

    def refused_claims(self) -> Mapping[ClaimKey, RefusedClaim]:
        """Return the readings that were not believed."""
        return {} if self._series is None else self._series.refused_claims()

    def conflicts(self) -> Mapping[ClaimKey, Conflict]:
        """Return the readings that contradict others."""
        return {} if self._series is None else self._series.conflicts()

    # For people and programs

    def readings(self) -> Iterator[Reading]:
        """Yield the last minute of every fleet that no other agent leads, and its record in the ledger."""
        from agent.autoscaling.view import ledger_readings, minute_readings

        if self._series is None:
            return
        yield "series", (), len(self.series)
        # A fleet has its series at the agent that leads it.
        fleets = [one.fleet for one in self._measured]
        yield from minute_readings(fleets, self.snapshots, self._last)
        yield from ledger_readings(self.store, fleets, self.host.clock.now())
        yield from self._rules.readings(self._measured)

    def status(self, subject: str, now: float) -> Status:
        """Return a fleet's mode and policy, sizes, queue, cost, last decision, and what holds it."""
        from agent.autoscaling.view import fleet_status, status_lines

        known = fleet_status(self.store, subject, now)
        learnt = self.learnt(subject, known.tuned, now, self.champions())
        lines = (*status_lines(known, now), *([f"  learning: {learnt}"] if learnt else []))
        return Status(subject, lines, codec.plain(known))

    def champions(self) -> Mapping[Subject, Champion]:
        """Return the champions of the models directory, read once for all fleets of a page; none without models."""
        from agent.models.unused_champion import readable_champions

        directory = None if self.models is None else self.models.directory
        return {} if directory is None else readable_champions(directory)

    def learnt(self, subject: str, tuned: str, now: float, champions: Mapping[Subject, Champion]) -> str:
        """Return when a fleet last learnt, and the setting of its queue rule; tuned: that of its last decision.

        In the daemon also why a setting is refused, and which one waits for an approval.
        """
        managed = next((one for one in self._managed_fleets if one.fleet.name == subject), None)
        rule = "" if managed is None else self._rules.line(managed)
        from agent.models.unused_champion import unused_champion

        unused = "" if managed is None else unused_champion(champions, subject, managed.policy)
        line = self.rounds.line(subject, now) if self.rounds is not None else ""
        said = [line, tuned and f"tuned: {tuned}", rule, unused]
        return "; ".join(filter(None, said))

    def card(self, subject: str, now: float) -> Card | None:
        """Return None: fleets are drawn larger, see `page`."""
        return None

    def page(self) -> FleetPage:
        """Return what draws fleets, with bars and the queue's last hour."""
        from agent.autoscaling.page import FleetPage

        return FleetPage(self)

    def router(self) -> APIRouter:
        """Return the routes of fleets."""
        from agent.autoscaling.api import create_router

        return create_router(self)

    def summary(self, record: Record) -> Summary:
        """Return a minute's decision in one plain sentence, with the rails that changed it."""
        from agent.autoscaling.decide import DecisionInputs
        from agent.autoscaling.sentence import plain_sentence

        # A list of decisions is read without what they were made on.
        stored = record.inputs or self.decisions.get(record.decision_id).inputs
        made, inputs = codec.decode(Decision, record.body), codec.decode(DecisionInputs, stored)
        guards = tuple((e.rail, e.detail) for e in made.effects if e.verdict is not Verdict.PASSED)
        return Summary(plain_sentence(made, inputs), made.reason.value, guards)

    def explain(self, record: Record) -> Explanation:
        """Return what was seen and proposed, what each rail did, and what AWS did of it."""
        from agent.autoscaling.explain import as_data, explain, explanation_lines

        full = self.store.decision(record.decision_id)
        in_words = explain(full)
        data = {**as_data(full), "explanation": codec.plain(in_words)}
        return Explanation(tuple(explanation_lines(in_words, full)), data)

    def replay(self, subject: str, since: float | None, until: float | None) -> Iterator[ReplayResult]:
        """Decide recorded minutes again by the policy of then; they must come out the same, byte for byte."""
        from agent.autoscaling.replay import replay

        yield from replay(self.store.inputs(subject, since, until), self._models_then())

    def carry_out(self, verb: str, subject: str | None, given: Mapping[str, Any], now: float) -> Mapping[str, Any]:
        """Pin a fleet, or lift its pin."""
        from agent.autoscaling import pins

        name = one_subject(self, subject, field="--fleet")
        if verb == "unpin":
            return {"fleet": name, "lifted": pins.unpin(self.host.ledger, name, owner=given["owner"], now=now)}
        if verb != "pin":
            return super().carry_out(verb, subject, given, now)
        done = pins.pin(
            self.store,
            name,
            given["size"],
            group=given.get("group"),
            owner=given["owner"],
            reason=given["reason"],
            now=now,
            lasting_s=given["for_s"],
        )
        return {"fleet": name, **asdict(done)}

    def what_if(self, subject: str, policy: str, since: float | None, until: float | None) -> Explanation:
        """Decide recorded minutes by another policy, live in mode and rails as recorded; BadInput when it is none."""
        from agent.autoscaling.policies.ppo_lstm import names_model
        from agent.autoscaling.policies.registry import policy_from_name
        from agent.autoscaling.replay import comparison, what_if

        if not names_model(policy):
            policy = policy_from_name(policy).name
        records = self.store.inputs(subject, since, until)
        return comparison(subject, policy, list(what_if(records, policy, self._models_then())))

    def _models_then(self) -> ModelShelf:
        """Return the models of this process, else those of the environment's directory, which needs no settings."""
        from agent.autoscaling.policies.learned_models import ModelShelf

        environ = self.host.environ
        return self.models or ModelShelf(models_location(environ), key=promotion_key_location(environ))

    @classmethod
    def model(cls, path: Path) -> ModelSummary:
        """Return what a model was trained for; ModelRefused."""
        from agent.models.card import ScorerCard
        from agent.models.file import load_model

        card = load_model(path).card
        about: dict[str, Any] = {"training": card.training, "evaluation": card.evaluation}
        if isinstance(card, ScorerCard):
            data = {"observation": card.form, "actions": "targets", "margin": card.margin, **about}
            return ModelSummary(data, card.form, "targets", "scores", "any fleet")
        network = f"{card.network} {card.hidden_size}" if card.hidden_size else card.network
        data = {
            "observation": card.observation,
            "actions": card.action_set,
            "network": network,
            "masked": card.masked,
            "types": [
                {"name": t.name, "cores": t.cores, "price_per_hour": t.price_per_hour, "limit": t.limit}
                for t in card.types
            ],
            **about,
        }
        does = card.action_set + (", masked" if card.masked else "")
        return ModelSummary(
            data, card.observation, does, network, " + ".join(f"{t.limit} x {t.cores} cores" for t in card.types)
        )

    @classmethod
    def mistakes(cls, settings: Settings) -> Sequence[Mistake]:
        """Return which learned policies have no model that can decide for their fleet."""
        learned = tuple(learned_policies(settings))
        if not learned:
            return ()
        # The shelf of models takes time to load.
        from agent.autoscaling.policies.learned_models import ModelShelf

        return ModelShelf(settings.models_directory, key=settings.promotion_key).unfit(learned)

    @classmethod
    def preflight(cls, settings: Settings, account: Account) -> Iterator[CheckResult]:
        """Yield what was found about the groups of every fleet, models, plug-ins and permission to act."""
        from agent.autoscaling.preflight.fleets import check_fleets, check_input_map

        yield from check_input_map(settings)
        yield from check_fleets(settings, account) if settings.fleets else ()

    @classmethod
    def arrivals(cls, settings: Settings, arrivals: Arrivals) -> Iterator[CheckResult]:
        """Yield whether measurements of the fleets arrive."""
        from agent.autoscaling.preflight.fleets import check_arrivals

        return check_arrivals(settings, arrivals)


def _autoscaling_group(host: ActuatorHost) -> Actuator:
    from actuators.autoscaling_group import AutoScalingActuator
    from collectors.inventory import Inventory

    if isinstance(host.before, AutoScalingActuator):
        inventory = host.before.inventory
        inventory.forget([group.name for fleet in host.taken for group in fleet.groups])
    else:
        inventory = Inventory(
            host.session,
            hook_name=drain_hooks(host.settings, host.fleets),
            unprotects_new=host.settings.unprotect_new,
        )
    return AutoScalingActuator(
        host.session,
        inventory,
        host.fleets,
        drain=lambda fleet: drain_settings(host.settings, fleet),
        protect_busy=host.settings.protect_busy,
        owned_protection=host.protected,
        known_busy=host.known_busy,
    )


def drain_hooks(settings: Settings, fleets: Iterable[Fleet]) -> Callable[[str], str]:
    """Return which hook drains a group, by the group's name in AWS."""
    from collectors.described_groups import DRAIN_HOOK

    described = settings.fleets
    named = {g.name: described[f.name].drain_hook for f in fleets if f.name in described for g in f.groups}
    return lambda group: named.get(group, DRAIN_HOOK)


def drain_settings(settings: Settings, fleet: str) -> DrainSettings:
    """Return how long VMs of a fleet may drain; the default for one that its tags describe."""
    from actuators.drain import DrainSettings

    described = settings.fleets.get(fleet)
    if described is None:
        return DrainSettings()
    return DrainSettings(described.drain_deadline_s, described.drain_notice_s)


AUTOSCALING_GROUP = ActuatorKind(_autoscaling_group)


def interruption_source(settings: Settings, session: AwsSession, clock: Clock) -> InterruptionQueue | None:
    """Return the reader of spot notices; None when none is set, or in observe mode, where reading hides notices."""
    if settings.interruption_queue_url is None or settings.mode is Mode.OBSERVE:
        return None
    from collectors.interruptions import InterruptionQueue

    return InterruptionQueue(session, settings.interruption_queue_url, clock)


def ready_models(settings: Settings) -> ModelShelf:
    """Return the models of the settings' directory; ConfigurationError when one that decides cannot be had."""
    from agent.autoscaling.policies.learned_models import ModelShelf

    models = ModelShelf(settings.models_directory, key=settings.promotion_key, patience_s=MODELS_PATIENCE_S)
    unfit = models.unfit(learned_policies(settings))
    if unfit:
        raise ConfigurationError(unfit)
    models.patience_s = TURN_PATIENCE_S
    return models
