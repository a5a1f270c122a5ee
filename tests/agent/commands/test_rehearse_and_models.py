"""`trimtab rehearse`, `trimtab models`, and the replay of a learned policy's minutes, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.models.directory import read_model_file
from domain.subject import Subject
from tests.agent.commands.conftest import Trimtab
from tests.agent.models.making import ADD_M, NOTHING, preferring, promote
from trainer.promotion.directory import ModelsWriter

JOBS = "job_id,arrival_s,service_s,width,ram_gb\n" + "".join(f"{k},{60 * k},90,1,0.1\n" for k in range(1, 13))


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return str(path)


def test_a_rehearsal_of_a_users_own_jobs_prints_its_figures(trimtab: Trimtab, jobs: str) -> None:
    result = trimtab("rehearse", "--workload", jobs, "--rails", "paper", "--policy", "constant:1,0,0", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["policy"], found["rails"]) == (0, "constant:1,0,0", "paper")
    # The last of the twelve jobs ends at 810 s, one small VM remaining after the first minute of 1, 1, 1.
    assert (found["steps"], found["jobs_finished"], found["decisions"]) == (14, 12, 14)
    assert found["rent"] == pytest.approx(14 * 0.2 / 60)
    assert found["cost"] == pytest.approx(found["rent"] + found["penalty"])


def test_the_figures_read_as_text_too(trimtab: Trimtab, jobs: str) -> None:
    lines = trimtab("rehearse", "--workload", jobs, "--policy", "hold").stdout.splitlines()
    assert lines[0].startswith("jobs under hold")
    assert lines[1].split()[0] == "cost"


def test_a_kept_ledger_can_be_explained_and_replayed(trimtab: Trimtab, jobs: str, tmp_path: Path) -> None:
    path, ledger = preferring(tmp_path, ADD_M, NOTHING), str(tmp_path / "kept.db")
    result = trimtab("rehearse", "--workload", jobs, "--policy", f"model:{path}", "--keep", ledger)
    assert result.stdout.splitlines()[-1] == f"trimtab explain last --ledger {ledger}"
    explained = trimtab("explain", "web-1", "--ledger", ledger).stdout
    assert f"learned:{path.stem}: m 1 -> 2 (learned): m +1 " in explained
    assert "saw allocated_ratio 0.1" in explained
    again = trimtab("replay", "--ledger", ledger, "--models", str(tmp_path))
    assert again.stdout.endswith("byte for byte\n")
    lost = trimtab("replay", "--ledger", ledger, "--models", str(tmp_path / "none"))
    assert lost.exit_code == 2
    assert f"put {path.name} " in lost.stderr


def test_another_ledger_is_not_written_over(trimtab: Trimtab, jobs: str, tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    there.write_text("mine")
    result = trimtab("rehearse", "--workload", jobs, "--keep", str(there))
    assert result.exit_code == 1
    assert there.read_text() == "mine"


def test_a_file_of_jobs_that_is_not_there_is_named(trimtab: Trimtab) -> None:
    result = trimtab("rehearse", "--workload", "nowhere.csv")
    assert (result.exit_code, "nowhere.csv" in result.stderr) == (2, True)


def test_learned_takes_the_champion_of_the_settings(
    trimtab: Trimtab, jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = preferring(tmp_path, NOTHING)
    promote(tmp_path, path)
    monkeypatch.setenv("TRIMTAB_LEARNED__MODELS_DIR", str(tmp_path))
    found = json.loads(trimtab("rehearse", "--workload", jobs, "--policy", "learned", "--json").stdout)
    assert (found["policy"], found["stood_in"]) == (f"learned:{path.stem}", 0)


def test_models_are_listed_with_the_champion_and_with_what_is_refused(trimtab: Trimtab, tmp_path: Path) -> None:
    path = preferring(tmp_path, NOTHING)
    promote(tmp_path, path)
    (tmp_path / "spoilt.onnx").write_bytes(path.read_bytes()[:-9])
    found = json.loads(trimtab("models", "--models", str(tmp_path), "--json").stdout)
    mine = {row["model"]: row for row in found["models"]}
    assert mine[path.stem]["role"] == "champion"
    assert mine[path.stem]["types"][2] == {"name": "m5a.2xlarge", "cores": 8, "price_per_hour": 0.8, "limit": 10}
    assert "damaged or was renamed" in mine["spoilt"]["refused"]
    lines = trimtab("models", "--models", str(tmp_path)).stdout
    assert f"champion: {path.stem[:12]}" in lines


def test_models_lists_every_subject_of_every_decision_with_what_speaks_for_it_and_its_history(
    trimtab: Trimtab, tmp_path: Path
) -> None:
    shared = tmp_path / "models"
    shared.mkdir()
    promote(shared, preferring(shared, NOTHING), "web")
    cluster, pool = tmp_path / "cluster.json", tmp_path / "rates.json"
    cluster.write_text(json.dumps({"preset": "K", "rule": "second:3"}))
    pool.write_text(json.dumps({"kind": "oversubscription-rates", "rates": {"web": 0.5}}))
    put = read_model_file(cluster), Subject("admission", "main"), "a trial", "2026-03-01T12:00:00Z", lambda path: path
    ModelsWriter(shared).force(*put)
    put = read_model_file(pool), Subject("oversubscription", "main"), "in use before", "2026-03-02T12:00:00Z", put[4]
    held = ModelsWriter(shared).force(*put)
    found = json.loads(trimtab("models", "--models", str(shared), "--json").stdout)
    assert [(row["decision"], row["subject"], row["by"]) for row in found["subjects"]] == [
        ("admission", "main", "forced: a trial"),
        ("autoscaling", "web", "promoted"),
        ("oversubscription", "main", "forced: in use before"),
    ]
    by_role = {row["role"]: row for row in found["models"]}
    assert by_role["champion of admission main"]["rule"] == "second:3"
    assert by_role["champion of oversubscription main"]["rates"] == {"web": 0.5}
    assert [line["event"] for line in found["history"]] == ["forced", "forced"]
    of_one = json.loads(trimtab("models", "admission", "--models", str(shared), "--json").stdout)
    assert [row["decision"] for listed in (of_one["models"], of_one["subjects"]) for row in listed] == ["admission"] * 2
    assert [line["decision"] for line in of_one["history"]] == ["admission"]
    text = trimtab("models", "--models", str(shared)).stdout
    assert all(words in text for words in ("champion of web", "forced: in use before", "history:"))
    (shared / held.model).write_text("{}")
    refused = trimtab("models", "--models", str(shared))
    assert "it is damaged" in refused.stderr


def test_a_file_is_verified_before_it_is_put_to_use(trimtab: Trimtab, tmp_path: Path) -> None:
    path = preferring(tmp_path, NOTHING)
    assert json.loads(trimtab("models", str(path), "--json").stdout)["model"] == path.stem
    (tmp_path / "renamed.onnx").write_bytes(path.read_bytes())
    refused = trimtab("models", str(tmp_path / "renamed.onnx"))
    assert refused.exit_code == 2
    assert "damaged or was renamed" in refused.stderr
