"""Writes the directory of models that the agent reads (`agent.models`): promotion, probation, rollback, rounds."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agent.models.directory import (
    ALGORITHM,
    EVERY_FLEET,
    FORCED,
    HISTORY,
    ON_PROBATION,
    POINTER,
    PROBATION_ENDED,
    PROMOTED,
    ROLLED_BACK,
    Champion,
    Champions,
    ModelFile,
    ModelsDirectory,
    Probationer,
    Then,
    canonical,
    moment_text,
)
from agent.models.regular_files import check, read_file
from agent.models.rounds import LONGEST_SENTENCE, Ending, RoundStatus, read_status, status_file
from domain.errors import BadInput
from domain.subject import AUTOSCALING, Subject
from trainer.kit.files import replace_file, sync_directory

LOCK = "promotion.lock"
USES = (PROMOTED, FORCED)
"""Events by which a model came into use."""
WAITS_S, LOOKS_EVERY_S = 10.0, 0.1
"""How long `to_day_0` waits for another change of the pointer."""
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
Verify = Callable[[Path], object]
"""Raises BadInput when the file cannot decide for its subject."""


@dataclass(frozen=True, slots=True)
class ModelsWriter(ModelsDirectory):
    """A directory of models whose pointer, history and reports are written; it may not exist yet."""

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
    def locked(self, waits_s: float = 0.0) -> Iterator[None]:
        """Keep other changes of the pointer out while the block runs; BadInput when one is under way for `waits_s`."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(handle, "w") as file:
            _shared_with_the_group(handle, self.path)
            until_s = time.monotonic() + waits_s
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() >= until_s:
                        remedy = "another promotion is under way: wait for it"
                        raise BadInput("models directory", str(self.path), remedy) from None
                time.sleep(LOOKS_EVERY_S)
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
        replaces: str | None = None,
    ) -> Probationer:
        """Store a model that passed the gate, and let it run as a shadow for so many hours; the champion stays.

        since: now, epoch seconds. beaten: as of `promote`. replaces: the model on probation whose place it takes at
        once. BadInput for no hours above 0, when another one is champion by now, when the subject has a model on
        probation, when no report speaks for this one, or when another change is under way.
        """
        if not 0.0 < hours < float("inf"):
            raise BadInput("--probation-hours", hours, "give hours above 0")
        with self.locked():
            self._check_beaten(subject, beaten, "it has changed during the runs: learn again")
            held = self.probationers().get(subject)
            if held is not None and held.model != replaces:
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
            champions, now = self._in_use(subject, of)
            if now.previous is None:
                self._point(champions, subject, None, ROLLED_BACK, now.model, at=at, reason=reason)
                return None
            verify(self.file_of(now.previous))
            earlier = self._earlier(subject, now)
            found = next((one for one, _ in reversed(earlier) if one.model == now.previous), None)
            back = Champion(
                model=now.previous,
                previous=found.previous if found else None,
                report=found.report if found else None,
                at=at,
            )
            self.check(subject, back)
            self._point(champions, subject, back, ROLLED_BACK, now.model, reason=reason)
            return back

    def to_day_0(
        self, at: str, subject: Subject, reason: str, *, of: str | None = None, forced: Verify | None = None
    ) -> Champion | None:
        """Take all promotions of the subject back at once, and return the champion then; None for the settings.

        reason, of: as of `rollback`. forced: lets the champion that a person forced last decide, if it passes this
        check and its report speaks for it; None: no file is read, so that a damaged one cannot hold it up. It is one
        change of the pointer, with one line of history. Waits WAITS_S for another change. BadInput when the subject has
        no champion of its own, or another one than `of`, and when another change is still under way.
        """
        with self.locked(WAITS_S):
            champions, now = self._in_use(subject, of)
            back = None
            if forced is not None:
                chosen = [one for one, event in self._earlier(subject, now) if event == FORCED]
                # One that cannot decide any more leaves the settings.
                with contextlib.suppress(BadInput):
                    if chosen:
                        forced(self.file_of(chosen[-1].model))
                        self.check(subject, chosen[-1])
                        back = replace(chosen[-1], at=at)
            self._point(champions, subject, back, ROLLED_BACK, now.model, at=at, reason=reason)
            return back

    def _in_use(self, subject: Subject, of: str | None) -> tuple[Champions, Champion]:
        """Return all champions and the subject's own one, which is `of` or any; else BadInput."""
        champions = self.champions()
        now = champions.get(subject)
        if now is None:
            raise BadInput("champion", str(self.path), _nothing_to_roll_back(champions, subject))
        if of not in (None, now.model):
            raise BadInput("champion", now.model, f"it has taken the place of {of}: nothing is rolled back")
        return champions, now

    def _earlier(self, subject: Subject, now: Champion) -> list[tuple[Champion, str]]:
        """Return the promotions before the present champion that no rollback has taken back, each with its event."""
        held: list[tuple[Champion, str]] = []
        for line in self.history(subject):
            event, model = line.get("event"), line.get("model")
            if event == ROLLED_BACK:
                # The present one is gone, and each one back to the model that decides again.
                held = held[:-1]
                while held and held[-1][0].model != model:
                    held.pop()
            elif event in (PROMOTED, FORCED) and isinstance(model, str):
                if held and held[-1][0].model == model:
                    held.pop()
                held.append((Champion(model, line.get("previous"), line.get("report"), line.get("at")), str(event)))
        places = [place for place, (one, _) in enumerate(held) if one.model == now.model]
        return held[: places[-1]] if places else held

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
        def append() -> None:
            # The history first: a pointer without its line could not be rolled back twice.
            _append_line(self.path / HISTORY, json.dumps(line, sort_keys=True))

        if champions or probation:
            replace_file(self.path / POINTER, pointer_text(champions, probation), append)
        else:
            append()
            (self.path / POINTER).unlink()
            sync_directory(self.path)


def sealed(body: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
    """Return the body with `sha256`, and `signature` (None without a key)."""
    text = canonical(body)
    signature = None
    if key is not None:
        signature = {"algorithm": ALGORITHM, "value": hmac.new(key, text, hashlib.sha256).hexdigest()}
    return {**body, "sha256": hashlib.sha256(text).hexdigest(), "signature": signature}


def last_use(model: str, history: Sequence[Mapping[str, Any]]) -> str:
    """Return the event by which a model of a subject came into use last, PROMOTED or FORCED; "" where none did."""
    uses = [str(line["event"]) for line in history if line.get("model") == model and line.get("event") in USES]
    return uses[-1] if uses else ""


def _named(subject: Subject) -> dict[str, str]:
    """Return the subject as a line of history has it: that of all fleets is the one without a name."""
    if subject.decision == AUTOSCALING:
        return {"fleet": subject.name} if subject.name else {}
    return {"decision": subject.decision, "subject": subject.name}


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


def _no_probationer(subject: Subject) -> BadInput:
    return BadInput("probation", str(subject), "no model is on probation for it: see trimtab models")


def _nothing_to_roll_back(champions: Champions, subject: Subject) -> str:
    of = f"{subject} has no model" if subject.name else "there is none"
    own = ", ".join(sorted(one.name for one in champions if one.decision == subject.decision and one.name))
    return f"{of}: nothing can be rolled back" + (f"; subjects with a model: {own}" if own else "")


def _shared_with_the_group(handle: int, directory: Path) -> None:
    """Let the group write a file where it writes the directory: on a host that learns two users do.

    Another user's file stays as that one left it.
    """
    if directory.stat().st_mode & stat.S_IWGRP:
        with contextlib.suppress(PermissionError):
            os.fchmod(handle, 0o660)


def _append_line(path: Path, line: str) -> None:
    """Append a line to a regular file, not to a link; one that was cut by a full disk stays a line by itself."""
    handle = os.open(path, _APPEND, 0o666)
    try:
        _shared_with_the_group(handle, path.parent)
        found = os.fstat(handle)
        check(path, found, found.st_size)
        cut = found.st_size > 0 and os.pread(handle, 1, found.st_size - 1) != b"\n"
        content = (("\n" if cut else "") + line + "\n").encode("utf-8")
        while content:
            content = content[os.write(handle, content) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def write_round(
    directory: Path, subject: Subject, outcome: Ending, sentence: str, at: float, cpu_s: float = 0.0
) -> RoundStatus:
    """Replace a subject's status, whole or not at all, and return it; OSError when the directory takes no file.

    at: epoch seconds, of the end of the round. The last good end is carried on from the status before; one that cannot
    be read counts as none.
    """
    good_at: float | None = at
    if not outcome.good:
        try:
            good_at = read_status(status_file(directory, subject)).good_at
        except (OSError, BadInput):
            good_at = None
    made = RoundStatus(subject.decision, subject.name, at, outcome, sentence[:LONGEST_SENTENCE], good_at, cpu_s)
    text = json.dumps(asdict(made), sort_keys=True, indent=1, allow_nan=False) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(status_file(directory, subject), text)
    return made
