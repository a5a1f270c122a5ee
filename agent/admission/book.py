"""A cluster's deployments: sizes, observations, futures and their sums, each future renewed when it is out of date.

Slots are reused; a free one holds zeros. The rule of renewal is that of admission specification §5.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from agent.admission.deployments import Deployment, Stage
from agent.admission.futures import Curves, DeploymentStatistics, futures
from agent.admission.records import DeploymentEvent, EventKind, NamedLaw, Prior, PriorKind, PriorSource
from domain.rules.admission.belief import Floats
from domain.rules.admission.cluster import ClusterRules
from domain.rules.admission.labels import History, faded, joined, law_of, tally_of
from domain.rules.admission.names import Name, Tally, beyond
from domain.rules.admission.policies import BANDS_H, YOUNG_H, checked_grid, log_grid, paper_grid, staleness
from domain.rules.admission.population import Population
from domain.rules.admission.rule import BANDS
from domain.units import DAY_S, HOUR_S


def horizons_of(rules: ClusterRules) -> Floats:
    """Return the horizons in hours, (H,)."""
    return checked_grid(paper_grid() if rules.paper_grid else log_grid(rules.horizons))


def kappas_of(rules: ClusterRules, horizons_h: Floats) -> Floats:
    """Return kappa per horizon, (H,); zeros for a rule without."""
    return (rules.standard_deviations or 0.0) * np.asarray(rules.kappa_factors)[_places(horizons_h)]


def bands_of(horizons_h: Floats) -> tuple[str, ...]:
    """Return the name of each horizon's band."""
    return tuple(BANDS[int(place)] for place in _places(horizons_h))


def _places(horizons_h: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found = np.searchsorted(np.asarray(BANDS_H) * (1.0 + 1e-9), horizons_h)
    return np.minimum(found, len(BANDS) - 1)


REBUILD = 1000
"""Sums are computed again after this number of changes, which stops the drift of rounding."""
REMEMBERED = 4096
"""Number of newcomers' futures in the cache, by size and prior observations."""
FIRST_SLOTS = 64
FUTURES = ("mean", "variance", "third", "requests", "since", "computed_cores", "computed_at")
"""What `Book.arrays` gives: the futures, and the sizes and times that they were computed for."""


def seen_of(deployment: Deployment, at: float) -> DeploymentStatistics:
    """Return a deployment's observations up to `at`, the quiet time since the last event included.

    Of one that has not started nothing was seen but the size that it asked for.
    """
    if deployment.stage is Stage.RESERVED:
        at = deployment.since
    quiet_h = max(at - deployment.last_at, 0.0) / HOUR_S
    return DeploymentStatistics(
        float(deployment.cores),
        float(deployment.deaths),
        deployment.core_hours + deployment.cores * quiet_h,
        float(deployment.scale_outs),
        max(at - deployment.since, 0.0) / HOUR_S,
        float(deployment.extra_cores),
        float(deployment.size_draws),
    )


class Book:
    """The deployments of one cluster and their futures. Not safe to share between threads."""

    def __init__(
        self,
        rules: ClusterRules,
        deployments: Iterable[Deployment] = (),
        tallies: Mapping[Name, Tally] = MappingProxyType({}),
    ) -> None:
        self.rules = rules
        self.horizons_h = horizons_of(rules)
        self.bands = bands_of(self.horizons_h)
        self.known: dict[str, Deployment] = {}
        self.tallies = dict(tallies)
        """The tally of each name, from its deployments that ended."""
        self.total = 0
        self.unused_budget = 1.0
        """Part, 0 to 1, of the failures permitted so far that is not used up; a budget with feedback goes by it."""
        self.sums = Curves(*np.zeros((4, self.horizons_h.size)))
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._ids: list[str] = []
        self._changes = 0
        self._newcomers: dict[tuple[int, tuple[Prior, ...], Population | None], Curves] = {}
        self._room(FIRST_SLOTS)
        for deployment in deployments:
            self.put(deployment)

    def __len__(self) -> int:
        """Return how many deployments have cores."""
        return len(self._slots)

    def inside(self) -> Iterator[Deployment]:
        """Return those that have cores."""
        return (self.known[deployment_id] for deployment_id in self._slots)

    def put(self, deployment: Deployment, curves: Curves | None = None) -> None:
        """Take in a deployment as it is now, in place of what was known of it; with its futures where they are known.

        One that ended is remembered without a slot.
        """
        before = self.known.get(deployment.deployment_id)
        self.total += (deployment.cores if deployment.counts else 0) - (
            before.cores if before is not None and before.counts else 0
        )
        self.known[deployment.deployment_id] = deployment
        if not deployment.counts:
            self._leave(deployment.deployment_id)
            return
        slot = self._slots.get(deployment.deployment_id)
        if slot is None:
            slot = self._enter(deployment.deployment_id)
        self._cores[slot], self._since[slot] = deployment.cores, deployment.since
        self._started[slot] = deployment.stage is Stage.LIVE
        if curves is not None:
            self._store(np.array([slot]), curves, deployment.last_at)

    def work_with(self, tallies: Mapping[Name, Tally | None]) -> None:
        """Replace the tallies of names; None removes one."""
        kept = self.tallies | dict(tallies)
        self.tallies = {name: tally for name, tally in kept.items() if tally is not None}

    def forget(self, before: float) -> None:
        """Remember those no longer that ended before this time."""
        for found in [one for one in self.known.values() if not one.counts and one.last_at < before]:
            del self.known[found.deployment_id]

    def newcomer(self, cores: int, priors: tuple[Prior, ...], law: Population | None = None) -> Curves:
        """Return the futures (1, H) of a deployment of `cores` that has not been seen yet.

        law: that of its names, None for the population.
        """
        key = (cores, priors, law)
        found = self._newcomers.get(key)
        if found is None:
            seen = DeploymentStatistics(float(cores), 0.0, 0.0, 0.0, 0.0, cores - 1.0, 1.0)
            rules = self.rules
            moments = rules.moments if priors or law else rules.fresh or rules.moments
            found = futures(
                *(rules.population, [seen], [priors], self.horizons_h, moments),
                conjugate=rules.conjugate,
                laws=[law],
            )
            if len(self._newcomers) >= REMEMBERED:
                self._newcomers.pop(next(iter(self._newcomers)))
            self._newcomers[key] = found
        return found

    def refresh(self, now: float, *, all_of_them: bool = False) -> int:
        """Compute the futures that are out of date, and return how many there were."""
        return self._renew(np.flatnonzero(self._taken) if all_of_them else self._outdated(now), now)

    def doubts(self, horizon: int, cores_per_variance: float, now: float) -> Floats:
        """Return by how many cores each slot's part of the sums at a horizon may be off; see `freshness`."""
        taken = np.flatnonzero(self._taken & self._started)
        doubts = np.zeros(self._taken.size)
        part = self._curves.mean[taken, horizon] + cores_per_variance * self._curves.variance[taken, horizon]
        elapsed_h, age_h = (now - self._computed_at[taken]) / HOUR_S, (now - self._since[taken]) / HOUR_S
        doubts[taken] = part * staleness(self._cores[taken], self._computed_cores[taken], elapsed_h, age_h)
        return doubts

    def renew(self, slots: NDArray[np.bool_], now: float) -> int:
        """Compute the futures of these slots of `doubts`, and return how many there were."""
        return self._renew(np.flatnonzero(slots), now)

    def add_up(self) -> None:
        """Compute the sums again, in the order of ids: to the last digit the same wherever the same are inside."""
        self._changes = 0
        slots = np.array([self._slots[name] for name in sorted(self._slots)], dtype=np.int64)
        self.sums = Curves(*(part[slots].sum(axis=0) for part in self._curves.parts))

    def largest(self, horizon: int, count: int) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """Return the deployments with the largest parts of the mean and of the variance at a horizon, with these."""
        return self._top(self._curves.mean[:, horizon], count), self._top(self._curves.variance[:, horizon], count)

    def mends(self) -> tuple[int, int] | None:
        """Return the total that was held and the sum of the sizes, when they differ; the total is right afterwards."""
        held, added = self.total, int(self._cores.sum())
        if held == added:
            return None
        self.total = added
        return held, added

    def arrays(self) -> tuple[list[str], dict[str, Floats]]:
        """Return the ids of those inside and their futures by the names of `FUTURES`."""
        slots = np.array(list(self._slots.values()), dtype=np.int64)
        found = (*self._curves.parts, self._since, self._computed_cores, self._computed_at)
        return list(self._slots), {name: array[slots] for name, array in zip(FUTURES, found, strict=True)}

    def adopt(self, ids: Sequence[str], arrays: Mapping[str, Floats]) -> None:
        """Take over what `arrays` returned, for those that are inside since the same time."""
        for k, deployment_id in enumerate(ids):
            slot = self._slots.get(deployment_id)
            if slot is not None and self._since[slot] == arrays["since"][k]:
                for part, name in zip(self._curves.parts, FUTURES, strict=False):
                    part[slot] = arrays[name][k]
                self._computed_cores[slot] = arrays["computed_cores"][k]
                self._computed_at[slot] = arrays["computed_at"][k]
        self.add_up()

    def bytes_each(self) -> float:
        """Return the memory of futures and statistics for one slot."""
        curves = sum(part.nbytes for part in self._curves.parts)
        stamps = self._cores.nbytes + self._since.nbytes + self._computed_cores.nbytes + self._computed_at.nbytes
        return (curves + stamps + self._taken.nbytes + self._started.nbytes) / self._taken.size

    def _top(self, column: Floats, count: int) -> list[tuple[str, float]]:
        most = min(count, len(self))
        if not most:
            return []
        # Free slots hold zeros, below every part that counts.
        found = np.argpartition(column, -most)[-most:]
        ordered = sorted(found, key=lambda slot: (-column[slot], self._ids[slot]))
        return [(self._ids[slot], float(column[slot])) for slot in ordered if self._taken[slot]]

    def _outdated(self, now: float) -> NDArray[np.int64]:
        tolerance = self.rules.tolerance
        if tolerance <= 0.0:
            return np.flatnonzero(self._taken)
        moved = np.abs(self._cores - self._computed_cores)
        grown = moved > np.maximum(tolerance * self._computed_cores, self.rules.dead_band_cores)
        elapsed_h = (now - self._computed_at) / HOUR_S
        aged = elapsed_h > tolerance * ((now - self._since) / HOUR_S + YOUNG_H)
        due = (grown | aged) & self._started
        return np.flatnonzero(self._taken & (due | np.isinf(self._computed_at)))

    def _renew(self, slots: NDArray[np.int64], now: float) -> int:
        if slots.size:
            deployments = [self.known[self._ids[slot]] for slot in slots]
            curves = futures(
                self.rules.population,
                [seen_of(deployment, now) for deployment in deployments],
                [deployment.priors for deployment in deployments],
                self.horizons_h,
                self.rules.moments,
                conjugate=self.rules.conjugate,
                laws=[deployment.law for deployment in deployments],
            )
            self._store(slots, curves, now)
        if self._changes >= REBUILD:
            self.add_up()
        return int(slots.size)

    def _store(self, slots: NDArray[np.int64], curves: Curves, at: float) -> None:
        for total, part, new in zip(self.sums.parts, self._curves.parts, curves.parts, strict=True):
            total += (new - part[slots]).sum(axis=0)
            part[slots] = new
        self._computed_cores[slots] = self._cores[slots]
        self._computed_at[slots] = at
        self._changes += slots.size

    def _enter(self, deployment_id: str) -> int:
        if not self._free:
            self._room(2 * self._taken.size)
        slot = self._free.pop()
        self._slots[deployment_id] = slot
        self._ids[slot] = deployment_id
        self._taken[slot] = True
        self._computed_at[slot] = -np.inf
        return slot

    def _leave(self, deployment_id: str) -> None:
        slot = self._slots.pop(deployment_id, None)
        if slot is None:
            return
        for total, part in zip(self.sums.parts, self._curves.parts, strict=True):
            total -= part[slot]
        for array in (*self._curves.parts, self._cores, self._since, self._computed_cores):
            array[slot] = 0.0
        self._computed_at[slot] = 0.0
        self._taken[slot] = False
        self._ids[slot] = ""
        self._free.append(slot)
        self._changes += 1

    def _room(self, slots: int) -> None:
        old = len(self._ids)
        self._ids += [""] * (slots - old)
        self._free += range(slots - 1, old - 1, -1)
        if not old:
            self._curves = Curves(*np.zeros((4, slots, self.horizons_h.size)))
            self._cores, self._since, self._computed_cores, self._computed_at = (np.zeros(slots) for _ in range(4))
            self._taken, self._started = (np.zeros(slots, dtype=np.bool_) for _ in range(2))
            return
        more = slots - old
        wide, narrow = ((0, more), (0, 0)), (0, more)
        self._curves = Curves(*(np.pad(part, wide) for part in self._curves.parts))
        self._cores, self._since = np.pad(self._cores, narrow), np.pad(self._since, narrow)
        self._computed_cores = np.pad(self._computed_cores, narrow)
        self._computed_at, self._taken = np.pad(self._computed_at, narrow), np.pad(self._taken, narrow)
        self._started = np.pad(self._started, narrow)


# Observations of one label and owner, and the law of its next deployment: see `domain.rules.admission.labels`.
# Ended deployments are summed in tallies, which the ledger keeps. Live ones count with their present statistics: a
# quiet, long-lived one counts before it ends, and a restart changes nothing.


def named_prior(book: Book, owner: str, label: str, now: float) -> PriorSource:
    """Return the law for a newcomer with these names; at least one of them is not empty.

    Without a deployment of either name it is the population.
    """
    rules, inside = book.rules, [one for one in book.inside() if one.stage is Stage.LIVE]
    of_label = of_owner = None
    if label:
        alike = [one for one in inside if (one.owner, one.label) == (owner, label)]
        of_label = _tally(book, (owner, label), alike, now)
    if owner:
        of_owner = _tally(book, (owner, ""), [one for one in inside if one.owner == owner], now)
    law = law_of(rules.population, of_owner, of_label)
    label_count, owner_count = (0.0 if tally is None else tally.deployments for tally in (of_label, of_owner))
    kind = PriorKind.LABEL if label_count > 0.0 else PriorKind.OWNER if owner_count > 0.0 else PriorKind.POPULATION
    return PriorSource(kind, named=NamedLaw(law, label_count, owner_count, rules.label_half_life_days))


def law_in(prior: PriorSource) -> Population | None:
    """Return the law that a newcomer is judged by, None for the population."""
    return prior.named.law if prior.named is not None and prior.kind is not PriorKind.POPULATION else None


def ended(
    rules: ClusterRules,
    tallies: Mapping[Name, Tally | None],
    before: Deployment | None,
    after: Deployment,
    event: DeploymentEvent,
) -> dict[Name, Tally]:
    """Return the tallies of its names with a deployment that this event ended; none when it did not, or has no name."""
    if before is None or before.stage is not Stage.LIVE or after.stage is not Stage.GONE:
        return {}
    names = _names_of(after)
    if not names:
        return {}
    one = tally_of(rules.population, [_history(after, after.last_at, event.kind)], after.last_at)
    half_life_s = rules.label_half_life_days * DAY_S
    found = {}
    for name in names:
        known = tallies.get(name)
        found[name] = one if known is None else joined(known, one, half_life_s)
    return found


def dropped(tallies: Mapping[Name, Tally | None]) -> dict[Name, None]:
    """Return the names that fall away, as there are too many; see `beyond`."""
    return dict.fromkeys(beyond({name: tally for name, tally in tallies.items() if tally is not None}))


def _names_of(deployment: Deployment) -> list[Name]:
    owner, label = deployment.owner, deployment.label
    return [(owner, label)] * bool(label) + [(owner, "")] * bool(owner)


def _tally(book: Book, name: Name, inside: list[Deployment], now: float) -> Tally:
    rules = book.rules
    half_life_s = rules.label_half_life_days * DAY_S
    # In the order of ids, so that the sums are the same to the last digit wherever the same are inside.
    histories = [_history(one, now) for one in sorted(inside, key=lambda one: one.deployment_id)]
    live = tally_of(rules.population, histories, now)
    settled = book.tallies.get(name)
    if settled is None or settled.power != rules.population.power:
        return live
    # What is reported may lie somewhat ahead of this clock; both tallies of a question must be of one time.
    at_now = faded(settled, now, half_life_s)
    return joined(Tally(now, at_now.deployments, at_now.sums, at_now.power), live, half_life_s)


def _history(deployment: Deployment, at: float, end: EventKind | None = None) -> History:
    seen = seen_of(deployment, at)
    return History(
        *(seen.deaths, seen.core_hours, seen.scale_outs, seen.hours, seen.extra_cores, seen.size_draws),
        shut_down=float(end is EventKind.SHUTDOWN),
    )
