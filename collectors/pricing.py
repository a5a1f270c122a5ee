"""On-demand prices of VM types from the AWS Price List API, in dollars per hour."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collectors.aws import AwsSession

LINUX_ON_DEMAND: Final = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
    "capacitystatus": "Used",
}
"""Attributes of the product that a group on shared hardware launches."""


def listed_price_per_hour(session: AwsSession, vm_type: str, region: str) -> float | None:
    """Return the Linux on-demand price of a VM type in a region; None without exactly one price above 0.

    Raises CloudError where the Price List API cannot be read.
    """
    wanted = {**LINUX_ON_DEMAND, "instanceType": vm_type, "regionCode": region}
    found = session.read(
        "pricing",
        "GetProducts",
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
    )
    prices = {price for product in found.get("PriceList", ()) for price in _on_demand(json.loads(product))}
    return prices.pop() if len(prices) == 1 else None


def _on_demand(product: dict[str, Any]) -> list[float]:
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    dimensions = [one for term in terms for one in term.get("priceDimensions", {}).values() if one.get("unit") == "Hrs"]
    prices = [float(one.get("pricePerUnit", {}).get("USD", 0.0)) for one in dimensions]
    return [price for price in prices if price > 0.0]
