"""What a ledger recorded of a placement pool, cut into windows that can be played under any policy.

A window begins with what ran at its begin, which every policy places anew in the order in which it had come, and has
the requests that were placed in it; each container ends when the record says that it did. Containers that found no
host are left out, and those of a cancelled or lapsed reservation, which never began: their lifetimes are not known.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from agent.placement.records import Cause, HostState, Origin
from agent.placement.state import PlacementStore
from domain.errors import BadInput, ConfigurationError
from domain.rules.placement.instance import HostType, Instance, Release, Request, as_document, parse_instance
from domain.units import DAY_S, HOUR_S
from trainer.autoscaling.lessons import DAYS, WINDOWS
from trainer.kit.files import replace_file
from trainer.learning.ledgers import NoRecord, reading
from trainer.learning.state import OutdatedRound
from trainer.learning.windows import split

WINDOWS_FILE: Final = "windows.json.gz"


@dataclass(frozen=True, slots=True)
class Life:
    """Containers of one request that were placed together: from `begin`, and when each ended (epoch seconds).

    ends: of those that ended, oldest first; the others still run. lifetime_s: expected, None for no expectation.
    """

    request: str
    application: str
    count: int
    begin: float
    ends: tuple[float, ...]
    lifetime_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """The record of one pool between two times, epoch seconds. basis: its hosts and applications.

    left_out: containers that found no host, never began, or of applications that the inventory no longer has.
    """

    pool: str
    basis: Instance
    lives: tuple[Life, ...]
    since: float
    until: float
    left_out: int


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a record with requests, oldest first, each as an instance that begins at 0 s; length in seconds.

    held_out: the latest two fifths.
    """

    length_s: float
    earlier: tuple[Instance, ...]
    held_out: tuple[Instance, ...]


def default_policy(source: str, pool: str) -> str:
    """Return the policy of a pool whose settings name none, by its ledger; LedgerUnavailable."""
    with reading(source) as ledger:
        return PlacementStore(ledger).read(pool).head.default_policy


def switched_policy(source: str, pool: str) -> str:
    """Return the policy to which an operator switched a pool, "" for none; LedgerUnavailable."""
    with reading(source) as ledger:
        switch = PlacementStore(ledger).read(pool).head.switch
    return "" if switch is None else switch.policy


def read_placements(source: str, pool: str, since: float, until: float) -> PlacementRecord:
    """Return the record of a pool with since <= at < until, and what ran at its begin as far as decisions are kept.

    source: a SQLite file, or the URL of a ledger. BadInput for a pool without hosts, applications or requests;
    LedgerUnavailable.
    """
    with reading(source) as ledger:
        store = PlacementStore(ledger)
        state = store.read(pool)
        made = store.requests_between(pool, 0.0, until, most=10**6)
        ended = store.ended_between(pool, 0.0, until)
    if state.inventory is None:
        raise BadInput("POOL", pool, f"the ledger {source} has no inventory of it: name the pool, or give --ledger")
    basis, _ = parse_instance(state.inventory, pool, hosts_elsewhere=True)
    others = Counter(
        (record.rated or record.capacity, record.label)
        for record in state.hosts.values()
        if record.origin is not Origin.INVENTORY and record.state is not HostState.FAILED
    )
    joined = tuple(
        HostType(f"joined-{number}", capacity, count, label)
        for number, ((capacity, label), count) in enumerate(sorted(others.items()))
    )
    basis = replace(basis, name=pool, hosts=(*basis.hosts, *joined), requests=(), releases=(), snapshot=())
    ends: dict[str, list[float]] = defaultdict(list)
    unused: Counter[str] = Counter()
    for at, request, number, cause in ended:
        if cause in (Cause.CANCELLED, Cause.LAPSED):
            unused[request] += number
        else:
            ends[request] += [at] * number
    known = {app.name for app in basis.applications}
    lives, left_out = [], 0
    for one in made:
        placed = len(one.containers) - unused[one.request_id]
        if one.advice or placed <= 0 or one.application not in known:
            left_out += one.count * (one.at >= since)
            continue
        left_out += one.unplaced * (one.at >= since)
        over = tuple(ends[one.request_id][:placed])
        lives.append(Life(one.request_id, one.application, placed, one.at, over, one.lifetime_s))
    if not basis.hosts or not any(life.begin >= since for life in lives):
        raise NoRecord("POOL", pool, "no request was placed in this span: wait for some, or give more --days")
    return PlacementRecord(pool, basis, tuple(lives), since, until, left_out)


def windows_of(recorded: PlacementRecord) -> Windows:
    """Return the windows of a record: days where there are enough of them, else equal parts of an hour or more.

    Raises TooLittle for fewer windows with requests than are needed to learn and to judge.
    """
    begin = max(recorded.since, recorded.lives[0].begin)
    total_s = recorded.until - begin
    length_s = DAY_S if total_s >= DAYS * DAY_S else max(total_s / WINDOWS, HOUR_S)
    marks = np.arange(begin, recorded.until + 1.0, length_s).tolist()
    found = [window_of(recorded, low, high) for low, high in pairwise(marks)]
    # A window in which nothing was asked says nothing of a policy.
    found = [one for one in found if any(request.at_s > 0.0 for request in one.requests)]
    remedy = "wait for more, or give more --days"
    return Windows(length_s, *split(f"pool {recorded.pool}", found, total_s, length_s, "requests", remedy))


def window_of(recorded: PlacementRecord, low: float, high: float) -> Instance:
    """Return what was requested in low <= at < high (epoch seconds) as an instance, with what ran at its begin."""
    requests: list[Request] = []
    releases: list[Release] = []
    for life in recorded.lives:
        gone = sum(end <= low for end in life.ends)
        if life.begin >= high or gone == life.count:
            continue
        at_s = max(life.begin - low, 0.0)
        # Of containers that run at the begin the expectation was of another time.
        hint = life.lifetime_s if life.begin >= low else None
        requests.append(Request(life.request, life.application, life.count - gone, at_s, hint))
        ends = [end for end in life.ends[gone:] if end < high]
        # A clock that was set back could end a container before it began.
        releases += [Release(life.request, index, max(end - low, at_s)) for index, end in enumerate(ends)]
    name = datetime.fromtimestamp(low, UTC).strftime("%Y-%m-%d %H:%M")
    ordered = sorted(releases, key=lambda release: release.at_s)
    return replace(recorded.basis, name=name, requests=tuple(requests), releases=tuple(ordered))


def reordered(window: Instance, seed: int) -> Instance:
    """Return a window whose requests came at one another's moments; each keeps its containers and how long they run.

    What ran at the begin stays.
    """
    fresh = [k for k, request in enumerate(window.requests) if request.at_s > 0.0]
    drawn = np.random.default_rng((seed, 2)).permutation(len(fresh)).tolist()
    moved = {fresh[source]: window.requests[fresh[place]].at_s for place, source in enumerate(drawn)}
    requests = [replace(request, at_s=moved.get(k, request.at_s)) for k, request in enumerate(window.requests)]
    later = {one.name: one.at_s - old.at_s for one, old in zip(requests, window.requests, strict=True)}
    releases = [replace(end, at_s=end.at_s + later[end.request]) for end in window.releases]
    by_time = sorted(requests, key=lambda request: request.at_s)
    return replace(
        window,
        name=f"{window.name}, order {seed}",
        requests=tuple(by_time),
        releases=tuple(sorted(releases, key=lambda end: end.at_s)),
    )


def kept_windows(folder: Path, read: Callable[[], PlacementRecord]) -> tuple[Windows, str]:
    """Return the windows that the round in a folder began with, else those of a fresh record, which are then kept.

    With them comes the SHA-256 of their file. Raises TooLittle; OutdatedRound for a file that is cut or changed.
    """
    path = folder / WINDOWS_FILE
    if not path.is_file():
        found = windows_of(read())
        parts = {part: [as_document(one) for one in getattr(found, part)] for part in ("earlier", "held_out")}
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, gzip.compress(json.dumps({"length_s": found.length_s, **parts}).encode(), mtime=0))
    content = path.read_bytes()
    try:
        held = json.loads(gzip.decompress(content))
        earlier, later = (
            tuple(parse_instance(one, hosts_elsewhere=True)[0] for one in held[part])
            for part in ("earlier", "held_out")
        )
        windows = Windows(float(held["length_s"]), earlier, later)
    except (OSError, EOFError, ValueError, KeyError, TypeError, ConfigurationError) as error:
        why = f"it is cut or changed ({type(error).__name__}): give another --out, or remove it to start again"
        raise OutdatedRound("--out", str(path), why) from None
    return windows, hashlib.sha256(content).hexdigest()
