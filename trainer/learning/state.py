"""The folder of a round: its state, sealed and written whole or not at all, and the lock of its subject.

    state.json        what the round depends on, and the result of each stage that is done, with a SHA-256 over it
    recorded.json.gz  what was recorded when the round began; a round that goes on learns from the same minutes
    scorer/           the training run of the scorer
    report.html, summary.json, rule.env   what people read

A stage that was interrupted is done again; one that is done is not. A state that was changed by hand decides nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.ledger import codec
from agent.models.directory import Seal, seal_of
from domain.errors import BadInput
from trainer.kit.files import replace_file
from trainer.learning.minutes import Record
from trainer.promotion.directory import sealed

STATE_FILE, RECORD_FILE = "state.json", "recorded.json.gz"
FORMAT = 1
_ANEW = "give another --out, or remove it to start again"


@dataclass(slots=True)
class State:
    """The state of a round in a folder.

    facts: what the round depends on. stages: results by name, as JSON data. cpu_s: seconds of a processor so far.
    """

    folder: Path
    facts: dict[str, Any]
    stages: dict[str, Any] = field(default_factory=dict)
    cpu_s: float = 0.0

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

    Raises BadInput for a state that was changed or cut, and for the round of another subject, world or recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE_FILE
    wanted: dict[str, Any] = json.loads(json.dumps(dict(facts)))
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return State(folder, wanted)
    except ValueError:
        raise BadInput("--out", str(path), f"it is damaged: {_ANEW}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or seal_of(data, None) is Seal.CHANGED:
        raise BadInput("--out", str(path), f"its seal does not hold, it was changed: {_ANEW}")
    for name, value in wanted.items():
        if data["facts"].get(name) != value:
            raise BadInput("--out", str(path), f"it is of a round with {name}={data['facts'].get(name)}: {_ANEW}")
    return State(folder, data["facts"], data["stages"], float(data["cpu_s"]))


def set_aside(folder: Path) -> Path | None:
    """Move a round that is over out of its folder, and return where it is now; None where there is none.

    One is kept, so that a timer does not fill the disk. A round is over when the gate has spoken, or when the simulator
    was not true; one that can go on stays, and so does a state that cannot be read, which `opened` refuses.
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


def packed(recorded: Record) -> bytes:
    """Return what was recorded as a file; the same bytes for the same record."""
    return gzip.compress(codec.encode(recorded), mtime=0)


def unpacked(content: bytes, source: str) -> Record:
    """Return what a file of `packed` holds; BadInput for any other."""
    try:
        found: Record = codec.decode(Record, gzip.decompress(content))
    except Exception as error:
        raise BadInput("record", source, f"it is cut or no record of a fleet ({type(error).__name__})") from None
    return found


def kept_record(folder: Path | None, read: Callable[[], Record]) -> Record:
    """Return the record that the round in a folder began with, else a fresh one, which is then kept.

    folder: None where nothing is to be kept. BadInput for a record that is cut or changed beyond reading.
    """
    path = None if folder is None else folder / RECORD_FILE
    if path is not None and path.is_file():
        return unpacked(path.read_bytes(), str(path))
    found = read()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, packed(found))
    return found


def record_digest(folder: Path) -> str:
    """Return the SHA-256 (hex) of the record in a folder."""
    return hashlib.sha256((folder / RECORD_FILE).read_bytes()).hexdigest()


@contextlib.contextmanager
def locked(place: Path, subject: str, at: str) -> Iterator[None]:
    """Let one process alone learn for a subject while the block runs.

    place: a directory that all who learn for it share. at: now, for who comes second. Raises BadInput that says which
    process holds it and since when. The lock ends with the process, however that ends.
    """
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"learn-{subject}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
    with os.fdopen(handle, "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = file.read().strip() or "another process"
            raise BadInput("learn", subject, f"{holder} learns for it: wait for its end, or stop it") from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {at},")
        file.flush()
        yield
