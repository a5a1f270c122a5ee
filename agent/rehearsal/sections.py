"""The sections of the dry run beside its fleet: the real agent on a virtual clock, for one decision each.

A decision's part names its section, a `Section` in a module of this package; nothing else has to name it.
"""

from __future__ import annotations

import logging
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import structlog

from agent.kernel.parts import kinds
from agent.rehearsal.scenario import (
    AGENT_KEY,
    SECRET,
    aws_environment,
    shown_program,
)
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.settings import load_settings
from domain.clock import VirtualClock
from domain.decisions import Event, Reason

ALL, FLEET_ALONE = "all", "fleet"
"""In place of a section: every one after the fleet, and the fleet alone."""

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Section:
    """A decision's section of the dry run.

    play: runs it, given the directory of the ledger, the seed, the mode, the settings that the user gave, as
    environment variables, and what is called with every event. shown: reasons of events that are worth a line;
    in_lines: those that the terminal view omits. acts_only: with all sections it is played in act mode alone.
    """

    play: Callable[[Path, int, str, Mapping[str, str], OnEvent], SectionResult]
    shown: frozenset[Reason]
    in_lines: frozenset[Reason] = frozenset()
    acts_only: bool = False


def section_names() -> tuple[str, ...]:
    """Return what can be played: all, the fleet, and every decision that has a section, in the order of their turns."""
    return (ALL, FLEET_ALONE, *(kind.name for kind in kinds() if kind.rehearsal))


def sections() -> Mapping[str, Section]:
    """Return the section of every decision that has one, by its name, in the order of their turns."""
    found: dict[str, Section] = {}
    for kind in kinds():
        module, _, name = kind.rehearsal.partition(":")
        if module:
            found[kind.name] = getattr(import_module(module), name)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionResult(ABC):
    """The result of a section, and where to ask about it. examples: the id of the last decision of each kind."""

    kind: ClassVar[str]
    question: ClassVar[str]
    """What `next_command` answers."""

    hours: int
    examples: Mapping[str, str]
    ledger: str
    program: str = field(default_factory=shown_program)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": self.kind, **asdict(self), "next": [self.next_command()]}

    def next_command(self) -> str:
        """Return a command that explains a decision, as it is typed where this one was."""
        return shlex.join(self.next_words())

    def next_words(self) -> tuple[str, ...]:
        """Return the words of that command."""
        return (self.program, "explain", self.explained(), "--ledger", self.ledger)

    def explained(self) -> str:
        """Return the id of the decision to explain."""
        return next(iter(self.examples.values()), "last")

    @abstractmethod
    def brief(self) -> str:
        """Return the result in a line, with its figure."""

    def figures(self) -> list[str]:
        """Return every figure, a line each."""
        found = []
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Mapping):
                value = ", ".join(f"{key} {n:g}" for key, n in value.items() if isinstance(n, int | float))
            if one.name not in ("ledger", "program") and value not in ("", None):
                shown = f"{value:.3g}" if isinstance(value, float) else value
                found.append(f"{one.name.replace('_', ' ')}: {shown}")
        return found

    def notes(self) -> Sequence[str]:
        """Return more sentences, a line each."""
        return ()


@contextmanager
def cloud_at(start: float, seed: int) -> Iterator[str]:
    """Serve a fresh simulated AWS from a thread for the block, and yield its endpoint; `CloudControl` moves its time.

    Raises RuntimeError when this process already runs one.
    """
    # Loading moto takes more than a second, and a dry run of the fleet alone has it in another process.
    from simulator.aws.process import load_parameter_store, start_in_thread

    running = start_in_thread(VirtualClock(start), seed=seed)
    try:
        load_parameter_store()
        yield running.endpoint
    finally:
        running.stop()


@contextmanager
def agent_at(
    start: float, directory: Path, endpoint: str, mode: str, given: Mapping[str, str]
) -> Iterator[tuple[Agent, VirtualClock]]:
    """Run an agent with these settings, as environment variables, on a virtual clock, for the block."""
    clock = VirtualClock(start)
    settings = load_settings({**aws_environment(directory, endpoint, mode), **given})
    with assembled(settings, clock, AwsKeys(AGENT_KEY, SECRET)) as agent:
        yield agent, clock


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send log events to a file, so that they do not disturb the screen."""
    before = structlog.get_config()
    quiet = logging.getLogger("apscheduler")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    with path.open("w", encoding="utf-8") as log:
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
            logger_factory=structlog.WriteLoggerFactory(file=log),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)
            quiet.setLevel(level)
