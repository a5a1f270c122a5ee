"""What oversubscription brings to the agent: pools of machines whose CPU is oversold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agent.kernel.checks import advice, missing, ok
from agent.kernel.decision import (
    Capacity,
    Card,
    Explanation,
    Host,
    ModelSummary,
    Part,
    ReplayResult,
    Services,
    Status,
    Summary,
    Turn,
)
from agent.kernel.metrics import Section, counter, gauge
from agent.kernel.store import Record
from agent.kernel.turn import Severity, TurnReport
from agent.ledger import codec
from agent.oversubscription.recorded_hours import HOURS_KEPT
from agent.oversubscription.settings import SUBJECTS, pool_rules_of
from agent.oversubscription.state import HOUR, KEPT, OVERSUBSCRIPTION, OversubscriptionStore, read_decision
from agent.rails.base import RailLimits
from domain.decisions import Event, Reason
from domain.errors import LedgerUnavailable, TrimtabError
from domain.samples import fleet_of
from domain.subject import Subject

if TYPE_CHECKING:
    from fastapi import APIRouter

    from agent.kernel.checks import CheckResult
    from agent.kernel.metrics import Reading
    from agent.oversubscription.pool import Pool
    from agent.oversubscription.publisher import Publisher
    from agent.settings import Settings
    from collectors.base import SampleSink
    from collectors.vm_names import Place, UnknownVms


class OversubscriptionPart(Part):
    """The pools of one agent."""

    name = OVERSUBSCRIPTION
    subject_word = "pool"
    id_letters = "o"
    order = 30
    kept = KEPT
    kept_beside = (HOURS_KEPT,)
    configured_in = SUBJECTS.name
    model_suffixes = (".onnx", ".json")
    learns = True
    asks = ("requests",)
    rehearsal = "agent.rehearsal.oversubscription:SECTION"
    sections = (
        Section(
            "Oversubscription",
            (
                gauge(
                    "oversub_rate",
                    "Reserved share of the cores of a subscriber's new VM.",
                    "pool",
                    "subscriber",
                    unit="ratio (0..1)",
                ),
                gauge(
                    "oversub_saved_cores", "Requested cores of live VMs that are not reserved.", "pool", "subscriber"
                ),
                gauge("oversub_violation_ratio", "Chance of too many hot hours within the horizon.", "pool"),
                gauge("oversub_expected_hot_hours", "Hot hours expected within the horizon.", "pool"),
                gauge("oversub_hot_hours_seen", "Hot hours within the last horizon.", "pool"),
                gauge("oversub_machines_used", "Machines with a VM.", "pool"),
                gauge("oversub_machines_without", "Least number of machines with every core reserved.", "pool"),
                gauge("oversub_frozen", "1 while no rate falls, as one more hot hour violates the SLA.", "pool"),
                gauge(
                    "oversub_rolled_back", "1 while everything is reserved until an operator re-arms the pool.", "pool"
                ),
                counter("oversub_decisions", "Hours decided since the start of the ledger.", "pool"),
                counter("oversub_requests", "Rate requests.", "pool"),
                counter("oversub_fallback", "Rates of 1.0 because of missing or invalid input.", "pool"),
                counter("oversub_shield_interventions", "Requests whose rate the shield raised.", "pool"),
                counter("oversub_rule_requests", "Requests whose rate the rule of the pool set.", "pool"),
                counter("oversub_rule_held", "Requests at the hour's rate, as no rule may set it.", "pool"),
                counter("oversub_rejects", "Rate requests without a machine that had capacity.", "pool"),
                counter("oversub_drift_alarms", "Subscribers whose usage has drifted.", "pool"),
                counter("oversub_hot_machine_hours", "Hot hours, summed over machines.", "pool"),
                counter("oversub_predicted_hot_hours", "Sum of the predicted chances of a hot next hour.", "pool"),
                counter("oversub_realised_hot_hours", "Hours in which at least one machine was hot.", "pool"),
                counter("oversub_clipped_samples", "Readings above 100 % that count as 100 %.", "pool"),
                counter("oversub_rejected_samples", "Readings of usage that were refused.", "pool"),
                gauge("oversub_decision_seconds", "Duration of the last hour's decision, after the fold.", "pool"),
            ),
        ),
    )
    alarms = MappingProxyType(
        {
            Reason.MACHINE_WARM: Severity.WARNING,
            Reason.MACHINE_HOT: Severity.CRITICAL,
            Reason.NO_MACHINE: Severity.WARNING,
            Reason.USAGE_DRIFTED: Severity.WARNING,
            Reason.RATES_FROZEN: Severity.WARNING,
            Reason.RATES_ROLLED_BACK: Severity.CRITICAL,
        }
    )

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.store = OversubscriptionStore(host.ledger)
        self._publishers: dict[str, Publisher] = {}

    @cached_property
    def pools(self) -> Services[Pool]:
        """The pools that the settings describe, made when first asked for."""
        host, settings = self.host, self.host.settings
        pools: Services[Pool] = Services()
        if settings is None or not self.configured:
            return pools
        from actuators.values import Parameters
        from agent.models.directory import ModelsDirectory
        from agent.oversubscription.pool import Pool
        from agent.oversubscription.publisher import Publisher
        from agent.oversubscription.usage import UsageBook

        models = ModelsDirectory(settings.models_directory, settings.promotion_key)
        for name, one in SUBJECTS.of(settings).items():
            book = UsageBook(unknown_per_peer=settings.listener.unknown_vms_per_peer)
            rules = pool_rules_of(name, one)
            pool = pools[name] = Pool(rules, self.store, host.clock, one.inventory_file, book, models)
            # Before readings come, so that those of the VMs that it lists need not wait.
            pool.read_inventory()
            if one.parameter is not None and host.session is not None:
                parameters, limits = Parameters(host.session), RailLimits()
                self._publishers[name] = Publisher(
                    pool, one.parameter, parameters, host.ledger, settings.mode, limits, host.clock
                )
        return pools

    def capacity(self, subject: str) -> Capacity | None:
        """Return the cores promised to VMs that do not run yet, and those of the machines that nothing reserves."""
        if subject not in self.configured:
            return None
        pool = self.pools[subject]
        reserved = sum(vm.cores * vm.rate for vm, _ in pool.promised.values())
        loads = pool.loads
        spare = None if loads is None or pool.problem else float(loads.free_cores[loads.free_cores > 0.0].sum())
        total = None if loads is None else float(pool.rules.machine_cores * loads.free_cores.size)
        return Capacity(reserved=reserved, spare=spare, total=total, rates=pool.rates())

    # In the daemon

    def start(self, stack: ExitStack) -> None:
        """Make the pools before readings come, so that those of the VMs that they list need not wait."""
        if self.configured:
            assert self.pools is not None

    def sink(self, below: SampleSink) -> SampleSink:
        """Return where readings go: those of pools to the pools."""
        from agent.oversubscription.usage import PoolSink

        if not self.configured:
            return below
        return PoolSink(below, {name: pool.book for name, pool in self.pools.items()})

    def subject_of(self, path: bytes) -> Subject | None:
        """Return the pool of a path."""
        name = fleet_of(path.decode("utf-8", "replace"))
        return Subject(self.name, name) if name in self.pools else None

    def turn(self, turn: Turn) -> TurnReport:
        """Turn every pool; one pool's trouble stops no other."""
        # Where a turn is cut short no rate is renewed: answers fall back to 1.0 when the last hour is too old.
        if turn.report.failure is not None:
            return turn.report
        return self.turn_led(turn, lambda name, epoch: self._turn(name, epoch, turn))

    def _turn(self, name: str, epoch: int, turn: Turn) -> tuple[Event, ...]:
        now, controls = turn.report.at, self.controls(name)
        paused = any(pause.active(now) for pause in controls.pauses)
        events = self.pools[name].turn(now, epoch, paused=paused)
        if name in self._publishers:
            events += self._publishers[name].turn(now, epoch, controls)
        return events

    def unknown_vms(self) -> Mapping[Place, UnknownVms]:
        """Return what was reported under names that no inventory lists."""
        return {(name, ""): pool.book.unknown_vms() for name, pool in self.pools.items()}

    # For people and programs

    def readings(self) -> Iterator[Reading]:
        """Yield every pool's counts, and the rates and risk of its newest hour."""
        for name, pool in self.pools.items():
            view = pool.view()
            counts, decision = view.counts, view.decision
            yield "oversub_decisions_total", (name,), counts.decisions
            yield "oversub_requests_total", (name,), counts.requests
            yield "oversub_fallback_total", (name,), counts.fallbacks
            yield "oversub_shield_interventions_total", (name,), counts.interventions
            yield "oversub_rule_requests_total", (name,), counts.ruled
            yield "oversub_rule_held_total", (name,), counts.held
            yield "oversub_rejects_total", (name,), counts.rejects
            yield "oversub_drift_alarms_total", (name,), counts.drift_alarms
            yield "oversub_hot_machine_hours_total", (name,), counts.hot_machine_hours
            yield "oversub_predicted_hot_hours_total", (name,), counts.expected_hot_hours
            yield "oversub_realised_hot_hours_total", (name,), counts.realised_hot_hours
            yield "oversub_clipped_samples_total", (name,), view.clipped
            yield "oversub_rejected_samples_total", (name,), view.rejected_samples
            if decision is None:
                continue
            risk = decision.risk
            yield "oversub_violation_ratio", (name,), risk.violation
            yield "oversub_expected_hot_hours", (name,), risk.expected_hot_hours
            yield "oversub_hot_hours_seen", (name,), risk.hot_hours_seen
            yield "oversub_machines_used", (name,), risk.machines_used
            yield "oversub_machines_without", (name,), risk.machines_without
            yield "oversub_frozen", (name,), decision.frozen
            yield "oversub_rolled_back", (name,), decision.rolled_back
            yield "oversub_decision_seconds", (name,), decision.evaluation_us / 1e6
            for row in decision.subscribers:
                yield "oversub_rate", (name, row.subscriber), row.rate
                yield "oversub_saved_cores", (name, row.subscriber), row.saved_cores

    def status(self, subject: str, now: float) -> Status:
        """Return a pool's rates, risk and counts as of its newest hour."""
        from agent.oversubscription.view import pool_lines

        hour, publication = self.store.newest_hour(subject), self.store.publication(subject)
        memory = self.store.memory(subject)
        lines = [
            *pool_lines(subject, hour, memory, publication),
            *(f"  {line}" for line in self.held(subject, now)),
        ]
        data = {
            "pool": subject,
            "decision": None if hour is None else codec.plain(hour),
            "counts": codec.plain(memory.counts),
            "publication": None if publication is None else codec.plain(publication),
        }
        return Status(subject, tuple(lines), data)

    def card(self, subject: str, now: float) -> Card | None:
        """Return a pool's card, None for one that the settings do not describe."""
        if subject not in self.configured:
            return None
        from agent.oversubscription.view import pool_card

        return pool_card(self.pools[subject].view())

    def router(self) -> APIRouter:
        """Return the routes of overselling."""
        from agent.oversubscription.api import create_router

        return create_router(self.pools, self.store, self.host.ledger)

    def summary(self, record: Record) -> Summary:
        """Return an hour's or a request's decision in one line."""
        made = read_decision(record)
        reason = record.kind if record.kind == HOUR else str(getattr(made, "reasons", ("",))[-1])
        return Summary(made.detail, reason)

    def explain(self, record: Record) -> Explanation:
        """Return rates or levels, the risk, and whether the same comes out again."""
        from agent.oversubscription.view import rate_lines

        made = read_decision(record)
        return Explanation(tuple(rate_lines(made, self.store.inputs(record.decision_id))), codec.plain(made))

    def replay(self, subject: str, since: float | None, until: float | None) -> Iterator[ReplayResult]:
        """Compute the rates of recorded hours, and of requests that a rule decided, again; they must be the same."""
        from agent.oversubscription.choice import choose
        from agent.oversubscription.records import HourDecision
        from agent.oversubscription.request_rule import level_again
        from agent.oversubscription.shield import replayed

        found = self.decisions.newest(self.name, subject, limit=2**31 - 1, since=since, until=until)
        for record in reversed(found):
            made = read_decision(record)
            if not isinstance(made, HourDecision):
                if made.rule is not None:
                    then, now = (made.base_rate, made.rate), (level_again(made), replayed(made)[0])
                    yield ReplayResult(record.decision_id, then == now, "" if then == now else f"{then} -> {now}")
                continue
            inputs = self.store.inputs(record.decision_id)
            if inputs is None:
                continue
            was = {row.subscriber: row.rate for row in made.subscribers}
            again = {choice.subscriber: choice.rate for choice in choose(inputs)}
            differing = [
                f"{name}: {was.get(name)} -> {again.get(name)}"
                for name in was | again
                if was.get(name) != again.get(name)
            ]
            yield ReplayResult(record.decision_id, not differing, "\n".join(differing))

    def carry_out(self, verb: str, subject: str | None, given: Mapping[str, Any], now: float) -> Mapping[str, Any]:
        """Raise LedgerUnavailable for a re-arming: the agent that leads keeps a pool's memory and writes it whole."""
        if verb != "rearm":
            return super().carry_out(verb, subject, given, now)
        raise LedgerUnavailable(
            "a pool is re-armed by the agent that leads it, and none listens on the socket here: start it, or ask on "
            "the machine where it runs"
        )

    @classmethod
    def files(cls, settings: Settings) -> Iterator[CheckResult]:
        """Yield whether each pool's inventory and policy can be used."""
        from agent.models.directory import ModelsDirectory
        from agent.oversubscription.inventory import read_inventory
        from agent.oversubscription.rate_policies import policy_of

        models = ModelsDirectory(settings.models_directory, settings.promotion_key)
        for name, pool in SUBJECTS.of(settings).items():
            subject, rules = f"pool {name}", pool_rules_of(name, pool)
            if pool.inventory_file is None:
                remedy = f"set TRIMTAB_POOLS__{name}__INVENTORY_FILE"
                yield advice(subject, "it has no inventory: every core is reserved", remedy)
            else:
                try:
                    vms = read_inventory(pool.inventory_file, rules)
                    yield ok(subject, f"{pool.inventory_file}: {len(vms):,} VMs")
                except TrimtabError as error:
                    detail = f"{pool.inventory_file}: {error}"
                    yield missing(subject, detail, "correct the file; until then every core is reserved")
            try:
                yield ok(subject, f"policy {policy_of(rules.policy, rules, models).text}")
            except TrimtabError as error:
                remedy = f"correct the file, or set TRIMTAB_POOLS__{name}__POLICY=moving-average"
                yield missing(subject, f"policy {rules.policy}: {error}", remedy)

    @classmethod
    def model(cls, path: Path) -> ModelSummary:
        """Return the levels of a model, or the rates of a file of rates or of a rule; BadInput."""
        if path.suffix != ".onnx":
            from agent.models.directory import read_model_file
            from agent.oversubscription.rule_model import is_rule, rule_in
            from agent.oversubscription.settings import rates_in

            content = read_model_file(path).content
            if is_rule(content):
                file = rule_in(content, path)
                named = dict(zip(file.subscribers, file.rates, strict=True))
                data = {"levels": file.actions, "subscribers": len(named), "alpha": file.alpha, "rates": named}
                return ModelSummary(data, does=f"rule for each request of {', '.join(named)}", limits=cls.name)
            rates = dict(rates_in(content, path).rates)
            return ModelSummary({"rates": rates}, does=f"rates of {', '.join(rates)}", limits=cls.name)
        from agent.oversubscription.rate_model import open_rate_model

        _, card, _ = open_rate_model(path)
        data = {"observation": card.observation, "levels": card.actions, "subscribers": card.subscribers}
        does = f"rates {', '.join(f'{level:g}' for level in card.actions)}"
        return ModelSummary(data, card.observation, does, "values", f"{card.subscribers} subscribers")
