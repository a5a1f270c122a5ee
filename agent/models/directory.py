"""The directory of models: which file decides for which subject, what speaks for it, and the way back.

A subject is a fleet, a pool or a cluster of one decision. Beside the model files, named after their content, lie

- `champion.json`, the pointer: model, the one before, report and time of every subject. The champion of all fleets
  without one of their own stands at the top, those of single fleets under `fleets`, as in earlier versions; those of
  other decisions stand under `subjects`, by decision and name. It is replaced whole or not at all.
- `history.jsonl`, a line for every promotion, forced use and rollback.
- `report-<digest>.json`, a sealed report for every evaluation and for every forced use.

A model decides only when a report of this subject speaks for it: one that it passed, or one that says why it was
forced. With a key the report must be signed with it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.models.regular_files import append_line, read_file, replace_file
from domain.errors import BadInput

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


def sealed(body: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
    """Return the body with `sha256`, and `signature` (None without a key)."""
    text = canonical(body)
    signature = None
    if key is not None:
        signature = {"algorithm": ALGORITHM, "value": hmac.new(key, text, hashlib.sha256).hexdigest()}
    return {**body, "sha256": hashlib.sha256(text).hexdigest(), "signature": signature}


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


POINTER, HISTORY, LOCK = "champion.json", "history.jsonl", "promotion.lock"
AUTOSCALING = "autoscaling"
LARGEST_MODEL_BYTES = 64 * 1024 * 1024
LARGEST_POINTER_BYTES = 1024 * 1024
LARGEST_REPORT_BYTES = 64 * 1024 * 1024
SUFFIXES = (".onnx", ".json", ".toml")
PROMOTED, FORCED, ROLLED_BACK = "promoted", "forced", "rolled back"


class ModelRefused(BadInput):
    """A model file is not used: it is missing, damaged, foreign, of another schema, or answers wrongly."""


def refused(path: Path, remedy: str) -> ModelRefused:
    """Return the refusal of a model file."""
    return ModelRefused("model file", str(path), remedy)


class Subject(NamedTuple):
    """What a model decides for: a decision and the name of a fleet, pool or cluster, "" for all without their own."""

    decision: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.decision} {self.name or 'all'}"


EVERY_FLEET = Subject(AUTOSCALING)
"""The fleets that have no champion of their own."""


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
        raise refused(path, f"its content has SHA-256 {sha}: it is damaged or was renamed; copy it anew")
    return ModelFile(f"{sha}.onnx", content)


@checked(frozen=True)
class Champion:
    """A line of the pointer: the file in use, the one before it, the report that speaks for it, and when."""

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
    subjects: dict[str, dict[str, Champion]] = field(default_factory=dict)


Champions = Mapping[Subject, Champion]
Verify = Callable[[Path], object]
"""Raises BadInput when the file cannot decide for its subject."""


@dataclass(frozen=True, slots=True)
class ModelsDirectory:
    """A directory of models; it may not exist yet. key: signs reports, and must have signed those that count."""

    path: Path
    key: bytes | None = None

    def champions(self) -> Champions:
        """Return the champions by subject, none while there is no pointer; BadInput when it cannot be read."""
        file = self.path / POINTER
        if not os.path.lexists(file):
            return {}
        try:
            pointer = TypeAdapter(_Pointer).validate_json(read_file(file, LARGEST_POINTER_BYTES))
        except OSError as error:
            raise _damaged(file, error.strerror or str(error)) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise _damaged(file, f"{where}: {first['msg'].lower()}") from None
        found = {Subject(AUTOSCALING, name): one for name, one in pointer.fleets.items()}
        if pointer.model is not None:
            found[EVERY_FLEET] = Champion(pointer.model, pointer.previous, pointer.report, pointer.at)
        for decision, own in pointer.subjects.items():
            found |= {Subject(decision, name): one for name, one in own.items()}
        if not found:
            raise _damaged(file, "it names no model")
        for champion in found.values():
            self.file_of(champion.model)
        return found

    def champion(self, subject: Subject) -> Champion | None:
        """Return the subject's champion, else that of all subjects of its decision, else None; BadInput."""
        found = self.champions()
        return found.get(subject) or found.get(Subject(subject.decision))

    def file_of(self, name: str) -> Path:
        """Return the place of a model that the pointer names; BadInput for a name that leads elsewhere."""
        if Path(name).name != name or Path(name).suffix not in SUFFIXES:
            raise BadInput("champion", name, f"{self.path / POINTER} must name a file beside it, <sha256>.onnx")
        return self.path / name

    def read(self, name: str) -> ModelFile:
        """Return a model that the pointer names, whole; ModelRefused when its content has changed."""
        path = self.file_of(name)
        model = read_model_file(path)
        if model.name != name:
            raise refused(path, f"its content has SHA-256 {model.sha256}: it is damaged: promote it anew")
        return model

    def report(self, name: str) -> Mapping[str, Any]:
        """Return a stored report; BadInput when it cannot be read."""
        try:
            data = json.loads(read_file(self.path / Path(name).name, LARGEST_REPORT_BYTES))
        except (OSError, ValueError, RecursionError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else str(fault)
            raise BadInput("report", name, f"{why}: it is missing or damaged") from None
        if not isinstance(data, dict):
            raise BadInput("report", name, "it is no report of a promotion")
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
            raise BadInput("report", champion.report, f"it says that {champion.model} did not pass: {remedy}")
        return report

    def store(self, content: bytes, name: str) -> Path:
        """Put a file into the directory, whole or not at all, and return its path."""
        self.path.mkdir(parents=True, exist_ok=True)
        target = self.path / name
        try:
            is_there = read_file(target, len(content)) == content
        except OSError:
            is_there = False
        if not is_there:
            replace_file(target, content)
        return target

    def store_report(self, body: Mapping[str, Any], subject: Subject, at: str) -> str:
        """Seal a report about a model of the subject, store it and return its name."""
        named = {"format": 2, "at": at, "decision": subject.decision, "subject": subject.name}
        report = sealed({**named, **body}, self.key)
        name = f"report-{report['sha256'][:16]}.json"
        self.store((json.dumps(report, indent=1, sort_keys=True) + "\n").encode("utf-8"), name)
        return name

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other changes of the pointer out while the block runs; BadInput when one is under way."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(handle, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadInput(
                    "models directory", str(self.path), "another promotion is under way: wait for it"
                ) from None
            yield

    def promote(
        self, model: ModelFile, subject: Subject, report: str, at: str, verify: Verify, *, beaten: str | None = ""
    ) -> Champion:
        """Store a model and point to it; the champion before stays beside it for a rollback.

        beaten: the champion's file that it was compared with, None for no champion, "" when that does not matter.
        BadInput when another one is champion by now, or when another change is under way.
        """
        with self.locked():
            now = self.champion(subject)
            if beaten != "" and (now.model if now else None) != beaten:
                raise BadInput("champion", now.model if now else None, "it has changed during the runs: promote again")
            return self._put(model, subject, report, at, verify, PROMOTED)

    def force(self, model: ModelFile, subject: Subject, reason: str, at: str, verify: Verify) -> Champion:
        """Use a model without an evaluation; the reason is recorded, sealed and shown with it."""
        if not reason.strip():
            raise BadInput("--force", reason, "say why the model is to decide without an evaluation")
        with self.locked():
            body = {"passed": False, "forced": reason.strip(), "challenger": {"sha256": model.sha256}}
            return self._put(model, subject, self.store_report(body, subject, at), at, verify, FORCED, reason)

    def _put(
        self, model: ModelFile, subject: Subject, report: str, at: str, verify: Verify, event: str, reason: str = ""
    ) -> Champion:
        champions = self.champions()
        before = champions.get(subject)
        # What counts is the file that the agent will read.
        verify(self.store(model.content, model.name))
        # A champion that is put in use again, as with a report of another key, is not the one before itself.
        again = before is not None and before.model == model.name
        now = Champion(model.name, (before.previous if again else before.model) if before else None, report, at)
        self.check(subject, now)
        self._point(champions, subject, now, event, reason=reason)
        return now

    def rollback(self, at: str, subject: Subject, verify: Verify) -> Champion | None:
        """Point to the subject's champion before the present one; without one remove its entry and return None.

        A subject without an entry has the champion of all subjects. A rollback of a rollback goes one further back.
        Raises BadInput when the subject has no champion of its own, when the agent would refuse the one before for want
        of a good report, and ModelRefused when its file cannot be used any more: then nothing changes.
        """
        with self.locked():
            champions = self.champions()
            now = champions.get(subject)
            if now is None:
                raise BadInput("champion", str(self.path), _nothing_to_roll_back(champions, subject))
            if now.previous is None:
                self._point(champions, subject, None, ROLLED_BACK, now.model, at=at)
                return None
            verify(self.file_of(now.previous))
            earlier = self._promotion_of(now.previous, subject, before=now)
            back = Champion(
                model=now.previous,
                previous=earlier.previous if earlier else None,
                report=earlier.report if earlier else None,
                at=at,
            )
            self.check(subject, back)
            self._point(champions, subject, back, ROLLED_BACK, now.model)
            return back

    def history(self, subject: Subject | None = None) -> list[dict[str, Any]]:
        """Return every change of the pointer, of one subject or all, the first one first; a cut line is left out."""
        try:
            content = read_file(self.path / HISTORY, LARGEST_REPORT_BYTES)
        except FileNotFoundError:
            return []
        found = []
        for line in content.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
        return [one for one in found if isinstance(one, dict) and subject in (None, _subject_of(one))]

    def _promotion_of(self, model: str, subject: Subject, before: Champion) -> Champion | None:
        """Return the pointer as it was when a model came into use, the last time before the present champion did."""
        entries = [line for line in self.history(subject) if line.get("event") in (PROMOTED, FORCED)]
        ends = [k for k, line in enumerate(entries) if line.get("model") == before.model]
        earlier = entries[: ends[-1]] if ends else entries
        found = next((line for line in reversed(earlier) if line.get("model") == model), None)
        return None if found is None else Champion(model, found.get("previous"), found.get("report"), found.get("at"))

    def _point(
        self,
        champions: Champions,
        subject: Subject,
        champion: Champion | None,
        event: str,
        left: str | None = None,
        *,
        at: str | None = None,
        reason: str = "",
    ) -> None:
        """Write the pointer with another champion for the subject, or without one, and a line of history before it."""
        after = {one: held for one, held in champions.items() if one != subject}
        if champion is not None:
            after[subject] = champion
        line = {"event": event, "left": left, **_named(subject), **asdict(champion or Champion("", at=at))}
        text = json.dumps(line | ({"reason": reason} if reason else {}), sort_keys=True)
        # The history first: a pointer without its line could not be rolled back twice.
        replace_file(
            self.path / POINTER, pointer_text(after) if after else None, lambda: append_line(self.path / HISTORY, text)
        )


def forced_reason(report: Mapping[str, Any]) -> str:
    """Return why a model was put in use without an evaluation, "" for a report of one."""
    reason = report.get("forced")
    return reason if isinstance(reason, str) else ""


def _named(subject: Subject) -> dict[str, str]:
    """Return the subject as a line of history has it: that of all fleets is the one without a name."""
    if subject.decision == AUTOSCALING:
        return {"fleet": subject.name} if subject.name else {}
    return {"decision": subject.decision, "subject": subject.name}


def _subject_of(line: Mapping[str, Any]) -> Subject:
    """Return the subject of a report or of a line of history, those of earlier versions included."""
    return Subject(str(line.get("decision", AUTOSCALING)), str(line.get("subject", line.get("fleet", ""))))


def pointer_text(champions: Champions) -> bytes:
    """Return the content of the pointer."""
    data: dict[str, Any] = {}
    for subject, champion in sorted(champions.items()):
        if subject == EVERY_FLEET:
            data |= asdict(champion)
        elif subject.decision == AUTOSCALING:
            data.setdefault("fleets", {})[subject.name] = asdict(champion)
        else:
            data.setdefault("subjects", {}).setdefault(subject.decision, {})[subject.name] = asdict(champion)
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode("utf-8")


def _damaged(file: Path, why: str) -> BadInput:
    remedy = f"it is damaged ({why}): put back a good one, or remove it to go on without a champion"
    return BadInput("champion", str(file), remedy)


def _nothing_to_roll_back(champions: Champions, subject: Subject) -> str:
    of = f"{subject} has none of its own" if subject.name else "there is none"
    own = ", ".join(sorted(one.name for one in champions if one.decision == subject.decision and one.name))
    return f"{of}: nothing can be rolled back" + (f"; with one of their own: {own}" if own else "")
