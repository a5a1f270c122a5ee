"""Service quotas and capacity reservations, which moto lacks; both are reported, not enforced."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.aws.group import instant
from simulator.aws.machines import ACCOUNT_ID
from simulator.aws.requests import AwsError, AwsRequest, Params, Response, answer_modelled

OPERATIONS = frozenset({"CreateCapacityReservation", "DescribeCapacityReservations", "CancelCapacityReservation"})
"""EC2 operations that are answered here."""

RESERVATION_FILTERS: Mapping[str, str] = {
    "availability-zone": "AvailabilityZone",
    "end-date-type": "EndDateType",
    "instance-match-criteria": "InstanceMatchCriteria",
    "instance-platform": "InstancePlatform",
    "instance-type": "InstanceType",
    "owner-id": "OwnerId",
    "state": "State",
    "tenancy": "Tenancy",
}
"""Filters of DescribeCapacityReservations, and the field that each compares."""


@dataclass(slots=True)
class Limits:
    """Quotas by (service code, quota code), as the control endpoint sets them.

    reservations: by region and id, as the API shows them.
    """

    quotas: dict[tuple[str, str], float] = field(default_factory=dict)
    reservations: dict[str, dict[str, Params]] = field(default_factory=dict)

    def quota(self, document: Mapping[str, Any], region: str) -> Response:
        """Answer GetServiceQuota.

        Raises: AwsError (NoSuchResourceException) for a quota that was not set.
        """
        service, code = str(document.get("ServiceCode", "")), str(document.get("QuotaCode", ""))
        if (service, code) not in self.quotas:
            raise AwsError("NoSuchResourceException", f"The request failed because there is no quota {service}/{code}.")
        return _json({"Quota": self._described(service, code, region)})

    def list_quotas(self, document: Mapping[str, Any], region: str) -> Response:
        """Answer ListServiceQuotas: what was set of one service, in pages.

        Raises: AwsError: IllegalArgumentException without a service or with a page size AWS does not take,
        InvalidPaginationTokenException for a token that was not given here.
        """
        service = str(document.get("ServiceCode") or "")
        size = document.get("MaxResults", 100)
        if not service:
            raise AwsError("IllegalArgumentException", "ServiceCode must not be empty.")
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 100:
            raise AwsError("IllegalArgumentException", f"MaxResults is {size!r}: give a number from 1 to 100.")
        token = str(document.get("NextToken") or "0")
        if not (token.isascii() and token.isdigit()):
            raise AwsError("InvalidPaginationTokenException", "The NextToken value is not valid.")
        wanted = document.get("QuotaCode")
        codes = sorted(code for of, code in self.quotas if of == service and wanted in (None, code))
        start = int(token)
        shown = [self._described(service, code, region) for code in codes[start : start + size]]
        more = {"NextToken": str(start + size)} if start + size < len(codes) else {}
        return _json({"Quotas": shown, **more})

    def _described(self, service: str, code: str, region: str) -> Params:
        arn = f"arn:aws:servicequotas:{region}:{ACCOUNT_ID}:{service}/{code}"
        value = self.quotas[service, code]
        return {"ServiceCode": service, "QuotaCode": code, "QuotaArn": arn, "Value": value, "Unit": "None"}

    def answer(self, request: AwsRequest, at: float, request_id: str) -> Response:
        """Answer one of `OPERATIONS`."""
        return answer_modelled(request, "ec2", request_id, lambda params: self._reserved(request, params, at))

    def _reserved(self, request: AwsRequest, params: Params, at: float) -> Params:
        region = request.region
        held = self.reservations.setdefault(region, {})
        if request.operation == "CreateCapacityReservation":
            count = int(params["InstanceCount"])
            if count < 1:
                message = f"Value ({count}) for parameter instanceCount is invalid. It must be at least 1."
                raise AwsError("InvalidParameterValue", message)
            number = f"cr-{len(held) + 1:017x}"
            held[number] = {
                "CapacityReservationId": number,
                "OwnerId": ACCOUNT_ID,
                "CapacityReservationArn": f"arn:aws:ec2:{region}:{ACCOUNT_ID}:capacity-reservation/{number}",
                "InstanceType": params["InstanceType"],
                "AvailabilityZone": params.get("AvailabilityZone", f"{region}a"),
                "InstancePlatform": params.get("InstancePlatform", "Linux/UNIX"),
                "Tenancy": params.get("Tenancy", "default"),
                "EndDateType": params.get("EndDateType", "unlimited"),
                "InstanceMatchCriteria": params.get("InstanceMatchCriteria", "open"),
                "TotalInstanceCount": count,
                "AvailableInstanceCount": count,
                "State": "active",
                "CreateDate": instant(at),
            }
            return {"CapacityReservation": held[number]}
        if request.operation == "CancelCapacityReservation":
            _found(held, params["CapacityReservationId"])["State"] = "cancelled"
            return {"Return": True}
        ids = params.get("CapacityReservationIds") or sorted(held)
        shown = [_found(held, one) for one in ids]
        for wanted in params.get("Filters") or []:
            name, values = str(wanted.get("Name", "")), wanted.get("Values") or []
            if name not in RESERVATION_FILTERS:
                raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
            shown = [one for one in shown if any(_matches(one.get(RESERVATION_FILTERS[name]), v) for v in values)]
        return {"CapacityReservations": shown}


def _json(answer: Params) -> Response:
    return 200, [("Content-Type", "application/x-amz-json-1.1")], json.dumps(answer).encode()


def _matches(held: object, wanted: str) -> bool:
    """Return whether a field matches a filter's value, * and ? being wildcards as on EC2."""
    return held is not None and fnmatch.fnmatchcase(str(held), wanted.replace("[", "[[]"))


def _found(held: Mapping[str, Params], reservation_id: str) -> Params:
    if reservation_id not in held:
        message = f"The capacity reservation '{reservation_id}' does not exist"
        raise AwsError("InvalidCapacityReservationId.NotFound", message)
    return held[reservation_id]
