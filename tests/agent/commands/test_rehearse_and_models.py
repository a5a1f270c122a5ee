"""`trimtab rehearse`, `trimtab models`, and the replay of a learned policy's minutes, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.commands.conftest import Trimtab
from tests.agent.models.making import ADD_M, NOTHING, preferring, promote

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
    assert lines[0] == "jobs under hold, default rails, seed 0"
    assert lines[1].split()[0] == "cost"


def test_a_kept_ledger_can_be_explained_and_replayed(trimtab: Trimtab, jobs: str, tmp_path: Path) -> None:
    path, ledger = preferring(tmp_path, ADD_M, NOTHING), str(tmp_path / "kept.db")
    result = trimtab("rehearse", "--workload", jobs, "--policy", f"model:{path}", "--keep", ledger)
    assert result.stdout.splitlines()[-1] == f"trimtab explain last --ledger {ledger}"
    explained = trimtab("explain", "web-1", "--ledger", ledger).stdout
    assert f"learned:{path.stem}: m 1 -> 2 (learned): m +1 " in explained
    assert "saw allocated_ratio 0.1" in explained
    again = trimtab("replay", "--ledger", ledger, "--models", str(tmp_path))
    assert again.stdout.endswith("decisions, all the same byte for byte\n")
    lost = trimtab("replay", "--ledger", ledger, "--models", str(tmp_path / "none"))
    assert lost.exit_code == 2
    assert f"put {path.name} into the models directory" in lost.stderr


def test_another_ledger_is_not_written_over(trimtab: Trimtab, jobs: str, tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    there.write_text("mine")
    result = trimtab("rehearse", "--workload", jobs, "--keep", str(there))
    assert result.exit_code == 1
    assert there.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rails", "none"), "--rails is 'none': choose one of paper, default"),
        (("--prices", "spot"), "--prices is 'spot': choose one of train, m5a"),
        (("--policy", "magic"), "policy is 'magic': choose one of: queue-rule"),
        (("--workload", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_what_cannot_be_rehearsed_is_named(trimtab: Trimtab, arguments: tuple[str, ...], message: str) -> None:
    result = trimtab("rehearse", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


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
    assert "it is damaged or was renamed" in mine["spoilt"]["refused"]
    lines = trimtab("models", "--models", str(tmp_path)).stdout
    assert f"champion: {path.stem[:12]}" in lines


def test_a_file_is_verified_before_it_is_put_to_use(trimtab: Trimtab, tmp_path: Path) -> None:
    path = preferring(tmp_path, NOTHING)
    assert json.loads(trimtab("models", str(path), "--json").stdout)["model"] == path.stem
    (tmp_path / "renamed.onnx").write_bytes(path.read_bytes())
    refused = trimtab("models", str(tmp_path / "renamed.onnx"))
    assert refused.exit_code == 2
    assert "it is damaged or was renamed; copy it anew" in refused.stderr
