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
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.models.regular_files import append_line, read_file, replace_file
from domain.errors import BadInput
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
ON_PROBATION, PROBATION_ENDED = "on probation", "probation ended"


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
Verify = Callable[[Path], object]
"""Raises BadInput when the file cannot decide for its subject."""


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
            self._check_beaten(subject, beaten, "it has changed during the runs: promote again")
            return self._put(model, subject, report, at, verify, PROMOTED)

    def force(self, model: ModelFile, subject: Subject, reason: str, at: str, verify: Verify) -> Champion:
        """Use a model without an evaluation; the reason is recorded, sealed and shown with it."""
        if not reason.strip():
            raise BadInput("--force", reason, "give a reason for a model without an evaluation")
        with self.locked():
            body = {"passed": False, "forced": reason.strip(), "challenger": {"sha256": model.sha256}}
            return self._put(model, subject, self.store_report(body, subject, at), at, verify, FORCED, reason)

    def put_on_probation(
        self,
        model: ModelFile,
        subject: Subject,
        report: str,
        since: float,
        hours: float,
        then: Then,
        verify: Verify,
        *,
        beaten: str | None,
    ) -> Probationer:
        """Store a model that passed the gate, and let it run as a shadow for so many hours; the champion stays.

        since: now, epoch seconds. beaten: as of `promote`. BadInput for no hours above 0, when another one is champion
        by now, when the subject has a model on probation, when no report speaks for this one, or when another change is
        under way.
        """
        if not 0.0 < hours < float("inf"):
            raise BadInput("--probation-hours", hours, "give hours above 0")
        with self.locked():
            self._check_beaten(subject, beaten, "it has changed during the runs: learn again")
            held = self.probationers().get(subject)
            if held is not None:
                raise BadInput(
                    "probation", held.model, f"it is on probation for {subject}: wait for its end, or end it"
                )
            now = self.champion(subject)
            if now is not None and now.model == model.name:
                raise BadInput("probation", model.name, f"it decides for {subject} already")
            verify(self.store(model.content, model.name))
            one = Probationer(model.name, report, None if now is None else now.model, since, hours, Then(then))
            self.check_probationer(subject, one)
            line = {**_named(subject), **asdict(one), "at": moment_text(since)}
            self._write(self.champions(), self._probation(subject, one), {"event": ON_PROBATION, **line})
        return one

    def end_probation(self, subject: Subject, why: str, at: str) -> None:
        """Take the subject's model off probation; it is not used. BadInput for no reason, and when there is none."""
        if not why.strip():
            raise BadInput("probation", why, "give a reason for its end")
        with self.locked():
            entry = self._probation(None).get(subject.decision, {}).get(subject.name)
            if entry is None:
                raise _no_probationer(subject)
            # One that is damaged can be taken away too.
            model = entry.get("model") if isinstance(entry, dict) else None
            line = {"event": PROBATION_ENDED, **_named(subject), "model": model, "reason": why.strip(), "at": at}
            self._write(self.champions(), self._probation(subject), line)

    def approve(self, subject: Subject, at: str, verify: Verify, *, reason: str = "") -> Champion:
        """Let the subject's model on probation decide from now on; the champion before stays for a rollback.

        BadInput when there is none, when another one is champion by now than the one it was compared with, when its
        report does not speak for it, or when another change is under way; ModelRefused when its file has changed.
        """
        with self.locked():
            one = self.probationers().get(subject)
            if one is None:
                raise _no_probationer(subject)
            changed = f"it is not the one with which {one.model} was compared, {one.against or 'none'}: learn again"
            self._check_beaten(subject, one.against, changed)
            self.check_probationer(subject, one)
            return self._put(self.read(one.model), subject, one.report, at, verify, PROMOTED, reason)

    def _check_beaten(self, subject: Subject, beaten: str | None, remedy: str) -> None:
        """Raise BadInput when another one is champion than `beaten`, a file or None; "" lets any be."""
        now = self.champion(subject)
        if beaten != "" and (now.model if now else None) != beaten:
            raise BadInput("champion", now.model if now else None, remedy)

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

    def rollback(
        self, at: str, subject: Subject, verify: Verify, *, reason: str = "", of: str | None = None
    ) -> Champion | None:
        """Point to the subject's champion before the present one; without one remove its entry and return None.

        reason: kept in the history. of: the file that must be in use, else BadInput; None for any. A subject without an
        entry has the champion of all subjects. A rollback of a rollback goes one further back. Raises BadInput when the
        subject has no champion of its own, when the agent would refuse the one before for want of a good report, and
        ModelRefused when its file cannot be used any more: then nothing changes.
        """
        with self.locked():
            champions = self.champions()
            now = champions.get(subject)
            if now is None:
                raise BadInput("champion", str(self.path), _nothing_to_roll_back(champions, subject))
            if of not in (None, now.model):
                raise BadInput("champion", now.model, f"it has taken the place of {of}: nothing is rolled back")
            if now.previous is None:
                self._point(champions, subject, None, ROLLED_BACK, now.model, at=at, reason=reason)
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
            self._point(champions, subject, back, ROLLED_BACK, now.model, reason=reason)
            return back

    def history(self, subject: Subject | None = None) -> list[dict[str, Any]]:
        """Return every change of the pointer, of one subject or all, the first one first; a cut line is left out.

        A line whose change was cut off before the pointer stands again when it is made after all: the last one counts.
        """
        try:
            content = read_file(self.path / HISTORY, LARGEST_REPORT_BYTES)
        except FileNotFoundError:
            return []
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
        probation = self._probation(None)
        entry = probation.get(subject.decision, {}).get(subject.name)
        if champion is not None and isinstance(entry, dict) and entry.get("model") == champion.model:
            # What is in use is no longer on probation.
            probation = self._probation(subject)
            line["probation_since"] = entry.get("since")
        self._write(after, probation, line | ({"reason": reason} if reason else {}))

    def _probation(self, changed: Subject | None, one: Probationer | None = None) -> dict[str, dict[str, Any]]:
        """Return what the pointer says of probation, as it stands there, with one subject's entry changed or removed.

        Entries that cannot be read are kept, so that a rollback does not hang on them.
        """
        pointer = self._pointer()
        raw = pointer.probation if pointer is not None and isinstance(pointer.probation, dict) else {}
        held = {decision: dict(own) for decision, own in raw.items() if isinstance(own, dict)}
        if changed is not None:
            held.setdefault(changed.decision, {}).pop(changed.name, None)
            if one is not None:
                held[changed.decision][changed.name] = asdict(one)
        return {decision: own for decision, own in held.items() if own}

    def _write(self, champions: Champions, probation: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        text = json.dumps(line, sort_keys=True)
        content = pointer_text(champions, probation) if champions or probation else None
        # The history first: a pointer without its line could not be rolled back twice.
        replace_file(self.path / POINTER, content, lambda: append_line(self.path / HISTORY, text))


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


def _named(subject: Subject) -> dict[str, str]:
    """Return the subject as a line of history has it: that of all fleets is the one without a name."""
    if subject.decision == AUTOSCALING:
        return {"fleet": subject.name} if subject.name else {}
    return {"decision": subject.decision, "subject": subject.name}


def _subject_of(line: Mapping[str, Any]) -> Subject:
    """Return the subject of a report or of a line of history, those of earlier versions included."""
    return Subject(str(line.get("decision", AUTOSCALING)), str(line.get("subject", line.get("fleet", ""))))


def pointer_text(champions: Champions, probation: Mapping[str, Any] | None = None) -> bytes:
    """Return the content of the pointer; probation: entries by decision and name, as plain data."""
    data: dict[str, Any] = {}
    for subject, champion in sorted(champions.items()):
        if subject == EVERY_FLEET:
            data |= asdict(champion)
        elif subject.decision == AUTOSCALING:
            data.setdefault("fleets", {})[subject.name] = asdict(champion)
        else:
            data.setdefault("subjects", {}).setdefault(subject.decision, {})[subject.name] = asdict(champion)
    if probation:
        data["probation"] = probation
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode("utf-8")


def _first(error: ValidationError) -> str:
    """Return where the first mistake is, and which."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg'].lower()}"


def _no_probationer(subject: Subject) -> BadInput:
    return BadInput("probation", str(subject), "no model is on probation for it: see trimtab models")


def _damaged(file: Path, why: str) -> BadInput:
    remedy = f"it is damaged ({why}): restore a valid one, or remove it to continue without a champion"
    return BadInput("champion", str(file), remedy)


def _nothing_to_roll_back(champions: Champions, subject: Subject) -> str:
    of = f"{subject} has no model" if subject.name else "there is none"
    own = ", ".join(sorted(one.name for one in champions if one.decision == subject.decision and one.name))
    return f"{of}: nothing can be rolled back" + (f"; subjects with a model: {own}" if own else "")
