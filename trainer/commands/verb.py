"""A verb of the trainer for a decision: a dataclass of its options, with the method that runs it.

The class is the row of the command line: its docstring is the help, EPILOG the end of it, each field an option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature, getdoc
from typing import Any, ClassVar, get_type_hints

import typer

from agent.commands.options import JsonOption, print_json, show


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a verb: data for --json, None to print nothing, lines of text, and the exit status."""

    data: Any
    lines: Sequence[str]
    status: int = 0


@dataclass(kw_only=True)
class Verb:
    """The options and methods of every verb."""

    EPILOG: ClassVar[str] = ""
    WITHOUT: ClassVar[Sequence[str]] = ()
    """Options that are shared, and that this decision does not take."""
    ctx: typer.Context
    as_json: JsonOption = False

    def run(self) -> Answer:
        """Do the work."""
        raise NotImplementedError

    def print(self, answer: Answer) -> None:
        """Print an answer as text."""
        show(answer.lines)


def add(group: typer.Typer, name: str, verb: type[Verb]) -> None:
    """Add a verb to a group under the name of its decision."""

    def call(**options: Any) -> None:
        one = verb(**options)
        answer = one.run()
        if one.as_json and answer.data is not None:
            print_json(answer.data)
        elif not one.as_json:
            one.print(answer)
        if answer.status:
            raise typer.Exit(answer.status)

    hints = get_type_hints(verb, include_extras=True)
    classes = [vars(one).get("__annotations__", {}) for one in verb.__mro__]
    # The options of one decision precede the shared ones.
    known = {field.name: field for field in fields(verb)}
    names = dict.fromkeys(name for own in classes for name in own if name in known and name not in verb.WITHOUT)
    call.__dict__["__signature__"] = Signature(
        [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if known[name].default is MISSING else known[name].default,
                annotation=hints[name],
            )
            for name in names
        ]
    )
    call.__annotations__ = {}
    group.command(name, epilog=verb.EPILOG, help=getdoc(verb))(call)
