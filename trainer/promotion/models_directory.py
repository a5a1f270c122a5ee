"""The models directory: model files, reports, and the pointer to the champion, replaced whole or not at all.

`champion.json` is what the agent reads (`agent.models.champions`); `history.jsonl` has a line for every change of it. A
champion is one fleet's, or that of every fleet that has none of its own (`EVERY_FLEET`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.models.champions import (
    CHAMPION,
    EVERY_FLEET,
    LARGEST_REPORT_BYTES,
    NO_CHAMPIONS,
    Champion,
    Champions,
    check_promotion,
    read_champions,
    read_report,
)
from agent.models.file import LARGEST_MODEL_BYTES, load_model
from agent.models.regular_files import read_file
from domain.errors import BadInput

HISTORY = "history.jsonl"
LOCK = "promotion.lock"
PROMOTED, ROLLED_BACK = "promoted", "rolled back"


@dataclass(frozen=True, slots=True)
class ModelsDirectory:
    """A directory of models; it may not exist yet."""

    path: Path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other promotions out while the block runs; BadInput when one is under way."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadInput(
                    "models directory", str(self.path), "another promotion is under way: wait for it"
                ) from None
            yield

    def champions(self) -> Champions:
        """Return the pointer's champions, none while there is no pointer; BadInput when it cannot be read."""
        file = self.path / CHAMPION
        if not file.exists() and not file.is_symlink():
            return NO_CHAMPIONS
        try:
            return read_champions(file)
        except BadInput as fault:
            remedy = f"it is damaged ({fault.remedy}): put back a good one, or remove it to go on without a champion"
            raise BadInput("champion", str(file), remedy) from None

    def champion(self, fleet: str = EVERY_FLEET) -> Champion | None:
        """Return the model that decides for the fleet, None without one; BadInput when the pointer cannot be read."""
        return self.champions().of(fleet)

    def model_path(self, name: str) -> Path:
        """Return the place of a model file that the pointer names; BadInput for a name that leads elsewhere."""
        if Path(name).name != name or not name.endswith(".onnx"):
            raise BadInput("champion", name, f"{self.path / CHAMPION} must name a file beside it, <sha256>.onnx")
        return self.path / name

    def store(self, content: bytes, name: str) -> Path:
        """Put a file into the directory, whole or not at all, and return its path."""
        self.path.mkdir(parents=True, exist_ok=True)
        target = self.path / name
        try:
            is_there = read_file(target, len(content)) == content
        except OSError:
            is_there = False
        if not is_there:
            _replace(target, content)
        return target

    def promote(self, model: Path, report: str, at: str, fleet: str = EVERY_FLEET) -> Champion:
        """Copy a verified model here and point to it; the champion before stays beside it for a rollback."""
        champions = self.champions()
        before = champions.by_fleet.get(fleet)
        name = f"{load_model(model).name}.onnx"
        self.store(read_file(model, LARGEST_MODEL_BYTES), name)
        # What counts is the file that the agent will read.
        load_model(self.path / name)
        now = Champion(model=name, previous=before.model if before else None, report=report, at=at)
        self._point(champions, fleet, now, PROMOTED)
        return now

    def rollback(self, at: str, fleet: str = EVERY_FLEET, key: bytes | None = None) -> Champion | None:
        """Point to the fleet's champion before the present one; without one remove its entry and return None.

        A fleet without an entry has the champion of every fleet. A rollback of a rollback goes one further back. Raises
        BadInput when the fleet has no champion of its own, when the agent would refuse the one before for want of a
        good report, and ModelRefused when its file cannot be used any more: then nothing changes.
        """
        champions = self.champions()
        now = champions.by_fleet.get(fleet)
        if now is None:
            raise BadInput("champion", str(self.path), _nothing_to_roll_back(champions, fleet))
        if now.previous is None:
            self._note(ROLLED_BACK, fleet, Champion(model="", previous=None, report=None, at=at), now.model)
            self._write(champions.replaced(fleet, None))
            return None
        load_model(self.model_path(now.previous))
        earlier = self._promotion_of(now.previous, fleet, before=now)
        back = Champion(
            model=now.previous,
            previous=earlier.previous if earlier else None,
            report=earlier.report if earlier else None,
            at=at,
        )
        check_promotion(self.path, back, key)
        self._point(champions, fleet, back, ROLLED_BACK, now.model)
        return back

    def history(self) -> list[dict[str, Any]]:
        """Return every change of the pointer, the first one first; a cut last line is left out."""
        found = []
        for line in self._history().splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict)]

    def _history(self) -> bytes:
        try:
            return read_file(self.path / HISTORY, LARGEST_REPORT_BYTES)
        except FileNotFoundError:
            return b""

    def report(self, name: str) -> Mapping[str, Any]:
        """Return a stored report; BadInput when it cannot be read."""
        return read_report(self.path, name)

    def _promotion_of(self, model: str, fleet: str, before: Champion) -> Champion | None:
        """Return the pointer as it was when a model was promoted, the last time before the present champion was."""
        promotions = [
            line for line in self.history() if line.get("event") == PROMOTED and line.get("fleet", EVERY_FLEET) == fleet
        ]
        ends = [k for k, line in enumerate(promotions) if line.get("model") == before.model]
        earlier = promotions[: ends[-1]] if ends else promotions
        found = next((line for line in reversed(earlier) if line.get("model") == model), None)
        return None if found is None else Champion(model, found.get("previous"), found.get("report"), found.get("at"))

    def _point(self, champions: Champions, fleet: str, champion: Champion, event: str, left: str | None = None) -> None:
        # The history first: a pointer without its line could not be rolled back twice.
        self._note(event, fleet, champion, left)
        self._write(champions.replaced(fleet, champion))

    def _write(self, champions: Champions) -> None:
        if champions.by_fleet:
            _replace(self.path / CHAMPION, champions.text())
        else:
            (self.path / CHAMPION).unlink()
            _sync_folder(self.path)

    def _note(self, event: str, fleet: str, champion: Champion, left: str | None) -> None:
        own = {"fleet": fleet} if fleet != EVERY_FLEET else {}
        line = json.dumps({"event": event, "left": left, **own, **asdict(champion)}, sort_keys=True)
        file = self.path / HISTORY
        before = self._history()
        cut = before != b"" and not before.endswith(b"\n")
        with file.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(("\n" if cut else "") + line + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def _nothing_to_roll_back(champions: Champions, fleet: str) -> str:
    of = f"the fleet {fleet} has none of its own" if fleet != EVERY_FLEET else "there is none"
    own = ", ".join(sorted(name for name in champions.by_fleet if name != EVERY_FLEET))
    return f"{of}: nothing can be rolled back" + (f"; fleets with one of their own (--fleet): {own}" if own else "")


def _replace(target: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, whatever happens in between."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
