"""A tuned setting of the queue rule goes through the models directory as a model does, without a learned policy."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.directory import ModelRefused, Then
from agent.models.queue_rule import TunedSetting, load_rule, rule_file
from domain.errors import BadInput
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from tests.agent.models.making import reported
from trainer.promotion.directory import ModelsWriter

AT, SINCE_S = "2026-03-01T12:00:00Z", 1_772_366_400.0
WEB = Subject(QUEUE_RULE, "web")
SHORT, LONG = RuleSetting(150.0, 0.0), RuleSetting(600.0, 60.0, 90.0)
CONTENT: dict[str, Any] = {
    "kind": "queue-rule",
    "version": 1,
    "fleet": "web",
    "horizon_s": 480.0,
    "idle_s": 0.0,
    "job_core_s": None,
}


def written(directory: Path, content: bytes) -> Path:
    path = directory / f"{hashlib.sha256(content).hexdigest()}.json"
    path.write_bytes(content)
    return path


@given(st.floats(1.0, 86_400.0), st.floats(0.0, 86_400.0), st.just(0.0) | st.floats(1e-3, 1e7))
def test_a_setting_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, horizon_s: float, idle_s: float, job_core_s: float
) -> None:
    rule = RuleSetting(horizon_s, idle_s, job_core_s)
    made = rule_file("web", rule)
    path = tmp_path_factory.getbasetemp() / made.name
    path.write_bytes(made.content)
    assert load_rule(path) == TunedSetting(made.sha256, "web", rule)


def test_its_file_names_kind_version_and_fleet_and_leaves_out_the_work_of_a_job_that_is_known() -> None:
    made = rule_file("web", RuleSetting(480.0, 0.0))
    assert json.loads(made.content) == CONTENT
    assert made.sha256 == hashlib.sha256(made.content).hexdigest()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("horizon_s", 0.5),
        ("horizon_s", 86_401.0),
        ("horizon_s", "480"),
        ("horizon_s", True),
        ("idle_s", -1.0),
        ("idle_s", 86_401.0),
        ("job_core_s", 0.0),
        ("job_core_s", 1.1e7),
        ("kind", "scorer"),
        ("version", 2),
        ("fleet", ""),
        ("more", 1),
    ],
)
def test_a_file_with_a_wrong_field_is_refused_by_its_name(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(ModelRefused, match=field):
        load_rule(written(tmp_path, json.dumps(CONTENT | {field: value}).encode()))


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"kind": "queue-rule"}', b"[" * 100_000])
def test_what_is_no_setting_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelRefused):
        load_rule(written(tmp_path, content))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_no_number_is_refused_at_both_ends(tmp_path: Path, number: float) -> None:
    with pytest.raises(ModelRefused, match="horizon_s"):
        load_rule(written(tmp_path, json.dumps(CONTENT | {"horizon_s": number}).encode()))
    with pytest.raises(BadInput, match="horizon_s"):
        rule_file("web", RuleSetting(number, 0.0))


def test_a_file_whose_content_was_changed_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, rule_file("web", SHORT).content)
    path.write_bytes(rule_file("web", LONG).content)
    with pytest.raises(ModelRefused, match="damaged"):
        load_rule(path)


def promoted(directory: ModelsWriter, rule: RuleSetting) -> str:
    directory.path.mkdir(exist_ok=True)
    made = rule_file("web", rule)
    directory.promote(made, WEB, reported(directory.path, made.name, of=WEB), AT, load_rule)
    return made.name


def test_settings_are_promoted_and_rolled_back_beside_the_models_of_fleets(directory: ModelsWriter) -> None:
    first, second = promoted(directory, SHORT), promoted(directory, LONG)
    pointer = json.loads((directory.path / "champion.json").read_text())
    assert pointer["subjects"] == {
        "queue-rule": {
            "web": {"model": second, "previous": first, "report": reported_name(second), "at": AT},
        }
    }
    back = directory.rollback(AT, WEB, load_rule, of=second)
    assert back is not None
    assert load_rule(directory.file_of(back.model)).rule == SHORT
    assert directory.rollback(AT, WEB, load_rule) is None
    assert directory.champion(WEB) is None


@pytest.mark.parametrize(("of_directory", "of_file"), [(0o2770, 0o660), (0o755, 0o600)])
def test_lock_and_history_are_for_the_group_that_writes_the_directory(
    directory: ModelsWriter, of_directory: int, of_file: int
) -> None:
    directory.path.mkdir()
    directory.path.chmod(of_directory)
    before = os.umask(0o077)
    try:
        promoted(directory, SHORT)
    finally:
        os.umask(before)
    modes = [(directory.path / name).stat().st_mode & 0o777 for name in ("promotion.lock", "history.jsonl")]
    assert modes == [of_file, of_file]


def test_a_setting_on_probation_waits_for_an_approval(directory: ModelsWriter) -> None:
    first, made = promoted(directory, SHORT), rule_file("web", LONG)
    report = reported(directory.path, made.name, of=WEB, champion={"sha256": Path(first).stem})
    directory.put_on_probation(made, WEB, report, SINCE_S, 24.0, Then.APPROVE, load_rule, beaten=first)
    assert directory.probationers()[WEB].model == made.name
    assert directory.champions()[WEB].model == first
    assert directory.approve(WEB, AT, load_rule).model == made.name
    assert not directory.probationers()


def reported_name(model: str) -> str:
    return f"report-web{model[:16]}.json"


def test_a_setting_is_written_and_promoted_without_torch_numba_and_onnxruntime(tmp_path: Path) -> None:
    program = """
import sys
for name in ("torch", "numba", "onnxruntime"):
    sys.modules[name] = None
from pathlib import Path
from agent.models.directory import Then
from agent.models.queue_rule import load_rule, rule_file
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from trainer.promotion.directory import ModelsWriter

directory, web = ModelsWriter(Path(sys.argv[1])), Subject(QUEUE_RULE, "web")
for horizon_s in (300.0, 600.0):
    made = rule_file("web", RuleSetting(horizon_s))
    before = directory.champion(web)
    body = {"passed": True, "challenger": {"sha256": made.sha256}, "champion": {"sha256": before and before.model[:64]}}
    report = directory.store_report(body, web, "2026-03-01T12:00:00Z")
    directory.promote(made, web, report, "2026-03-01T12:00:00Z", load_rule)
print(load_rule(directory.file_of(directory.rollback("2026-03-01T13:00:00Z", web, load_rule).model)).rule.horizon_s)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "models")], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "300.0", done.stderr
