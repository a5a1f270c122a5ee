"""Golden files: the wording of a surface is held once, in tests/golden/<surface>.txt, and nowhere else in the tests.

After an intended change of wording: `TESTS_GOLDEN=write make test ARGS=...`, then read the difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

GOLDEN = Path(__file__).with_name("golden")
WRITE = os.environ.get("TESTS_GOLDEN") == "write"
"""Read at the beginning: some tests take every variable of ours away."""


def check_wording(surface: str, texts: Mapping[str, str]) -> None:
    """Compare the texts of a surface, by the name of the case, with its golden file."""
    path = GOLDEN / f"{surface}.txt"
    written = "".join(f"== {name}\n{text.rstrip()}\n\n" for name, text in texts.items())
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(written, "utf-8")
    assert written == path.read_text("utf-8"), f"the wording of {surface} has changed: see tests/golden.py"


def figures(text: str) -> list[float]:
    """Return the numbers in a message, in order: an assertion looks at them and not at the words between."""
    return [float(number.replace(",", "")) for number in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text)]
