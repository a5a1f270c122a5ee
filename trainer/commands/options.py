"""Options and help texts that the trainer's verbs share."""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer import Context, Option

from agent.commands.options import FULL, examples, show
from agent.kernel.text import columns
from domain.errors import BadInput

TEXT, CSV = "text", "csv"
RUN_CONFIG = "run.toml"
"""The file of a run's options and settings, which `train` writes to its --out and takes by --config."""
_NOT_OF_A_RUN = ("config_file", "out", "resume", "as_json", "help")

Rows = Sequence[Sequence[object]]
"""A table: the titles of its columns, then its rows."""


class Bounds(NamedTuple):
    """The least and the greatest value of an option."""

    min: float | None = None
    max: float | None = None


class Check(NamedTuple):
    """A condition that the value of an option must meet, and the remedy where it does not."""

    holds: Callable[[Any], bool]
    remedy: str


@dataclass(frozen=True, slots=True)
class Written:
    """A file or folder that a verb writes: the endings of its name, any without, and that of a file that belongs to it.

    A verb with --force writes over a file only then.
    """

    endings: tuple[str, ...] = ()
    also: str | None = None

    def check(self, option: str, path: Path, force: bool) -> None:
        """Raise BadInput for another ending, a file that is there already, unless forced, or a folder that is not."""
        if self.endings and not path.name.lower().endswith(self.endings):
            raise BadInput(option, str(path), f"end the file's name with one of {', '.join(self.endings)}")
        if not path.absolute().parent.is_dir():
            raise BadInput(option, str(path), "give a file in a folder that exists")
        for file in (path, path if self.also is None else path.with_name(path.name + self.also)):
            if file.exists() and not force:
                raise BadInput(option, str(file), "it exists: give another file, or --force to write over it")


def labelled(option: str, given: Sequence[str] | None, example: str) -> list[tuple[str, str]]:
    """Return the pairs of LABEL=TEXT that an option was given; BadInput for one of another form."""
    pairs = [(label, text) for label, _, text in (one.partition("=") for one in given or ())]
    for text, (label, value) in zip(given or (), pairs, strict=True):
        if not label or not value:
            raise BadInput(option, text, f"give {example}")
    return pairs


def _take_config(ctx: Context, path: Path | None) -> Path | None:
    """Let a run's file give the values of options that are not given, and its settings."""
    if path is None:
        return None
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise BadInput("--config", str(path), f"give a {RUN_CONFIG} that `train` wrote: {fault}") from None
    decision = str(ctx.info_name)
    if data.get("version") != 1 or data.get("decision") != decision:
        remedy = f'give a file with version = 1 and decision = "{decision}"'
        raise BadInput("--config", str(path), remedy)
    options: dict[str, Any] = data.get("options", {})
    known = {
        max(parameter.opts, key=len).removeprefix("--"): str(parameter.name)
        for parameter in ctx.command.params
        if parameter.name not in _NOT_OF_A_RUN
    }
    for name in options:
        if name not in known:
            raise BadInput(f"{path.name}: options.{name}", options[name], f"choose among {', '.join(sorted(known))}")
    ctx.default_map = {known[name]: value for name, value in options.items()}
    settings: dict[str, Any] = data.get("settings", {})
    ctx.meta[RUN_CONFIG] = [f"{name}={_setting(value)}" for name, value in settings.items()]
    return path


def _setting(value: object) -> str:
    if isinstance(value, list):
        return "+".join(map(_setting, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


FormatOption = Annotated[str, "--format", "text|csv|latex", "How tables are printed."]
ConfigOption = Annotated[
    Path | None,
    Option(
        "--config",
        metavar="RUN.toml",
        is_eager=True,
        callback=_take_config,
        help="Options and settings as a run wrote them to --out; those given here go before.",
    ),
]
SetOption = Annotated[list[str] | None, "--set", "FIELD=VALUE", "Any other setting; repeatable."]
DeviceOption = Annotated[str, "cpu|cuda", "Where networks are trained; cuda: a GPU of this machine."]
RayOption = Annotated[str | None, "local|HOST:PORT", "Spread the work over a Ray cluster."]
YearsOption = Annotated[
    float, "YEARS", "Length of a run.", Check(lambda years: 0.0 < years <= 30.0, "give a number above 0 and up to 30")
]
ScenarioOption = Annotated[str, "NAME|FOLDER", "internal_like, azure_like, or a folder of yours."]
StartOption = Annotated[str, "cold|warm", "Empty, or with the VMs of hour 0."]
AlphaOption = Annotated[
    float,
    "Required chance of a week with fewer hot hours than promised.",
    Check(lambda alpha: 0.0 < alpha < 1.0, "give a probability between 0 and 1, such as 0.95"),
]


def _is_folder(path: Path) -> bool:
    """Return whether a folder can be written; one that is missing is made and removed again.

    Permissions alone do not decide: root has each of them, and makes no folder in /proc. A full disk has its remedy.
    """
    missing = [one for one in (path, *path.parents) if not os.path.exists(one)]
    try:
        path.mkdir(parents=True, exist_ok=True)
        return os.access(path, os.W_OK)
    except OSError as error:
        return error.errno in FULL
    finally:
        for one in missing:
            with suppress(OSError):
                one.rmdir()


FOLDER = Check(lambda path: path.is_dir() or not path.exists(), "name a folder")
"""Of a verb that makes it itself, and has an exit status for a folder that cannot be written."""
CHECKED_FOLDER = Check(_is_folder, "name a folder that can be written")
PageOption = Annotated[Path | None, "--out", "FOLDER", "Write report.html and its numbers here.", CHECKED_FOLDER]
ForceOption = Annotated[bool, "--force", "Write over a file that exists."]
PricesOption = Annotated[str | None, "train|m5a", "Price table, else the world's prices."]
BootOption = Annotated[str | None, "const:S|uniform:LOW,HIGH", "Boot time in seconds, else the world's."]
WorldOption = Annotated[str, "NAME|FILE", "The world: a name, see `simulate --help`, or a FILE.toml."]
CooldownOption = Annotated[float | None, "SECONDS", "Cool-down, else the world's."]
SuiteWorldOption = Annotated[
    str, "--world", "live-like|training|NAME|FILE", "The world of T3, T5 and T6; or any other, of jobs of your own."
]
OwnWorkloadsOption = Annotated[
    list[str] | None, "--workload", "NAME|FILE", "Your jobs in place of the suite, as for `simulate`; repeatable."
]
TryOption = Annotated[bool, "--try", "Judge and report, but change nothing."]
AtOption = Annotated[float | None, Option("--at", hidden=True, help="Now, epoch seconds; for rehearsals.")]
SuiteSeedsOption = Annotated[int | None, "--seeds", "N", "Largest number of cases per family.", Bounds(min=1)]


def settings_of(ctx: Context, given: Sequence[str] | None) -> list[str]:
    """Return the settings of --config, and after them those given by --set, which go before."""
    found: list[str] = [*ctx.meta.get(RUN_CONFIG, ()), *(given or ())]
    return found


def write_config(ctx: Context, place: Path, settings: Mapping[str, Any]) -> None:
    """Write the options of a run, and every field of its configuration, to RUN_CONFIG in its folder.

    settings: the fields that --set takes; those without a value are left out.
    """
    from simulator.checked_toml import toml_text
    from trainer.kit.files import replace_file

    options = {
        max(parameter.opts, key=len).removeprefix("--"): _plain(ctx.params.get(str(parameter.name)))
        for parameter in ctx.command.params
        if parameter.name not in (*_NOT_OF_A_RUN, "setting")
    }
    known = {name: value for name, value in options.items() if value not in (None, [])}
    kept = {name: _plain(value) for name, value in settings.items() if value is not None}
    data = {"version": 1, "decision": ctx.info_name, "options": known, "settings": kept}
    place.mkdir(parents=True, exist_ok=True)
    comment = f"{ctx.command_path} --config {RUN_CONFIG} --out NEW repeats this run."
    replace_file(place / RUN_CONFIG, toml_text(data, comment))


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def show_tables(tables: Sequence[tuple[str, Rows]], notes: Sequence[str], form: str) -> None:
    """Print tables with their titles as text, one CSV or LaTeX; notes follow, on standard error unless it is text."""
    if form == TEXT:
        lines = [line for title, rows in tables for line in (title, *columns([tuple(row) for row in rows]), "")]
        show([*lines, *notes])
        return
    typer.echo(_csv(tables) if form == CSV else "\n".join(_latex(title, rows) for title, rows in tables), nl=False)
    for note in notes:
        typer.echo(note, err=True)


def _csv(tables: Sequence[tuple[str, Rows]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, (title, rows) in enumerate(tables):
        titles, *cells = rows
        writer.writerows([["table", *titles]] if number == 0 else [])
        writer.writerows([title, *row] for row in cells)
    return text.getvalue()


_SPECIAL = {**{c: f"\\{c}" for c in "&%$#_{}"}, "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_SPECIAL |= {"\\": r"\textbackslash{}", "<": "$<$", ">": "$>$"}


def _latex(title: str, rows: Rows) -> str:
    """Return a table of the package booktabs; the first column is of words, the others are of figures."""

    def line(row: Sequence[object]) -> str:
        cells = (re.sub(r"[&%$#_{}~^±\\<>]", lambda found: _SPECIAL[found[0]], str(cell)) for cell in row)
        return f"{' & '.join(cells)} \\\\"

    titles, *cells = rows
    body = [rf"\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}", r"\toprule", line(titles), r"\midrule"]
    body += [*map(line, cells), r"\bottomrule", r"\end{tabular}"]
    return "\n".join([f"% {title}; needs \\usepackage{{booktabs}}", *body]) + "\n"


def epilog(*blocks: str, calls: tuple[str, ...]) -> str:
    """Return the end of a verb's help: blocks of text, whose lines stay as they are, and examples of calls."""
    # The backspace keeps a block from being wrapped.
    return "\n\n".join([*(f"\b\n{block.strip()}" for block in blocks), examples(*calls)])


def words_of(text: str) -> list[str]:
    """Return the words of a text with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def command_of(ctx: Context, without: tuple[str, ...] = ()) -> str:
    """Return the command that was called, with the options that were given; `without`: long names left out."""
    words = [*ctx.command_path.split()]
    for parameter in ctx.command.params:
        name = parameter.opts[0] if parameter.opts else ""
        value = ctx.params.get(parameter.name or "")
        if value is None or value == parameter.get_default(ctx) or name.removeprefix("--") in without:
            continue
        if isinstance(value, bool):
            words.append(name if value else max(parameter.secondary_opts, key=len, default=name))
        else:
            given = value if isinstance(value, list | tuple) else [value]
            words += [word for one in given for word in ([name, str(one)] if name.startswith("-") else [str(one)])]
    return shlex.join(words)
