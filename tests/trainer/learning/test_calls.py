"""`trimtab learn` refuses options and folders that it cannot use, and puts away a round that cannot continue."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.kernel.unfinished import unfinished
from agent.ledger import Ledger
from agent.models.rounds import Ending
from domain.errors import LedgerUnavailable
from domain.subject import AUTOSCALING, Subject
from simulator.admission import Cluster
from tests.trainer.learning.recorded_clusters import SMALL, record
from tests.trainer.learning.steps import ending, trimtab
from trainer.commands.endings import LEDGER_UNUSABLE, NOT_WRITTEN
from trainer.commands.learn import Learning
from trainer.commands.learn_all import PROGRAM, learn_one
from trainer.commands.learn_autoscaling import _gate_sentence, round_facts
from trainer.learning import fidelity
from trainer.learning.round import BudgetUsed, GateResult
from trainer.learning.state import STATE_FILE, OutdatedRound, locked, opened
from trainer.promotion.directory import sealed, write_round


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "ledger.db"
    record(path, Cluster("main", SMALL, 100_000, 4.0, 1e-3), 150.0)
    return path


@pytest.mark.parametrize("option", ["--cpu-minutes", "--probation-hours"])
def test_an_endless_budget_or_probation_is_refused(option: str, tmp_path: Path) -> None:
    to = ("--models-dir", tmp_path / "models", "--out", tmp_path / "out")
    done = trimtab("learn", "placement", "main", *to, option, "inf")
    assert (done.exit_code, f"{option} is inf" in done.output) == (2, True)


@pytest.mark.parametrize("option", ["--out", "--models-dir", "--export"])
def test_a_folder_that_takes_no_file_has_an_exit_status(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folders = {"--out": tmp_path / "out", "--models-dir": tmp_path / "models"}
    folders[option] = tmp_path / "file" / "below"
    words = [word for pair in folders.items() for word in pair]
    done = trimtab("learn", "admission", "main", "--ledger", tmp_path / "none.db", *words)
    assert (done.exit_code, f"{option} is" in done.output) == (NOT_WRITTEN, True), done.output


def of_revision(revision: str) -> Callable[[Path], object]:
    def change(ledger: Path) -> None:
        with sqlite3.connect(ledger) as book:
            book.execute("UPDATE alembic_version SET version_num = ?", (revision,))

    return change


FAULTS = {"missing": Path.unlink, "damaged": lambda path: path.write_bytes(b"no ledger")}
FAULTS |= {"newer": of_revision("9999"), "older": of_revision("0000")}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("words", [("placement", "main"), ("autoscaling", "web", "--check")])
def test_a_ledger_that_cannot_be_read_has_an_exit_status(
    words: tuple[str, ...], fault: Callable[[Path], object], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.db"
    Ledger.open(f"sqlite:///{ledger}").close()
    fault(ledger)
    to = ("--ledger", ledger, "--models-dir", tmp_path / "models", "--out", tmp_path / "out")
    done = trimtab("learn", *words, *to)
    assert done.exit_code == LEDGER_UNUSABLE, done.output


@pytest.mark.parametrize("out", ["/proc/x", "/dev/full/x"])
def test_a_folder_of_the_kernel_takes_no_round(out: str, tmp_path: Path) -> None:
    to = ("--ledger", tmp_path / "none.db", "--models-dir", tmp_path / "models", "--out", out)
    assert trimtab("learn", "placement", "main", *to).exit_code == NOT_WRITTEN


def cluster_round(ledger: Path, folder: Path) -> str:
    """Do the first stages of a round, and return the output."""
    to = ("--ledger", ledger, "--models-dir", folder / "models", "--out", folder / "out")
    done = trimtab("learn", "admission", "main", *to, "--capacity", 130, "--cpu-minutes", 0.01)
    assert done.exit_code == 5, done.output
    return done.output


def test_a_round_that_cannot_continue_is_put_away_and_a_new_one_begins(ledger: Path, tmp_path: Path) -> None:
    cluster_round(ledger, tmp_path)
    path = tmp_path / "out" / STATE_FILE
    first = json.loads(path.read_text())
    other = {**first, "facts": {**first["facts"], "hours": 1.0}, "sha256": None, "signature": None}
    body = {name: one for name, one in other.items() if name not in ("sha256", "signature")}
    for number, content in enumerate((json.dumps(sealed(body, None)), "{", json.dumps(other)), 1):
        path.write_text(content)
        leftover = tmp_path / "out" / ".state.json.1.part"
        leftover.write_text("")
        old = tmp_path / "models" / ".champion.json.1.part"
        old.write_text("")
        with unfinished(tmp_path / "models" / "champion.json") as fresh:
            assert f"out-outdated-{number}" in cluster_round(ledger, tmp_path)
            is_kept = fresh.exists()
        assert (tmp_path / f"out-outdated-{number}" / STATE_FILE).read_text() == content
        assert json.loads(path.read_text())["facts"] == first["facts"]
        # That of a writer that lives stays in the models directory.
        assert (leftover.exists(), old.exists(), is_kept) == (False, False, True)


@pytest.mark.parametrize(("promoted", "on_probation"), [(True, False), (False, True)])
def test_the_result_names_the_model_that_went_to_the_gate_and_not_the_trained_one(
    promoted: bool, on_probation: bool
) -> None:
    gate = GateResult(promoted, on_probation, True, (), "report-1.json")
    state, learner = SimpleNamespace(result=lambda kind: gate), SimpleNamespace(fleet="web")
    work: Any = SimpleNamespace(state=state, learner=learner, term=None, challenger=lambda: Path("bundled/ab12.onnx"))
    assert "passed, ab12.onnx is" in _gate_sentence(work)


def test_a_round_that_an_older_check_began_is_put_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner: Any = SimpleNamespace(fleet="web", config="a world", loop=SimpleNamespace(idle_s=120.0))
    settings: Any = SimpleNamespace(facts={})
    opened(tmp_path, round_facts(learner, "digest", settings)).done("fidelity", {"holds": True}, 1.0)
    assert "fidelity" in opened(tmp_path, round_facts(learner, "digest", settings)).stages
    monkeypatch.setattr(fidelity, "CHECK_VERSION", fidelity.CHECK_VERSION + 1)
    with pytest.raises(OutdatedRound, match="check="):
        opened(tmp_path, round_facts(learner, "digest", settings))


def test_a_watch_alone_begins_no_round(ledger: Path, tmp_path: Path) -> None:
    to = ("--ledger", ledger, "--models-dir", tmp_path / "models", "--out", tmp_path / "out")
    call = ("learn", "admission", "main", *to, "--capacity", 130, "--cpu-minutes", 0.01)
    done = trimtab(*call, "--watch", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"subject": "main", "changed": False})
    assert list((tmp_path / "models").glob("learn-*.json")) == []
    assert not (tmp_path / "out" / STATE_FILE).exists()
    # The same call without it begins one.
    assert trimtab(*call).exit_code == 5
    assert (tmp_path / "out" / STATE_FILE).exists()


@pytest.mark.parametrize(
    ("fault", "status", "outcome"),
    [(BudgetUsed(60.0), 5, Ending.BUDGET), (LedgerUnavailable("it is gone"), LEDGER_UNUSABLE, Ending.FAILED)],
)
def test_a_watch_that_cannot_end_leaves_its_status(
    fault: Exception, status: int, outcome: Ending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_after(call: Learning) -> None:
        raise fault

    monkeypatch.setattr(Learning, "looked_after", looked_after)
    to = ("--ledger", tmp_path / "none.db", "--models-dir", tmp_path / "models", "--out", tmp_path / "out")
    assert trimtab("learn", "autoscaling", "web", *to, "--watch").exit_code == status
    assert ending(tmp_path, Subject(AUTOSCALING, "web")) is outcome


def test_a_watch_beside_a_round_that_learns_changes_nothing(tmp_path: Path) -> None:
    models, web = tmp_path / "models", Subject(AUTOSCALING, "web")
    write_round(models, web, Ending.PROMOTED, "the gate passed it", 1000.0)
    call = ["learn", "autoscaling", "web", "--ledger", str(tmp_path / "none.db"), "--models-dir", str(models)]
    call += ["--out", str(tmp_path / "out")]
    with locked(models, "web", "now"):
        assert trimtab(*call).exit_code == 2
        made = learn_one(web, [*PROGRAM, *call, "--watch"], models, 60.0, lambda: 2000.0, watch_only=True)
    assert (made.status, made.needs_a_look) == (0, False)
    assert ending(tmp_path, web) is Ending.PROMOTED
