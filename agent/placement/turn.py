"""What the agent that leads does for a pool each turn: inventory and fleet are followed, the shadow and alarms too."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from agent.kernel.decision import Capacity, Host
from agent.models.directory import ModelsDirectory
from agent.models.regular_files import read_file
from agent.placement.book import Book
from agent.placement.choosing import Chooser
from agent.placement.fleet import FleetHosts, effective, merged, to_drain
from agent.placement.records import Comparison, PlacementDecision, PoolHead, Reservation
from agent.placement.reserve import PlacementPool
from agent.placement.settings import FILE, SUBJECTS, PlacementSettings
from agent.placement.state import PLACEMENT, PoolState
from domain.decisions import Event, Mode, Reason
from domain.errors import BadInput, CloudError, ConfigurationError, TrimtabError
from domain.rules.placement.cluster import Cluster
from domain.rules.placement.coupling import effective_cores
from domain.rules.placement.instance import Instance, parse_instance
from domain.rules.placement.mix import distances, mix_of, shares_of, size_class, total_variation
from domain.subject import Subject
from domain.units import DAY_S, HOUR_S

log = structlog.get_logger(__name__)

LARGEST_INVENTORY_BYTES: Final = 64 * 2**20
DRIFT_LEAST: Final = 50
"""Requests that either side of a comparison of mixes needs."""
DRIFT_BEFORE_S: Final = 14 * DAY_S

Container = tuple[str, int]
"""A request's id and the index of its container."""


class InventoryFile:
    """The file of a pool's inventory, read when it, or what is in force, changed; each turn while it is refused."""

    def __init__(self, pool: PlacementPool) -> None:
        self._pool, self._path = pool, pool.settings.inventory_file
        self._seen: object = None
        self._digest = ""

    def follow(self, epoch: int) -> str:
        """Let the pool work by the file; return why it does not, "" when it does or there is none."""
        if self._path is None:
            return ""
        try:
            found = self._path.stat()
            rate = self._pool.head.rate
            signature = (found.st_mtime_ns, found.st_size, found.st_ino, rate)
            if signature == self._seen and self._pool.head.inventory == self._digest:
                return ""
            content = read_file(self._path, LARGEST_INVENTORY_BYTES, follow_links=True)
            digest = hashlib.sha256(content).hexdigest()[:16]
            document: Any = json.loads(content)
            if rate < 1.0:
                digest, document = f"{digest}/{rate:g}", _at_rate(document, rate)
            elsewhere = self._pool.settings.fleet is not None
            self._pool.adopt(document, digest, epoch, hosts_elsewhere=elsewhere)
        except OSError as error:
            return f"inventory {self._path} cannot be read: {error.strerror or error}"
        except (ValueError, RecursionError) as error:
            return f"inventory {self._path} is not valid JSON; keeping the previous one: {error}"
        except (BadInput, ConfigurationError) as error:
            return f"inventory {self._path} is invalid; keeping the previous one: {error}"
        self._seen, self._digest = signature, digest
        return ""


def _at_rate(document: Any, rate: float) -> Any:
    """Return an inventory whose hosts have the cores that containers may request at this rate; an invalid one as is."""
    try:
        kinds = [{**kind, "cores": effective_cores(kind["cores"], rate)} for kind in document["host_types"]]
    except (KeyError, TypeError):
        return document
    return {**document, "host_types": kinds}


def check_inventory(path: Path, *, hosts_elsewhere: bool = False) -> str:
    """Return what an inventory file holds, in a sentence; OSError, BadInput or ConfigurationError.

    hosts_elsewhere: a fleet's VMs are hosts too, so that it may list none.
    """
    try:
        document = json.loads(read_file(path, LARGEST_INVENTORY_BYTES, follow_links=True))
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path} is not valid JSON: {error}") from None
    instance, warnings = parse_instance(document, path.name, hosts_elsewhere=hosts_elsewhere)
    Book(PoolState(PoolHead(), None, document, {}, {}))
    found = f"{path}: {len(instance.hosts)} types of hosts, {len(instance.applications)} applications"
    return "; ".join([found, *warnings])


class Shadow:
    """Another policy that follows what runs on a copy of the pool, and how many hosts either has open."""

    def __init__(self, pool: PlacementPool, chooser: Chooser) -> None:
        self._pool, self._chooser = pool, chooser
        self._cluster: Cluster | None = None
        self._inventory: object = None
        self._hosts: dict[Container, tuple[Reservation, int]] = {}
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        self.since, self._turns, self.requests, self.refused = now, 0, 0, 0
        self._open = self._shadow_open = 0

    def follow(
        self, now: float, real: Cluster, instance: Instance, reservations: Sequence[Reservation]
    ) -> Comparison | None:
        """Take in what changed since the last turn; return the comparison of a day that is over, not yet numbered.

        real, instance, reservations: the pool at one moment. After an error its copy is made anew in the next turn.
        """
        try:
            return self._followed(now, real, instance, reservations)
        except Exception:
            self._cluster = None
            raise

    def _followed(
        self, now: float, real: Cluster, instance: Instance, reservations: Sequence[Reservation]
    ) -> Comparison | None:
        held = {(one.request_id, int(index)): (one, host) for one in reservations for index, host in one.hosts.items()}
        if self._cluster is None or instance != self._inventory:
            self._cluster, self._inventory = real, instance
            self._hosts = {key: (one, real.host(host)) for key, (one, host) in held.items()}
            self._begin(now)
            return None
        cluster = self._cluster
        cluster.lives.sums = real.lives.sums
        cluster.declare(None, now)
        for key in [key for key in self._hosts if key not in held]:
            one, host = self._hosts.pop(key)
            if host >= 0:
                cluster.release(host, cluster.application(one.application))
                cluster.lives.forget(key, now)
        moved = self._follow_hosts(cluster, real)
        added = [key for key in held if key not in self._hosts]
        counts = Counter(request for request, _ in added)
        for request in counts:
            keys = [key for key in added if key[0] == request]
            self._place(now, cluster, keys, held[keys[0]][0])
        for key in moved:
            self._place(now, cluster, [key], self._hosts[key][0])
        self.requests += len(counts)
        self._turns += 1
        self._open += real.open_hosts
        self._shadow_open += cluster.open_hosts
        if now - self.since < DAY_S:
            return None
        made = self._comparison(now)
        self._begin(now)
        return made

    def _place(self, now: float, cluster: Cluster, keys: Sequence[Container], one: Reservation) -> None:
        cluster.declare(one.lifetime_s, now, one.at if one.began is None else one.began)
        chosen = self._chooser.place(cluster, one.application, keys, partial=True, spare=_no_spare)
        hosts = [choice.host for choice in chosen.choices]
        self.refused += len(keys) - len(hosts)
        for k, key in enumerate(keys):
            self._hosts[key] = (one, hosts[k] if k < len(hosts) else -1)

    def _follow_hosts(self, cluster: Cluster, real: Cluster) -> list[Container]:
        """Bring the copy's hosts to what they are now; return the containers whose host failed."""
        moved: list[Container] = []
        there = {host.name: index for index, host in enumerate(cluster.hosts)}
        for index, host in enumerate(real.hosts):
            known = there.get(host.name)
            if known is None or (cluster.failed[known] and not real.failed[index]):
                known = cluster.join(host)
            if cluster.hosts[known] != host:
                cluster.change(known, host)
            if real.failed[index] and not cluster.failed[known]:
                moved += [key for key, (_, at) in self._hosts.items() if at == known]
                cluster.lives.fail(known, cluster.now)
                cluster.fail(known)
            elif bool(real.drained[index]) != bool(cluster.drained[known]):
                (cluster.drain if real.drained[index] else cluster.resume)(known)
        return moved

    def _comparison(self, now: float) -> Comparison:
        turns = max(1, self._turns)
        mine, others = self._open / turns, self._shadow_open / turns
        policy, shadow = self._pool.chooser.main.policy.name, self._chooser.main.policy.name
        saved = mine - others
        words = f"{abs(saved):.1f} hosts {'fewer' if saved >= 0 else 'more'}"
        refused = f"; it placed {self.refused} containers nowhere" if self.refused else ""
        detail = (
            f"in {(now - self.since) / HOUR_S:.0f} h and {self.requests} requests {policy} had {mine:.1f} hosts open, "
            f"{shadow} would have had {words}{refused}"
        )
        return Comparison(
            "",
            self._pool.name,
            now,
            self.since,
            policy,
            shadow,
            self.requests,
            mine,
            others,
            saved,
            self.refused,
            Reason.HOSTS_COMPARED,
            detail,
        )


def _no_spare() -> None:
    return None


class PoolTurns:
    """Turns one pool.

    groups: returns the AWS names of its fleet's groups by the fleet's key for each. capacity: that of its fleet, None
    where it is not known. rate: by which the cores of hosts are divided.
    """

    def __init__(
        self,
        pool: PlacementPool,
        models: ModelsDirectory,
        fleet: FleetHosts | None,
        groups: Callable[[], Mapping[str, str]],
        capacity: Callable[[], Capacity | None],
        rate: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.pool, self._fleet, self._groups, self._capacity = pool, fleet, groups, capacity
        self._rate = rate
        self._file = InventoryFile(pool)
        settings = pool.settings
        self._models = models
        self._shadow_text = settings.shadow
        self.shadow = self._follower(settings.shadow)
        self._gap_since: float | None = None
        self._looked_at: float | None = None
        self._said = ""
        self._lasts: set[Reason] = set()
        self.drift = 0.0

    def _follower(self, text: str | None) -> Shadow | None:
        if text is None:
            return None
        followed = self.pool.settings.model_copy(update={"policy": text, "canary": None})
        return Shadow(self.pool, Chooser(self.pool.name, followed, self._models))

    def _look_at_probation(self) -> None:
        """Let the shadow be what is on probation for the pool, else that of the settings."""
        subject, text = Subject(PLACEMENT, self.pool.name), self.pool.settings.shadow
        try:
            one = self._models.probationers().get(subject)
            if one is not None:
                self._models.check_probationer(subject, one)
                self._models.read(one.model)
                text = f"{FILE}:{self._models.file_of(one.model)}"
        except TrimtabError as error:
            log.warning("probation_refused", pool=self.pool.name, detail=str(error))
        if text != self._shadow_text:
            self._shadow_text, self.shadow = text, self._follower(text)

    def turn(self, now: float, monotonic: float, epoch: int) -> tuple[Event, ...]:
        """Turn once; return what is an alarm while it lasts. Raises LedgerError, or Fenced once the epoch is over."""
        pool, notes = self.pool, list[Event]()
        pool.lapse(epoch)
        pool.chooser.look()
        self._look_at_probation()
        pool.follow_rate(self._rate(), epoch)
        troubles = [self._file.follow(epoch), self._follow_fleet(epoch)]
        refusal = "; ".join(filter(None, troubles))
        made, trouble = self._compare(now)
        pool.problem = "; ".join(filter(None, (refusal, trouble)))
        if made is not None:
            notes.append(pool.event(now, made.reason, made.detail))
        lasting = self._lasting(now, monotonic)
        # Recorded when it begins; an alarm for as long as it is returned.
        notes += [event for event in lasting if event.reason not in self._lasts]
        if refusal:
            refused = pool.event(now, Reason.INVENTORY_REFUSED, refusal)
            lasting.append(refused)
            notes += [refused] if refusal != self._said else []
        self._said = refusal
        if made is not None or notes:
            pool.note([made] if made is not None else [], notes, epoch)
        self._lasts = {event.reason for event in lasting}
        return tuple(lasting)

    def _compare(self, now: float) -> tuple[Comparison | None, str]:
        """Let the shadow follow; return the comparison of a day that is over, and why it could not follow, "" for none.

        It places nothing, so nothing waits for it.
        """
        if self.shadow is None:
            return None, ""
        snapshot = self.pool.snapshot()
        try:
            return self.shadow.follow(now, *snapshot), ""
        except Exception as error:
            log.exception("shadow_failed", pool=self.pool.name)
            return None, f"the shadow failed and starts again: {type(error).__name__}: {error}"

    def _follow_fleet(self, epoch: int) -> str:
        """Take in the fleet's VMs; return why they are not known, "" when they are."""
        if self._fleet is None:
            return ""
        groups, known = self._groups(), self.pool.host_records()
        if not groups:
            return f"the fleet {self.pool.settings.fleet} is not managed: its VMs are not known"
        try:
            found = effective(self._fleet.read(groups), self.pool.head.rate)
        except CloudError as error:
            return f"the fleet {self.pool.settings.fleet} cannot be read, its hosts are unchanged: {error}"
        except (KeyError, TypeError, ValueError) as error:
            return f"AWS's description of the fleet cannot be used ({type(error).__name__}: {error})"
        capacity = self._capacity()
        drain = frozenset[str]()
        if self.pool.mode is Mode.ACT and capacity is not None and capacity.leaving:
            cluster, _, _ = self.pool.snapshot()
            cluster.declare(None, self.pool.clock.now())
            drain = to_drain(cluster, found, known, capacity)
        changed, gone = merged(found, known, drain)
        self.pool.follow(changed, gone, epoch, known)
        return ""

    def _lasting(self, now: float, monotonic: float) -> list[Event]:
        settings, figures = self.pool.settings, self.pool.view().figures
        found = []
        if figures.gap <= settings.gap_alarm:
            self._gap_since = None
        elif self._gap_since is None:
            self._gap_since = monotonic
        elif monotonic - self._gap_since >= settings.gap_alarm_hours * HOUR_S:
            detail = (
                f"{figures.open_hosts} hosts are open, {figures.gap:.1%} above the lower bound of "
                f"{figures.lower_bound} (at most {settings.gap_alarm:.1%}) for {settings.gap_alarm_hours:g} h: look at "
                f"trimtab status placement {self.pool.name}"
            )
            found.append(self.pool.event(now, Reason.PLACEMENT_GAP, detail))
        if self._looked_at is None or monotonic - self._looked_at >= HOUR_S:
            self._looked_at = monotonic
            self._look_at_drift(now)
        if self.drift > settings.drift_alarm:
            detail = (
                f"the requests of the last day differ from those of the 14 days before by {self.drift:.2f} "
                f"(at most {settings.drift_alarm:g}): train the policy again"
            )
            found.append(self.pool.event(now, Reason.PLACEMENT_DRIFTED, detail))
        farther = {part: far for part, far in self.pool.training_distance.items() if far > settings.drift_alarm}
        if farther:
            detail = (
                f"requests or hosts differ from the training data of {self.pool.chooser.in_force.name}: "
                f"{', '.join(f'{part} {far:.2f}' for part, far in farther.items())} (at most "
                f"{settings.drift_alarm:g}): train a policy on these requests and hosts"
            )
            found.append(self.pool.event(now, Reason.UNLIKE_TRAINING, detail))
        return found

    def _look_at_drift(self, now: float) -> None:
        """Compare the last day with what was before it, and with what the policy was trained on."""
        pool, store = self.pool, self.pool.store
        last = store.requests_between(pool.name, now - DAY_S, now)
        before = store.requests_between(pool.name, now - DAY_S - DRIFT_BEFORE_S, now - DAY_S)
        self.drift = mix_distance(last, before)
        training = pool.chooser.in_force.training
        if training is None or training.mix is None:
            pool.training_distance = {}
            return
        cluster, _, _ = pool.snapshot()
        apps = {app.name: app for app in cluster.applications}
        known = [(apps[one.application], one.count) for one in last if one.application in apps]
        hosts = [
            (host.capacity, 1.0) for host, failed in zip(cluster.hosts, cluster.failed, strict=False) if not failed
        ]
        pool.training_distance = distances(mix_of(known if len(known) >= DRIFT_LEAST else (), hosts), training.mix)


def mix_distance(one: Sequence[PlacementDecision], other: Sequence[PlacementDecision]) -> float:
    """Return the total variation distance of two mixes of requests, by application and size class, from 0 to 1.

    0 where either side has fewer than DRIFT_LEAST requests.
    """
    if min(len(one), len(other)) < DRIFT_LEAST:
        return 0.0
    return total_variation(
        *(shares_of(Counter((made.application, size_class(made.count)) for made in side)) for side in (one, other))
    )


def turns_of(host: Host) -> dict[str, PoolTurns]:
    """Return the pools that the settings describe, on the host's ledger, each with its turns."""
    assert host.settings is not None, "the settings describe pools"
    models = ModelsDirectory(host.settings.models_directory, host.settings.promotion_key)
    turns = {}
    for name, settings in SUBJECTS.of(host.settings).items():
        chooser = Chooser(name, settings, models)
        capacity = _capacity(host, settings)
        pool = PlacementPool(
            name,
            settings,
            host.ledger,
            host.clock,
            chooser,
            host.settings.mode,
            capacity,
            partial(_is_led, host, Subject(PLACEMENT, name)),
        )
        fleet = FleetHosts(host.session, settings) if settings.fleet and host.session is not None else None
        turns[name] = PoolTurns(pool, models, fleet, _groups(host, settings), capacity, partial(_rate, host, settings))
    return turns


def _is_led(host: Host, pool: Subject) -> bool:
    return host.leads().of(pool) is not None


def _capacity(host: Host, settings: PlacementSettings) -> Callable[[], Capacity | None]:
    """Return what asks for the capacity of a pool's fleet."""
    return lambda: None if settings.fleet is None else host.capacity("autoscaling", settings.fleet)


def _rate(host: Host, settings: PlacementSettings) -> float:
    """Return the rate in force by which the cores of a pool's hosts are divided, 1 without any."""
    wanted = settings.oversubscription_pool
    found = None if wanted is None else host.capacity("oversubscription", wanted)
    rates = {} if found is None else found.rates
    subscriber = settings.oversubscription_subscriber
    rate = max(rates.values(), default=1.0) if subscriber is None else rates.get(subscriber, 1.0)
    return rate if 0.0 < rate <= 1.0 else 1.0


def _groups(host: Host, settings: PlacementSettings) -> Callable[[], Mapping[str, str]]:
    """Return what asks for the AWS names of the groups of a pool's fleet, by the fleet's key for each."""
    return lambda: {key: name for (fleet, key), name in host.groups().items() if fleet == settings.fleet}
