"""Keeps the verified models of one decision: the champions of a directory, and files by their SHA-256.

A new champion is taken up whole or not at all: one that is refused leaves the one before it in place. Models on
probation are taken up beside the champions; one that is refused is named, and changes nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import structlog

from agent.models.background import Background
from agent.models.directory import POINTER, Champion, ModelRefused, ModelsDirectory, forced_reason
from domain.errors import BadInput, TrimtabError

log = structlog.get_logger(__name__)

Signature = tuple[int, int, int] | None


class NamedModel(Protocol):
    """A verified model: `name` is the SHA-256 of its file."""

    @property
    def name(self) -> str:
        """The SHA-256 of the model's file."""


M = TypeVar("M", bound=NamedModel)


class ModelMissing(BadInput):
    """A model that a recorded decision names is in none of the places where models are looked for."""


class ModelPending(BadInput):
    """A model is still being read and tried; ask again in a minute."""


class Shelf(Generic[M]):
    """Keeps every model it has verified; safe to use from several threads. The directory may not exist yet.

    load: reads, verifies and tries a file; raises ModelRefused. places: where files are looked for by their SHA-256.
    patience_s: files are read and models tried in threads of their own, and a caller waits so long for one of them, in
    all and not each time; None waits for its end.
    """

    def __init__(
        self,
        directory: ModelsDirectory | None,
        decision: str,
        load: Callable[[Path], M],
        places: tuple[Path, ...],
        patience_s: float | None = None,
    ) -> None:
        self.directory, self._decision, self._read = directory, decision, load
        self._places, self.patience_s = places, patience_s
        self._lock, self._looking = threading.RLock(), threading.Lock()
        self._verified: dict[str, M] = {}
        self._refused: dict[Path, tuple[Signature, str]] = {}
        self._files: dict[Path, tuple[Signature, str]] = {}
        self._under_way: dict[str, Background[M | None]] = {}
        self._seen: Mapping[Path, Signature] | None = None
        self._again = False
        self._in_use: Mapping[str, M] = MappingProxyType({})
        self._refusals: Mapping[str, str] = MappingProxyType({})
        self._probation: Mapping[str, M] = MappingProxyType({})
        self._probation_refusals: Mapping[str, str] = MappingProxyType({})
        self.lines: Mapping[str, Champion] = MappingProxyType({})
        """The pointer's line of each subject's champion."""
        self.forced: Mapping[str, str] = MappingProxyType({})
        """Why a subject's champion decides without having passed an evaluation, "" for one that has."""

    @property
    def champions(self) -> Mapping[str, M]:
        """The champions in use by subject, that of every other subject under ""; empty before the first."""
        return self._in_use

    @property
    def champion(self) -> M | None:
        """The champion in use of the subjects that have none of their own, None before the first."""
        return self._in_use.get("")

    @property
    def probationers(self) -> Mapping[str, M]:
        """The models on probation by subject, as of the last look."""
        return self._probation

    @property
    def refusals(self) -> tuple[str, ...]:
        """What is wrong with what the pointer names, one sentence each, until all of it has been taken up."""
        return tuple(dict.fromkeys((*self._refusals.values(), *self._probation_refusals.values())))

    @property
    def refusal(self) -> str:
        """The refusals as one text, "" for none."""
        return "; ".join(self.refusals)

    def refusal_of(self, subject: str) -> str:
        """Return why the subject's champion, or the pointer, is refused; "" for no refusal."""
        return self._refusals.get(subject) or self._refusals.get("") or ""

    def refusal_on_probation(self, subject: str) -> str:
        """Return why the model on probation for the subject is refused; "" for no refusal."""
        return self._probation_refusals.get(subject) or self._probation_refusals.get("") or ""

    def model(self, sha: str) -> M:
        """Return the model with that SHA-256; ModelMissing names the places that were looked at."""
        with self._lock:
            known = self._verified.get(sha)
        if known is not None:
            return known
        path = next((p / f"{sha}.onnx" for p in self._places if (p / f"{sha}.onnx").is_file()), None)
        if path is None:
            where = " and ".join(map(str, self._places))
            raise ModelMissing("model", sha, f"put {sha}.onnx into the models directory; looked in {where}")
        return self.load(path)

    def look(self, *, again: bool = False) -> bool:
        """Take up what the pointer names, if that has changed; return whether other models are in use now.

        again: also when nothing has changed, as after SIGHUP. What is wrong with a new one stays in `refusal` until
        one is taken up. A look that takes longer than the patience goes on by itself.
        """
        directory = self.directory
        if directory is None:
            return False
        before = self._in_use
        with self._lock:
            self._again |= again
        try:
            self._await(str(directory.path), lambda: self._look(directory))
        except ModelPending as pending:
            log.warning("models_pending", detail=str(pending))
        return self._in_use is not before

    def _look(self, directory: ModelsDirectory) -> None:
        with self._looking:
            with self._lock:
                again, self._again = self._again, False
            if again or self._seen is None or self._seen != {path: _signature(path) for path in self._seen}:
                self._take_up(directory, again)

    def _take_up(self, directory: ModelsDirectory, again: bool) -> None:
        pointer = directory.path / POINTER
        seen = {pointer: _signature(pointer)}
        in_use: dict[str, M] = {}
        refusals: dict[str, str] = {}
        forced, lines = dict(self.forced), dict(self.lines)
        readable = True
        try:
            named = directory.champions()
        except TrimtabError as refusal:
            named, in_use, refusals = {}, dict(self._in_use), {"": str(refusal)}
            readable = False
        for subject, champion in named.items():
            if subject.decision != self._decision:
                continue
            name = subject.name
            paths = [directory.path / Path(file).name for file in (champion.model, champion.report) if file]
            seen |= {path: _signature(path) for path in paths}
            try:
                reason = forced_reason(directory.check(subject, champion))
                in_use[name] = self._verify(directory.path / champion.model, again=again)
                forced[name], lines[name] = reason, champion
            except TrimtabError as refusal:
                refusals[name] = f"champion of {name}: {refusal}" if name else str(refusal)
                before = self._in_use.get(name)
                if before is not None:
                    in_use[name] = before
        probation, not_probation = self._on_probation(directory, seen, again) if readable else ({}, {})
        for detail in dict.fromkeys((*refusals.values(), *not_probation.values())):
            log.error("model_refused", detail=detail)
        with self._lock:
            # Before the models: a reader that finds a model finds its line.
            self.lines = MappingProxyType(lines)
            if {subject: model.name for subject, model in in_use.items()} != {
                subject: model.name for subject, model in self._in_use.items()
            }:
                self._in_use = MappingProxyType(in_use)
            self._refusals, self._seen, self.forced = MappingProxyType(refusals), seen, MappingProxyType(forced)
            self._probation, self._probation_refusals = MappingProxyType(probation), MappingProxyType(not_probation)

    def _on_probation(
        self, directory: ModelsDirectory, seen: dict[Path, Signature], again: bool
    ) -> tuple[dict[str, M], dict[str, str]]:
        """Return the models on probation and why others are refused, by subject; `seen` gets what was looked at."""
        found: dict[str, M] = {}
        refusals: dict[str, str] = {}
        try:
            named = directory.probationers()
        except TrimtabError as refusal:
            return {}, {"": f"on probation: {refusal}"}
        for subject, one in named.items():
            if subject.decision != self._decision:
                continue
            seen |= {
                path: _signature(path) for path in (directory.path / Path(n).name for n in (one.model, one.report))
            }
            try:
                directory.check_probationer(subject, one)
                found[subject.name] = self._verify(directory.path / one.model, again=again)
            except TrimtabError as refusal:
                refusals[subject.name] = f"on probation for {subject.name or 'all'}: {refusal}"
        return found, refusals

    def own(self, subject: str) -> M | None:
        """Return the champion of the subject, else that of all subjects, None for none; BadInput when it is refused.

        ModelPending while the directory is still being read for the first time.
        """
        own, every = self._in_use.get(subject), self.champion
        if own is not None:
            return own
        where = str(self.directory.path) if self.directory else ""
        refusal = self.refusal_of(subject)
        if subject in self._refusals or (every is None and refusal):
            raise BadInput("champion", where, refusal)
        if self.directory is not None and self._seen is None:
            raise ModelPending("champion", where, "it is still being read and tried: wait for it")
        return every

    def load(self, path: Path) -> M:
        """Return the verified model of a file; ModelPending when it is not ready yet."""
        model = self._await(str(path), lambda: self._verify(path))
        assert model is not None, "verified or refused"
        return model

    def _await(self, task: str, call: Callable[[], M | None]) -> M | None:
        """Return the result of the call, run in another thread; ModelPending when that outlasts the patience."""
        if self.patience_s is None:
            return call()
        with self._lock:
            begun = self._under_way.get(task)
            # What ended unseen is kept with the shelf; asked anew it answers at once.
            if begun is None or begun.over():
                begun = self._under_way[task] = Background(f"model {task}", call)
        if not begun.over(self.patience_s):
            why = f"it is still being read and tried, for {begun.age_s:.0f} s now: wait for it"
            raise ModelPending("model", task, why)
        with self._lock:
            if self._under_way.get(task) is begun:
                del self._under_way[task]
        return begun.answer()

    def _verify(self, path: Path, *, again: bool = False) -> M:
        """Return the verified model of a file; one that was refused is read again only when it has changed."""
        signature = _signature(path)
        with self._lock:
            known, refused = self._files.get(path), self._refused.get(path)
            if known is not None and known[0] == signature and signature is not None:
                return self._verified[known[1]]
        if refused is not None and refused[0] == signature and signature is not None and not again:
            raise ModelRefused("model file", str(path), refused[1])
        try:
            model = self._read(path)
        except ModelRefused as refusal:
            with self._lock:
                self._refused[path] = (signature, refusal.remedy)
            raise
        with self._lock:
            self._refused.pop(path, None)
            self._files[path] = (signature, model.name)
            return self._verified.setdefault(model.name, model)


def _signature(path: Path) -> Signature:
    """Return what changes when a file is replaced or rewritten, None while there is none, as for a damaged name."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
