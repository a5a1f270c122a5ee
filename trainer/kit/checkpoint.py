"""Checkpoints of a training run: directories of arrays and JSON, written whole or not at all, checked when read.

    checkpoints/
      000000120/state.npz          weights, optimiser, random generators, environments (no pickle)
      000000120/checkpoint.json    configuration, progress, how the arrays make up the state, SHA-256 of everything
      last, best                   which of them is the newest, and which had the lowest held-out cost

A run resumed from its last checkpoint goes on as if it had never stopped (autoscaler specification §10, §15.3).
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.kernel.unfinished import unfinished
from domain.errors import BadInput
from trainer.kit.files import replace_file, sync_directory, write_synced

FORMAT = 1
STATE_FILE, FACTS_FILE = "state.npz", "checkpoint.json"
LAST, BEST = "last", "best"
EXTENDABLE = ("total_steps",)
"""Fields of a configuration that may grow when a run is resumed."""
ABSENT = {"device": "cpu"}
"""Values of fields that configurations of earlier versions do not have."""
_ELSE = "resume from the best one, or train again"
_DIRECTORY_NAME = re.compile(r"\d{9,}(-\d+)?")


class CheckpointRefused(BadInput):
    """A checkpoint is not used: it is missing, cut, changed, or of another format."""


class OtherConfiguration(BadInput):
    """A run cannot be resumed with this configuration; `differences` lists (field, saved, given)."""

    def __init__(self, path: Path, differences: tuple[tuple[str, Any, Any], ...]) -> None:
        self.differences = differences
        listed = "; ".join(f"{name}: saved {saved!r}, given {given!r}" for name, saved, given in differences)
        super().__init__(
            "resume", str(path), f"it was trained with another configuration ({listed}): give that one, or a new --out"
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A training run at one moment.

    config: the run's configuration as JSON data (see `plain`). progress: figures for people, plain values by name;
    `update` counts the updates done. state: a tree (see `pack`) that holds everything needed to go on; its entry
    `weights` maps names to tensors or arrays.
    """

    config: Mapping[str, Any]
    progress: Mapping[str, Any]
    state: Mapping[str, Any] = field(repr=False)

    @property
    def update(self) -> int:
        """Updates done."""
        return int(self.progress["update"])


class Checkpoints:
    """The checkpoints of one run: the newest and the best are kept, others are removed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, checkpoint: Checkpoint, *, best: bool = False) -> Path:
        """Write a checkpoint, make it the last one (and the best one), and return its directory.

        A crash at any moment leaves the checkpoints named before readable.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self._unused(f"{checkpoint.update:09d}")
        write_checkpoint(checkpoint, path)
        for name in (LAST, BEST) if best else (LAST,):
            replace_file(self.directory / name, f"{path.name}\n")
        self._remove_others()
        return path

    def last(self) -> Checkpoint | None:
        """Return the newest checkpoint, None before the first."""
        return self._read(LAST)

    def best(self) -> Checkpoint | None:
        """Return the checkpoint with the lowest held-out cost, None before the first evaluation."""
        return self._read(BEST)

    def path_of(self, name: str) -> Path | None:
        """Return the directory that `last` or `best` names, None when there is none yet."""
        try:
            text = (self.directory / name).read_text("ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            text = ""
        if not _DIRECTORY_NAME.fullmatch(text):
            raise _refused(self.directory / name, "it names no checkpoint: write the name of one in its folder into it")
        return self.directory / text

    def _read(self, name: str) -> Checkpoint | None:
        path = self.path_of(name)
        return None if path is None else read_checkpoint(path)

    def _unused(self, name: str) -> Path:
        """Return a directory of a name that is not taken: the checkpoints named before stay whole until replaced."""
        names = itertools.chain((name,), (f"{name}-{again}" for again in itertools.count(1)))
        return next(path for name in names if not (path := self.directory / name).exists())

    def _remove_others(self) -> None:
        kept = {path.name for name in (LAST, BEST) if (path := self.path_of(name)) is not None}
        for path in self.directory.iterdir():
            if path.is_dir() and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint as the directory `path`, which must not exist."""
    arrays, tree = pack(checkpoint.state)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    facts = {
        "format": FORMAT,
        "config": dict(checkpoint.config),
        "config_hash": config_hash(checkpoint.config),
        "progress": pack(checkpoint.progress)[1],
        "weights_hash": weights_hash(checkpoint.state.get("weights", {})),
        "state": tree,
        "state_sha256": hashlib.sha256(content).hexdigest(),
    }
    facts["sha256"] = config_hash(facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(path, is_folder=True) as fresh:
        write_synced(fresh / STATE_FILE, content)
        write_synced(fresh / FACTS_FILE, json.dumps(facts, indent=1, allow_nan=False).encode())
        sync_directory(fresh)
        fresh.rename(path)
    sync_directory(path.parent)


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a directory, every byte verified; CheckpointRefused names the file that is wrong."""
    facts = _facts(path / FACTS_FILE)
    content = _bytes(path / STATE_FILE)
    if hashlib.sha256(content).hexdigest() != facts["state_sha256"]:
        raise _refused(path / STATE_FILE, f"it was cut or changed after it was written: {_ELSE}")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            state = unpack({name: stored[name] for name in stored.files}, facts["state"])
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _refused(path / STATE_FILE, f"it does not hold the state ({error}): train again") from None
    return Checkpoint(facts["config"], unpack({}, facts["progress"]), state)


def weights_hash(weights: Mapping[str, Any]) -> str:
    """Return the SHA-256 over names, types, shapes and values of a network's weights (tensors or arrays)."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = _array(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def plain(value: Any) -> Any:
    """Return a configuration as JSON data: dataclasses as dicts, enums as their values, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a configuration, or of anything else, given as JSON data."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(saved: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Return (field, saved, given) for each field that differs, inner ones dotted; an absent one by ABSENT, or None."""
    found: list[tuple[str, Any, Any]] = []
    for name in dict.fromkeys((*saved, *given)):
        before, now = saved.get(name, ABSENT.get(name)), given.get(name, ABSENT.get(name))
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += [(f"{name}.{inner}", a, b) for inner, a, b in differences(before, now)]
        elif before != now:
            found.append((name, before, now))
    return tuple(found)


def check_resumable(
    checkpoint: Checkpoint, given: Mapping[str, Any], path: Path, extendable: Iterable[str] = EXTENDABLE
) -> None:
    """Raise OtherConfiguration unless the configuration is the saved one, or asks for more of what may be extended."""
    wrong = tuple(
        (name, saved, now)
        for name, saved, now in differences(checkpoint.config, given)
        if not (name in extendable and saved is not None and now is not None and now >= saved)
    )
    if wrong:
        raise OtherConfiguration(path, wrong)


def resume(
    checkpoints: Checkpoints | None,
    given: Mapping[str, Any],
    restore: Callable[[Mapping[str, Any]], None],
    extendable: Iterable[str] = EXTENDABLE,
) -> Checkpoint | None:
    """Restore the state of the last checkpoint and return it, None without one. Raises OtherConfiguration."""
    last = None if checkpoints is None else checkpoints.last()
    if last is not None and checkpoints is not None:
        check_resumable(last, given, checkpoints.directory, extendable)
        restore(last.state)
    return last


class Clock:
    """Wall and CPU seconds of a run, added to those of its last checkpoint."""

    def __init__(self, last: Checkpoint | None) -> None:
        before = {"wall_s": 0.0, "cpu_s": 0.0} if last is None else last.progress
        self._wall_s = time.perf_counter() - before["wall_s"]
        self._cpu_s = time.process_time() - before["cpu_s"]

    def spent(self) -> dict[str, Any]:
        """Return `wall_s` and `cpu_s`."""
        return {"wall_s": time.perf_counter() - self._wall_s, "cpu_s": time.process_time() - self._cpu_s}


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(_bytes(path))
    except ValueError:
        raise _refused(path, f"it is not whole JSON, so it was cut or changed: {_ELSE}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise _refused(path, f"its format is {found!r}, this program reads {FORMAT}: train again")
    written = facts.pop("sha256", "")
    if written != config_hash(facts):
        raise _refused(path, f"it was changed after it was written: {_ELSE}")
    return facts


def _refused(path: Path, remedy: str) -> CheckpointRefused:
    return CheckpointRefused("checkpoint", str(path), remedy)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _refused(path, f"{error.strerror}: name the directory of a checkpoint") from None


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


PACKAGES = ("numpy", "torch", "numba", "onnx", "onnxruntime", "trimtab")


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that a training run depends on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


Arrays = dict[str, NDArray[Any]]

_ARRAY, _TENSOR, _TUPLE, _PAIRS, _FLOAT = "$array", "$tensor", "$tuple", "$pairs", "$float"
"""Keys that mark what JSON has no word for; a dict with a key that begins with $ is stored as pairs."""


def pack(tree: Any) -> tuple[Arrays, Any]:
    """Return the arrays of a tree by their path in it, and the rest as JSON data that names them: bit for bit.

    A tree is a dict, list or tuple of trees, an array, a torch tensor, or a plain value: None, bool, int of any size,
    float, str.

    Raises BadInput, naming the path, for a value that is none of those above.
    """
    arrays: Arrays = {}
    return arrays, _pack(tree, "", arrays)


def unpack(arrays: Mapping[str, NDArray[Any]], data: Any) -> Any:
    """Return the tree that `pack` took apart; KeyError when an array it names is absent."""
    if isinstance(data, list):
        return [unpack(arrays, item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:
        ((mark, inner),) = data.items()
        if mark == _ARRAY:
            return arrays[inner]
        if mark == _TENSOR:
            import torch

            return torch.from_numpy(np.array(arrays[inner]))
        if mark == _TUPLE:
            return tuple(unpack(arrays, item) for item in inner)
        if mark == _PAIRS:
            return {unpack(arrays, key): unpack(arrays, value) for key, value in inner}
        if mark == _FLOAT:
            return float(inner)
    return {key: unpack(arrays, value) for key, value in data.items()}


def _pack(tree: Any, path: str, arrays: Arrays) -> Any:
    # A search without a network need not load torch: two seconds for each of its processes.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tree, torch.Tensor):
        return _named(_TENSOR, tree.detach().cpu().numpy(), path, arrays)
    if isinstance(tree, np.ndarray):
        return _named(_ARRAY, tree, path, arrays)
    if isinstance(tree, np.generic):
        tree = tree.item()
    if tree is None or isinstance(tree, bool | int | str):
        return tree
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {_FLOAT: repr(tree)}
    if isinstance(tree, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return {key: _pack(value, f"{path}/{key}", arrays) for key, value in tree.items()}
        return {_PAIRS: [[_pack(k, path, arrays), _pack(v, f"{path}/{k}", arrays)] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):
        items = [_pack(value, f"{path}/{at}", arrays) for at, value in enumerate(tree)]
        return items if isinstance(tree, list) else {_TUPLE: items}
    raise BadInput(f"state {path}", type(tree).__name__, "give arrays, plain values, or dicts and lists of them")


def _named(mark: str, array: NDArray[Any], path: str, arrays: Arrays) -> dict[str, str]:
    if array.dtype.hasobject:
        raise BadInput(f"state {path}", "an array of Python objects", "give an array of numbers")
    name = path.lstrip("/") or "value"
    while name in arrays:
        name += "'"
    # A copy: what training goes on to change must not change under the writer.
    arrays[name] = np.array(array)
    return {mark: name}
