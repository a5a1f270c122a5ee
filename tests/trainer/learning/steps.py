"""Steps of the tests of rounds: call the program, promote a model, put one on probation, read how a round ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.models.directory import Champion, Probationer, Then, moment_text, read_model_file
from agent.models.rounds import Ending, read_rounds
from domain.subject import Subject
from tests.agent.models.making import reported
from trainer.promotion.directory import ModelsWriter

Verify = Callable[[Path], object]


def trimtab(*words: object) -> Result:
    """The result of the program."""
    return CliRunner().invoke(app, [str(word) for word in words])


def directory_of(folder: Path) -> ModelsWriter:
    """The models directory in a folder."""
    (folder / "models").mkdir(exist_ok=True)
    return ModelsWriter(folder / "models")


def promoted(directory: ModelsWriter, path: Path, subject: Subject, at: float, verify: Verify) -> Champion:
    """The model in a file, promoted by a report of its own."""
    model = read_model_file(path)
    report = reported(directory.path, model.name, None, subject)
    return directory.promote(model, subject, report, moment_text(at), verify)


def tried(
    directory: ModelsWriter,
    path: Path,
    subject: Subject,
    since: float,
    hours: float,
    verify: Verify,
    then: Then = Then.PROMOTE,
) -> Probationer:
    """The model in a file, put on probation against the champion of its subject."""
    model, now = read_model_file(path), directory.champion(subject)
    champion = {"sha256": None if now is None else Path(now.model).stem}
    report = reported(directory.path, model.name, None, subject, champion=champion)
    beaten = None if now is None else now.model
    return directory.put_on_probation(model, subject, report, since, hours, then, verify, beaten=beaten)


def ending(folder: Path, subject: Subject) -> Ending:
    """How the subject's last round ended."""
    return read_rounds(folder / "models", subject.decision)[0][subject.name].outcome
