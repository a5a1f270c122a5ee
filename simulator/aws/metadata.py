"""Instance metadata: what a machine can learn about itself, in particular that it is about to leave."""

from __future__ import annotations

import json

from simulator.aws.activities import stamp
from simulator.aws.cloud import Cloud
from simulator.aws.errors import AwsError


def read(cloud: Cloud, instance_id: str, path: str) -> str:
    """Return the value under `latest/meta-data/`; the cloud settles first, so a machine learns its fate at once.

    Raises: LookupError where the real service answers 404: an unknown item or machine, no spot action, no group.
    """
    now = cloud.settle()
    with cloud.lock:
        for region in cloud.regions.values():
            machine = region.machines.find(instance_id)
            if machine is None or machine.state == "terminated":
                continue
            if path == "instance-id":
                return instance_id
            if path == "instance-type":
                return str(machine.instance_type)
            if path == "placement/availability-zone":
                return str(machine.placement.zone)
            if path == "placement/region":
                return region.name
            if path.startswith("tags/instance/"):
                return str(
                    {tag["key"]: tag["value"] for tag in machine.get_tags()}[path.removeprefix("tags/instance/")]
                )
            if path == "autoscaling/target-lifecycle-state":
                try:
                    return region.member(instance_id)[1].target_state
                except AwsError as problem:
                    raise LookupError(f"instance {instance_id} is in no Auto Scaling group") from problem
            if path in ("spot/instance-action", "spot/termination-time") and now < cloud.spot_actions.get(
                instance_id, now
            ):
                time = stamp(cloud.spot_actions[instance_id])
                return time if path.endswith("time") else json.dumps({"action": "terminate", "time": time})
    raise LookupError(f"instance {instance_id} has no metadata item {path}")
