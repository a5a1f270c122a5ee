"""The commands of a rehearsal: the program in separate processes, each held to its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.models.directory import ModelsDirectory
from domain.errors import TrimtabError
from domain.subject import Subject

PROGRAM = "from agent.commands.main import app; app()"
Say = Callable[[str], None]
Shown = Callable[[str], list[str]]
"""The lines of an output that are shown."""


class LearningFailed(TrimtabError):
    """A step of the rehearsal did not end as it must; the message has the output of the command."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command that was run: its name, after which hour, its result, exit status, output, and seconds."""

    name: str
    after: int
    what: str
    status: int
    output: str
    wall_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """A command that runs, or has ended."""

    name: str
    after: int
    process: subprocess.Popen[bytes]
    log: Path
    begun_s: float


def last_words(output: str) -> list[str]:
    """Return the lines of an output without those of stages."""
    return [line for line in output.splitlines() if line and not line.endswith("...")]


@dataclass(slots=True)
class Commands:
    """Starts commands and waits for them.

    folder: of their output. models, subject: whose history they change. environ: their settings; no others are
    inherited.
    """

    folder: Path
    say: Say
    models: ModelsDirectory
    subject: Subject
    environ: Mapping[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def start(self, name: str, after: int, words: Sequence[str]) -> Started:
        """Start `trimtab WORDS` after an hour of the rehearsal."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TRIMTAB_")}
        with (self.folder / f"{name}.log").open("w+", encoding="utf-8") as log:
            environ = {**inherited, **self.environ}
            process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=log, stderr=log, env=environ)
        self.say(f"$ trimtab {' '.join(word for word in words[:3])} ... ({name})")
        return Started(name, after, process, Path(log.name), time.monotonic())

    def end(self, started: Started, status: int, what: str, event: str = "", words: Shown = last_words) -> str:
        """Wait for a command, show its last words, hold it to its exit status, and return its output.

        event: the last one of the history of the subject's models after it; "" where nothing is to change. words:
        lines of its output that are shown.
        """
        found = started.process.wait()
        output = started.log.read_text("utf-8")
        wall_s = time.monotonic() - started.begun_s
        self.steps.append(Step(started.name, started.after, what, found, output, wall_s))
        if found != status:
            raise LearningFailed(f"{started.name} ended with exit status {found}, not {status}:\n{output}")
        newest = [line["event"] for line in self.models.history(self.subject)][-1:]
        if event and newest != [event]:
            raise LearningFailed(f"after {started.name} no model is {event}:\n{output}")
        self.say(f"{what} (exit status {found}):")
        for line in words(output):
            self.say(f"  {line}")
        return output
