"""Results of an evaluation that outlive an interruption: one line of JSON each, found again by all that decides it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from domain.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *(
        f"domain/rules/oversubscription/{name}.py"
        for name in ("moving_average", "placement", "posterior", "rates", "ridge", "risk", "shield", "usage", "verdict")
    ),
    "simulator/oversubscription",
    "trainer/oversubscription/policies",
    "trainer/oversubscription/calibration.py",
    "trainer/oversubscription/episodes.py",
    "trainer/oversubscription/shield_fit.py",
    "trainer/oversubscription/trials.py",
    "trainer/oversubscription/unseen.py",
)
"""Program text that decides results: after a change of it they are made anew."""


class Kept:
    """Results in a file, or in memory alone where there is none; a last line that was cut is dropped."""

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        """Open the file; one that holds results is refused without `resume`. Raises BadInput."""
        self._path = path
        self._results: dict[str, Any] = {}
        if path is None:
            return
        if path.exists():
            self._read(path)
            if self._results and not resume:
                raise BadInput("--out", str(path), "it holds results already: give --resume, or another folder")
        path.parent.mkdir(parents=True, exist_ok=True)

    def of(self, facts: dict[str, Any], make: Callable[[], Any]) -> Any:
        """Return the result, as JSON data, that belongs to these facts: kept, or made now and then kept."""
        text = json.dumps([facts, code_version()], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        if key not in self._results:
            line = json.dumps({"key": key, "facts": facts, "result": make()}, allow_nan=False)
            self._results[key] = json.loads(line)["result"]
            if self._path is not None:
                with self._path.open("a", encoding="utf-8", newline="\n") as stream:
                    stream.write(line + "\n")
                    stream.flush()
                    os.fsync(stream.fileno())
        return self._results[key]

    def _read(self, path: Path) -> None:
        text = path.read_text("utf-8")
        whole = text[: text.rfind("\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                data = json.loads(line)
                self._results[data["key"]] = data["result"]
            except (ValueError, KeyError, TypeError):
                raise BadInput(f"{path}, line {number}", line[:40], "give a file that this verb wrote") from None
        if len(whole) < len(text):
            path.write_text(whole, encoding="utf-8", newline="\n")


@cache
def code_version() -> str:
    """Return a digest (12 hex digits) over the program text that decides results."""
    digest = hashlib.sha256()
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")) or [ROOT / source]:
            digest.update(path.relative_to(ROOT).as_posix().encode("utf-8"))
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
