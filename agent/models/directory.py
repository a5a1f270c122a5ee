"""The directory of models: which file decides for which subject, what speaks for it, and the way back.

A subject is a fleet, a pool or a cluster of one decision. Beside the model files, named after their content, lie

- `champion.json`, the pointer: model, the one before, report and time of every subject. The champion of all fleets
  without one of their own stands at the top, those of single fleets under `fleets`, as in earlier versions; those of
  other decisions stand under `subjects`, by decision and name. Under `probation`, by decision and name, stand models
  that passed the gate and run as shadows first. It is replaced whole or not at all, so that one replacement moves a
  model from probation into use.
- `history.jsonl`, a line for every promotion, forced use and rollback, and for the begin and the end of a probation.
- `report-<digest>.json`, a sealed report for every evaluation and for every forced use.

A model decides only when a report of this subject speaks for it: one that it passed, or one that says why it was
forced. With a key the report must be signed with it. It is read here; `trainer.promotion.directory` writes it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.models.regular_files import read_file
from domain.errors import BadInput
from domain.subject import AUTOSCALING, Subject
from domain.units import HOUR_S

KEY_VARIABLE = "PROMOTION_KEY"
"""Environment variable with the key; not one of the agent's settings, which never needs it."""
SHORTEST_KEY_BYTES = 16
ALGORITHM = "hmac-sha256"
_SEAL = ("sha256", "signature")


class Seal(StrEnum):
    """What a report's seal says: signed with this key, whole but unsigned or not checked for want of a key, or not."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    KEY_NEEDED = "key needed"
    CHANGED = "changed"


def read_key(path: Path | None, environ: Mapping[str, str] | None = None) -> bytes | None:
    """Return the key of a file, else of the environment variable, else None; BadInput shows nothing of a key."""
    if path is not None:
        try:
            key = path.read_bytes().strip()
        except OSError as fault:
            raise BadInput("--key-file", str(path), f"{fault.strerror}: name a readable file") from None
        source = str(path)
    else:
        given = (os.environ if environ is None else environ).get(KEY_VARIABLE)
        if given is None:
            return None
        key, source = given.strip().encode("utf-8"), f"${KEY_VARIABLE}"
    if len(key) < SHORTEST_KEY_BYTES:
        raise BadInput("promotion key", source, f"give at least {SHORTEST_KEY_BYTES} bytes")
    return key


def canonical(body: Mapping[str, Any]) -> bytes:
    """Return the text that is sealed: JSON with sorted keys and no spaces, without the seal itself."""
    plain = {name: value for name, value in body.items() if name not in _SEAL}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def seal_of(report: Mapping[str, Any], key: bytes | None) -> Seal:
    """Return what the seal of a report says."""
    text = canonical(report)
    if report.get("sha256") != hashlib.sha256(text).hexdigest():
        return Seal.CHANGED
    signature = report.get("signature")
    if signature is None:
        return Seal.UNSIGNED
    if key is None:
        return Seal.KEY_NEEDED
    value = signature.get("value") if isinstance(signature, Mapping) else None
    expected = hmac.new(key, text, hashlib.sha256).hexdigest()
    return Seal.SIGNED if isinstance(value, str) and hmac.compare_digest(value, expected) else Seal.CHANGED


EVERY_FLEET: Final = Subject(AUTOSCALING)
"""The fleets that have no champion of their own."""
POINTER, HISTORY = "champion.json", "history.jsonl"
LARGEST_MODEL_BYTES = 64 * 1024 * 1024
LARGEST_POINTER_BYTES = 1024 * 1024
LARGEST_REPORT_BYTES = 64 * 1024 * 1024
SUFFIXES = (".onnx", ".json", ".toml")
PROMOTED, FORCED, ROLLED_BACK = "promoted", "forced", "rolled back"
ON_PROBATION, PROBATION_ENDED = "on probation", "probation ended"


class ModelRefused(BadInput):
    """A model file is not used: it is missing, damaged, foreign, of another schema, or answers wrongly."""


def refused(path: Path, remedy: str) -> ModelRefused:
    """Return the refusal of a model file."""
    return ModelRefused("model file", str(path), remedy)


class ModelFile(NamedTuple):
    """A model file as it was read once: its name in a models directory, after its SHA-256, and its content."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """The SHA-256 of the content."""
        return self.name.partition(".")[0]


def read_model_file(path: Path) -> ModelFile:
    """Return a file's name in a models directory and its content; ModelRefused for what is no regular file of a size.

    A file of JSON or TOML may have any name; an ONNX file must be named after its content already.
    """
    try:
        content = read_file(path, LARGEST_MODEL_BYTES)
    except OSError as error:
        wrong_kind = error.errno in (errno.EFBIG, errno.EINVAL)
        remedy = "name a model of this program" if wrong_kind else "name a file that can be read"
        raise refused(path, f"{error.strerror}: {remedy}") from None
    sha = hashlib.sha256(content).hexdigest()
    if path.suffix in (".json", ".toml"):
        return ModelFile(sha + path.suffix, content)
    if path.stem != sha:
        raise refused(path, f"its content has SHA-256 {sha}: it is damaged or was renamed; copy it again")
    return ModelFile(f"{sha}.onnx", content)


@checked(frozen=True)
class Champion:
    """A line of the pointer: the file in use, the one before it, the report that speaks for it, and when."""

    model: str
    previous: str | None = None
    report: str | None = None
    at: float | str | None = None

    @property
    def at_s(self) -> float | None:
        """When it came into use, epoch seconds; None where that is not known."""
        try:
            return self.at if self.at is None else moment_s(self.at)
        except ValueError:
            return None


class Then(StrEnum):
    """What becomes of a probationer that keeps its promise: it is promoted, waits for `trimtab approve`, or nothing."""

    PROMOTE = "promote"
    APPROVE = "approve"
    NOTHING = "nothing"


@checked(frozen=True)
class Probationer:
    """A model on probation: it runs beside what decides, and decides nothing.

    model: its file. report: of the gate that it passed. against: the champion's file that it was compared with, None
    for no champion. since: epoch seconds. hours: how long. then: what follows when it keeps its promise.
    """

    model: str
    report: str
    against: str | None
    since: Annotated[float, Field(allow_inf_nan=False)]
    hours: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    then: Then

    @property
    def until(self) -> float:
        """When its hours are over, epoch seconds."""
        return self.since + self.hours * HOUR_S


@checked(frozen=True)
class _Pointer:
    model: str | None = None
    previous: str | None = None
    report: str | None = None
    at: float | str | None = None
    fleets: dict[str, Champion] = field(default_factory=dict)
    subjects: dict[str, dict[str, Champion]] = field(default_factory=dict)
    probation: Any = None
    """Read apart from the champions: one that is damaged must not take what decides with it."""


Champions = Mapping[Subject, Champion]


@dataclass(frozen=True, slots=True)
class ModelsDirectory:
    """A directory of models; it may not exist yet. key: signs reports, and must have signed those that count."""

    path: Path
    key: bytes | None = None

    def champions(self) -> Champions:
        """Return the champions by subject, none while there is no pointer; BadInput when it cannot be read."""
        pointer = self._pointer()
        if pointer is None:
            return {}
        found = {Subject(AUTOSCALING, name): one for name, one in pointer.fleets.items()}
        if pointer.model is not None:
            found[EVERY_FLEET] = Champion(pointer.model, pointer.previous, pointer.report, pointer.at)
        for decision, own in pointer.subjects.items():
            found |= {Subject(decision, name): one for name, one in own.items()}
        if not found and not pointer.probation:
            raise _damaged(self.path / POINTER, "it names no model")
        for champion in found.values():
            self.file_of(champion.model)
        return found

    def probationers(self) -> Mapping[Subject, Probationer]:
        """Return the models on probation by subject; BadInput when the pointer, or what it says of them, is damaged."""
        pointer = self._pointer()
        if pointer is None or pointer.probation is None:
            return {}
        try:
            held = TypeAdapter(dict[str, dict[str, Probationer]]).validate_python(pointer.probation)
        except ValidationError as error:
            raise _damaged(self.path / POINTER, f"probation.{_first(error)}") from None
        found = {Subject(decision, name): one for decision, own in held.items() for name, one in own.items()}
        for probationer in found.values():
            self.file_of(probationer.model)
        return found

    def _pointer(self) -> _Pointer | None:
        file = self.path / POINTER
        if not os.path.lexists(file):
            return None
        try:
            return TypeAdapter(_Pointer).validate_json(read_file(file, LARGEST_POINTER_BYTES))
        except OSError as error:
            raise _damaged(file, error.strerror or str(error)) from None
        except ValidationError as error:
            raise _damaged(file, _first(error)) from None

    def champion(self, subject: Subject) -> Champion | None:
        """Return the subject's champion, else that of all subjects of its decision, else None; BadInput."""
        found = self.champions()
        return found.get(subject) or found.get(Subject(subject.decision))

    def file_of(self, name: str) -> Path:
        """Return the place of a model that the pointer names; BadInput for a name that leads elsewhere."""
        if Path(name).name != name or Path(name).suffix not in SUFFIXES:
            raise BadInput(
                "champion", name, f"{self.path / POINTER} must name a file in the same folder, <sha256>.onnx"
            )
        return self.path / name

    def read(self, name: str) -> ModelFile:
        """Return a model that the pointer names, whole; ModelRefused when its content has changed."""
        path = self.file_of(name)
        model = read_model_file(path)
        if model.name != name:
            raise refused(path, f"its content has SHA-256 {model.sha256}: it is damaged: promote it again")
        return model

    def report(self, name: str) -> Mapping[str, Any]:
        """Return a stored report; BadInput when it cannot be read."""
        try:
            data = json.loads(read_file(self.path / Path(name).name, LARGEST_REPORT_BYTES))
        except (OSError, ValueError, RecursionError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else str(fault)
            raise BadInput("report", name, f"{why}: it is missing or damaged") from None
        if not isinstance(data, dict):
            raise BadInput("report", name, "it is not a promotion report")
        return data

    def check(self, subject: Subject, champion: Champion) -> Mapping[str, Any]:
        """Return the report that lets the champion decide for the subject; BadInput when none does.

        It must be whole, of this decision, subject and model, and passed or forced with a reason. With a key it must be
        signed with it: without one, whoever writes to the directory can write a report.
        """
        remedy = f"promote it, or force it: trimtab promote {subject} FILE --force REASON"
        if champion.report is None:
            raise BadInput("champion", champion.model, f"no report of a promotion speaks for it: {remedy}")
        report = self.report(champion.report)
        try:
            seal = seal_of(report, self.key)
        except (ValueError, RecursionError):
            seal = Seal.CHANGED
        if seal is Seal.CHANGED:
            why = "its seal does not hold, it was changed or is signed with another key"
            raise BadInput("report", champion.report, f"{why}: {remedy}")
        if self.key is not None and seal is not Seal.SIGNED:
            why = "it is not signed with TRIMTAB_LEARNED__PROMOTION_KEY"
            raise BadInput("report", champion.report, f"{why}: {remedy}")
        challenger = report.get("challenger")
        sha = challenger.get("sha256") if isinstance(challenger, Mapping) else None
        if sha != Path(champion.model).stem:
            why = f"it is of the model {sha}, not of {champion.model}"
            raise BadInput("report", champion.report, f"{why}: {remedy}")
        if (of := _subject_of(report)) != subject:
            raise BadInput("report", champion.report, f"it is of {of}, not of {subject}: {remedy}")
        if report.get("passed") is not True and not forced_reason(report):
            raise BadInput("report", champion.report, f"it records that {champion.model} did not pass: {remedy}")
        return report

    def why_in_use(self, subject: Subject) -> str:
        """Return why another champion decides for a subject since its last change, for people; "" where none is known.

        A rollback has its reason, a promotion the relative cost that its report has from the gate. BadInput.
        """
        changes = [one for one in self.history(subject) if one.get("event") in (PROMOTED, FORCED, ROLLED_BACK)]
        last = changes[-1] if changes else {}
        if last.get("event") == ROLLED_BACK:
            return f"rolled back: {last.get('reason') or 'by hand'}"
        if last.get("event") != PROMOTED or not isinstance(last.get("report"), str):
            return str(last.get("reason", ""))
        overall = self.report(last["report"]).get("overall")
        relative = overall.get("relative") if isinstance(overall, Mapping) else None
        mean = relative.get("mean") if isinstance(relative, Mapping) else None
        found = [f"cost {mean:+.1%} at the gate" if isinstance(mean, float) else "", str(last.get("reason", ""))]
        return ", ".join(filter(None, found))

    def check_probationer(self, subject: Subject, probationer: Probationer) -> Mapping[str, Any]:
        """Return the report that speaks for a model on probation, as `check` does; BadInput when none does.

        It must also be of a comparison with the champion that the pointer names: the pointer is not sealed.
        """
        report = self.check(subject, Champion(probationer.model, None, probationer.report))
        against = None if probationer.against is None else Path(probationer.against).stem
        champion = report.get("champion")
        if isinstance(champion, Mapping) and champion.get("sha256") != against:
            why = f"it is of a comparison with {champion.get('sha256')}, not with {against}"
            raise BadInput("report", probationer.report, f"{why}: learn again")
        return report

    def history(self, subject: Subject | None = None) -> list[dict[str, Any]]:
        """Return every change of the pointer, of one subject or all, the first one first; a cut line is left out.

        BadInput where the file cannot be read.
        A line whose change was cut off before the pointer stands again when it is made after all: the last one counts.
        """
        try:
            content = read_file(self.path / HISTORY, LARGEST_REPORT_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _damaged(self.path / HISTORY, error.strerror or str(error)) from None
        found = []
        for line in content.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
        changes, after = [], dict[Subject | None, dict[str, Any]]()
        for one in reversed([one for one in found if isinstance(one, dict)]):
            own = _subject_of(one)
            if one | {"at": None} != after.get(own, {}) | {"at": None}:
                changes.append(one)
            after[own] = one
        return [one for one in reversed(changes) if subject in (None, _subject_of(one))]


def moment_text(at_s: float) -> str:
    """Return epoch seconds as the pointer and the history have them: UTC, to the second."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_s(at: float | str) -> float:
    """Return the epoch seconds of a time in the pointer or the history; ValueError for what is none."""
    return datetime.fromisoformat(at).timestamp() if isinstance(at, str) else float(at)


def forced_reason(report: Mapping[str, Any]) -> str:
    """Return why a model was put in use without an evaluation, "" for a report of one."""
    reason = report.get("forced")
    return reason if isinstance(reason, str) else ""


def _subject_of(line: Mapping[str, Any]) -> Subject:
    """Return the subject of a report or of a line of history, those of earlier versions included."""
    return Subject(str(line.get("decision", AUTOSCALING)), str(line.get("subject", line.get("fleet", ""))))


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg'].lower()}"


def _damaged(file: Path, why: str) -> BadInput:
    remedy = f"it is damaged ({why}): restore a valid one, or remove it to continue without a champion"
    return BadInput("champion", str(file), remedy)
