"""A tuned rule as settings of the agent, with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.settings.fleet import FleetSettings
from domain.errors import BadInput
from trainer.autoscaling.policies.base import parameters_of

AGENT_RULES: tuple[str, ...] = ("queue-rule", "queue-rule-single", "threshold", "target-tracking")
"""The rules to tune that the agent has too."""
_LIVE: Mapping[str, Mapping[str, str]] = {
    "queue-rule": {"busy_counts": "true", "skip_cooling": "false"},
    "threshold": {"cooldown_s": "0"},
    "target-tracking": {"warmup_s": "300", "keep_one": "false"},
}
"""Parameters that the agent has no setting for, with the value at which it behaves alike."""


def agent_grid(text: str) -> bool:
    """Return whether the agent can decide as this text of a grid does."""
    name, _, rest = text.partition(":")
    given = parameters_of(name, rest)
    return all(given.get(parameter, value) == value for parameter, value in _LIVE.get(name, {}).items())


def settings_of(policy: str, fleet: str) -> dict[str, str]:
    """Return the agent's settings for a rule, as environment variables to values.

    What a rule is told of jobs, the agent is told by its job source; a setting stands in until it is. Raises BadInput
    for a policy that the agent has not.
    """
    name, _, rest = policy.partition(":")
    if name not in _LIVE:
        raise BadInput("policy", policy, f"choose one of {', '.join(_LIVE)}: the agent has no other rule")
    prefix = f"TRIMTAB_FLEETS__{fleet}__"
    known = FleetSettings.model_fields
    section = name.replace("-", "_")
    parameters = known[section].annotation
    assert parameters is not None
    found = {f"{prefix}POLICY": name}
    for parameter, value in parameters_of(name, rest).items():
        if parameter in parameters.model_fields:
            found[f"{prefix}{section.upper()}__{parameter.upper()}"] = value
        elif parameter in known:
            found[f"{prefix}{parameter.upper()}"] = value
    return found


def settings_text(policy: str, fleet: str, made_by: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Return lines for the agent's environment: comments that say where they come from, then NAME=VALUE.

    made_by: the command, the world and the workloads with their SHA-256, and the seeds. figures: `tuned_objective`,
    `cost`, `rent` and `penalty`, dollars.
    """
    world, (first, last) = made_by["world"], made_by["tuning_seeds"]
    lines = [
        f"# Found by: {made_by['command']}",
        f"# World {world['name']}, SHA-256 {world['sha256']}",
        *(f"# Workload {one['workload']}, SHA-256 {one['sha256']}" for one in made_by["workloads"]),
        f"# The least of {figures['settings']} settings on seeds {first} to {last}: {figures['tuned_objective']:.4f} $",
        f"# On seeds {made_by['reporting_seeds'][0]} to {made_by['reporting_seeds'][1]}: {figures['cost']:.4f} $, rent "
        f"{figures['rent']:.4f} $, waiting {figures['penalty']:.4f} $",
        *(f"{name}={value}" for name, value in settings_of(policy, fleet).items()),
    ]
    return "\n".join(lines) + "\n"
