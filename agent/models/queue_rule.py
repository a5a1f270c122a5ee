"""A tuned setting of the queue rule as a model of one fleet: its file, and the ranges of its numbers.

The file is JSON named after its SHA-256: `kind` "queue-rule", `version` 1, `fleet`, `horizon_s`, `idle_s`, and
`job_core_s`, which is null where the work of waiting jobs is reported or the settings' own value stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.models.directory import ModelFile, read_model_file, refused
from domain.errors import BadInput
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE

VERSION: Final = 1

HorizonS = Annotated[float, Field(ge=1, le=86_400)]
IdleS = Annotated[float, Field(ge=0, le=86_400)]
JobCoreS = Annotated[float, Field(gt=0, le=1e7)]


@dataclass(frozen=True, slots=True)
class TunedSetting:
    """A setting of the queue rule in force for a fleet; `name` is the SHA-256 of its file."""

    name: str
    fleet: str
    rule: RuleSetting


@checked(frozen=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class _File:
    kind: Literal["queue-rule"]
    version: Literal[1]
    fleet: Annotated[str, Field(min_length=1)]
    horizon_s: HorizonS
    idle_s: IdleS
    job_core_s: JobCoreS | None


@checked(frozen=True, config=ConfigDict(allow_inf_nan=False))
class Values:
    """A setting in a report; without a job_core_s the settings' own value stays."""

    horizon_s: HorizonS
    idle_s: IdleS
    job_core_s: JobCoreS | None = None


@checked(frozen=True, config=ConfigDict(allow_inf_nan=False))
class Gain:
    """The share of the cost that a setting saves, 0.12 for 12 %, with the bounds of its interval."""

    share: float
    low: float
    high: float


@checked(frozen=True, config=ConfigDict(allow_inf_nan=False))
class Tuning:
    """Why a setting was chosen, `self_tuning` in its report: the values before and after, and the savings.

    dollars_a_month: saved. hours: of the record that was replayed. why: a sentence.
    """

    before: Annotated[Values, Field(alias="from")]
    after: Annotated[Values, Field(alias="to")]
    gain: Gain
    dollars_a_month: float
    hours: float
    why: str

    @property
    def sentence(self) -> str:
        """Its savings, such as `from 150 s: 12 % cheaper over 3 days, about $41 a month`."""
        before, after = self.before, self.after
        was = [f"{before.horizon_s:g} s"] if before.horizon_s != after.horizon_s else []
        was += [f"idle {before.idle_s:g} s"] if before.idle_s != after.idle_s else []
        over = f"{self.hours / 24.0:.0f} days" if self.hours >= 48.0 else f"{self.hours:.0f} hours"
        saved = f"{self.gain.share:.0%} cheaper over {over}, about ${self.dollars_a_month:.0f} a month"
        return f"from {', '.join(was)}: {saved}" if was else saved


def tuning_in(report: Mapping[str, Any]) -> Tuning | None:
    """Return why the setting of a report was chosen; None for one of a person, or without a reason."""
    try:
        return TypeAdapter(Tuning).validate_python(report.get("self_tuning"))
    except ValidationError:
        return None


def rule_file(fleet: str, rule: RuleSetting) -> ModelFile:
    """Return the file of a setting; BadInput for a number out of its range."""
    try:
        made = _File(
            kind=QUEUE_RULE,
            version=VERSION,
            fleet=fleet,
            horizon_s=rule.horizon_s,
            idle_s=rule.idle_s,
            job_core_s=rule.job_core_s or None,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(str(first["loc"][-1]), first["input"], first["msg"].lower()) from None
    content = (json.dumps(asdict(made), sort_keys=True, indent=1) + "\n").encode("ascii")
    return ModelFile(f"{hashlib.sha256(content).hexdigest()}.json", content)


def load_rule(path: Path) -> TunedSetting:
    """Read and verify a setting; ModelRefused when it is damaged, foreign, of another version or out of range."""
    found = read_model_file(path)
    if path.stem != found.sha256:
        raise refused(path, f"its content has SHA-256 {found.sha256}: it is damaged; tune the fleet again")
    try:
        one = TypeAdapter(_File).validate_json(found.content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise refused(path, f"{where}: {first['msg'].lower()}: tune the fleet again") from None
    return TunedSetting(found.sha256, one.fleet, RuleSetting(one.horizon_s, one.idle_s, one.job_core_s or 0.0))
