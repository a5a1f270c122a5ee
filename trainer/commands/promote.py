"""`trimtab promote` for every decision: put a model in use if the gate lets it pass; and the way back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from typer import Argument

from agent.kernel.text import columns
from domain.errors import BadInput
from trainer.commands.options import AtOption, TryOption
from trainer.commands.verb import Answer, ModelsVerb

if TYPE_CHECKING:
    from domain.subject import Subject
    from trainer.promotion.directory import ModelsWriter
    from trainer.promotion.gate import Contest, Gate, Term

REFUSED = 1
ALL = "all"
"""Names the subjects that have no champion of their own."""


@dataclass(frozen=True, kw_only=True)
class Promotion(ModelsVerb):
    """The options of every decision: a subject and its model, or the way back, or the status."""

    DECISION: ClassVar[str]

    subject: Annotated[
        str, Argument(metavar="SUBJECT", help="A fleet, pool or cluster; all: every one without a champion.")
    ]
    challenger: Annotated[Path | None, Argument(metavar="[FILE]", help="The model to put in use.")] = None
    try_only: TryOption = False
    force: Annotated[str | None, "REASON", "Use it without an evaluation; the reason is recorded."] = None
    rollback: Annotated[bool, "Go back to the champion before."] = False
    status: Annotated[bool, "Show the champions, and check their files and reports."] = False
    at: AtOption = None

    def check(self) -> None:
        """Raise BadInput for a subject that the settings do not have, or a model that does not fit it."""

    def verify(self, path: Path) -> object:
        """Raise BadInput or ModelRefused for a file that cannot decide."""
        raise NotImplementedError

    def gate(self) -> Gate:
        """Return the gate for a challenger."""
        raise NotImplementedError

    def unused(self) -> Sequence[str]:
        """Return why the champion decides nothing yet."""
        return ()

    def term(self, now_s: float) -> Term | None:
        """Return the probation after the gate; None where the model decides at once."""
        return None

    def run(self) -> Answer:
        """Judge the model, go back to the one before, or show the status."""
        from agent.models.directory import moment_text, read_model_file
        from domain.subject import Subject

        self.check()
        if (self.challenger is not None) + self.rollback + self.status != 1:
            given = "" if self.challenger is None else str(self.challenger)
            raise BadInput("promote", given, "give a model, --rollback or --status")
        subject = Subject(self.DECISION, "" if self.subject == ALL else self.subject)
        now_s = time.time() if self.at is None else self.at
        now = moment_text(now_s)
        if self.challenger is None:
            return self._status(subject) if self.status else self._rollback(subject, now)
        if self.force is not None:
            self.verify(self.challenger)
            model = read_model_file(self.challenger)
            champion = self.models.force(model, subject, self.force, now, self.verify)
            data: dict[str, Any] = {"model": champion.model, "forced": self.force, "report": champion.report}
            line = f"{champion.model} decides for {subject} now, without an evaluation: {self.force}"
            return Answer({"subject": subject.name, **data}, [line, *self.unused()])
        from trainer.promotion.gate import hold

        term = self.term(now_s)
        contest = hold(
            *(self.challenger, self.models, subject, self.verify, self.gate()),
            at=now,
            try_only=self.try_only,
            term=term,
        )
        data = {key: value for key, value in contest.report.items() if key not in ("results", "cases")}
        data |= {"promoted": contest.promoted, "on_probation": contest.on_probation, "report": contest.report_name}
        lines = [*_lines(contest, self.models, subject), *(self.unused() if contest.promoted else ())]
        return Answer(data, lines, 0 if contest.judgement.passed else REFUSED)

    def _rollback(self, subject: Subject, at: str) -> Answer:
        left = self.models.champions().get(subject)
        back = self.models.rollback(at, subject, self.verify)
        stands_in = self.models.champion(subject)
        gone = left.model if left else ""
        if back is not None:
            line = f"back to {back.model}, from {gone}, for {subject}"
        elif stands_in is not None:
            line = f"{gone} is no longer the champion of {subject}; that of all decides: {stands_in.model}"
        else:
            line = (
                f"{gone} is no longer the champion of {subject}; there was none before it: a model that comes with the "
                "agent decides, or the rules of the settings"
            )
        return Answer({"subject": subject.name, "left": gone or None, "model": back.model if back else None}, [line])

    def _status(self, subject: Subject) -> Answer:
        from agent.commands.models import subject_lines, subject_rows

        found = list(subject_rows(self.models, subject.decision))
        history = [line for row in found for line in self.models.history(subject._replace(name=row["subject"]))]
        champions = {row["subject"]: row for row in found}
        data = {"directory": str(self.models.path), "champion": champions.get(""), "champions": champions}
        none = f"no champion in {self.models.path}: a model that comes with the agent decides, or the rules"
        lines = [*subject_lines(found, history), *self.unused()] if found else [none]
        return Answer(data | {"history": history}, lines)


def one_of_settings(word: str, name: str, known: Sequence[str]) -> bool:
    """Return whether the settings have a subject, False where they have none; BadInput for a name among others."""
    if known and name not in known:
        raise BadInput(word, name, f"choose one of the {word}s of the settings: {', '.join(sorted(known))}")
    return bool(known)


def _lines(contest: Contest, directory: ModelsWriter, subject: Subject) -> list[str]:
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
    return [*lines, f"report: {directory.path / contest.report_name} ({seal})"]
