"""What the dry run manages: a fleet of three VM types, its settings as environment variables, and the recorded jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agent.autoscaling.policies.ppo_lstm import LEARNED
from agent.models.shelf import ModelShelf
from agent.settings import Settings
from domain.errors import BadInput
from domain.workload import Trace
from simulator.aws.prices import price_per_hour
from simulator.workloads.recorded import nasa_hour

FLEET = "web"
REGION = "us-east-1"
ORIGIN = 1_795_209_000.0 // 3600.0 * 3600.0
"""Simulated start: an hour on the clock, in November 2026."""

GRACE_S = 20.0
"""Samples travel in wall time, a third of a second at speed 60: wait for them that much longer than in real life."""

LEARNED_JOB_CORE_S = 240.0
"""What the learned policy expects of a job until one has finished: the cheapest of 120, 150 and 240 on other choices of
the recorded jobs (seeds 100 to 115) than are reported; the queue rule is cheapest with its own 120."""

NOT_OVERRIDDEN: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group of the dry run's fleet: key, instance type, cores, memory in GB, fewest, most and initial VMs."""

    key: str
    vm_type: str
    cores: int
    memory_gb: float
    minimum: int
    maximum: int
    initial: int


GROUPS = (
    GroupPlan("workers_s", "m5a.large", 2, 8.0, 1, 3, 1),
    GroupPlan("workers_m", "m5a.xlarge", 4, 16.0, 0, 3, 0),
    GroupPlan("workers_l", "m5a.2xlarge", 8, 32.0, 0, 3, 0),
)
INITIAL = tuple(group.initial for group in GROUPS)
MAX_CORES = sum(group.maximum * group.cores for group in GROUPS)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The jobs of the hour and a paragraph on where they come from and how they were scaled."""

    trace: Trace
    description: str


def recorded_trace(workload: str, seed: int) -> Scenario:
    """Return the jobs of the named workload; BadInput lists the names."""
    if workload != "nasa":
        raise BadInput("--workload", workload, "choose nasa, a recorded day of the NASA iPSC/860 in an hour")
    return Scenario(*nasa_hour(max_cores=MAX_CORES, seed=seed))


def environment(
    directory: Path,
    endpoint: str,
    job_queue_url: str,
    interruption_queue_url: str,
    mode: str,
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of the dry run as the environment variables an operator would set."""
    values = {
        "TRIMTAB_MODE": mode,
        "TRIMTAB_STATE_DIRECTORY": str(directory),
        "TRIMTAB_GRACE_S": f"{GRACE_S:g}",
        "TRIMTAB_LISTENER__PORT": "0",
        "TRIMTAB_AWS__REGION": REGION,
        "TRIMTAB_AWS__ENDPOINT_URL": endpoint,
        "TRIMTAB_INTERRUPTION_QUEUE_URL": interruption_queue_url,
        f"TRIMTAB_FLEETS__{FLEET}__QUEUE_URL": job_queue_url,
        f"TRIMTAB_FLEETS__{FLEET}__SHADOW": "threshold",
    }
    for group in GROUPS:
        prefix = f"TRIMTAB_FLEETS__{FLEET}__GROUPS__{group.key}__"
        values |= {
            f"{prefix}VM_TYPE": group.vm_type,
            f"{prefix}CORES": str(group.cores),
            f"{prefix}MEMORY_GB": f"{group.memory_gb:g}",
            f"{prefix}PRICE_PER_HOUR": f"{price_per_hour(group.vm_type, REGION):g}",
            f"{prefix}MIN": str(group.minimum),
            f"{prefix}MAX": str(group.maximum),
        }
    return values | dict(overrides)


def default_policy(settings: Settings, overrides: Mapping[str, str] = NOT_OVERRIDDEN) -> dict[str, str]:
    """Return the settings that have a learned policy decide, where a model fits the fleet and nobody chose another."""
    policy = f"TRIMTAB_FLEETS__{FLEET}__POLICY"
    there = ModelShelf(settings.models_directory, key=settings.promotion_key).fits(LEARNED, settings.fleet(FLEET))
    if not there or overrides.get(policy, LEARNED) != LEARNED:
        return {}
    return {policy: LEARNED, f"TRIMTAB_FLEETS__{FLEET}__QUEUE_RULE__JOB_CORE_S": f"{LEARNED_JOB_CORE_S:g}"}
