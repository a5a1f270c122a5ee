"""Work of a moment for tests of workers, without torch: processes that import it start soon."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from domain.errors import BadInput


def fail(data: Mapping[str, Any]) -> dict[str, Any]:
    """Raise, or die without a word."""
    if data.get("die"):
        os._exit(1)
    raise ValueError("the third law")


def square_and_die_once(item: tuple[Path, int]) -> int:
    """Square a number and leave a mark in a folder; the first call for 3 kills its process."""
    folder, number = item
    attempt = len(list(folder.glob(f"{number}-*")))
    (folder / f"{number}-{attempt}").touch()
    if number == 3 and attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def square_or_die(number: int) -> int:
    """Square a number; a negative one kills its process."""
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


class Counting:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, number: int) -> tuple[int, int]:
        """Return the process and how many calls it has had."""
        self.calls += 1
        return os.getpid(), self.calls


class TwoParts(Exception):
    """An error that pickle writes and cannot read."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def refuse_in_two_parts(number: int) -> int:
    """Raise an error that cannot be sent to another process."""
    raise TwoParts("the third", f"law of {number}")


def refuse(number: int) -> int:
    """Raise an error with attributes."""
    raise BadInput("number", number, "give another")
