"""What a VM costs where nobody says: the bundled table of on-demand prices."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path


def price_per_hour(vm_type: str, region: str) -> float | None:
    """Return the on-demand price in dollars per hour, None when the table does not have the type in that region."""
    return _table().get(region, {}).get(vm_type)


@cache
def _table() -> dict[str, dict[str, float]]:
    raw = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
    return {region: prices for region, prices in raw.items() if isinstance(prices, dict)}
