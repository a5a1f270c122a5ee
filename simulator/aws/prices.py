"""Prices: the bundled table of on-demand prices, and a spot market derived from it."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.aws.requests import Response


def price_per_hour(instance_type: str, region: str = "us-east-1") -> float:
    """Return the on-demand price in US dollars per hour.

    Raises: LookupError when the table has no such type in that region.
    """
    prices = _table().get(region, {})
    if instance_type not in prices:
        known = ", ".join(sorted(prices)) or f"no types; regions: {', '.join(sorted(_table()))}"
        raise LookupError(f"no price for {instance_type} in {region}; simulator/aws/prices.json has {known}")
    return prices[instance_type]


def spot_price_per_hour(instance_type: str, zone: str) -> float:
    """Return a constant spot price, 30 to 45 % of on-demand, different per type and zone and always the same for both.

    Raises: LookupError when the table does not have the type.
    """
    share = 0.30 + 0.15 * (zlib.crc32(f"{instance_type}/{zone}".encode()) % 1000) / 1000.0
    return round(share * price_per_hour(instance_type, zone.rstrip("abcdefghij")), 6)


def products(document: Mapping[str, Any]) -> Response:
    """Answer the Price List API's GetProducts for a VM type in a region, both given by filters on equality.

    A type without a price gives an empty list, as on AWS.
    """
    wanted = {one["Field"]: one["Value"] for one in document.get("Filters", ())}
    vm_type, region = wanted.get("instanceType", ""), wanted.get("regionCode", "")
    found = []
    if document.get("ServiceCode") == "AmazonEC2" and vm_type in _table().get(region, {}):
        price = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price_per_hour(vm_type, region):.10f}"}}
        term = {"offerTermCode": "JRTCKXETXF", "priceDimensions": {"ABC.JRTCKXETXF.6YS6EN2CT7": price}}
        product = {"productFamily": "Compute Instance", "attributes": wanted}
        found.append({"product": product, "terms": {"OnDemand": {"ABC.JRTCKXETXF": term}}, "version": "1"})
    body = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in found]}
    return 200, [("Content-Type", "application/x-amz-json-1.1")], json.dumps(body).encode()


def priced(spot_price_history: bytes) -> bytes:
    """Return moto's answer to DescribeSpotPriceHistory with our prices, for the types we know, for its constant."""
    return _ITEM.sub(_priced_item, spot_price_history.decode()).encode()


_ITEM = re.compile(r"<item>(?:(?!</item>).)*</item>", re.DOTALL)


def _priced_item(item: re.Match[str]) -> str:
    text = item.group()
    kind, zone = (re.search(rf"<{tag}>([^<]*)</{tag}>", text) for tag in ("instanceType", "availabilityZone"))
    if kind is None or zone is None:
        return text
    try:
        price = spot_price_per_hour(kind.group(1), zone.group(1))
    except LookupError:
        return text
    return re.sub(r"(<spotPrice>)[^<]*", rf"\g<1>{price:.6f}", text)


@cache
def _table() -> dict[str, dict[str, float]]:
    raw = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
    return {region: prices for region, prices in raw.items() if isinstance(prices, dict)}
