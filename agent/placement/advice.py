"""The advice on the policy of a pool, as `trimtab learn placement` left it in the models directory.

The trainer replays the record under every bundled policy and writes the file; the agent reads it, and switches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.models.regular_files import read_file
from domain.errors import BadInput
from domain.units import DAY_S

LARGEST_ADVICE_BYTES: Final = 64 * 1024
OLD_S: Final = 7.0 * DAY_S
"""A round of learning a day replaces it."""


@checked(frozen=True, config=ConfigDict(allow_inf_nan=False))
class PolicyAdvice:
    """Whether another policy would have been better on the record of a pool.

    at: epoch seconds. policy: that of the pool then, by its word or name, and its digest. advised: a word for POLICY,
    "" for the policy in use. why: a sentence. changed_at: when `advised` changed last, epoch seconds. days: of record.
    costs: by policy, host-hours of each third of the record, or mean hosts of each filling.
    """

    pool: str
    at: float
    policy: str
    policy_digest: str
    advised: str
    why: str
    changed_at: float
    days: float
    costs: Mapping[str, tuple[float, ...]]
    format: Literal[1] = 1

    def old_days(self, now: float) -> int:
        """Return its age in whole days where it is older than OLD_S, else 0."""
        age_s = now - self.at
        return int(age_s // DAY_S) if age_s > OLD_S else 0


def advice_file(models: Path, pool: str) -> Path:
    """Return the place of a pool's advice in a models directory."""
    return models / f"advice-placement-{pool}.json"


def read_advice(models: Path, pool: str) -> PolicyAdvice | None:
    """Return the advice on a pool, None where there is none; OSError or BadInput when it cannot be read."""
    file = advice_file(models, pool)
    try:
        found = TypeAdapter(PolicyAdvice).validate_json(read_file(file, LARGEST_ADVICE_BYTES))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise BadInput("advice on a pool", str(file), f"{where}: {first['msg'].lower()}") from None
    if found.pool != pool:
        raise BadInput("advice on a pool", str(file), f"it is about {found.pool}: remove it")
    return found
