"""Fleets described by tags on their Auto Scaling groups, as settings would describe them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from agent.settings import Settings
from agent.settings.checks import conflicts
from agent.settings.fleet import FleetSettings
from agent.settings.prices import price_per_hour
from collectors.tagged_groups import TaggedGroup, TaggedGroups, VmSize
from domain.errors import BadInput

FLEET: Final = "trimtab:fleet"
GROUP: Final = "trimtab:group"
QUEUE_URL: Final = "trimtab:queue-url"
POLICY: Final = "trimtab:policy"
PRICE: Final = "trimtab:price-per-hour"

PriceOf = Callable[[str, str], float | None]

_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Found:
    """The settings with the fleets that were found in place of their own, and a sentence per fleet that was refused.

    unsupported: those of the refused that have a group whose sizes are no numbers of VMs.
    """

    settings: Settings
    refused: Mapping[str, str] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()


def discover(groups: TaggedGroups, settings: Settings, region: str) -> Found:
    """Return the fleets that are tagged now; raises CloudError when AWS cannot be read."""
    there = groups.read(FLEET)
    sizes = groups.sizes(vm_type for group in there for vm_type in group.vm_types)
    return described(there, sizes, settings, region)


def described(
    groups: Sequence[TaggedGroup],
    sizes: Mapping[str, VmSize],
    settings: Settings,
    region: str,
    price_of: PriceOf = price_per_hour,
) -> Found:
    """Return what the tags describe. A fleet that they describe wrongly is refused whole, the others are not."""
    by_fleet: dict[str, list[TaggedGroup]] = defaultdict(list)
    for group in groups:
        by_fleet[group.tags.get(FLEET, "").strip()].append(group)
    fleets: dict[str, FleetSettings] = {}
    refused: dict[str, str] = {}
    for name, members in sorted(by_fleet.items()):
        try:
            fleets[name] = _fleet(name, members, sizes, region, price_of)
        except BadInput as error:
            refused[name] = str(error)
    while True:
        found = settings.model_copy(update={"fleets": fleets})
        wrong = {c.path[1]: c.remedy for c in conflicts(found) if len(c.path) > 1 and c.path[0] == "fleets"}
        if not wrong:
            unsupported = {name for name in refused if any(group.unsupported for group in by_fleet[name])}
            return Found(found, refused, frozenset(unsupported))
        refused |= {name: f"fleet {name}, as its groups are tagged: {remedy}" for name, remedy in wrong.items()}
        fleets = {name: fleet for name, fleet in fleets.items() if name not in wrong}


def _fleet(
    name: str, members: Sequence[TaggedGroup], sizes: Mapping[str, VmSize], region: str, price_of: PriceOf
) -> FleetSettings:
    if not _KEY.fullmatch(name):
        where = f"tag {FLEET} of {', '.join(group.name for group in members)}"
        raise BadInput(where, name, "give lower-case letters, digits, - and _, beginning with a letter")
    groups: dict[str, Any] = {}
    for group in members:
        key = _key(group)
        if key in groups:
            other = groups[key]["name"]
            raise BadInput(f"group key {key} of fleet {name}", group.name, f"{other} has it too: tag one with {GROUP}")
        groups[key] = _group(group, sizes, region, price_of)
    about = {"queue_url": _agreed(name, members, QUEUE_URL), "policy": _agreed(name, members, POLICY)}
    given = {field: value for field, value in about.items() if value is not None}
    try:
        return FleetSettings(groups=groups, **given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise BadInput(f"fleet {name}, as its groups are tagged: {where}", first["input"], first["msg"]) from None


def _group(group: TaggedGroup, sizes: Mapping[str, VmSize], region: str, price_of: PriceOf) -> dict[str, Any]:
    if group.unsupported is not None:
        raise BadInput(f"units of group {group.name}", "not VMs", group.unsupported)
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
        "price_per_hour": _price(group, vm_type, region, price_of),
        "min": group.minimum,
        "max": group.maximum,
    }


def _price(group: TaggedGroup, vm_type: str, region: str, price_of: PriceOf) -> float:
    tagged = group.tags.get(PRICE)
    if tagged is None:
        known = price_of(vm_type, region)
        if known is None:
            remedy = f"the table has no price for it in {region}: tag the group with {PRICE}=<dollars per hour>"
            raise BadInput(f"VM type of group {group.name}", vm_type, remedy)
        return known
    try:
        return float(tagged)
    except ValueError:
        raise BadInput(f"tag {PRICE} of group {group.name}", tagged, "give dollars per hour, such as 0.086") from None


def _key(group: TaggedGroup) -> str:
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
    """Return the value that the fleet's groups give; one of them is enough, two that differ are a mistake."""
    values = {group.tags[tag] for group in members if group.tags.get(tag)}
    if len(values) > 1:
        raise BadInput(f"tag {tag} of fleet {fleet}", sorted(values), "let its groups agree, or tag one of them")
    return next(iter(values), None)
