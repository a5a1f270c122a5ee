"""The EC2 machines under the groups: moto's instances, started, moved through their states and found again by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moto.autoscaling import autoscaling_backends
from moto.core.exceptions import ServiceException
from moto.ec2 import ec2_backends
from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import Instance, StateReason
from moto.moto_api._internal import mock_random

from simulator.aws.group import instant
from simulator.aws.requests import AwsError, validation_error

ACCOUNT_ID = "123456789012"
STATE_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
GONE = frozenset({"shutting-down", "terminated", "stopping", "stopped"})


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A resolved launch template or configuration; `template` is the API's description of it for an instance."""

    image_id: str
    instance_type: str | None
    spot: bool
    tags: dict[str, str]
    template: dict[str, str] | None
    launch_configuration: Any | None


class Machines:
    """Moto's EC2 backend of one region, seen as machines that boot, run and vanish."""

    def __init__(self, region: str, seed: int) -> None:
        self.region, self._seed = region, seed
        self._known: dict[str, Instance] = {}
        self._launches = 0

    @property
    def ec2(self) -> EC2Backend:
        """Return moto's EC2 backend of this region."""
        return ec2_backends[ACCOUNT_ID][self.region]

    def blueprint(self, specification: dict[str, Any]) -> Blueprint:
        """Resolve a LaunchTemplate specification (version "$Latest", "$Default" or a number) against moto's."""
        identifier, name = specification.get("LaunchTemplateId"), specification.get("LaunchTemplateName")
        if bool(identifier) == bool(name):
            raise validation_error("Valid requests must contain either launchTemplateId or LaunchTemplateName")
        try:
            found = (
                self.ec2.get_launch_template(identifier)
                if identifier
                else self.ec2.get_launch_template_by_name(str(name))
            )
            version = found.get_version(specification.get("Version") or "$Default")
        except ServiceException as problem:
            raise validation_error(
                "You must use a valid fully-formed launch template. "
                f"The specified launch template, {identifier or name}, does not exist or has no such version: {problem}"
            ) from problem
        market = version.data.get("InstanceMarketOptions") or {}
        return Blueprint(
            image_id=version.image_id,
            instance_type=version.instance_type or None,
            spot=market.get("MarketType") == "spot",
            tags=dict(version.instance_tags),
            template={"LaunchTemplateId": found.id, "LaunchTemplateName": found.name, "Version": str(version.number)},
            launch_configuration=None,
        )

    def configured(self, configuration: Any) -> Blueprint:
        """Resolve a launch configuration held by moto."""
        return Blueprint(
            image_id=configuration.image_id,
            instance_type=configuration.instance_type,
            spot=bool(configuration.spot_price),
            tags={},
            template=None,
            launch_configuration=configuration,
        )

    def launch_configuration(self, name: str) -> Any:
        """Return moto's launch configuration.

        Raises: AwsError (ValidationError) when there is none of that name.
        """
        found = autoscaling_backends[ACCOUNT_ID][self.region].launch_configurations.get(name)
        if found is None:
            raise validation_error(f"Launch configuration name not found - Launch configuration {name} not found")
        return found

    def zones_of_subnets(self, subnet_ids: list[str]) -> dict[str, str]:
        """Return zone -> subnet id, the first subnet of each zone."""
        try:
            subnets = self.ec2.describe_subnets(subnet_ids=subnet_ids)
        except ServiceException as problem:
            raise validation_error(f"The subnet ID '{', '.join(subnet_ids)}' does not exist") from problem
        zones: dict[str, str] = {}
        for subnet in subnets:
            zones.setdefault(str(subnet.availability_zone), str(subnet.id))
        return zones

    def launch(
        self,
        blueprint: Blueprint,
        *,
        instance_type: str,
        zone: str,
        subnet_id: str | None,
        tags: dict[str, str],
        spot: bool,
        at: float,
    ) -> str:
        """Start one machine in state pending and return its id.

        Raises: AwsError with the reason EC2 gives when it refuses.
        """
        configuration = blueprint.launch_configuration
        extra: dict[str, Any] = {}
        if spot:
            extra["instance_market_options"] = {"MarketType": "spot"}
        if blueprint.template is not None:
            extra["launch_template"] = {
                "LaunchTemplateId": blueprint.template["LaunchTemplateId"],
                "Version": blueprint.template["Version"],
            }
        # The id follows from seed and launch, not from what other requests drew before: how many there were is chance.
        self._launches += 1
        mock_random.seed(f"{self.region}/{self._seed}/{self._launches}")
        try:
            reservation = self.ec2.run_instances(
                blueprint.image_id,
                1,
                configuration.user_data if configuration else None,
                configuration.security_groups if configuration else [],
                instance_type=instance_type,
                tags={"instance": {**blueprint.tags, **tags}},
                placement=zone,
                launch_config=configuration,
                is_instance_type_default=False,
                subnet_id=subnet_id,
                region_name=self.region,
                **extra,
            )
        except ServiceException as problem:
            raise AwsError("LaunchFailed", f"{problem}. Launching EC2 instance failed.") from problem
        machine = reservation.instances[0]
        machine.launch_time = instant(at).replace(tzinfo=None)
        self._known[machine.id] = machine
        self.set_state(machine.id, "pending")
        return machine.id

    def set_state(self, instance_id: str, state: str) -> None:
        """Put a machine into the named EC2 state; terminated also frees its disks and addresses."""
        machine = self.find(instance_id)
        if machine is None or machine.state == "terminated":
            return
        if state == "terminated":
            machine.terminate()
        else:
            machine._state.name, machine._state.code = state, STATE_CODES[state]

    def reclaim(self, instance_id: str) -> None:
        """Terminate a spot machine as EC2 does when it wants it back."""
        self.set_state(instance_id, "terminated")
        machine = self.find(instance_id)
        if machine is not None:
            machine.state_reason = StateReason(
                "Server.SpotInstanceTermination: Spot instance termination", "Server.SpotInstanceTermination"
            )

    def state(self, instance_id: str) -> str:
        """Return the EC2 state, "terminated" for an unknown machine."""
        machine = self.find(instance_id)
        return machine.state if machine is not None else "terminated"

    def is_spot(self, instance_id: str) -> bool:
        """Return whether the machine was bought on the spot market."""
        machine = self.find(instance_id)
        return machine is not None and machine.lifecycle == "spot"

    def find(self, instance_id: str) -> Instance | None:
        """Return moto's instance, also one that was started through EC2 directly."""
        if instance_id not in self._known:
            for machine in self.ec2.all_instances():
                self._known.setdefault(machine.id, machine)
        return self._known.get(instance_id)
