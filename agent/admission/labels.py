"""What was seen of deployments of one label and owner, and the law of the next: see `domain.rules.admission.labels`.

Those that ended are gathered in tallies, which the ledger keeps. Those inside count as they are at the time of the
question, so that one that lives long and quietly counts before it ends, and so that a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.admission.book import Book, seen_of
from agent.admission.deployments import Deployment, Stage
from agent.admission.records import DeploymentEvent, EventKind, NamedLaw, PriorKind, PriorSource
from domain.rules.admission.cluster import ClusterRules
from domain.rules.admission.labels import History, faded, joined, law_of, tally_of
from domain.rules.admission.names import Name, Tally, beyond
from domain.rules.admission.population import Population
from domain.units import DAY_S


def named_prior(book: Book, owner: str, label: str, now: float) -> PriorSource:
    """Return what a newcomer with these names is judged by; at least one of them is not empty.

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
    """Return what ended and what is inside of a name, together."""
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
