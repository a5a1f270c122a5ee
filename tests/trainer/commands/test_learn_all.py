"""`trimtab learn all`: each subject has a process of its own, and whatever becomes of it is left for the agent."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.ledger import Ledger
from agent.models.directory import moment_text, read_model_file
from agent.models.file import load_model
from agent.models.rounds import Ending, read_rounds
from agent.settings import load_settings
from domain.decisions import Mode
from domain.snapshot import Snapshot
from domain.subject import Subject
from domain.units import HOUR_S
from tests.agent.commands.recorded import START, Recorder, fleet, snapshot
from tests.agent.models.making import reported, scorer
from trainer.commands import learn_all
from trainer.commands.endings import TOO_LITTLE
from trainer.commands.learn_all import END_WITH_CALLER, PROGRAM, Ended, learn_one, subjects_of
from trainer.learning.minutes import NO_QUEUE, OBSERVED
from trainer.promotion.directory import ModelsWriter, write_round

WEB = Subject("autoscaling", "web")
GROUP = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.086", "MAX": "10"}


def described(*fleets: str) -> dict[str, str]:
    return {f"TRIMTAB_FLEETS__{name}__GROUPS__{name}__{key}": value for name in fleets for key, value in GROUP.items()}


def ended(tmp_path: Path, script: str, patience_s: float = 30.0) -> Ended:
    return learn_one(WEB, ["sh", "-c", script], tmp_path / "models", patience_s, lambda: 5000.0)


def status(tmp_path: Path) -> tuple[str, str, float | None]:
    one = read_rounds(tmp_path / "models", "autoscaling")[0]["web"]
    return one.outcome.value, one.sentence, one.good_at


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'error: no fleet web' >&2; exit 2", "it ended with exit status 2: error: no fleet web"),
        ("kill -9 $$", "it ended with exit status -9"),
        ("exit 1", "it ended with exit status 1"),
    ],
)
def test_a_process_that_leaves_no_status_has_failed_and_the_last_good_end_is_kept(
    tmp_path: Path, script: str, sentence: str
) -> None:
    write_round(tmp_path / "models", WEB, Ending.KEPT, "", at=1000.0)
    made = ended(tmp_path, script)
    assert (made.outcome, made.sentence, made.needs_a_look) == ("failed", sentence, True)
    assert status(tmp_path) == ("failed", sentence, 1000.0)


@pytest.mark.parametrize(
    ("code", "ending"), [(0, "kept"), (3, "not_true"), (4, "too_little"), (5, "budget"), (6, "rolled_back")]
)
def test_a_verb_that_leaves_no_status_is_known_by_its_exit_status(tmp_path: Path, code: int, ending: str) -> None:
    made = ended(tmp_path, f"echo so it is; exit {code}")
    assert (made.outcome, made.needs_a_look) == (ending, code in (3, 6))
    assert status(tmp_path)[0] == ending
    assert f"status {code}: so it is" in status(tmp_path)[1]


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    made = ended(tmp_path, "echo begun; exec sleep 60", patience_s=0.3)
    assert made.status is None
    assert "after 0 s: begun" in made.sentence


def test_a_status_that_the_process_left_counts_whatever_its_exit_status(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for ending, looked_at in ((Ending.REFUSED, False), (Ending.TOO_LITTLE, False), (Ending.ROLLED_BACK, True)):
        write_round(tmp_path / "elsewhere", WEB, ending, f"it was {ending}", at=2000.0)
        made = ended(tmp_path, f"mkdir -p {tmp_path}/models; cp {tmp_path}/elsewhere/*.json {tmp_path}/models; exit 1")
        assert made == Ended("autoscaling", "web", ending.value, f"it was {ending}", 1)
        assert made.needs_a_look is looked_at


def test_a_directory_that_takes_no_status_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("no directory")
    made = ended(tmp_path, "exit 7")
    assert "exit status 7" in made.sentence
    assert "takes no file" in made.sentence


def test_the_subjects_are_those_of_the_settings_for_which_there_is_a_round() -> None:
    assert subjects_of(load_settings(described("web", "batch")), None)[:2] == [Subject("autoscaling", "batch"), WEB]
    assert subjects_of(load_settings({}), None) == []


def test_fleets_that_are_found_by_their_tags_are_those_of_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger.open(f"sqlite:///{path}") as book:
        recorder = Recorder(book, fleet(), epoch=book.take_epoch("test", START))
        recorder.minute(START, snapshot(recorder.fleet, (1, 0), 0, START))
    settings = load_settings({"TRIMTAB_DISCOVERY__ENABLED": "true"})
    assert subjects_of(settings, str(path)) == [WEB]


def queue_unknown(seen: Snapshot) -> Snapshot:
    return replace(seen, queue=None)


@pytest.mark.parametrize(
    ("change", "mode", "part"),
    [(queue_unknown, Mode.ACT, NO_QUEUE), (lambda seen: seen, Mode.OBSERVE, OBSERVED)],
)
def test_a_fleet_whose_record_cannot_be_replayed_has_too_little_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Snapshot], Snapshot],
    mode: Mode,
    part: str,
) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as book:
        recorder = Recorder(book, fleet("web"), epoch=book.take_epoch("test", START), mode=mode)
        recorder.minute(START, change(snapshot(recorder.fleet, (1, 0), 0, START)))
    for name, value in (described("web") | {"TRIMTAB_STATE_DIRECTORY": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["learn", "autoscaling", "web", "--out", str(tmp_path / "out")])
    assert done.exit_code == TOO_LITTLE, done.output
    outcome, sentence, _ = status(tmp_path)
    assert (outcome, part in sentence) == ("too_little", True), sentence


@pytest.mark.exhaustive
def test_one_that_fails_does_not_stop_the_next(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as book:
        recorder = Recorder(book, fleet("other"), epoch=book.take_epoch("test", START))
        recorder.minute(START, snapshot(recorder.fleet, (1, 0), 0, START))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
    environ |= described("batch", "other") | {"TRIMTAB_STATE_DIRECTORY": str(tmp_path)}
    program = PROGRAM[2].removeprefix(f"{END_WITH_CALLER}; ")
    command = [sys.executable, "-c", program, "learn", "all", "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 1, done.stderr
    ends = {end["subject"]: end for end in json.loads(done.stdout)}
    assert list(ends) == ["batch", "other"]
    assert "batch" in ends["batch"]["sentence"]
    assert set(read_rounds(tmp_path / "models", "autoscaling")[0]) == {"batch", "other"}
    assert PROGRAM[0] == sys.executable
    assert program != PROGRAM[2]


def test_the_watch_begins_no_process_where_nothing_was_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (described("web") | {"TRIMTAB_STATE_DIRECTORY": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    calls: list[Subject] = []

    def called(subject: Subject, command: object, place: object, patience_s: float, *_: object) -> Ended:
        assert patience_s < HOUR_S
        calls.append(subject)
        return Ended(subject.decision, subject.name, Ending.KEPT.value, "", 0)

    monkeypatch.setattr(learn_all, "learn_one", called)
    words = ["learn", "all", "--watch", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert calls == []
    models = tmp_path / "models"
    models.mkdir()
    model = scorer(tmp_path, {"is_rule": 1.0})
    report = reported(models, model.name, None, WEB)
    ModelsWriter(models).promote(read_model_file(model), WEB, report, moment_text(time.time() - 60.0), load_model)
    assert CliRunner().invoke(app, words).exit_code == 0
    assert calls == [WEB]
    # A pointer that cannot be read is named by the call for the subject.
    (models / "champion.json").write_text("{")
    CliRunner().invoke(app, words)
    assert calls == [WEB, WEB]


def test_a_watch_that_changed_nothing_leaves_the_status_of_the_last_round(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo nothing is changed"]
    ended = learn_one(WEB, command, tmp_path / "models", 60.0, lambda: 5000.0, True)
    assert (ended.status, ended.needs_a_look) == (0, False)
    assert not (tmp_path / "models").exists()
    assert learn_one(WEB, ["sh", "-c", "exit 8"], tmp_path / "models", 60.0, lambda: 5000.0, True).outcome == "failed"


def test_a_round_ends_with_the_process_that_called_it(tmp_path: Path) -> None:
    """Otherwise two rounds of one subject run at once."""
    lock = tmp_path / "lock"
    work = f"import fcntl, time; file = open({str(lock)!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    command = [sys.executable, "-c", f"{END_WITH_CALLER}; {work}; print('begun', flush=True); time.sleep(60)"]
    call = f"learn_one(Subject('autoscaling', 'web'), {command!r}, Path({str(tmp_path)!r}), 60.0, time.time)"
    imports = (
        "import time; from pathlib import Path; from domain.subject import Subject; "
        "from trainer.commands.learn_all import learn_one"
    )
    with subprocess.Popen([sys.executable, "-c", f"{imports}; {call}"], stderr=subprocess.PIPE, text=True) as caller:
        assert caller.stderr is not None
        for line in caller.stderr:
            if line == "begun\n":
                break
        caller.kill()
    end = time.monotonic() + 20.0
    with lock.open("w") as free:
        while True:
            try:
                fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < end
                time.sleep(0.05)
