"""The sections of the dry run in another process than the fleet, at the same time.

The process is started with no arguments. It reads one pickled `Sections` from standard input and ends when its input
does. It writes one pickled `Played` a section, in order, or the text of the error that ended it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO

from agent.rehearsal.scenario import shown_program
from agent.rehearsal.sections import SectionResult, logging_to, sections
from domain.decisions import Event
from domain.errors import TrimtabError

STOP_WITHIN_WALL_S = 5.0


class SectionFailed(TrimtabError):
    """A section in the other process did not end with a result."""


@dataclass(frozen=True, slots=True)
class Sections:
    """What to play: names in their order, and the arguments of `Section.play`; log: the file for log events."""

    names: tuple[str, ...]
    directory: Path
    seed: int
    mode: str
    overrides: Mapping[str, str]
    log: Path


@dataclass(frozen=True, slots=True)
class SectionRun:
    """A section's result and its events."""

    result: SectionResult
    events: tuple[Event, ...]


@contextmanager
def section_process(asked: Sections) -> Iterator[Iterator[SectionRun]]:
    """Play sections in another process for the block, and yield an iterator that waits for each in turn.

    The iterator raises SectionFailed where one fails. The end of the block kills the process.
    """
    command = [sys.executable, "-m", "agent.rehearsal.section_process"]
    # A session apart: Ctrl-C reaches this process alone, and the end of the block kills the other.
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert popen.stdin is not None
    assert popen.stdout is not None
    found: SimpleQueue[SectionRun | str] = SimpleQueue()
    # An unread pipe would stop the process before its last section.
    reader = Thread(target=_read, args=(popen.stdout, found), name="sections", daemon=True)
    reader.start()
    try:
        pickle.dump(asked, popen.stdin)
        popen.stdin.flush()
        yield _in_turn(asked, found)
    finally:
        popen.kill()
        popen.wait(STOP_WITHIN_WALL_S)
        reader.join(STOP_WITHIN_WALL_S)
        popen.stdin.close()
        popen.stdout.close()


def _read(stream: IO[bytes], found: SimpleQueue[SectionRun | str]) -> None:
    try:
        while True:
            found.put(pickle.load(stream))
    except (EOFError, pickle.UnpicklingError):
        found.put("the process ended: see the log and the output above")


def _in_turn(asked: Sections, found: SimpleQueue[SectionRun | str]) -> Iterator[SectionRun]:
    for name in asked.names:
        played = found.get()
        if isinstance(played, str):
            raise SectionFailed(f"section {name} has no result: {played}")
        yield replace(played, result=replace(played.result, program=shown_program()))


def main() -> None:
    """Play the sections that standard input names."""
    asked: Sections = pickle.load(sys.stdin.buffer)
    Thread(target=_end_with_input, name="parent", daemon=True).start()
    out = sys.stdout.buffer
    with logging_to(asked.log), redirect_stdout(sys.stderr):
        for name in asked.names:
            events: list[Event] = []
            try:
                result = sections()[name].play(asked.directory, asked.seed, asked.mode, asked.overrides, events.append)
            except TrimtabError as error:
                pickle.dump(str(error), out)
                out.flush()
                return
            pickle.dump(SectionRun(result, tuple(events)), out)
            out.flush()


def _end_with_input() -> None:
    # Not through `sys.stdin`: its lock would be held at the regular end of this process.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    # By its name: pickle writes the name of the module with each object.
    from agent.rehearsal.section_process import main as play_sections

    play_sections()
