"""The folder of a round: its state, sealed and written whole or not at all, and the lock of its subject.

    state.json        the facts that results depend on, and the result of each finished stage, with a SHA-256 over it
    recorded.json.gz  the record at the begin of a fleet's round; a round that resumes learns from the same minutes
    scorer/           the training run of the scorer
    report.html, summary.json, rule.env   for people

An interrupted stage is done again, a finished one is not. A state that was changed by hand decides nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import EnumType
from itertools import count
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from agent.ledger import codec
from agent.models.directory import Seal, seal_of
from domain.errors import BadInput
from trainer.kit.files import replace_file
from trainer.learning.minutes import Record
from trainer.promotion.directory import sealed

STATE_FILE, RECORD_FILE = "state.json", "recorded.json.gz"
PAGE_FILE, DATA_FILE = "report.html", "summary.json"
FORMAT = 1
LOOKS_EVERY_S = 0.1
_ANEW = "give another --out, or remove it to start again"
_SUBJECTS = ("fleet", "cluster", "pool")


class OutdatedRound(BadInput):
    """A round cannot continue: its state or record is cut or changed, or the state has other settings."""


class StageResult:
    """The result of a stage, a frozen dataclass. STAGE: the name of the stage. DERIVED: properties in its JSON data."""

    __slots__ = ()

    STAGE: ClassVar[str]
    DERIVED: ClassVar[tuple[str, ...]] = ()

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data: numbers that are not finite become None, optional fields without a value go."""
        optional = [one.name for one in fields(self) if one.default is None]  # type: ignore[arg-type]
        values = asdict(self) | {name: getattr(self, name) for name in self.DERIVED}  # type: ignore[call-overload]
        return {name: plain(one) for name, one in values.items() if one is not None or name not in optional}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the result from the data of `as_data`."""
        found: Self = _typed(cls, data)
        return found


R = TypeVar("R", bound=StageResult)


def _typed(kind: Any, data: Any) -> Any:
    """Return JSON data as a value of a type; None in place of a number is not a number."""
    if data is None:
        return math.nan if kind is float else None
    parts = get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        known = {one.name: _typed(hints[one.name], data[one.name]) for one in fields(kind) if one.name in data}
        return kind(**known)  # type: ignore[operator]
    if isinstance(kind, UnionType):
        return _typed(parts[0], data)
    if get_origin(kind) is tuple:
        return tuple(_typed(parts[0], one) for one in data)
    if isinstance(kind, EnumType):
        return kind(data)
    return {name: _typed(parts[1], one) for name, one in data.items()} if parts else data


def plain(data: Any) -> Any:
    """Return JSON data: numbers that are not finite become None."""
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, np.generic | np.ndarray):
        return plain(data.tolist())
    return None if isinstance(data, float) and not math.isfinite(data) else data


@dataclass(slots=True)
class State:
    """The state of a round in a folder.

    facts: the inputs of the round. stages: results by name, as JSON data. cpu_s: seconds of a processor so far.
    """

    folder: Path
    facts: dict[str, Any]
    stages: dict[str, Any] = field(default_factory=dict)
    cpu_s: float = 0.0

    def result(self, kind: type[R]) -> R:
        """Return the result of a finished stage; KeyError for another one."""
        return kind.of_data(self.stages[kind.STAGE])

    def done(self, stage: str, result: Any, cpu_s: float) -> None:
        """Keep the result of a stage; it is on disk when this returns."""
        after = {**self.stages, stage: json.loads(json.dumps(result, allow_nan=False))}
        self._write(after, self.cpu_s + cpu_s)
        self.stages, self.cpu_s = after, self.cpu_s + cpu_s

    def spent(self, cpu_s: float) -> None:
        """Keep the time that a stage took before it was stopped."""
        self._write(self.stages, self.cpu_s + cpu_s)
        self.cpu_s += cpu_s

    def _write(self, stages: Mapping[str, Any], cpu_s: float) -> None:
        body = {"format": FORMAT, "facts": self.facts, "stages": stages, "cpu_s": cpu_s}
        replace_file(self.folder / STATE_FILE, json.dumps(sealed(body, None), indent=1, sort_keys=True) + "\n")


def opened(folder: Path, facts: Mapping[str, Any]) -> State:
    """Return the state of the round in a folder, an empty one where there is none.

    Raises OutdatedRound for a state that was changed or cut, and for the round of another world or recipe; BadInput for
    the round of another subject.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE_FILE
    wanted: dict[str, Any] = json.loads(json.dumps(dict(facts)))
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return State(folder, wanted)
    except ValueError:
        raise OutdatedRound("--out", str(path), f"it is damaged: {_ANEW}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or seal_of(data, None) is Seal.CHANGED:
        raise OutdatedRound("--out", str(path), f"its seal does not hold, it was changed: {_ANEW}")
    for name, value in wanted.items():
        if data["facts"].get(name) != value:
            refusal = BadInput if name in _SUBJECTS else OutdatedRound
            raise refusal("--out", str(path), f"it is of a round with {name}={data['facts'].get(name)}: {_ANEW}")
    return State(folder, data["facts"], data["stages"], float(data["cpu_s"]))


def write_folder(folder: Path, files: Mapping[str, str], data: Mapping[str, Any]) -> Path:
    """Write files, text by name, and data into a folder, each whole or not at all, and return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {DATA_FILE: json.dumps(data, indent=1) + "\n", **files}.items():
        replace_file(folder / name, text)
    return folder / PAGE_FILE


def set_aside(folder: Path) -> Path | None:
    """Move a finished round out of its folder, and return its new place; None without one.

    One is kept, so that a timer does not fill the disk. A round is over with the judgement of the gate, or with a
    simulator that was not true. Any other stays, and so does a state that cannot be read, which `opened` refuses.
    """
    try:
        stages = json.loads((folder / STATE_FILE).read_bytes())["stages"]
        over = "gate" in stages or not stages["fidelity"]["holds"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not over:
        return None
    before = folder.with_name(f"{folder.name}-before")
    shutil.rmtree(before, ignore_errors=True)
    return folder.rename(before)


def put_away(folder: Path) -> Path:
    """Move a round that cannot continue out of its folder, and return its new place; nothing is lost."""
    places = (folder.with_name(f"{folder.name}-outdated-{number}") for number in count(1))
    return folder.rename(next(place for place in places if not place.exists()))


def packed(recorded: Record) -> bytes:
    """Return a record as a file; the same bytes for the same record."""
    return gzip.compress(codec.encode(recorded), mtime=0)


def unpacked(content: bytes, source: str) -> Record:
    """Return the record in a file of `packed`; BadInput for any other."""
    try:
        found: Record = codec.decode(Record, gzip.decompress(content))
    except Exception as error:
        raise BadInput("record", source, f"it is cut or no record of a fleet ({type(error).__name__})") from None
    return found


def kept_record(folder: Path | None, read: Callable[[], Record]) -> Record:
    """Return the record at the begin of the round in a folder, else a fresh one, which is then kept.

    folder: None to keep nothing. OutdatedRound for a record that is cut or changed beyond reading.
    """
    path = None if folder is None else folder / RECORD_FILE
    if path is not None and path.is_file():
        try:
            return unpacked(path.read_bytes(), str(path))
        except BadInput as error:
            raise OutdatedRound("--out", str(path), f"{error.remedy}: {_ANEW}") from None
    found = read()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, packed(found))
    return found


def record_digest(folder: Path) -> str:
    """Return the SHA-256 (hex) of the record in a folder."""
    return hashlib.sha256((folder / RECORD_FILE).read_bytes()).hexdigest()


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Busy(BadInput):
    """Another process learns for the subject."""


@contextlib.contextmanager
def locked(place: Path, subject: str, at: str, waits_s: float = 0.0) -> Iterator[None]:
    """Let one process alone learn for a subject while the block runs.

    place: a directory that all processes share. at: now, for the message to others. waits_s: for another process.
    Raises Busy that names the process with the lock and its time. The lock ends with the process, however that ends.
    """
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"learn-{subject}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
    with os.fdopen(handle, "r+", encoding="utf-8") as file:
        until_s = time.monotonic() + waits_s
        while not _taken(file.fileno()):
            if time.monotonic() >= until_s:
                holder = file.read().strip() or "another process"
                raise Busy("learn", subject, f"{holder} learns for it: wait for its end, or stop it")
            time.sleep(LOOKS_EVERY_S)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {at},")
        file.flush()
        yield
