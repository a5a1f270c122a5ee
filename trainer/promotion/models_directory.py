"""The models directory: model files, reports, and the pointer to the champion, replaced whole or not at all.

`champion.json` is what the agent reads (`agent.model_shelf`); `history.jsonl` has a line for every change of it.
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

from pydantic import TypeAdapter, ValidationError

from agent.model_shelf import CHAMPION, Champion
from agent.models import load_model
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

    def champion(self) -> Champion | None:
        """Return the pointer, None while there is no champion; BadInput when it cannot be read."""
        file = self.path / CHAMPION
        try:
            return TypeAdapter(Champion).validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            remedy = "it is damaged: put back a good one, or remove it to go on without a champion"
            raise BadInput("champion", str(file), remedy) from None

    def model_path(self, name: str) -> Path:
        """Return the place of a model file that the pointer names; BadInput for a name that leads elsewhere."""
        if Path(name).name != name or not name.endswith(".onnx"):
            raise BadInput("champion", name, f"{self.path / CHAMPION} must name a file beside it, <sha256>.onnx")
        return self.path / name

    def store(self, content: bytes, name: str) -> Path:
        """Put a file into the directory, whole or not at all, and return its path."""
        self.path.mkdir(parents=True, exist_ok=True)
        target = self.path / name
        if not target.exists() or target.read_bytes() != content:
            _replace(target, content)
        return target

    def promote(self, model: Path, report: str, at: str) -> Champion:
        """Copy a verified model here and point to it; the champion before stays beside it for a rollback."""
        before = self.champion()
        name = f"{load_model(model).name}.onnx"
        self.store(model.read_bytes(), name)
        # What counts is the file that the agent will read.
        load_model(self.path / name)
        now = Champion(model=name, previous=before.model if before else None, report=report, at=at)
        self._point(now, PROMOTED)
        return now

    def rollback(self, at: str) -> Champion | None:
        """Point to the champion before the present one; without one remove the pointer and return None.

        A rollback of a rollback goes one further back. Raises BadInput when there is no champion, and ModelRefused when
        the file of the one before cannot be used any more: then nothing changes.
        """
        now = self.champion()
        if now is None:
            raise BadInput("champion", str(self.path), "there is none: nothing can be rolled back")
        if now.previous is None:
            self._note(ROLLED_BACK, Champion(model="", previous=None, report=None, at=at), now.model)
            (self.path / CHAMPION).unlink()
            _sync_folder(self.path)
            return None
        load_model(self.model_path(now.previous))
        earlier = self._promotion_of(now.previous, before=now)
        back = Champion(
            model=now.previous,
            previous=earlier.previous if earlier else None,
            report=earlier.report if earlier else None,
            at=at,
        )
        self._point(back, ROLLED_BACK, now.model)
        return back

    def history(self) -> list[dict[str, Any]]:
        """Return every change of the pointer, the first one first; a cut last line is left out."""
        try:
            lines = (self.path / HISTORY).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def report(self, name: str) -> dict[str, Any]:
        """Return a stored report; BadInput when it cannot be read."""
        try:
            data = json.loads((self.path / Path(name).name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as fault:
            raise BadInput("report", name, f"{fault}: it is missing or damaged") from None
        if not isinstance(data, dict):
            raise BadInput("report", name, "it is no report of a promotion")
        return data

    def _promotion_of(self, model: str, before: Champion) -> Champion | None:
        """Return the pointer as it was when a model was promoted, the last time before the present champion was."""
        promotions = [line for line in self.history() if line.get("event") == PROMOTED]
        ends = [k for k, line in enumerate(promotions) if line.get("model") == before.model]
        earlier = promotions[: ends[-1]] if ends else promotions
        found = next((line for line in reversed(earlier) if line.get("model") == model), None)
        return None if found is None else Champion(model, found.get("previous"), found.get("report"), found.get("at"))

    def _point(self, champion: Champion, event: str, left: str | None = None) -> None:
        # The history first: a pointer without its line could not be rolled back twice.
        self._note(event, champion, left)
        _replace(self.path / CHAMPION, _json(asdict(champion)))

    def _note(self, event: str, champion: Champion, left: str | None) -> None:
        line = json.dumps({"event": event, "left": left, **asdict(champion)}, sort_keys=True)
        file = self.path / HISTORY
        cut = file.exists() and not file.read_bytes().endswith(b"\n") and file.stat().st_size > 0
        with file.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(("\n" if cut else "") + line + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode("utf-8")


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
