"""How the last round of learning ended, by subject: a small file beside the models, for the agent and for people.

`learn-<decision>-<subject>.json` is replaced whole at the end of every round, whatever that end was. The trainer writes
it, the agent only reads it: the two are processes of different users.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.models.regular_files import read_file
from domain.errors import BadInput
from domain.subject import Subject

FORMAT: Final = 1
PREFIX, SUFFIX = "learn-", ".json"
LARGEST_STATUS_BYTES: Final = 64 * 1024
LONGEST_SENTENCE: Final = 2000
"""Characters kept of a sentence; the report has the rest."""


class Ending(StrEnum):
    """How a round ended; see `GOOD_ENDINGS` for those that judged what they were to judge."""

    PROMOTED = "promoted"
    PROBATION = "probation"
    KEPT = "kept"
    ADVISED = "advised"
    """The policy in use stays, and a setting of its rule that is surely cheaper waits for a person."""
    REFUSED = "refused"
    NOT_TRUE = "not_true"
    TOO_LITTLE = "too_little"
    BUDGET = "budget"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"

    @property
    def good(self) -> bool:
        """Whether the round judged to its end."""
        return self in GOOD_ENDINGS


GOOD_ENDINGS: Final = frozenset({Ending.PROMOTED, Ending.PROBATION, Ending.KEPT, Ending.ADVISED, Ending.REFUSED})


@checked(frozen=True, config=ConfigDict(allow_inf_nan=False))
class RoundStatus:
    """The end of a subject's last round.

    at: epoch seconds. sentence: for people. good_at: the end of the last round that judged to its end, None before the
    first. cpu_s: processor seconds of the round, those of all its resumptions.
    """

    decision: str
    subject: str
    at: float
    outcome: Ending
    sentence: str
    good_at: float | None = None
    cpu_s: float = 0.0
    format: Literal[1] = FORMAT

    @property
    def of(self) -> Subject:
        """The subject that was learnt for."""
        return Subject(self.decision, self.subject)


def status_file(directory: Path, subject: Subject) -> Path:
    """Return the place of a subject's status in a models directory."""
    return directory / f"{PREFIX}{subject.decision}-{subject.name}{SUFFIX}"


def read_rounds(directory: Path, decision: str) -> tuple[Mapping[str, RoundStatus], tuple[str, ...]]:
    """Return the status of every subject of a decision by its name, and a sentence for each file that cannot be read.

    Both are empty while the directory is not there.
    """
    found: dict[str, RoundStatus] = {}
    problems = []
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return {}, ()
    except OSError as error:
        return {}, (f"{directory} cannot be listed ({error.strerror})",)
    for name in names:
        if not (name.startswith(f"{PREFIX}{decision}-") and name.endswith(SUFFIX)):
            continue
        try:
            status = read_status(directory / name)
        except FileNotFoundError:
            continue
        except (OSError, BadInput) as error:
            why = error.remedy if isinstance(error, BadInput) else error.strerror
            problems.append(f"{directory / name} is not readable as the status of a round ({why})")
            continue
        # Its name says whom it is about: a copy under another name speaks for nobody.
        if status.decision == decision and status_file(directory, status.of).name == name:
            found[status.subject] = status
        else:
            problems.append(f"{directory / name} is about {status.of}: remove it")
    return found, tuple(problems)


def read_status(file: Path) -> RoundStatus:
    """Return the status in a file; OSError or BadInput when it cannot be read."""
    content = read_file(file, LARGEST_STATUS_BYTES)
    try:
        return TypeAdapter(RoundStatus).validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise BadInput("status of a round", str(file), f"{where}: {first['msg'].lower()}") from None
