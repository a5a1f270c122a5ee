"""A round of learning for a cluster: from its ledger to a champion, on parts of the record that time tells apart."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.admission.settings import champion_of
from agent.models.rounds import Ending, read_rounds
from domain.subject import Subject
from simulator.admission import Cluster
from tests.trainer.learning.recorded_clusters import SMALL, record
from tests.trainer.learning.steps import trimtab
from trainer.admission.fitting.fits import fit_marginal
from trainer.admission.fitting.histories import histories_of, read_vm_table
from trainer.admission.fitting.report import START
from trainer.kit.intervals import Estimate, Kind
from trainer.learning import cluster
from trainer.learning.cluster import ClusterInUse, ClusterRound, ClusterSettings, Fit, is_fit_likelier, keep_tables
from trainer.learning.clusters import read_cluster
from trainer.learning.state import opened
from trainer.learning.windows import TooLittle
from trainer.promotion.directory import ModelsWriter

AT = "2026-11-23T00:00:00Z"
NOW = ClusterInUse("main", "second:9", SMALL, 130, 0.05, None)
SUBJECT = Subject("admission", "main")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a cluster that four deployments an hour came to for six days."""
    path = tmp_path_factory.mktemp("recorded") / "ledger.db"
    record(path, Cluster("main", SMALL, 100_000, 4.0, 1e-3), 150.0)
    return path


@pytest.fixture(scope="module")
def tables(ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a round with nothing but the tables of that ledger."""
    folder = tmp_path_factory.mktemp("tables") / "round"
    keep_tables(folder, partial(read_cluster, str(ledger), "main"), 365.0, "1")
    return folder


def round_of(ledger: Path, folder: Path, now: ClusterInUse = NOW) -> ClusterRound:
    """A round in `folder/round` with the models directory `folder/models`; four runs of two days hold a threshold."""
    settings = ClusterSettings(48.0, (4, 4))
    keep_tables(folder / "round", partial(read_cluster, str(ledger), "main"), 365.0, "1")
    state = opened(folder / "round", {"hours": settings.hours})
    directory = ModelsWriter(folder / "models")
    return ClusterRound(in_use=now, settings=settings, state=state, cpu_s=600.0, directory=directory, at=AT)


def test_the_earlier_part_alone_chooses_the_belief(tables: Path) -> None:
    earlier = histories_of(read_vm_table(tables / "earlier.csv.gz"))
    fitted = fit_marginal(earlier, START).population
    far = replace(SMALL, mu_rate=20.0 * SMALL.mu_rate, sig_rate=20.0 * SMALL.sig_rate)
    assert is_fit_likelier(earlier, far)
    assert not is_fit_likelier(earlier, fitted)
    assert not is_fit_likelier(earlier.some(earlier.began_h < 0.1 * earlier.window_h), far)


def test_the_later_part_chooses_no_belief(ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = replace(SMALL, mu_rate=20.0 * SMALL.mu_rate, sig_rate=20.0 * SMALL.sig_rate)
    for is_likelier in (True, False):
        monkeypatch.setattr(cluster, "is_fit_likelier", lambda earlier, now, found=is_likelier: found)
        work = round_of(ledger, tmp_path / f"{is_likelier}", replace(NOW, population=far))
        work.prepare()
        assert work.state.result(Fit).fresh is is_likelier
        assert (work.state.result(Fit).population == far) is not is_likelier


@pytest.mark.exhaustive
def test_a_rule_that_fills_the_cluster_more_within_the_promise_becomes_the_champion(
    ledger: Path, tmp_path: Path
) -> None:
    stages = round_of(ledger, tmp_path).go_on()
    judged, gate = stages["judge"], stages["gate"]
    assert stages["fit"]["fresh"] in (True, False)
    assert judged["keeps"]["learnt"]
    assert judged["utilisation"]["learnt"]["value"] > judged["utilisation"]["decides now"]["value"]
    assert (gate["promoted"], gate["passed"], gate["reasons"]) == (True, True, [])
    directory = ModelsWriter(tmp_path / "models")
    model = champion_of(directory, "main")
    assert (model.rule, model.forced) == (judged["rules"]["learnt"], "")
    assert {name: model.held[name] for name in stages["fit"]["population"]} == stages["fit"]["population"]
    assert "cores taken" in (tmp_path / "round" / "report.html").read_text()
    assert json.loads((tmp_path / "round" / "summary.json").read_text())["judge"] == judged


def of(use: float) -> dict[str, Any]:
    """A utilisation as data."""
    return asdict(Estimate(use, use, use, Kind.BCA, 0.0, 4))


def judged_round(ledger: Path, folder: Path, **changes: Any) -> ClusterRound:
    """A round that was stopped before the report, with some figures of the judging changed."""
    work = round_of(ledger, folder)
    rules = {"decides now": "second:9", "tuned zeroth": "zeroth:90", "learnt": "second:2", "bound": "second:2"}
    judged = {
        "runs": 4,
        "refused": {},
        "against_now": {},
        "rules": rules,
        "keeps": dict.fromkeys(rules, True),
        "upper_90": dict.fromkeys(rules, 0.01),
        "utilisation": {name: of(use) for name, use in zip(rules, (0.5, 0.6, 0.7, 0.7), strict=True)},
    }
    for name, value in changes.items():
        judged[name] = {**judged[name], **value}
    work.state.stages["judge"] = judged
    return work


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"rules": {"learnt": None}}, "no threshold of second keeps the promise"),
        ({"keeps": {"learnt": False}, "upper_90": {"learnt": 0.08}}, "up to 0.08 .* more than the promised 0.05"),
        ({"utilisation": {"learnt": of(0.55)}}, "does not fill the cluster more than the tuned zeroth"),
        ({"utilisation": {"learnt": of(0.4)}}, "more than the policy in use and the tuned zeroth"),
        ({"utilisation": {"learnt": of(0.55)}, "keeps": {"tuned zeroth": False}}, ""),
    ],
)
def test_only_what_keeps_the_promise_and_fills_the_cluster_more_goes_to_the_gate(
    ledger: Path, tables: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    shutil.copytree(tables, tmp_path / "round")
    objection = judged_round(ledger, tmp_path, **changes).objection()
    assert re.search(said, objection) if said else objection == ""


def test_the_parts_are_cut_in_time_and_kept_for_the_whole_round(ledger: Path, tmp_path: Path) -> None:
    read = partial(read_cluster, str(ledger), "main")
    first = keep_tables(tmp_path, read, 365.0, "1")
    sides = {part: json.loads((tmp_path / f"{part}.csv.gz.json").read_text()) for part in ("earlier", "later")}
    assert sides["earlier"]["recorded"]["until"] == sides["later"]["recorded"]["from"]
    assert sides["earlier"]["recorded"]["duration_s"] == pytest.approx(1.5 * sides["later"]["recorded"]["duration_s"])

    def gone(since: float | None, until: float | None) -> Any:
        raise AssertionError("the tables are there")

    assert keep_tables(tmp_path, gone, 1.0, "1") == first
    with pytest.raises(TooLittle, match=r"main: \d+ .* 50 are needed"):
        keep_tables(tmp_path / "short", read, 0.5, "1")


def test_a_budget_that_is_used_up_keeps_what_is_done_and_the_verb_says_so(ledger: Path, tmp_path: Path) -> None:
    to = ("--ledger", ledger, "--models-dir", tmp_path / "models", "--out", tmp_path / "out")
    done = trimtab("learn", "admission", "main", *to, "--capacity", 130, "--cpu-minutes", 0.01)
    assert done.exit_code == 5, done.output
    assert "--cpu-minutes" in done.output
    status = read_rounds(tmp_path / "models", "admission")[0]["main"]
    assert (status.outcome, status.good_at) == (Ending.BUDGET, None)
    few = trimtab("learn", "admission", "main", *to, "--capacity", 130, "--days", 0.2, "--out", tmp_path / "few")
    assert few.exit_code == 4, few.output
    assert read_rounds(tmp_path / "models", "admission")[0]["main"].outcome is Ending.TOO_LITTLE
    assert "are needed" in few.output
    without = trimtab("learn", "admission", "main", *to)
    assert without.exit_code == 2
    assert "--capacity" in without.output


@pytest.mark.exhaustive
def test_a_round_on_another_machine_has_the_same_record_and_the_same_rule_to_beat(ledger: Path, tmp_path: Path) -> None:
    here, tar, there = tmp_path / "models", tmp_path / "main.tar", tmp_path / "there"
    given = ("--capacity", 130, "--sla", 0.05, "--against", "second:9")
    to = ("--ledger", ledger, "--models-dir", here)
    done = trimtab("learn", "admission", "main", *to, *given, "--export", tar)
    assert done.exit_code == 0, done.output
    few = ("--cpu-minutes", 0.01)
    trimtab("learn", "admission", "main", *to, *given, *few, "--out", tmp_path / "home")
    # Elsewhere there is neither a ledger nor a setting of the cluster.
    away = trimtab("learn", "admission", "main", "--from", tar, *few, "--out", there)
    assert away.exit_code == 5, away.output
    home, away = (json.loads((place / "state.json").read_text())["facts"] for place in (tmp_path / "home", there))
    assert home == away
    assert read_rounds(tmp_path / "there-models", "admission")[0]["main"].outcome is Ending.BUDGET
    other = trimtab("learn", "admission", "other", "--from", tar, "--out", there)
    assert (other.exit_code, "not of admission other" in other.output) == (2, True)
    both = trimtab("learn", "admission", "main", "--from", tar, "--ledger", ledger)
    assert (both.exit_code, "give it alone" in both.output) == (2, True)
    short = trimtab("learn", "admission", "main", *to, *given, "--export", tar, "--days", 0.2)
    assert (short.exit_code, "are needed" in short.output) == (4, True)
