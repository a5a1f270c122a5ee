"""`trimtab promote` for every decision: put a model in use if the gate lets it pass; and the way back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from agent.commands.options import print_json, show
from agent.kernel.text import columns
from domain.errors import BadInput

if TYPE_CHECKING:
    from domain.subject import Subject
    from trainer.promotion.directory import ModelsWriter, Verify
    from trainer.promotion.gate import Contest, Gate

REFUSED = 1
ALL = "all"
"""Names the subjects that have no champion of their own."""

SubjectArgument = Annotated[
    str, Argument(metavar="SUBJECT", help="A fleet, pool or cluster; all: every one without a champion.")
]
ChallengerArgument = Annotated[Path | None, Argument(metavar="[FILE]", help="The model to put in use.")]
DirectoryOption = Annotated[
    Path | None,
    Option(
        "--models-dir",
        "--champion-dir",
        metavar="DIR",
        help="Directory of models and champion.json; else that of the settings.",
    ),
]
KeyOption = Annotated[Path | None, Option(metavar="FILE", help="Key that signs the report; else $PROMOTION_KEY.")]
TryOption = Annotated[bool, Option("--try", help="Judge and report, but change nothing.")]
ForceOption = Annotated[
    str | None, Option("--force", metavar="REASON", help="Use it without an evaluation; the reason is recorded.")
]
RollbackOption = Annotated[bool, Option("--rollback", help="Go back to the champion before.")]
StatusOption = Annotated[bool, Option("--status", help="Show the champions, and check their files and reports.")]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the verb was asked to do, the same for every decision."""

    challenger: Path | None
    key_file: Path | None
    force: str | None
    rollback: bool
    status: bool
    try_only: bool
    as_json: bool
    probation_hours: float = 0.0
    then: str = "promote"
    at: float | None = None


def carry_out(
    decision: str, name: str, place: Path | None, verify: Verify, gate: Callable[[], Gate], wish: Wish
) -> None:
    """Do what was asked for in the models directory `place`, else in that of the settings.

    `verify` and `gate` are the decision's. Exits with status 1 when the gate refuses.
    """
    from agent.models.directory import Then, moment_text, read_key, read_model_file
    from agent.settings.location import models_location, promotion_key_location
    from domain.subject import Subject
    from trainer.promotion.directory import ModelsWriter

    if (wish.challenger is not None) + wish.rollback + wish.status != 1:
        given = "" if wish.challenger is None else str(wish.challenger)
        raise BadInput("promote", given, "give a model, --rollback or --status")
    subject = Subject(decision, name)
    directory = ModelsWriter(
        place or models_location(os.environ), read_key(wish.key_file) or promotion_key_location(os.environ)
    )
    now_s = time.time() if wish.at is None else wish.at
    now = moment_text(now_s)
    if wish.challenger is None:
        (_status if wish.status else _rollback)(directory, subject, now, verify, wish.as_json)
    elif wish.force is not None:
        verify(wish.challenger)
        champion = directory.force(read_model_file(wish.challenger), subject, wish.force, now, verify)
        if wish.as_json:
            print_json({"subject": name, "model": champion.model, "forced": wish.force, "report": champion.report})
        else:
            typer.echo(f"{champion.model} decides for {subject} now, without an evaluation: {wish.force}")
    else:
        from trainer.promotion.gate import Term, hold

        if wish.then not in [*Then]:
            raise BadInput("--then", wish.then, f"choose one of {', '.join(Then)}")
        hours = wish.probation_hours
        term = Term(now_s, hours, Then(wish.then)) if hours > 0.0 else None
        contest = hold(wish.challenger, directory, subject, verify, gate(), at=now, try_only=wish.try_only, term=term)
        if wish.as_json:
            quiet = {key: value for key, value in contest.report.items() if key not in ("results", "cases")}
            print_json(
                quiet
                | {"promoted": contest.promoted, "on_probation": contest.on_probation, "report": contest.report_name}
            )
        else:
            _show(contest, directory, subject)
        if not contest.judgement.passed:
            raise typer.Exit(REFUSED)


def _show(contest: Contest, directory: ModelsWriter, subject: Subject) -> None:
    judgement = contest.judgement
    against = contest.report["champion"]["sha256"] or contest.report["champion"]["label"]
    rows: list[tuple[object, ...]] = [("family", "runs", "cost", "95 %", "sure")]
    everything = ("all, alike", sum(family.trials for family in judgement.families), judgement.overall)
    for name, count, comparison in [*((f.family, f.trials, f.comparison) for f in judgement.families), everything]:
        r = comparison.relative
        span, sure = f"{100 * r.low:+.1f} to {100 * r.high:+.1f}", f"{comparison.probability_lower:.1%}"
        rows.append((name, count, f"{100 * r.mean:+.1f} %", span, sure))
    lines = [f"{contest.report['challenger']['sha256'][:12]} against {against[: 12 if len(against) == 64 else None]}:"]
    lines += columns(rows)
    if contest.promoted:
        lines.append(f"passed: it is the champion of {subject} now")
    elif contest.on_probation:
        lines.append(f"passed: it is on probation for {subject}")
    elif judgement.passed:
        lines.append("passed; nothing is changed (--try)")
    else:
        lines += ["not promoted, the policy in use stays:", *(f"  {reason}" for reason in judgement.reasons)]
    seal = "signed" if directory.key is not None else "not signed: no key was given, its SHA-256 alone holds it"
    lines.append(f"report: {directory.path / contest.report_name} ({seal})")
    show(lines)


def _rollback(directory: ModelsWriter, subject: Subject, at: str, verify: Verify, as_json: bool) -> None:
    left = directory.champions().get(subject)
    back = directory.rollback(at, subject, verify)
    stands_in = directory.champion(subject)
    gone = left.model if left else ""
    if as_json:
        print_json({"subject": subject.name, "left": gone or None, "model": back.model if back else None})
    elif back is not None:
        typer.echo(f"back to {back.model}, from {gone}, for {subject}")
    elif stands_in is not None:
        typer.echo(f"{gone} is no longer the champion of {subject}; that of all decides: {stands_in.model}")
    else:
        typer.echo(
            f"{gone} is no longer the champion of {subject}; there was none before it: a model that comes with the "
            "agent decides, or the rules of the settings"
        )


def _status(directory: ModelsWriter, subject: Subject, at: str, verify: Verify, as_json: bool) -> None:
    from agent.commands.models import show_subjects, subject_rows

    found = list(subject_rows(directory, subject.decision))
    history = [line for row in found for line in directory.history(subject._replace(name=row["subject"]))]
    if as_json:
        champions = {row["subject"]: row for row in found}
        data = {"directory": str(directory.path), "champion": champions.get(""), "champions": champions}
        print_json(data | {"history": history})
    elif found:
        show_subjects(found, history)
    else:
        typer.echo(f"no champion in {directory.path}: a model that comes with the agent decides, or the rules")
