"""A verb of the trainer for a decision: a frozen dataclass of its options, with the method that runs it.

The class is the row of the command line: its docstring is the help, EPILOG the end of it, each field an option. The
type of a field is annotated with strings, `Annotated[int, "N", "Runs to begin with."]`: the last one is the help, one
before it the placeholder of the value; strings with a dash in front are the names of the option, else `--field`. A
placeholder of small words, `cold|warm`, permits these words alone; `Bounds` and `Check` limit the value, and `Written`
is checked before the verb runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, Signature, getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

from agent.commands.options import JsonOption, print_json, show
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S, MINUTE_S
from trainer.commands.endings import statuses_of_faults
from trainer.commands.options import (
    TEXT,
    Bounds,
    Check,
    FormatOption,
    RayOption,
    Rows,
    Written,
    command_of,
    show_tables,
)

if TYPE_CHECKING:
    from trainer.kit.jobs import Plan, Workers
    from trainer.promotion.directory import ModelsWriter

ANSWERS = Path(".trimtab/answers")
INTERRUPTED = 130
PLANNED_WORKERS = (2, 4, 16, 64, 256)
"""Numbers of workers that a plan shows, as far as there are cases."""
_NOT_OF_CASES = ("workers", "ray", "resume", "plan", "json", "format", "force")
"""Options that change no case."""
_CHOICES = re.compile(r"[a-z0-9-]+(\|[a-z0-9-]+)+")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a verb: data for --json, None to print nothing, lines of text, the exit status, tables with titles.

    Lines follow the tables.
    """

    data: Any
    lines: Sequence[str] = ()
    status: int = 0
    tables: Sequence[tuple[str, Rows]] = ()


@dataclass(frozen=True, kw_only=True)
class Verb:
    """The options and methods of every verb."""

    EPILOG: ClassVar[str] = ""
    WITHOUT: ClassVar[Sequence[str]] = ()
    """Options that are shared, and that this decision does not take."""
    ctx: typer.Context
    as_json: JsonOption = False

    def statuses(self) -> AbstractContextManager[None]:
        """Return the context that gives faults an exit status; without one they have that of the program."""
        return nullcontext()

    def run(self) -> Answer:
        """Do the work."""
        raise NotImplementedError

    def answer(self) -> Answer:
        """Do the work as the options ask that several decisions share."""
        return self.run()

    def print(self, answer: Answer) -> None:
        """Print an answer as text."""
        show(answer.lines)


@dataclass(frozen=True, kw_only=True)
class TableVerb(Verb):
    """The option of every verb that prints tables."""

    form: FormatOption = TEXT

    def print(self, answer: Answer) -> None:
        """Print the tables in their format, with the lines after them."""
        if answer.tables:
            show_tables(answer.tables, answer.lines, self.form)
        else:
            super().print(answer)


@dataclass(frozen=True, kw_only=True)
class ParallelVerb(Verb):
    """The options of every verb whose cases are independent: the answer does not depend on them.

    Each finished case is stored in ANSWERS until the command has ended, in a file for its options.
    """

    workers: Annotated[int, "N", "Processes; cores of a local Ray.", Bounds(min=1)] = 1
    ray: RayOption = None
    resume: Annotated[bool, "Continue the same command, in the same folder, where it was stopped."] = False
    plan: Annotated[bool, "Measure a few cases, print CPU time and workers, and do nothing else."] = False

    @cached_property
    def crew(self) -> Workers:
        """The workers of the cases."""
        from trainer.kit.answers import AnswerFile
        from trainer.kit.jobs import Workers

        command = command_of(self.ctx, _NOT_OF_CASES)
        file = ANSWERS / f"{self.ctx.info_name}-{sha256(command.encode()).hexdigest()[:12]}"
        if self.resume and not file.exists():
            typer.echo(f"--resume: no finished cases of this command are stored in {file}", err=True)
        answers = AnswerFile(file, resume=self.resume or self.plan)
        return Workers(self.workers, self.ray, answers, self.plan)

    def answer(self) -> Answer:
        """Do the work, or with --plan the plan of it."""
        from trainer.kit.jobs import Planned

        try:
            answer = self.run()
        except Planned as planned:
            return _planned(planned.plan, self.workers)
        except KeyboardInterrupt:
            typer.echo("stopped; continue with the same command and --resume", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if self.plan:
            return Answer({"cases": 0}, ["nothing that workers share"])
        if self.crew.answers is not None:
            self.crew.answers.remove()
        return answer


def _planned(plan: Plan, workers: int) -> Answer:
    counts = sorted({1, workers, *(count for count in PLANNED_WORKERS if count <= plan.items)})
    shapes = [
        {"workers": count, "cores": count, "memory_mb": round(count * plan.memory / 1e6), "wall_s": plan.wall_s(count)}
        for count in counts
    ]
    data = {
        "cases": plan.items,
        "finished": plan.finished,
        "measured": plan.measured,
        "cpu_hours": plan.cpu_s / HOUR_S,
        "longest_case_s": plan.longest_s,
        "shapes": shapes,
    }
    rows: list[tuple[object, ...]] = [("workers", "cores", "memory", "time")]
    rows += [(one["workers"], one["cores"], f"{one['memory_mb']} MB", duration_text(one["wall_s"])) for one in shapes]
    done = f", {plan.finished:,} more are finished" if plan.finished else ""
    longest = f"{plan.longest_s:.2g} s" if plan.longest_s < MINUTE_S else duration_text(plan.longest_s)
    head = (
        f"{plan.items:,} cases{done}: {plan.cpu_s / HOUR_S:.3g} CPU-hours, by {plan.measured} of them, measured here; "
        f"the longest takes {longest}"
    )
    return Answer(data, [head, "", *columns(rows)])


@dataclass(frozen=True, kw_only=True)
class ModelsVerb(Verb):
    """The options of every verb that changes which model decides."""

    models_dir: Annotated[Path | None, "DIR", "Directory of models; else that of the settings."] = None
    key_file: Annotated[Path | None, "FILE", "Key that signs the report; else $PROMOTION_KEY."] = None

    def statuses(self) -> AbstractContextManager[None]:
        """Return the context in which faults of the ledger and of the disk have exit statuses."""
        return statuses_of_faults()

    def usual_directory(self) -> Path:
        """Return the directory of models without --models-dir: by the settings."""
        from agent.settings.location import models_location

        return models_location(os.environ)

    def directory(self) -> Path:
        """Return the directory of models."""
        return self.models_dir or self.usual_directory()

    @cached_property
    def models(self) -> ModelsWriter:
        """The directory of models."""
        from agent.models.directory import read_key
        from agent.settings.location import promotion_key_location
        from trainer.promotion.directory import ModelsWriter

        key = read_key(self.key_file) or promotion_key_location(os.environ)
        return ModelsWriter(self.directory(), key)


def row_of(verb: str, decision: str) -> type[Verb] | None:
    """Return the row of a verb and a decision, None where there is none.

    It is the class with both names, such as `TuneAdmission`, of the decision's module in this package, or of a separate
    one, such as `tune_autoscaling`.
    """
    for name in (f"trainer.commands.{decision}", f"trainer.commands.{verb}_{decision}"):
        if find_spec(name) is not None:
            row: type[Verb] | None = getattr(import_module(name), f"{verb.title()}{decision.title()}", None)
            if row is not None:
                return row
    return None


def add(group: typer.Typer, name: str, verb: type[Verb]) -> None:
    """Add a verb to a group under the name of its decision."""

    def call(**options: Any) -> None:
        one = verb(**options)
        for name, (option, written) in outputs.items():
            if options[name] is not None:
                written.check(option, options[name], options.get("force", True))
        with one.statuses():
            answer = one.answer()
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
    outputs = {
        name: (_option(known[name], about), written)
        for name in names
        for about in [get_args(hints[name])[1:]]
        for written in about
        if isinstance(written, Written)
    }
    call.__dict__["__signature__"] = Signature([_parameter(known[name], hints[name]) for name in names])
    call.__annotations__ = {}
    group.command(name, epilog=verb.EPILOG, help=getdoc(verb))(call)


def _option(field: Field[Any], about: Sequence[object]) -> str:
    """Return the name of a field's option in messages."""
    names = [word for word in about if isinstance(word, str) and word.startswith("-")]
    return max(names, key=len, default=f"--{field.name.replace('_', '-')}")


def _parameter(field: Field[Any], hint: Any) -> Parameter:
    """Return a field as a parameter with an option of typer, which a field may also have itself."""
    kind, *about = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    default = ... if field.default is MISSING else field.default
    if not about or isinstance(about[0], ParameterInfo):
        default = Parameter.empty if default is ... else default
        return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
    words = [word for word in about if isinstance(word, str)]
    names = [word for word in words if word.startswith("-")]
    *placeholder, text = (word for word in words if not word.startswith("-"))
    option = _option(field, words)
    bounds = next((one for one in about if isinstance(one, Bounds)), Bounds())
    check = next((one for one in about if isinstance(one, Check)), None)
    metavar = placeholder[0] if placeholder else None
    if check is None and metavar is not None and _CHOICES.fullmatch(metavar):
        choices = metavar.split("|")
        check = Check(choices.__contains__, f"choose one of {', '.join(choices)}")
    made = typer.Option(
        default,
        *(names or ([option] if kind is bool else [])),
        metavar=metavar,
        help=text,
        callback=None if check is None else _checked(option, check),
        **{name: value for name, value in bounds._asdict().items() if value is not None},
    )
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=made, annotation=kind)


def _checked(option: str, check: Check) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        for one in value if isinstance(value, list | tuple) else [] if value is None else [value]:
            if not check.holds(one):
                raise BadInput(option, str(one) if isinstance(one, Path) else one, check.remedy)
        return value

    return checked
