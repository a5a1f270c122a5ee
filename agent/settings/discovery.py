"""Fleets described by tags on their Auto Scaling groups in place of settings."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from agent.settings import Settings
from agent.settings.checks import conflicts
from agent.settings.fleet import FleetSettings
from collectors.tagged_groups import TaggedGroup, TaggedGroups, VmSize
from domain.errors import BadInput

FLEET: Final = "trimtab:fleet"
GROUP: Final = "trimtab:group"
QUEUE_URL: Final = "trimtab:queue-url"
POLICY: Final = "trimtab:policy"
PRICE: Final = "trimtab:price-per-hour"

_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def price_per_hour(vm_type: str, region: str) -> float | None:
    """Return the on-demand price in dollars per hour, None when the table does not have the type in that region."""
    return _table().get(region, {}).get(vm_type)


def prices_as_of() -> str:
    """Return the month of the price table, such as `2026-11`."""
    as_of: str = _read_table()["as_of"]
    return as_of


@cache
def _read_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
    return table


@cache
def _table() -> dict[str, dict[str, float]]:
    return {region: prices for region, prices in _read_table().items() if isinstance(prices, dict)}


class PriceUnknown(BadInput):
    """No price of a VM type is known; `value` is the type."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """The settings with the discovered fleets, and a sentence per fleet that was refused.

    unsupported: refused fleets with a group whose capacity units tell no number of VMs.
    """

    settings: Settings
    refused: Mapping[str, str] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()


def discover(groups: TaggedGroups, settings: Settings, region: str) -> Discovery:
    """Return the fleets that are tagged now; raises CloudError when AWS cannot be read."""
    tagged = groups.read(FLEET)
    sizes = groups.sizes(vm_type for group in tagged for vm_type in group.vm_types)
    return described(tagged, sizes, settings, region)


def described(
    groups: Sequence[TaggedGroup],
    sizes: Mapping[str, VmSize],
    settings: Settings,
    region: str,
) -> Discovery:
    """Return the fleets that the tags describe. A fleet with a wrong tag is refused whole; the others are not."""
    by_fleet: dict[str, list[TaggedGroup]] = defaultdict(list)
    for group in groups:
        by_fleet[group.tags.get(FLEET, "").strip()].append(group)
    fleets: dict[str, FleetSettings] = {}
    refused: dict[str, str] = {}
    for name, members in sorted(by_fleet.items()):
        try:
            fleets[name] = _fleet(name, members, sizes, region)
        except BadInput as error:
            refused[name] = str(error)
    while True:
        found = settings.model_copy(update={"fleets": fleets})
        wrong = {c.path[1]: c.remedy for c in conflicts(found) if len(c.path) > 1 and c.path[0] == "fleets"}
        if not wrong:
            unsupported = {name for name in refused if any(group.unsupported for group in by_fleet[name])}
            return Discovery(found, refused, frozenset(unsupported))
        refused |= {name: f"fleet {name}, as its groups are tagged: {remedy}" for name, remedy in wrong.items()}
        fleets = {name: fleet for name, fleet in fleets.items() if name not in wrong}


def _fleet(name: str, members: Sequence[TaggedGroup], sizes: Mapping[str, VmSize], region: str) -> FleetSettings:
    if not _KEY.fullmatch(name):
        where = f"tag {FLEET} of {', '.join(group.name for group in members)}"
        raise BadInput(where, name, "give lower-case letters, digits, - and _, beginning with a letter")
    groups: dict[str, Any] = {}
    for group in members:
        key = group_key(group)
        if key in groups:
            other = groups[key]["name"]
            raise BadInput(f"group key {key} of fleet {name}", group.name, f"{other} has it too: tag one with {GROUP}")
        groups[key] = group_settings(group, sizes, region)
    about = {"queue_url": _agreed(name, members, QUEUE_URL), "policy": _agreed(name, members, POLICY)}
    given = {field: value for field, value in about.items() if value is not None}
    try:
        return FleetSettings(groups=groups, **given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise BadInput(
            f"fleet {name}, as its groups are tagged: {where}",
            first["input"],
            first["msg"].removeprefix("Value error, "),
        ) from None


def group_settings(
    group: TaggedGroup,
    sizes: Mapping[str, VmSize],
    region: str,
    price: Callable[[str], float | None] | None = None,
) -> dict[str, Any]:
    """Return a group's settings by name, as AWS describes it; BadInput for one that cannot be planned with.

    price: dollars per hour of a VM type; by default the table's. Raises PriceUnknown for a type without a price.
    """
    if group.unsupported is not None:
        raise BadInput(f"units of group {group.name}", "no number of VMs", group.unsupported)
    if len(group.vm_types) != 1:
        has = ", ".join(group.vm_types) or "no type that its launch template names"
        raise BadInput(f"VM types of group {group.name}", has, "let a group launch one type; use a group for each type")
    (vm_type,) = group.vm_types
    if vm_type not in sizes:
        raise BadInput(f"VM type of group {group.name}", vm_type, f"AWS knows no such type in {region}")
    return {
        "name": group.name,
        "vm_type": vm_type,
        "cores": sizes[vm_type].cores,
        "memory_gb": sizes[vm_type].memory_gb,
        "price_per_hour": _price(group, vm_type, region, price or (lambda of: price_per_hour(of, region))),
        "min": group.minimum,
        "max": group.maximum,
    }


def _price(group: TaggedGroup, vm_type: str, region: str, price: Callable[[str], float | None]) -> float:
    tagged = group.tags.get(PRICE)
    if tagged is None:
        known = price(vm_type)
        if known is None:
            remedy = f"the table has no price for it in {region}: tag the group with {PRICE}=<dollars per hour>"
            raise PriceUnknown(f"VM type of group {group.name}", vm_type, remedy)
        return known
    try:
        return float(tagged)
    except ValueError:
        raise BadInput(f"tag {PRICE} of group {group.name}", tagged, "give dollars per hour, such as 0.086") from None


def group_key(group: TaggedGroup) -> str:
    """Return the key of a group: its tag, else its name as a metric path can carry it; BadInput for a wrong tag."""
    tagged = group.tags.get(GROUP)
    if tagged is None:
        # Any name becomes a key that the metric paths of its VMs can carry.
        plain = re.sub(r"[^a-z0-9_-]+", "-", group.name.lower()).strip("-")
        return (plain if plain[:1].isalpha() else f"g-{plain}")[:63]
    if not _KEY.fullmatch(tagged):
        remedy = "give lower-case letters, digits, - and _, beginning with a letter"
        raise BadInput(f"tag {GROUP} of group {group.name}", tagged, remedy)
    return tagged


def _agreed(fleet: str, members: Sequence[TaggedGroup], tag: str) -> str | None:
    """Return the value of a tag that one group of the fleet is enough to have; raises BadInput when two differ."""
    values = {group.tags[tag] for group in members if group.tags.get(tag)}
    if len(values) > 1:
        raise BadInput(f"tag {tag} of fleet {fleet}", sorted(values), "let its groups agree, or tag one of them")
    return next(iter(values), None)
