"""Where AWS has no machines left: shortages per instance type and zone, and what it says when it refuses a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shortage:
    """No `instance_type` (None: any) in `zone` (None: any) before `until` (epoch seconds; None: until cleared)."""

    instance_type: str | None
    zone: str | None
    until: float | None

    def covers(self, instance_type: str, zone: str, now: float) -> bool:
        """Return whether a launch of `instance_type` in `zone` at `now` meets this shortage."""
        return (
            (self.instance_type is None or self.instance_type == instance_type)
            and (self.zone is None or self.zone == zone)
            and (self.until is None or now < self.until)
        )


def insufficient_capacity(instance_type: str, zone: str, other_zones: Sequence[str]) -> str:
    """Return the status message of a launch refused for want of machines; `other_zones` still have some."""
    message = (
        f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested "
        f"({zone}). Our system will be working on provisioning additional capacity. "
    )
    if other_zones:
        message += (
            f"You can currently get {instance_type} capacity by not specifying an Availability Zone in your request "
            f"or choosing {', '.join(other_zones)}. "
        )
    return message + "Launching EC2 instance failed."
