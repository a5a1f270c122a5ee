"""What an account may run: service quotas and capacity reservations, which moto lacks; both are told, not enforced."""

from __future__ import annotations

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


@dataclass(slots=True)
class Reservation:
    """A capacity reservation: so many machines of a type in a zone; `state` is active or cancelled."""

    reservation_id: str
    instance_type: str
    zone: str
    count: int
    created_at: float
    state: str = "active"

    def described(self, region: str) -> dict[str, Any]:
        """Return it as the API's `CapacityReservation` structure."""
        return {
            "CapacityReservationId": self.reservation_id,
            "OwnerId": ACCOUNT_ID,
            "CapacityReservationArn": f"arn:aws:ec2:{region}:{ACCOUNT_ID}:capacity-reservation/{self.reservation_id}",
            "InstanceType": self.instance_type,
            "AvailabilityZone": self.zone,
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
        value = self.quotas.get((service, code))
        if value is None:
            raise AwsError("NoSuchResourceException", f"The request failed because there is no quota {service}/{code}.")
        arn = f"arn:aws:servicequotas:{region}:{ACCOUNT_ID}:{service}/{code}"
        quota = {"ServiceCode": service, "QuotaCode": code, "QuotaArn": arn, "Value": value, "Unit": "None"}
        return 200, [("Content-Type", "application/x-amz-json-1.1")], json.dumps({"Quota": quota}).encode()

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
            made = Reservation(
                f"cr-{len(held) + 1:017x}",
                params["InstanceType"],
                params.get("AvailabilityZone", f"{region}a"),
                int(params["InstanceCount"]),
                at,
            )
            held[made.reservation_id] = made
            result = {"CapacityReservation": made.described(region)}
        elif operation == "CancelCapacityReservation":
            _found(held, params["CapacityReservationId"]).state = "cancelled"
            result = {"Return": True}
        else:
            ids = params.get("CapacityReservationIds") or sorted(held)
            result = {"CapacityReservations": [_found(held, one).described(region) for one in ids]}
        rendered = SERIALIZERS["ec2"](model, context=SerializationContext(request_id)).serialize(result)
        return rendered["status_code"], [("Content-Type", "text/xml")], str(rendered["body"]).encode()


def _found(held: Mapping[str, Reservation], reservation_id: str) -> Reservation:
    if reservation_id not in held:
        message = f"The capacity reservation '{reservation_id}' does not exist"
        raise AwsError("InvalidCapacityReservationId.NotFound", message)
    return held[reservation_id]
