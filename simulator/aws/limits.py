"""What an account may run: service quotas and capacity reservations, which moto lacks; both are told, not enforced."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import SERIALIZERS, SerializationContext
from moto.core.utils import get_service_model

from simulator.aws.activities import instant
from simulator.aws.errors import AwsError, Response
from simulator.aws.machines import ACCOUNT_ID

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
class Reservation:
    """A capacity reservation: so many machines of a type in a zone; `state` is active or cancelled."""

    reservation_id: str
    instance_type: str
    zone: str
    count: int
    created_at: float
    platform: str = "Linux/UNIX"
    tenancy: str = "default"
    end_date_type: str = "unlimited"
    match_criteria: str = "open"
    state: str = "active"

    def described(self, region: str) -> dict[str, Any]:
        """Return it as the API's `CapacityReservation` structure."""
        return {
            "CapacityReservationId": self.reservation_id,
            "OwnerId": ACCOUNT_ID,
            "CapacityReservationArn": f"arn:aws:ec2:{region}:{ACCOUNT_ID}:capacity-reservation/{self.reservation_id}",
            "InstanceType": self.instance_type,
            "AvailabilityZone": self.zone,
            "InstancePlatform": self.platform,
            "Tenancy": self.tenancy,
            "EndDateType": self.end_date_type,
            "InstanceMatchCriteria": self.match_criteria,
            "TotalInstanceCount": self.count,
            "AvailableInstanceCount": self.count,
            "State": self.state,
            "CreateDate": instant(self.created_at),
        }


@dataclass(slots=True)
class Limits:
    """Quotas by (service code, quota code), as the control endpoint sets them, and reservations by region."""

    quotas: dict[tuple[str, str], float] = field(default_factory=dict)
    reservations: dict[str, dict[str, Reservation]] = field(default_factory=dict)

    def quota(self, document: Mapping[str, Any], region: str) -> Response:
        """Answer GetServiceQuota.

        Raises: AwsError (NoSuchResourceException) for a quota that nobody has set.
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

    def _described(self, service: str, code: str, region: str) -> dict[str, Any]:
        arn = f"arn:aws:servicequotas:{region}:{ACCOUNT_ID}:{service}/{code}"
        value = self.quotas[service, code]
        return {"ServiceCode": service, "QuotaCode": code, "QuotaArn": arn, "Value": value, "Unit": "None"}

    def answer(self, region: str, operation: str, form: Mapping[str, str], at: float, request_id: str) -> Response:
        """Answer one of `OPERATIONS`, given as its decoded form fields."""
        model = get_service_model("ec2").operation_model(operation)
        request = cast(
            Any, {"values": form, "headers": {}, "body": b"", "method": "POST", "url_path": "/", "url_params": {}}
        )
        params: dict[str, Any] = PROTOCOL_PARSERS["ec2"](model).parse(request)
        held = self.reservations.setdefault(region, {})
        result: dict[str, Any]
        if operation == "CreateCapacityReservation":
            count = int(params["InstanceCount"])
            if count < 1:
                message = f"Value ({count}) for parameter instanceCount is invalid. It must be at least 1."
                raise AwsError("InvalidParameterValue", message)
            made = Reservation(
                f"cr-{len(held) + 1:017x}",
                params["InstanceType"],
                params.get("AvailabilityZone", f"{region}a"),
                count,
                at,
                platform=params.get("InstancePlatform", "Linux/UNIX"),
                tenancy=params.get("Tenancy", "default"),
                end_date_type=params.get("EndDateType", "unlimited"),
                match_criteria=params.get("InstanceMatchCriteria", "open"),
            )
            held[made.reservation_id] = made
            result = {"CapacityReservation": made.described(region)}
        elif operation == "CancelCapacityReservation":
            _found(held, params["CapacityReservationId"]).state = "cancelled"
            result = {"Return": True}
        else:
            ids = params.get("CapacityReservationIds") or sorted(held)
            shown = [_found(held, one).described(region) for one in ids]
            for wanted in params.get("Filters") or []:
                name, values = str(wanted.get("Name", "")), wanted.get("Values") or []
                if name not in RESERVATION_FILTERS:
                    raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
                shown = [one for one in shown if any(_matches(one.get(RESERVATION_FILTERS[name]), v) for v in values)]
            result = {"CapacityReservations": shown}
        rendered = SERIALIZERS["ec2"](model, context=SerializationContext(request_id)).serialize(result)
        return rendered["status_code"], [("Content-Type", "text/xml")], str(rendered["body"]).encode()


def _json(answer: Mapping[str, Any]) -> Response:
    return 200, [("Content-Type", "application/x-amz-json-1.1")], json.dumps(answer).encode()


def _matches(held: object, wanted: str) -> bool:
    """Return whether a field has the value that a filter asks for, * and ? standing for other characters as on EC2."""
    return held is not None and fnmatch.fnmatchcase(str(held), wanted.replace("[", "[[]"))


def _found(held: Mapping[str, Reservation], reservation_id: str) -> Reservation:
    if reservation_id not in held:
        message = f"The capacity reservation '{reservation_id}' does not exist"
        raise AwsError("InvalidCapacityReservationId.NotFound", message)
    return held[reservation_id]
