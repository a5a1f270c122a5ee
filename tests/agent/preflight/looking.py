"""Preflight over a world of the loop's tests: settings that describe its fleet, results by subject."""

from __future__ import annotations

from agent.kernel.checks import CheckResult, State
from agent.preflight.check import check_everything
from agent.service.assembly import AwsKeys
from agent.settings import Settings, load_settings
from domain.clock import WallClock
from domain.decisions import Mode
from tests.faults.world import AGENT_KEY, World


def settings_of(world: World, mode: Mode, **more: str) -> Settings:
    """Return settings that describe the world's fleet as it is; `more` overrides, by the name without TRIMTAB_."""
    given = {
        "MODE": mode.value,
        "STATE_DIRECTORY": str(world.directory),
        "LISTENER__PORT": "0",
        "AWS__REGION": "us-east-1",
        "AWS__ENDPOINT_URL": world.running.endpoint,
        "INTERRUPTION_QUEUE_URL": world.notices,
    }
    for group in () if more.get("DISCOVERY__ENABLED") else world.fleet.groups:
        below = f"FLEETS__web__GROUPS__{group.key}__"
        given |= {
            f"{below}NAME": group.name,
            f"{below}VM_TYPE": group.vm_type.name,
            f"{below}CORES": str(group.vm_type.cores),
            f"{below}MEMORY_GB": str(group.vm_type.memory_gb),
            f"{below}PRICE_PER_HOUR": str(group.vm_type.price_per_hour),
            f"{below}MIN": str(group.minimum),
            f"{below}MAX": str(group.maximum),
        }
    return load_settings({f"TRIMTAB_{name}": value for name, value in {**given, **more}.items()})


def tag(world: World, fleet: str = "web") -> None:
    """Tag every group of the world."""
    tags = [
        {
            "ResourceId": group.name,
            "ResourceType": "auto-scaling-group",
            "Key": "trimtab:fleet",
            "Value": fleet,
            "PropagateAtLaunch": True,
        }
        for group in world.fleet.groups
    ]
    world.owner.create_or_update_tags(Tags=tags)


def look(world: World, mode: Mode, wait_s: float = 0.0, **more: str) -> list[CheckResult]:
    """Return what preflight finds, listening for no measurements by default."""
    keys = AwsKeys(AGENT_KEY, "simulated")
    # The cloud's answers are dated by its own clock; listening takes time of the host.
    clock = WallClock() if wait_s else world.agent_clock
    return list(check_everything(settings_of(world, mode, **more), clock, wait_s=wait_s, keys=keys))


def wrong(results: list[CheckResult]) -> list[tuple[str, State]]:
    """Return subject and state of what is not as it should be."""
    return [(result.subject, result.state) for result in results if result.state is not State.OK]
