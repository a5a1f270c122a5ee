"""`trimtab config`: check the settings, and write their reference page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from agent.commands.options import JsonOption, app, examples, print_json

config = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Check the settings, and write their reference page."
)
app.add_typer(config, name="config")

PAGE = Path("docs/operate/configuration.md")
METRICS_PAGE = Path("docs/operate/metrics.md")


@config.command(epilog=examples("trimtab config check", "TRIMTAB_MODE=act trimtab config check --all"))
def check(
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print mistakes only.")] = False,
    every: Annotated[bool, typer.Option("--all", "-a", help="Print every effective setting and its source.")] = False,
) -> None:
    """Check the settings: print the verdict, or all mistakes at once with exit status 1."""
    from agent.kernel.parts import kinds
    from agent.settings.load import Source, read_settings
    from agent.settings.names import name_of, plain, values
    from domain.errors import ConfigurationError

    try:
        loaded = read_settings(os.environ)
        wrong = [loaded.placed(mistake) for kind in kinds() for mistake in kind.mistakes(loaded.settings)]
        if wrong:
            raise ConfigurationError(wrong)
    except ConfigurationError as error:
        if as_json:
            mistakes = [{"name": m.name, "value": m.value, "remedy": m.remedy} for m in error.mistakes]
            print_json({"mistakes": mistakes})
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if quiet:
        return
    rows = []
    for path, value in values(loaded.settings):
        given = loaded.origin(path)
        name = name_of(path) if given is None or given.source is Source.FILE else given.name
        source = Source.DEFAULT.value if given is None else given.place or given.source.value
        rows.append({"name": name, "value": plain(value), "source": source})
    if as_json:
        print_json({"settings": rows, "mistakes": []})
        return
    given_rows = [row for row in rows if row["source"] != Source.DEFAULT.value]
    of_file = sum(one.source is Source.FILE for one in loaded.given.values())
    where = f", {of_file} in {loaded.file.name}" if loaded.file.name else ""
    more = "" if every else "; --all prints every setting"
    if not given_rows:
        more += "; to give some, set TRIMTAB_CONFIG or load the .env file that `trimtab init` writes"
    typer.echo(
        f"no mistakes: {len(given_rows)} of {len(rows)} settings given{where}; the ledger is "
        f"{plain(loaded.settings.ledger_url)}{more}"
    )
    if not every:
        return
    widths = [max(len(row[column]) for row in rows) for column in ("name", "value")]
    for row in rows:
        typer.echo(f"{row['name']:<{widths[0]}}  {row['value']:<{widths[1]}}  {row['source']}".rstrip())


@config.command(epilog=examples("trimtab config docs", "trimtab config docs --check"))
def docs(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; - prints the page.")] = PAGE,
    is_check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when the file is stale.")] = False,
) -> None:
    """Write the reference page of all settings from their definitions."""
    from agent.settings.names import page

    _write(page(), output, is_check, "trimtab config docs")


@config.command(epilog=examples("trimtab config metrics", "trimtab config metrics --check"))
def metrics(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; - prints the page.")] = METRICS_PAGE,
    is_check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when the file is stale.")] = False,
) -> None:
    """Write the reference page of all metrics from their catalogue."""
    from agent.telemetry.catalogue import page

    _write(page(), output, is_check, "trimtab config metrics")


def _write(text: str, output: Path, is_check: bool, verb: str) -> None:
    if str(output) == "-":
        typer.echo(text, nl=False)
    elif is_check:
        if not output.is_file() or output.read_text("utf-8") != text:
            typer.echo(f"{output} is stale: run `{verb}` and commit it", err=True)
            raise typer.Exit(1)
    else:
        output.write_text(text, "utf-8")
        typer.echo(f"wrote {output}")
