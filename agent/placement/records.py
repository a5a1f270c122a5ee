"""What a placement pool is asked, what it answers, and what the ledger keeps of its hosts and reservations."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from domain.decisions import Reason
from domain.errors import BadInput
from domain.rules.placement.instance import DIMENSIONS, LONGEST_LIFETIME_S, Application, Vector
from domain.rules.placement.lifetimes import LifetimeRule

LONGEST_ID: Final = 128
ID: Final = r"^[!-.0-~]{1,128}$"
"""Of a request or host: it may stand in logs and in paths."""
MOST_COUNT: Final = 5000
"""Containers of one request."""
BEST_FIT: Final = "bf"
"""The policy that replaces one that failed."""
LIFETIME: Final = "lifetime"
"""The default policy of a new pool."""
_RFC_3339: Final = r"[0-9]{4}(-[0-9]{2}){2}[Tt ]([0-9]{2}:){2}[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
_LAST_MOMENT: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
LARGEST: Final = 2**31 - 1
REQUEST: Final = "request"
MOVE: Final = "move"
COMPARISON: Final = "comparison"
"""Kinds of decisions: on a request, on the containers of a host that failed, and a day's comparison of policies."""


_NUMBER: Final = re.compile(r"(?:^|: )(\d+) containers\b")


def given_back(detail: str) -> int:
    """Return how many containers an event of GIVEN_BACK was about, by its words; 0 where they do not say."""
    found = _NUMBER.search(detail)
    return int(found[1]) if found else 0


class Stage(StrEnum):
    """The state of a reservation; one that holds nothing is forgotten.

    request --> RESERVED --confirm--> CONFIRMED --all released, or lost with their hosts--> forgotten
                   |
                   +--cancel, or not confirmed in time------------------------------------> forgotten
    """

    RESERVED = "reserved"
    CONFIRMED = "confirmed"


class HostState(StrEnum):
    """up: takes containers. draining: keeps what it has and takes no more. failed: has none and takes none.

    join --> UP --drain--> DRAINING      fail, or gone from its fleet: UP, DRAINING --> FAILED
             ^                |
             +-----resume-----+          join: FAILED --> UP
    """

    UP = "up"
    DRAINING = "draining"
    FAILED = "failed"


class HintSource(StrEnum):
    """Where the expected lifetime of a container comes from."""

    REQUEST = "request"
    APPLICATION = "application"
    NONE = "none"


class Cause(StrEnum):
    """Why containers run no more. Only the lifetime of released ones is a lifetime; the others were cut short."""

    RELEASED = "released"
    CANCELLED = "cancelled"
    LAPSED = "lapsed"
    HOST_FAILED = "host_failed"


GIVEN_BACK: Final[Mapping[Reason, Cause]] = MappingProxyType(
    {
        Reason.CONTAINERS_RELEASED: Cause.RELEASED,
        Reason.PLACEMENT_CANCELLED: Cause.CANCELLED,
        Reason.PLACEMENT_LAPSED: Cause.LAPSED,
    }
)
"""Events after which containers of a request run no more, each with their number, and the cause."""


class Origin(StrEnum):
    """Where a host comes from."""

    INVENTORY = "inventory"
    API = "api"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """A number of containers of an application. partial: place those that fit where not all do.

    lifetime_s: expected seconds of each container from now on; expected_end: epoch seconds of its end. At most one.
    """

    pool: str
    request_id: str
    application: str
    count: int = 1
    partial: bool = False
    requested_by: str = ""
    lifetime_s: float | None = None
    expected_end: float | None = None

    @property
    def fingerprint(self) -> str:
        """What the request asks for, in short: equal for equal requests."""
        asked: list[object] = [self.application, self.count, self.partial]
        # Left out without a declaration, so that requests of earlier versions keep their fingerprint.
        if (self.lifetime_s, self.expected_end) != (None, None):
            asked += [self.lifetime_s, self.expected_end]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    def hint(self, app: Application, now: float) -> tuple[float | None, HintSource]:
        """Return the expected seconds of a container from now on, None without any, and their source.

        BadInput for an end that is not after now, or too far.
        """
        if self.expected_end is not None:
            left_s = self.expected_end - now
            if left_s <= 0.0:
                remedy = (
                    f"by the agent's clock, {_clock_text(now)}, it is {-left_s:.0f} s ago: correct the end, or the "
                    "clock of the caller or of the agent, or give lifetime_s"
                )
                raise BadInput("expected_end", _clock_text(self.expected_end), remedy)
            if left_s > LONGEST_LIFETIME_S:
                remedy = f"give an end within {LONGEST_LIFETIME_S:.0f} s of the agent's clock, {_clock_text(now)}"
                raise BadInput("expected_end", _clock_text(self.expected_end), remedy)
            return left_s, HintSource.REQUEST
        if self.lifetime_s is not None:
            return self.lifetime_s, HintSource.REQUEST
        return app.lifetime_s, HintSource.NONE if app.lifetime_s is None else HintSource.APPLICATION


@dataclass(frozen=True, slots=True)
class ContainerPlacement:
    """A container: its index in the request, its host, and why that one.

    score, runner_up, runner_up_score: of the policy; None where no other host was feasible. feasible: hosts that could
    take it. opened: whether it is the first container of its host. policy: what chose, which is best fit where the
    pool's policy was replaced.
    """

    index: int
    host: str
    score: float | None
    runner_up: str | None
    runner_up_score: float | None
    feasible: int
    opened: bool
    policy: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A feasible host with its score, and the terms that the score sums."""

    host: str
    score: float
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HostEnd:
    """A host as `lifetime` compares it.

    left_s: predicted seconds until its last container ends, None where none of them has an expectation. extension,
    gap, residual, cores, age: terms of the weighted sum, the smallest of which is the best; by classes the class of the
    delay of that end by the container, the steps by which it ends later than the container, and 0. opening: number of
    its present opening, 0 for a closed host.
    """

    host: str
    left_s: float | None
    extension: float
    gap: float
    opening: int
    residual: float = 0.0
    cores: float = 0.0
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class LifetimeReason:
    """Why `lifetime` took the host of the first container. r2: of the calibration at that time.

    life_s: predicted seconds of the container, None without an expectation. hosts: the best first, then the second.
    """

    rule: LifetimeRule
    r2: float
    life_s: float | None
    hosts: tuple[HostEnd, ...]


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The answer to a request, as recorded before it is given.

    fingerprint: of what was asked. containers: those that were placed. best: the hosts of the best scores for the first
    of them. unplaced: how many were not placed. infeasible: hosts by the reason for which each could not take the
    container that found none, or else the first. until: when an unconfirmed reservation
    lapses, None where nothing is reserved. advice: the agent observes, and nothing is reserved. replaced: why best fit
    decided in place of the pool's policy, "" where it did not. open_hosts: with this request, and free_cores of the
    hosts that are up. revision: of the pool with this decision; digest: of its state, every 1000 decisions.
    policy_digest: of the policy that decided, "" in what earlier versions recorded.
    outside: what of the request that policy saw none of in its training. lifetime_s: expected seconds of each
    container from `at` on, None without any; lifetime_from: their source. lifetime: None for another policy. rate: of
    the pool.
    """

    decision_id: str
    pool: str
    at: float
    request_id: str
    application: str
    count: int
    partial: bool
    fingerprint: str
    reason: Reason
    detail: str
    policy: str
    containers: tuple[ContainerPlacement, ...] = ()
    best: tuple[Candidate, ...] = ()
    unplaced: int = 0
    infeasible: Mapping[str, int] = field(default_factory=dict)
    until: float | None = None
    advice: bool = False
    replaced: str = ""
    open_hosts: int = 0
    free_cores: int = 0
    evaluation_us: int = 0
    revision: int = 0
    digest: str = ""
    requested_by: str = ""
    policy_digest: str = ""
    outside: tuple[str, ...] = ()
    lifetime_s: float | None = None
    lifetime_from: HintSource = HintSource.NONE
    lifetime: LifetimeReason | None = None
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request holds now: the hosts of its containers by index, while they are reserved or run.

    until: when it lapses unless it is confirmed, by the wall clock of the agent that made it. moved: containers whose
    host failed and that were placed again. lost: those of a failed host that found no other. openings: number of the
    present opening of each of its hosts (`Cluster.opening`), so that their order survives a restart. lifetime_s:
    expected seconds of its containers, None for no expectation. began: when it was confirmed, None before, and in
    records of earlier versions.
    """

    request_id: str
    application: str
    decision_id: str
    at: float
    stage: Stage
    until: float
    hosts: Mapping[str, str]
    released: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    requested_by: str = ""
    openings: Mapping[str, int] = field(default_factory=dict)
    lifetime_s: float | None = None
    began: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The request's id and the decision's: an id may be used again."""
        return self.request_id, self.decision_id


@dataclass(frozen=True, slots=True)
class Ended:
    """Containers of one request, by index, that ended at one moment.

    cores: of each. lifetime_s: as expected, None for no expectation. began: when they were confirmed, None where they
    were not, or where an earlier version confirmed them.
    """

    request_id: str
    application: str
    containers: tuple[int, ...]
    cores: int
    lifetime_s: float | None
    began: float | None
    ended: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host that is not as the inventory has it, or not in it.

    capacity: in effect now, which may be below what the host holds; rated: what it was brought in with. vm_type: of
    the fleet's VMs, "" for others. ordered: an operator drained it, or, in records of
    earlier versions, resumed it. surplus: it drains because its group has VMs too many, and for no other reason.
    """

    name: str
    capacity: Vector
    origin: Origin
    state: HostState = HostState.UP
    rack: str = ""
    label: str = ""
    rated: Vector | None = None
    vm_type: str = ""
    ordered: bool = False
    surplus: bool = False

    @property
    def held(self) -> bool:
        """Whether an operator drained it."""
        return self.ordered and self.state is HostState.DRAINING


@dataclass(frozen=True, slots=True)
class Switch:
    """A policy that an operator put in the place of the configured one, with who and why."""

    policy: str
    owner: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class PoolHead:
    """What changes with every write to a pool. inventory: the digest of the inventory in force, "" before the first.

    largest_count: the largest request seen, decayed with a half-life of 14 days; as_of: the time of that value.
    refusals: containers that found no host, by the reason that kept most hosts. sums: of the calibration of expected
    lifetimes (`first_sums`), empty before the first end. requests, hinted: decided, and those with an expectation.
    open_hosts: since `as_written`; host_s: seconds of open hosts up to then. default_policy: decides where the settings
    name none; pools of earlier versions keep best fit. rate: reserved share of the cores that containers request, by
    which the cores of hosts are divided.
    """

    revision: int = 0
    decisions: int = 0
    containers: int = 0
    refused: int = 0
    replaced: int = 0
    lapsed: int = 0
    inventory: str = ""
    largest_count: float = 1.0
    as_of: float = 0.0
    switch: Switch | None = None
    refusals: Mapping[str, int] = field(default_factory=dict)
    sums: tuple[float, ...] = ()
    requests: int = 0
    hinted: int = 0
    open_hosts: int = 0
    as_written: float = 0.0
    host_s: float = 0.0
    default_policy: str = BEST_FIT
    rate: float = 1.0

    def host_seconds(self, now: float) -> float:
        """Return the seconds of open hosts up to now, since the pool or the first version that counts them began."""
        return self.host_s + self.open_hosts * max(0.0, now - self.as_written)


@dataclass(frozen=True, slots=True)
class Move:
    """A container that left a host that failed; host: its new one, None where none could take it."""

    request_id: str
    index: int
    application: str
    before: str
    host: str | None


@dataclass(frozen=True, slots=True)
class MoveDecision:
    """What became of the containers of a host that failed."""

    decision_id: str
    pool: str
    at: float
    host: str
    moves: tuple[Move, ...]
    reason: Reason
    detail: str
    policy: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A day of two policies side by side: hosts that each had open, on average and at the end of the day.

    saved: what the shadow would have saved, on average; below 0 it would have opened more.
    """

    decision_id: str
    pool: str
    at: float
    since: float
    policy: str
    shadow: str
    requests: int
    open_hosts: float
    shadow_hosts: float
    saved: float
    shadow_refused: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class OrderResult:
    """The answer to an order: what it did, and what the pool's reservation or host is now."""

    done: str
    already: bool = False
    reservation: Reservation | None = None
    host: HostRecord | None = None
    moves: tuple[Move, ...] = ()


def check_request(request: PlaceRequest) -> None:
    """Raise BadInput naming the field of a request that cannot be used."""
    check_id("request_id", request.request_id)
    if isinstance(request.count, bool) or not 1 <= request.count <= MOST_COUNT:
        raise BadInput("count", request.count, f"give the number of containers, from 1 to {MOST_COUNT}")
    if request.expected_end is not None and not 0.0 <= request.expected_end <= _LAST_MOMENT:
        raise BadInput("expected_end", request.expected_end, "give epoch seconds of a year up to 9999")
    if None not in (request.lifetime_s, request.expected_end):
        raise BadInput("expected_end", request.expected_end, "give it or lifetime_s, not both")
    if request.lifetime_s is not None:
        check_lifetime(request.lifetime_s)


def check_lifetime(lifetime_s: float) -> float:
    """Return the expected seconds of a container; BadInput unless it is above 0 and at most 10 years."""
    if isinstance(lifetime_s, bool) or not 0.0 < lifetime_s <= LONGEST_LIFETIME_S:
        remedy = f"give seconds above 0, {LONGEST_LIFETIME_S:.0f} (10 years) at most, or leave it out"
        raise BadInput("lifetime_s", lifetime_s, remedy)
    return float(lifetime_s)


def moment_of(text: str) -> float:
    """Return the epoch seconds of a time of RFC 3339, which has an offset; BadInput."""
    try:
        if re.fullmatch(_RFC_3339, text) is None:
            raise ValueError
        return datetime.fromisoformat(text.upper()).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        remedy = "give a time of RFC 3339 with its offset, such as 2026-03-01T12:00:00Z"
        raise BadInput("expected_end", text, remedy) from None


def _clock_text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_id(field_name: str, text: str) -> str:
    """Return an id or name that may stand in logs and paths; BadInput names the field."""
    if re.fullmatch(ID, text) is None:
        raise BadInput(field_name, text, f"give up to {LONGEST_ID} characters of ASCII, no space and no /")
    return text


def check_capacity(cores: int, memory_gib: int, disk_gb: int) -> Vector:
    """Return a host's capacity; BadInput names the dimension that is no whole number of at least 1."""
    for name, value in zip(DIMENSIONS, (cores, memory_gib, disk_gb), strict=True):
        if isinstance(value, bool) or not 1 <= value <= LARGEST:
            raise BadInput(name, value, f"give a whole number from 1 to {LARGEST}")
    return cores, memory_gib, disk_gb


def most_common(infeasible: Mapping[str, int]) -> str:
    """Return the reason that kept most hosts from taking a container, "no host" where there are none."""
    return max(sorted(infeasible), key=lambda reason: infeasible[reason], default="no host")


def hosts_text(containers: Sequence[ContainerPlacement]) -> str:
    """Return the hosts of containers as text: each once with its number of containers, up to eight."""
    counts: dict[str, int] = {}
    for one in containers:
        counts[one.host] = counts.get(one.host, 0) + 1
    named = [f"{host} x{n}" if n > 1 else host for host, n in list(counts.items())[:8]]
    more = len(counts) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
