"""Puts an agent together from its settings: ledger, inputs, cloud and policies, started and stopped as one."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from actuators.autoscaling_group import AutoScalingActuator
from actuators.drift import DriftRule
from agent.admission.clusters import Clusters, clusters_of
from agent.admission.gate.gate import Gate
from agent.admission.gate.start import gate_of, gated
from agent.autoscaling.policies.fallback import Proposer, evaluate_within
from agent.autoscaling.ports import ManagedFleet, Ports, TickReport
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.standby import watch
from agent.autoscaling.tick import run_tick
from agent.ledger import Ledger, LedgerOwner, lock_directory, lock_ledger, sqlite_path
from agent.models.shelf import ModelShelf, named_policy, unfit_models
from agent.oversubscription.pools import Pools, pools_of
from agent.oversubscription.usage_book import PoolSink
from agent.service.binding import BoundLeader, account_of, manages_aws, region_of
from agent.service.inputs import collectors_of
from agent.service.leader import Leadership, LeaseLeader, SoleLeader
from agent.service.refusals import Door
from agent.settings import Settings
from agent.settings.fleet import PolicyName
from agent.settings.inputs import MeasuredBy
from agent.settings.kinds import networks_of
from collectors.aws import AwsOptions, AwsSession
from collectors.base import SampleSink
from collectors.intake import Claims
from collectors.interruptions import InterruptionQueue
from collectors.inventory import Inventory
from collectors.listener import GraphiteListener, ListenerLimits
from collectors.polling import Poller
from collectors.vm_names import Place, UnknownVms
from domain.clock import Clock, JumpDetector, read_both
from domain.decisions import Mode
from domain.errors import BadInput, ConfigurationError, LedgerUnavailable, Mistake

log = structlog.get_logger(__name__)

POLICY_DEADLINE_S = 1.0
TURN_SHARE = 0.7
"""The share of the interval after which a turn begins no further call to AWS."""
MODELS_PATIENCE_S = 20.0
"""So long a start waits for the models that decide; what takes longer is taken up in a later minute."""
TURN_PATIENCE_S = 0.5
"""So long a turn waits for a model that it has not seen before; it goes on with the one before, or the rules."""
LEDGER_PATIENCE_S = 60.0
LEDGER_RETRY_S = 3.0
NEEDED: Mapping[PolicyName, tuple[str, ...]] = {
    PolicyName.QUEUE_RULE: ("cpu", "queue"),
    PolicyName.LEARNED: ("cpu", "ram", "queue"),
    PolicyName.THRESHOLD: ("cpu",),
    PolicyName.TARGET_TRACKING: ("cpu",),
    PolicyName.HOLD: (),
}
"""The inputs without which a policy's minute counts as stale."""


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """A key pair for a look-alike; with AWS itself, credentials come from its own chain."""

    access_key_id: str
    secret_access_key: str


@dataclass(slots=True)
class Agent:
    """A running agent, but for the schedule that calls `turn`."""

    settings: Settings
    ports: Ports
    leadership: BoundLeader
    store: SeriesStore
    listener: GraphiteListener
    poller: Poller
    session: AwsSession
    clock: Clock
    models: ModelShelf
    clusters: Clusters
    gate: Gate | None = None
    pools: Pools = field(default_factory=lambda: Pools({}))
    door: Door = field(init=False)

    def __post_init__(self) -> None:
        self.door = Door(lambda: self.listener.counters, self.store.refused_claims, self.unknown_vms)

    def unknown_vms(self) -> dict[Place, UnknownVms]:
        """Return by fleet and group key, or pool and "", what was reported under names that no inventory shows."""
        return {
            **self.store.unknown_vms(),
            **{(name, ""): pool.book.unknown_vms() for name, pool in self.pools.items()},
        }

    @property
    def ledger(self) -> Ledger:
        """The ledger that the loop writes."""
        return self.ports.ledger

    def turn(self) -> TickReport:
        """Turn the loop once, now; while another agent leads, only measure."""
        times = read_both(self.clock)
        now = times.now
        # What AWS keeps waiting must not run into the next turn, nor look as if the loop stood still.
        with self.session.within(TURN_SHARE * self.settings.tick_interval_s):
            self.leadership.look()
            epoch = self.leadership.epoch()
            if epoch is None:
                report = watch(now, self.ports)
                why = self.leadership.failure
                return replace(report, failure=why, failure_reason=self.leadership.failure_reason) if why else report
            if epoch != self.ports.epoch:
                self._take_over(epoch)
            report = run_tick(now, self.ports, times)
            if self.gate is not None:
                report = gated(self.gate, report, epoch, [managed.fleet for managed in self.ports.fleets])
            return self.pools.turned(report, epoch)

    def adopt(self, settings: Settings) -> None:
        """Manage the fleets of these settings from the next turn on; LedgerError when that must be tried again."""
        fleets = managed_fleets(settings)
        self.ports.actuator = actuator(settings, self.session, fleets, self.ports.ledger)
        plain = [managed.fleet for managed in fleets]
        self.store.watch(plain, claims_of(settings))
        self.poller.replace(collectors_of(settings, plain, self.session))
        self.ports.fleets = fleets
        self.settings = settings

    def _take_over(self, epoch: int) -> None:
        """Forget what another leader may have changed meanwhile: whose protection is whose, and the clock's steps."""
        ports = self.ports
        ports.actuator = actuator(self.settings, self.session, ports.fleets, ports.ledger)
        ports.jumps = JumpDetector()
        ports.epoch = epoch


@contextmanager
def assembled(
    settings: Settings,
    clock: Clock,
    keys: AwsKeys | None = None,
    wait: Callable[[float], object] | None = None,
) -> Iterator[Agent]:
    """Start everything an agent needs and stop it when the block ends.

    wait: waits so many seconds between attempts to reach a ledger on PostgreSQL, and returns something true when that
    is to be given up; without it there is one attempt. Raises LedgerError when the ledger or the state directory cannot
    be used, BadInput when the listener's port cannot be listened on, ConfigurationError when no AWS region is known.
    """
    with ExitStack() as stack:
        stack.enter_context(lock_directory(Path(settings.state_directory)))
        if (file := sqlite_path(settings.ledger_url.get_secret_value())) is not None:
            stack.enter_context(lock_ledger(file))
        ledger = stack.enter_context(opened_ledger(settings, wait))
        leadership = BoundLeader(
            ledger,
            account_of(settings, lambda: session),
            lambda account: LedgerOwner(account, region_of(settings, session), settings.deployment),
            lambda: leadership_of(settings, ledger, clock),
        )
        # First of all, so that the lead is given up last but before the ledger closes.
        stack.callback(leadership.stop)
        fleets = managed_fleets(settings)
        session = aws_session(settings, clock, keys, lambda: leadership.fence(ports.epoch))
        stack.callback(session.close)
        check_region(settings, session)
        leadership.start()
        store = SeriesStore(
            watched=[managed.fleet for managed in fleets],
            claims=claims_of(settings),
            unknown_per_peer=settings.listener.unknown_vms_per_peer,
        )
        models = ModelShelf(settings.models_directory, key=settings.promotion_key, patience_s=MODELS_PATIENCE_S)
        unfit = unfit_models(settings, models)
        if unfit:
            raise ConfigurationError(unfit)
        models.patience_s = TURN_PATIENCE_S
        ports = Ports(
            fleets=fleets,
            ledger=ledger,
            actuator=actuator(settings, session, fleets, ledger),
            aggregator=Aggregator(store),
            proposer=Proposer(evaluate_within(POLICY_DEADLINE_S), models=models),
            wall=clock.now,
            monotonic=clock.monotonic,
            mode=settings.mode,
            epoch=leadership.epoch() or 0,
            protect_busy=settings.protect_busy,
            interruptions=interruption_source(settings, session, clock),
            fence=lambda: leadership.fence(ports.epoch),
        )
        pools = pools_of(settings, ledger, clock, session)
        listener = started_listener(settings, usage_into(pools, store), clock)
        stack.callback(listener.stop)
        poller = Poller(collectors_of(settings, [managed.fleet for managed in fleets], session), store, clock)
        poller.start()
        stack.callback(poller.stop)
        clusters = clusters_of(settings, ledger, clock)
        gate = gate_of(settings, session, ledger, clusters, clock)
        yield Agent(settings, ports, leadership, store, listener, poller, session, clock, models, clusters, gate, pools)


def opened_ledger(settings: Settings, wait: Callable[[float], object] | None) -> Ledger:
    """Return the ledger, opened; one on PostgreSQL is waited for, as at a boot it may come up after this agent.

    A SQLite file that cannot be used needs a person: that is said at once.
    """
    url = settings.ledger_url.get_secret_value()
    give_up_at = time.monotonic() + LEDGER_PATIENCE_S
    while True:
        try:
            return _sound(Ledger.open(url, witness_in=Path(settings.state_directory)))
        except LedgerUnavailable as error:
            if url.startswith("sqlite") or wait is None or time.monotonic() >= give_up_at:
                raise
            log.warning("ledger_not_there_yet", detail=str(error), again_in_s=LEDGER_RETRY_S)
            if wait(LEDGER_RETRY_S):
                raise


def _sound(ledger: Ledger) -> Ledger:
    """Return a ledger whose file is not damaged; LedgerUnavailable, with it closed, when it is."""
    try:
        if damage := ledger.damage():
            raise LedgerUnavailable(
                f"ledger {ledger.place} is damaged ({damage}): run `trimtab ledger restore FILE` with a copy of it"
            )
    except BaseException:
        ledger.close()
        raise
    return ledger


def leadership_of(settings: Settings, ledger: Ledger, clock: Clock) -> Leadership:
    """Return who says whether this agent may act: itself on SQLite, the lease where several agents share a ledger."""
    # Process numbers come back, on the next boot or in containers, where every agent is process 1.
    owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    if not ledger.shared:
        return SoleLeader(ledger, owner, clock.now())
    return LeaseLeader(ledger, owner, clock, settings.leader.lease_s, settings.leader.renew_s)


def check_region(settings: Settings, session: AwsSession) -> None:
    """Raise ConfigurationError when there is something to manage and no region to look for it."""
    if manages_aws(settings) and session.region is None:
        remedy = "give the AWS region of the fleets, such as eu-west-1; neither it nor the AWS chain names one"
        raise ConfigurationError([Mistake("TRIMTAB_AWS__REGION", "(not set)", remedy)])


def actuator(
    settings: Settings, session: AwsSession, fleets: tuple[ManagedFleet, ...], ledger: Ledger
) -> AutoScalingActuator:
    """Return an actuator for the fleets that knows from the ledger which scale-in protection is ours."""
    return AutoScalingActuator(
        session,
        Inventory(session),
        [managed.fleet for managed in fleets],
        protect_busy=settings.protect_busy,
        owned_protection={vm for managed in fleets for vm in ledger.loop_state(managed.fleet.name).protected},
    )


def claims_of(settings: Settings) -> dict[str, Claims]:
    """Return by fleet what its sources may claim at most."""
    return {name: fleet.believed() for name, fleet in settings.fleets.items()}


def usage_into(pools: Pools, store: SampleSink) -> SampleSink:
    """Return where the listener's readings go: those of pools to the pools, the others to the store."""
    return PoolSink(store, {name: pool.book for name, pool in pools.items()}) if pools else store


def started_listener(settings: Settings, store: SampleSink, clock: Clock) -> GraphiteListener:
    """Return a listener that listens; BadInput says what to do when the port cannot be had."""
    listens = settings.listener
    limits = ListenerLimits(
        networks=networks_of(listens.networks),
        max_connections=listens.max_connections,
        per_peer=listens.connections_per_peer,
    )
    listener = GraphiteListener(store, clock.now, listens.host, listens.port, limits, tcp=listens.tcp, udp=listens.udp)
    try:
        listener.start()
    except OSError as error:
        remedy = (
            f"{listens.host}:{listens.port} cannot be listened on ({error.strerror or error}): end what listens there "
            f"(`ss -ltnup | grep :{listens.port}` shows it), or choose another host or port"
        )
        raise BadInput("TRIMTAB_LISTENER__PORT", listens.port, remedy) from error
    return listener


def managed_fleets(settings: Settings) -> tuple[ManagedFleet, ...]:
    """Return every configured fleet with what its decisions depend on."""
    fleets = []
    for name, fleet in settings.fleets.items():
        limits = settings.limits(name)
        aggregation = AggregationSettings(
            limits=limits,
            sample_interval_s=settings.sample_interval_s,
            grace_s=settings.grace_s,
            idle_s=fleet.idle_s,
            needed=NEEDED[fleet.policy],
            submitted_late=fleet.submitted_from is MeasuredBy.CLOUDWATCH,
            job_core_s=fleet.queue_rule.job_core_s,
        )
        drift = DriftRule(settings.drift.value)
        policy = named_policy(settings, fleet.policy_text)
        shadow = None if fleet.shadow_text is None else named_policy(settings, fleet.shadow_text)
        fleets.append(ManagedFleet(settings.fleet(name), limits, policy, shadow, aggregation, drift))
    return tuple(fleets)


def aws_session(settings: Settings, clock: Clock, keys: AwsKeys | None, fence: Callable[[], None]) -> AwsSession:
    """Return the session through which every AWS call goes; in observe mode it refuses whatever changes something."""
    options = AwsOptions(
        region=settings.aws.region,
        endpoint_url=settings.aws.endpoint_url,
        connect_timeout_s=settings.aws.connect_timeout_s,
        read_timeout_s=settings.aws.read_timeout_s,
        calls_per_minute=settings.aws.calls_per_minute,
        access_key_id=keys.access_key_id if keys else None,
        secret_access_key=keys.secret_access_key if keys else None,
    )
    return AwsSession(options, clock, read_only=settings.mode is Mode.OBSERVE, fence=fence)


def interruption_source(settings: Settings, session: AwsSession, clock: Clock) -> InterruptionQueue | None:
    """Return the reader of spot notices; None when none is set, or in observe mode, where reading hides notices."""
    if settings.interruption_queue_url is None or settings.mode is Mode.OBSERVE:
        return None
    return InterruptionQueue(session, settings.interruption_queue_url, clock)
