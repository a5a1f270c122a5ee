"""The champions of a models directory: which model decides for which fleet, and whether a promotion stands behind it.

`champion.json` names the champion of every fleet that has none of its own (`model`, `previous`, `report`, `at`) and,
under `fleets`, those of single fleets by name. Either part may be missing, so a file without `fleets` is read as ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.models.promotion_seal import Seal, check
from agent.models.regular_files import read_file
from domain.errors import BadInput

CHAMPION = "champion.json"
EVERY_FLEET = ""
"""Stands for the fleets that have no champion of their own, where a fleet's name is asked for."""
LARGEST_POINTER_BYTES = 1024 * 1024
LARGEST_REPORT_BYTES = 64 * 1024 * 1024


@checked(frozen=True)
class Champion:
    """What `trimtab promote` writes: the file in use, the one before it, the report that speaks for it, and when."""

    model: str
    previous: str | None = None
    report: str | None = None
    at: float | str | None = None


@checked(frozen=True)
class _Pointer:
    model: str | None = None
    previous: str | None = None
    report: str | None = None
    at: float | str | None = None
    fleets: dict[str, Champion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Champions:
    """What `champion.json` holds: champions by fleet, that of every other fleet under `EVERY_FLEET`."""

    by_fleet: Mapping[str, Champion]

    def of(self, fleet: str) -> Champion | None:
        """Return the fleet's own champion, else that of every fleet, else None."""
        return self.by_fleet.get(fleet) or self.by_fleet.get(EVERY_FLEET)

    def replaced(self, fleet: str, champion: Champion | None) -> Champions:
        """Return them with another champion for the fleet, or without one."""
        others = {name: one for name, one in self.by_fleet.items() if name != fleet}
        return Champions(MappingProxyType(others if champion is None else {**others, fleet: champion}))

    def text(self) -> bytes:
        """Return the content of `champion.json`."""
        every = self.by_fleet.get(EVERY_FLEET)
        own = {name: asdict(one) for name, one in sorted(self.by_fleet.items()) if name != EVERY_FLEET}
        data: dict[str, Any] = {} if every is None else asdict(every)
        return (json.dumps(data | ({"fleets": own} if own else {}), indent=2, sort_keys=True) + "\n").encode("utf-8")


NO_CHAMPIONS = Champions(MappingProxyType({}))


def read_champions(path: Path) -> Champions:
    """Return the champions that the file at `path` names; BadInput says what is wrong with it."""
    try:
        pointer = TypeAdapter(_Pointer).validate_json(read_file(path, LARGEST_POINTER_BYTES))
    except OSError as error:
        raise BadInput("champion", str(path), f"{error.strerror}: promote a model") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise BadInput("champion", str(path), f"{where}: {first['msg'].lower()}; promote a model again") from None
    found = dict(pointer.fleets)
    if pointer.model is not None:
        found[EVERY_FLEET] = Champion(pointer.model, pointer.previous, pointer.report, pointer.at)
    if not found:
        raise BadInput("champion", str(path), "it names no model; promote a model again")
    for champion in found.values():
        if Path(champion.model).name != champion.model or not champion.model.endswith(".onnx"):
            raise BadInput("champion", champion.model, f"{path} must name a file beside it, <sha256>.onnx")
    return Champions(MappingProxyType(found))


def read_champion(path: Path) -> Champion:
    """Return the one model in use of a directory that serves one user, as a pool's; BadInput says what is wrong."""
    champion = read_champions(path).by_fleet.get(EVERY_FLEET)
    if champion is None:
        raise BadInput("champion", str(path), "model: field required; promote a model again")
    return champion


def read_report(directory: Path, name: str) -> Mapping[str, Any]:
    """Return a stored report; BadInput when it cannot be read."""
    try:
        data = json.loads(read_file(directory / Path(name).name, LARGEST_REPORT_BYTES))
    except (OSError, ValueError, RecursionError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else str(fault)
        raise BadInput("report", name, f"{why}: it is missing or damaged") from None
    if not isinstance(data, dict):
        raise BadInput("report", name, "it is no report of a promotion")
    return data


def check_promotion(directory: Path, champion: Champion, key: bytes | None) -> None:
    """Raise BadInput unless the champion's report is whole, is of this model, and says that it passed.

    With a key the report must also be signed with it: without one, whoever writes to the directory can write a report.
    """
    remedy = "promote it, or name its file by TRIMTAB_LEARNED__MODEL_FILE"
    if champion.report is None:
        raise BadInput("champion", champion.model, f"no report of a promotion speaks for it: {remedy}")
    report = read_report(directory, champion.report)
    try:
        seal = check(report, key)
    except (ValueError, RecursionError):
        seal = Seal.CHANGED
    if seal is Seal.CHANGED:
        raise BadInput(
            "report", champion.report, f"its seal does not hold, it was changed or is signed with another key: {remedy}"
        )
    if key is not None and seal is not Seal.SIGNED:
        raise BadInput("report", champion.report, f"it is not signed with TRIMTAB_LEARNED__PROMOTION_KEY: {remedy}")
    challenger = report.get("challenger")
    sha = challenger.get("sha256") if isinstance(challenger, Mapping) else None
    if f"{sha}.onnx" != champion.model:
        raise BadInput("report", champion.report, f"it is of the model {sha}, not of {champion.model}: {remedy}")
    if report.get("passed") is not True:
        raise BadInput("report", champion.report, f"it says that {champion.model} did not pass: {remedy}")
