"""Recorded requests decided again on the pool as it was: by the policy of then, or by another, to see what if.

The ledger gives the pool before the first of them and every write since. A request is decided again on what the writes
before it left, container by container, and each container then goes to its recorded host. Which of several hosts of an
equal score comes first is not recorded: any of them is the same decision.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from agent.kernel.part import Explanation, Replayed
from agent.kernel.text import columns, counted, time_text
from agent.ledger import codec
from agent.models.directory import ModelsDirectory, read_model_file
from agent.placement.book import Book
from agent.placement.choosing import SHIPPED, policy_in, read_policy
from agent.placement.records import HostState, PlacementDecision, Reservation, hosts_text
from agent.placement.store import History, PlacementStore, PoolState, Step
from domain.errors import BadInput, TrimtabError, UnknownName
from domain.rules.placement.cluster import Cluster, choose
from domain.rules.placement.policies import NAMED, Policy, reserve, scores
from domain.units import HOUR_S

MOST_LINES: Final = 40
"""Differing requests printed as text; --json has all."""
_RESERVE: Final = re.compile(r"RESERVE\((\d+), (\d+), (\d+)\)")


class PoliciesThen:
    """The policies that can be found by their digest: named ones, the shipped one, and the files of a directory.

    further: policies of the settings, which may lie elsewhere.
    """

    def __init__(self, models: ModelsDirectory, further: Sequence[Policy] = ()) -> None:
        self._models = models
        self._known = {one.digest: one for one in (*NAMED.values(), read_policy(SHIPPED), *further)}
        self._looked = False

    def of(self, made: PlacementDecision) -> Policy:
        """Return the policy that decided; BadInput where no file has it any more."""
        kept = _RESERVE.fullmatch(made.policy)
        if kept is not None:
            hosts, cores, count = (int(number) for number in kept.groups())
            one = reserve(hosts, cores, count)
            self._known[one.digest] = one
        if made.policy_digest not in self._known and not self._looked:
            self._looked = True
            self._known |= {one.digest: one for one in self._files()}
        found = self._known.get(made.policy_digest)
        if found is None:
            remedy = (
                f"{made.decision_id} was decided by {made.policy}, and no file of {self._models.path} has that policy "
                "now: put its file there, or name its directory by --models"
            )
            raise BadInput("policy", made.policy_digest, remedy)
        return found

    def _files(self) -> Iterator[Policy]:
        for path in sorted(self._models.path.glob("*.json")) if self._models.path.is_dir() else ():
            try:
                yield policy_in(read_model_file(path).content, path)
            except (TrimtabError, json.JSONDecodeError):
                # Reports and models of other decisions lie there too.
                continue


@dataclass(frozen=True, slots=True)
class Again:
    """A recorded request, and what a policy would have done with it on the same state.

    hosts: of each container by its index: the recorded one where that is as good. differences: what comes out
    otherwise, in words. opened: how many of them were closed before.
    """

    made: PlacementDecision
    hosts: tuple[str, ...]
    opened: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Course:
    """A pool under one policy over a stretch of time.

    open_hosts: the mean over time; peak, at_end: the largest and last number of open hosts. host_hours: of open hosts.
    refused: containers that found no host.
    """

    open_hosts: float
    peak: int
    at_end: int
    host_hours: float
    refused: int


class Followed:
    """A pool's book that follows the recorded writes, from a state on. Not safe between threads."""

    def __init__(self, begin: PoolState) -> None:
        self._state = replace(begin, hosts=dict(begin.hosts), reservations=dict(begin.reservations))
        self.book = Book(self._state)

    def before(self, step: Step, request_id: str) -> None:
        """Take in what a write changed beside the reservation of a request, such as those that lapsed."""
        self._take(step, [name for name in step.reservations if name != request_id])
        self.book.cluster.largest = step.head.largest_count

    def after(self, step: Step, request_id: str) -> None:
        """Take in the reservation of the request."""
        self._take(step, [name for name in step.reservations if name == request_id], hosts=False)

    def take(self, step: Step) -> None:
        """Take in a write."""
        self._take(step, list(step.reservations))
        self.book.cluster.largest = step.head.largest_count

    def _take(self, step: Step, names: Sequence[str], *, hosts: bool = True) -> None:
        state, book = self._state, self.book
        changed = {name: step.reservations[name] for name in names}
        if hosts:
            for name, record in step.hosts.items():
                if record is None:
                    book.remove(name)
                else:
                    if record.name not in book.records:
                        _reached(book, name)
                    book.put(record)
        for name, after in changed.items():
            _follow(book, book.reservations.get(name), after)
            if after is None:
                book.drop(name)
            else:
                book.take(after)
        self._state = replace(
            state,
            head=step.head,
            hosts={**book.records},
            reservations={**book.reservations},
            inventory=state.inventory if step.inventory is None else step.inventory,
        )
        if step.inventory is not None and hosts:
            self.book = Book(self._state)


def _reached(book: Book, name: str) -> None:
    """Bring in a host of a type without bound that a record or reservation names."""
    try:
        book.reach(name)
    except UnknownName:
        return


def _follow(book: Book, before: Reservation | None, after: Reservation | None) -> None:
    """Move the containers of a reservation to where it says that they are now."""
    was, now = (before.hosts if before else {}), (after.hosts if after else {})
    one = before or after
    if one is None:
        return
    app = book.cluster.application(one.application)
    for index, name in was.items():
        host = book.reach(name)
        # A host that failed was emptied when it did.
        if now.get(index) != name and not book.cluster.failed[host]:
            book.cluster.release(host, app)
    for index, name in now.items():
        if was.get(index) != name:
            book.cluster.restore(book.reach(name), app, 1)


def steps_of(
    store: PlacementStore, pool: str, since: float | None, until: float | None
) -> tuple[History, dict[int, PlacementDecision]]:
    """Return a pool's history, and its decisions on requests with since <= at < until by their revision.

    BadInput where the ledger has such decisions from before the first write that it can take back.
    """
    end = math.inf if until is None else until
    history = store.history(pool, since)
    made = store.requests_between(pool, since or 0.0, end, most=2**31 - 1)
    known = {step.revision for step in history.steps}
    early = [one for one in made if one.revision not in known]
    if early:
        after = time_text(math.floor(early[-1].at) + 1.0).replace(" ", "T", 1).removesuffix(" UTC")
        remedy = (
            f"{early[-1].decision_id} and earlier decisions have no recorded pool "
            f"state (an earlier version, or a restored ledger): give --from {after}"
        )
        raise BadInput("--from", "" if since is None else time_text(since), remedy)
    return history, {one.revision: one for one in made}


def replayed(history: History, made: Mapping[int, PlacementDecision], policies: PoliciesThen) -> Iterator[Replayed]:
    """Decide every recorded request again by the policy of then; BadInput where that one is not there any more."""
    for again in decided(history, made, policies):
        yield Replayed(again.made.decision_id, not again.differences, "\n".join(again.differences))


def decided(
    history: History, made: Mapping[int, PlacementDecision], policies: PoliciesThen | Policy
) -> Iterator[Again]:
    """Decide every recorded request on the state that it met: by the policy of then, or by this one."""
    followed = Followed(history.begin)
    for step in history.steps:
        one = made.get(step.revision)
        if one is None:
            followed.take(step)
            continue
        followed.before(step, one.request_id)
        policy = policies if isinstance(policies, Policy) else policies.of(one)
        yield _again(followed.book, one, policy, compare_scores=not isinstance(policies, Policy))
        followed.after(step, one.request_id)


def _again(book: Book, made: PlacementDecision, policy: Policy, *, compare_scores: bool) -> Again:
    """Place a request container by container on the recorded state, and take it back."""
    cluster, app = book.cluster, book.app(made.application)
    recorded = {one.index: one for one in made.containers}
    placed: list[int] = []
    hosts: list[str] = []
    found: list[str] = []
    opened = 0
    for index in range(made.count):
        book.spare()
        was = recorded.get(index)
        if was is not None:
            _reached(book, was.host)
        choice = choose(cluster, policy, app, made.count)
        if choice is None:
            break
        name, host = cluster.hosts[choice.host].name, choice.host
        if was is not None and was.host != name:
            if _as_good(cluster, policy, app, made.count, choice.score, was.host):
                name, host = was.host, cluster.host(was.host)
            else:
                found.append(f"container {index}: {was.host} -> {name} (score {choice.score:.6g})")
                before = book.find(was.host)
                # The others are decided on what was really there.
                host = before if before is not None and cluster.allows(before, app) is None else host
        elif was is not None and compare_scores and (was.score, was.feasible) != (choice.score, choice.feasible):
            found.append(
                f"container {index} on {name}: score {was.score} -> {choice.score}, "
                f"feasible hosts {was.feasible} -> {choice.feasible}"
            )
        opened += bool(cluster.containers[host] == 0)
        cluster.place(host, app)
        placed.append(host)
        hosts.append(name)
    if len(placed) < made.count and not made.partial:
        hosts, opened = [], 0
    for host in reversed(placed):
        cluster.release(host, app)
    if len(hosts) != len(made.containers):
        found.append(f"containers placed: {len(made.containers)} -> {len(hosts)} of {made.count}")
    return Again(made, tuple(hosts), opened, tuple(found))


def _as_good(cluster: Cluster, policy: Policy, app: int, count: int, score: float, name: str) -> bool:
    """Whether a host can take the container at the same score as the one that was chosen."""
    try:
        host = cluster.host(name)
    except UnknownName:
        return False
    if cluster.allows(host, app) is not None:
        return False
    view = cluster.view(app, count, np.array([host], dtype=np.int64), policy.reserve_cores)
    return float(scores(policy, view)[0]) == score


Container = tuple[str, str]
"""A request's id and the index of its container."""


@dataclass(slots=True)
class _Alternative:
    """A pool in which another policy places what was placed, on hosts that join, drain, change and fail as they did."""

    policy: Policy
    book: Book
    state: PoolState
    where: dict[Container, tuple[str, str]] = field(default_factory=dict)
    refused: int = 0

    def begin(self) -> None:
        """Take over what runs at the begin."""
        for one in self.state.reservations.values():
            for index, name in one.hosts.items():
                self.where[one.request_id, index] = (one.application, name)

    def take(self, step: Step, made: PlacementDecision | None) -> None:
        """Follow a write."""
        lost = []
        for name, record in step.hosts.items():
            if record is None or record.state is HostState.FAILED:
                lost += [key for key, (_, host) in self.where.items() if host == name]
            if record is None:
                self.book.remove(name)
            else:
                _reached(self.book, name)
                self.book.put(record)
        if step.inventory is not None:
            lost += self._rebuilt(step)
        for request_id, after in step.reservations.items():
            now = after.hosts if after is not None else {}
            for key in [key for key in self.where if key[0] == request_id and key[1] not in now]:
                app, host = self.where.pop(key)
                if host and key not in lost:
                    self.book.cluster.release(self.book.reach(host), self.book.app(app))
            new = [(request_id, index) for index in sorted(now, key=int) if (request_id, index) not in self.where]
            if after is not None and new:
                self.book.cluster.largest = step.head.largest_count
                self._place(new, after.application, made.count if made is not None else len(new))
        for key in dict.fromkeys(lost):
            if key in self.where:
                self._place([key], self.where[key][0], 1)
        if made is not None and made.unplaced and not made.advice:
            self.refused += self._would_not_fit(made)

    def _place(self, keys: Sequence[Container], application: str, count: int) -> None:
        app = self.book.app(application)
        for key in keys:
            self.book.spare()
            choice = choose(self.book.cluster, self.policy, app, count)
            if choice is None:
                self.refused += 1
                self.where[key] = (application, "")
            else:
                self.book.cluster.place(choice.host, app)
                self.where[key] = (application, self.book.cluster.hosts[choice.host].name)

    def _would_not_fit(self, made: PlacementDecision) -> int:
        """Return how many of the containers that found no host would have found none here either; none is held."""
        app, placed = self.book.app(made.application), []
        for _ in range(made.unplaced):
            self.book.spare()
            choice = choose(self.book.cluster, self.policy, app, made.count)
            if choice is None:
                break
            self.book.cluster.place(choice.host, app)
            placed.append(choice.host)
        for host in reversed(placed):
            self.book.cluster.release(host, app)
        fits = len(placed) if made.partial or len(placed) == made.unplaced else 0
        return made.unplaced - fits

    def _rebuilt(self, step: Step) -> list[Container]:
        """Work by another inventory; return the containers whose hosts it does not have."""
        hosts = dict(self.book.records)
        self.state = replace(self.state, head=step.head, inventory=step.inventory, hosts=hosts, reservations={})
        self.book = Book(self.state)
        homeless = []
        for key, (application, name) in self.where.items():
            try:
                host = self.book.reach(name)
            except UnknownName:
                homeless.append(key)
                continue
            self.book.cluster.restore(host, self.book.app(application), 1)
        return homeless


def courses(history: History, made: Mapping[int, PlacementDecision], policy: Policy) -> tuple[Course, Course]:
    """Return the course of a pool as recorded, and under another policy from the same begin.

    Both run the same containers for as long as they really ran, on the hosts that there really were; a container that
    found no host runs nowhere in either.
    """
    followed = Followed(history.begin)
    other = _Alternative(policy, Book(history.begin), history.begin)
    other.begin()
    last = max(made, default=0)
    steps = [step for step in history.steps if step.revision <= last]
    opens: list[tuple[int, int]] = []
    for step in steps:
        followed.take(step)
        other.take(step, made.get(step.revision))
        opens.append((followed.book.cluster.open_hosts, other.book.cluster.open_hosts))
    refused = sum(one.unplaced for one in made.values() if not one.advice)
    spans = [max(0.0, after.at - before.at) for before, after in itertools.pairwise(steps)] + [0.0]
    return (
        _course([now for now, _ in opens], spans, refused),
        _course([now for _, now in opens], spans, other.refused),
    )


def _course(hosts: Sequence[int], spans: Sequence[float], refused: int) -> Course:
    if not hosts:
        return Course(0.0, 0, 0, 0.0, refused)
    spent = float(sum(number * span for number, span in zip(hosts, spans, strict=True)))
    whole = sum(spans)
    return Course(spent / whole if whole else float(hosts[-1]), max(hosts), hosts[-1], spent / HOUR_S, refused)


def comparison(pool: str, policy: Policy, history: History, made: Mapping[int, PlacementDecision]) -> Explanation:
    """Return what another policy would have decided on recorded requests, and the hosts that it would have cost."""
    items = list(decided(history, made, policy))
    differing = [one for one in items if one.differences]
    both = dict(zip(("recorded", "other"), courses(history, made, policy), strict=True))
    rows: list[tuple[object, ...]] = [
        (
            one.made.decision_id,
            time_text(one.made.at),
            hosts_text(one.made.containers) or "none",
            ", ".join(dict.fromkeys(one.hosts)) or "none",
        )
        for one in differing[:MOST_LINES]
    ]
    asked = counted(len(items), "recorded request")
    lines = [f"{policy.name} on {asked} of {pool}: {len(items) - len(differing)} agree, {len(differing)} differ"]
    if rows:
        lines += columns([("decision", "at", "recorded", "would be"), *rows])
    if len(differing) > len(rows):
        lines.append(f"  and {len(differing) - len(rows)} more (--json has all)")
    lines += ["", "The same containers from the same begin, each for as long as it ran:"]
    words = {"recorded": "recorded", "other": "would be"}
    head = ("", "mean open hosts", "most", "at the end", "host-hours", "without a host")
    lines += columns(
        [
            head,
            *(
                (words[name], f"{one.open_hosts:.2f}", one.peak, one.at_end, f"{one.host_hours:.2f}", one.refused)
                for name, one in both.items()
            ),
        ]
    )
    data = {
        "pool": pool,
        "policy": policy.name,
        "requests": len(items),
        "agree": len(items) - len(differing),
        "differing": [
            {
                "id": one.made.decision_id,
                "at": one.made.at,
                "recorded": [each.host for each in one.made.containers],
                "other": list(one.hosts),
                "differences": list(one.differences),
            }
            for one in differing
        ],
        **{name: codec.plain(one) for name, one in both.items()},
    }
    return Explanation(tuple(lines), data)
