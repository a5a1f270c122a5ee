"""What machines cost: the bundled table of on-demand prices, for clouds that have no Pricing API."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path


def price_per_hour(instance_type: str, region: str = "us-east-1") -> float:
    """Return the on-demand price in US dollars per hour.

    Raises: LookupError when the table has no such type in that region.
    """
    prices = _table().get(region, {})
    if instance_type not in prices:
        known = ", ".join(sorted(prices)) or f"no types; regions: {', '.join(sorted(_table()))}"
        raise LookupError(f"no price for {instance_type} in {region}; simulator/aws/prices.json has {known}")
    return prices[instance_type]


@cache
def _table() -> dict[str, dict[str, float]]:
    raw = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
    return {region: prices for region, prices in raw.items() if isinstance(prices, dict)}
