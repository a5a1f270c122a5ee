"""`trimtab models`: which models there are, which one decides for whom and why, whether a file would be taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import (
    DECISIONS,
    JsonOption,
    ModelsOption,
    app,
    examples,
    models_directory,
    print_json,
    show,
)
from domain.errors import BadInput
from domain.subject import QUEUE_RULE

if TYPE_CHECKING:
    from agent.kernel.decision import ModelSummary
    from agent.models.directory import ModelsDirectory

DIGITS = 12
SHOWN_LINES = 10
"""Of the history; --json has all of it."""
Row = dict[str, Any]


@app.command("models", epilog=examples("trimtab models oversubscription", "trimtab models MODEL.onnx --json"))
def models(
    wanted: Annotated[
        str | None,
        typer.Argument(
            metavar="[DECISION|FILE]",
            help=f"{DECISIONS}: its alone; or a file to verify instead.",
            show_default=False,
        ),
    ] = None,
    directory: ModelsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models of fleets, pools and clusters, each verified: which one decides, its report, the history.

    The models of fleets that come with the agent are listed too. With a file, verify that one as the agent does before
    it uses it, and show what it was trained for. Exits with status 2 when it would be refused.
    """
    from agent.models.directory import ModelsDirectory
    from agent.models.shipped import shipped_models
    from agent.settings.location import promotion_key_location

    decision = wanted or ""
    if decision not in ("", *_readers()):
        file = Path(decision)
        found = _Verified(file.stem, decision, *_read(file))
        print_json(found.data) if as_json else _show([found])
        return
    place, key = models_directory(directory), promotion_key_location(os.environ)
    held = ModelsDirectory(place, key)
    subjects: list[Row] = []
    probation: list[Row] = []
    refusals: list[str] = []
    files: dict[Path, list[str]] = {path: [] for path in sorted(place.glob("*.onnx"))}
    history = [
        {"directory": str(place), **line}
        for line in held.history()
        if decision in ("", line.get("decision", "autoscaling"))
    ]
    try:
        for row in subject_rows(held, decision):
            subjects.append(row)
            files.setdefault(held.file_of(row["model"]), []).append(_role(row))
        for row in probation_rows(held, decision):
            probation.append(row)
            files.setdefault(held.file_of(row["model"]), []).append(f"on probation for {_whom(row)}")
    except BadInput as error:
        refusals.append(str(error))
    rows = [_tried(path, ", ".join(roles)) for path, roles in files.items()]
    rows += [_tried(model.path, f"bundled: {model.title}, {model.trained_for}") for model in shipped_models()]
    # A file that is refused may be of any decision.
    rows = [row for row in rows if not decision or row.decision in ("", decision)]
    refusals += [row["file"] for row in subjects if row["file"] != "sound"]
    refusals += [row["by"].removeprefix("refused: ") for row in subjects if row["by"].startswith("refused")]
    refusals += [row["refused"] for row in probation if row["refused"]]
    if as_json:
        refusal = "; ".join(refusals) or None
        listed = {
            "models": [row.data for row in rows],
            "subjects": subjects,
            "probation": probation,
            "history": history,
        }
        print_json({"directory": str(place), "refusal": refusal, **listed})
        return
    _show(rows)
    every = next((row["model"] for row in subjects if _role(row) == "champion"), "none")
    typer.echo(f"models directory {place}; champion: {every[:DIGITS]}")
    if probation:
        show_probation(probation)
    if subjects or history:
        show(subject_lines(subjects, history))
    for refusal in refusals:
        typer.echo(f"refused: {refusal}", err=True)


def _role(row: Row) -> str:
    return f"champion of {_whom(row)}" if row["subject"] or row["decision"] != "autoscaling" else "champion"


def _whom(row: Row) -> str:
    return (row["subject"] or "all") if row["decision"] == "autoscaling" else f"{row['decision']} {row['subject']}"


def subject_rows(directory: ModelsDirectory, decision: str = "") -> Iterator[Row]:
    """Yield what decides for each subject, of one decision or all: its file, its report, and the one before."""
    from agent.models.directory import forced_reason, seal_of

    for subject, champion in sorted(directory.champions().items()):
        if decision not in ("", subject.decision):
            continue
        file, seal, by = "sound", "no report", ""
        try:
            directory.read(champion.model)
            _read(directory.file_of(champion.model), subject.decision)
        except BadInput as error:
            file = str(error)
        try:
            seal = str(seal_of(directory.report(champion.report), directory.key)) if champion.report else seal
            reason = forced_reason(directory.check(subject, champion))
            by = f"forced: {reason}" if reason else "promoted"
        except BadInput as error:
            by = f"refused: {error}"
            seal = str(error) if seal == "no report" and champion.report else seal
        yield {
            "decision": subject.decision,
            "subject": subject.name,
            "model": champion.model,
            "previous": champion.previous,
            "at": champion.at,
            "report": champion.report,
            "file": file,
            "seal": seal,
            "by": by,
        }


def probation_rows(directory: ModelsDirectory, decision: str = "") -> Iterator[Row]:
    """Yield the models on probation, of one decision or all: against what, how long, and why one is refused."""
    for subject, one in sorted(directory.probationers().items()):
        if decision not in ("", subject.decision):
            continue
        refused = ""
        try:
            directory.check_probationer(subject, one)
            directory.read(one.model)
            _read(directory.file_of(one.model), subject.decision)
        except BadInput as error:
            refused = str(error)
        row = {"decision": subject.decision, "subject": subject.name, "model": one.model, "against": one.against}
        times = {"since": one.since, "until": one.until, "then": str(one.then)}
        yield row | times | {"report": one.report, "refused": refused}


def show_probation(rows: list[Row]) -> None:
    """Print the models on probation."""
    from agent.kernel.text import columns
    from agent.models.directory import moment_text

    lines: list[tuple[object, ...]] = [("decision", "subject", "on probation", "against", "until", "then", "")]
    for row in rows:
        names = row["model"][:DIGITS], (row["against"] or "none")[:DIGITS]
        ends = moment_text(row["until"]), row["then"], "refused" if row["refused"] else ""
        lines.append((row["decision"], row["subject"] or "all", *names, *ends))
    show(columns(lines))


def subject_lines(subjects: list[Row], history: list[Row]) -> list[str]:
    """Return what decides for each subject, and the last changes."""
    from agent.kernel.text import columns

    rows: list[tuple[object, ...]] = [("decision", "subject", "model", "before it", "since", "file", "")]
    for row in subjects:
        names = row["decision"], row["subject"] or "all", row["model"][:DIGITS], (row["previous"] or "none")[:DIGITS]
        rows.append((*names, row["at"] or "-", "sound" if row["file"] == "sound" else "refused", row["by"]))
    changes = [
        (
            line.get("at") or "-",
            line.get("event"),
            line.get("decision", "autoscaling"),
            line.get("subject", line.get("fleet")) or "all",
            (line.get("model") or "none")[:DIGITS],
            line.get("reason", ""),
        )
        for line in history[-SHOWN_LINES:]
    ]
    return [*columns(rows), "history:", *columns(changes)]


@dataclass(frozen=True, slots=True)
class _Verified:
    """A model file: where it decides, or its place; what it holds and by which decision, or why it is refused."""

    model: str
    role: str
    decision: str = ""
    held: ModelSummary | None = None
    refused: str = ""

    @property
    def data(self) -> Row:
        """It as plain data."""
        row: Row = {"model": self.model, "role": self.role}
        return row | ({"refused": self.refused} if self.held is None else {"decision": self.decision, **self.held.data})


def _tried(path: Path, role: str) -> _Verified:
    try:
        return _Verified(path.stem, role, *_read(path))
    except BadInput as refusal:
        return _Verified(path.stem, role, refused=refusal.remedy)


def _read(path: Path, decision: str = "") -> tuple[str, ModelSummary]:
    """Return a file's decision and what it says of itself, verified as that does; BadInput.

    decision: "" finds the first that takes the file.
    """
    known = _readers()
    usual = [name for name, (suffixes, _) in known.items() if path.suffix in suffixes]
    refusals = []
    for name in (decision,) if decision else usual:
        if name not in known:
            raise BadInput("model file", str(path), f"the package of {name} is not installed: it cannot be verified")
        try:
            return name, known[name][1](path)
        except BadInput as error:
            refusals.append(error)
    endings = ", ".join(sorted({suffix for suffixes, _ in known.values() for suffix in suffixes}))
    raise refusals[0] if refusals else BadInput("model file", str(path), f"give a file that ends in one of {endings}")


def _readers() -> Mapping[str, tuple[tuple[str, ...], Callable[[Path], ModelSummary]]]:
    """Return by the decision of a model the endings of its files, and the function that verifies one."""
    from agent.autoscaling.tuned_rules import setting_summary
    from agent.kernel.parts import kinds

    found = {kind.name: (kind.model_suffixes, kind.model) for kind in kinds()}
    return found | {QUEUE_RULE: ((".json",), setting_summary)}


def _show(rows: list[_Verified]) -> None:
    from agent.kernel.text import columns

    if not rows:
        return
    lines: list[tuple[object, ...]] = [("model", "sees", "does", "network", "for at most", "")]
    for row in rows:
        held = row.held
        about = ("refused:", row.refused, "", "") if held is None else (held.sees, held.does, held.network, held.limits)
        lines.append((row.model[:DIGITS], *about, row.role))
    show(columns(lines))
