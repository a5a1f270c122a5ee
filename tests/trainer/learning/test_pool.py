"""A round of learning for a pool: from its ledger to a champion, on weeks that come after those it learnt from."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.models.rounds import Ending, read_rounds
from agent.oversubscription.decision import OversubscriptionPart
from agent.oversubscription.rate_policies import verify_rates
from agent.oversubscription.recorded_hours import AT_RATES
from agent.oversubscription.rule_model import read_rule
from agent.oversubscription.settings import read_rates
from domain.rules.oversubscription.pool import SubscriberRules
from domain.subject import Subject
from tests.agent.oversubscription.pools import rules
from tests.trainer.learning.steps import trimtab
from tests.trainer.learning.test_pools import lived
from trainer.kit import files
from trainer.learning.pool import LEARNT, NOW, REQUESTS, RULE, PoolInUse, PoolRound, PoolSettings, in_words, keep_weeks
from trainer.learning.pools import read_pool
from trainer.learning.round import Budget
from trainer.learning.state import opened
from trainer.learning.windows import TooLittle
from trainer.oversubscription.calibration import CalibratedRates, calibrate
from trainer.promotion.directory import ModelsWriter

AT = "2026-11-23T00:00:00Z"
SUBJECT = Subject("oversubscription", "main")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a pool that was watched for five days, whose horizon is a day."""
    folder = tmp_path_factory.mktemp("pool")
    # Its VMs are reserved in full, and so its policy has it.
    lived(folder, 5, every_h=1, policy="static:1").ledger.close()
    return folder / "ledger.db"


SMALL = {"redrawn": 2, "times": 1, "drawn": 2, "population": 4, "validation": 2, "released": 2}
"""A search for a rule that takes a second."""


def round_of(ledger: Path, folder: Path) -> PoolRound:
    """A round in `folder/round` with the models directory `folder/models`, of few episodes and short searches."""
    keep_weeks(folder / "round", lambda: read_pool(str(ledger), "main"))
    return PoolRound(
        in_use=PoolInUse("main", "grid:0.8", 0.003, 0.95),
        opted_out=frozenset({"batch"}),
        settings=PoolSettings((20, 20), episodes=40, redrawn=2, generations=(8, 8), rule=SMALL),
        state=opened(folder / "round", {"pool": "main"}),
        cpu_s=600.0,
        directory=ModelsWriter(folder / "models"),
        verify=OversubscriptionPart.model,
        at=AT,
    )


@pytest.mark.exhaustive
def test_a_rule_that_reserves_less_than_the_rates_becomes_the_champion(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def high(*given: Any, **options: Any) -> CalibratedRates:
        found = calibrate(*given, **options)
        return replace(found, rates=np.full(2, 0.6))

    monkeypatch.setattr("trainer.learning.pool.calibrate", high)
    stages = round_of(ledger, tmp_path).go_on()
    judged, gate = stages["judge"], stages["gate"]
    assert (gate["promoted"], gate["passed"], gate["reasons"]) == (True, True, [])
    assert judged["keeps"][REQUESTS]
    assert judged["weeks"] == ["w3", "w4", "unseen3000", "unseen3001"]
    assert judged["replayed_hot_hours"][REQUESTS] == [0, 0]
    directory = ModelsWriter(tmp_path / "models")
    champion = directory.champions()[SUBJECT]
    file = directory.file_of(champion.model)
    held, tuned = read_rule(file), read_rates(tmp_path / "round" / "rates.json").rates
    # A subscriber that has not agreed is reserved in full.
    assert (held.subscribers, held.rates[0], tuned["batch"]) == (("batch", "web"), 1.0, 1.0)
    assert held.rule.base[0] > 10.0
    assert held.rates[1] == tuned["web"] == 0.6
    assert sum(judged["reserved"][REQUESTS]) < sum(judged["reserved"][LEARNT])
    assert (stages["rule"]["released"], stages["rule"]["objective"], held.weekly) == (True, "cores", False)
    agreed = SubscriberRules(internal=True)
    pool = rules(horizon_h=24, subscribers={"web": agreed, "batch": SubscriberRules()}, hot_hours=2)
    assert verify_rates(file, pool).rule is not None


@pytest.mark.exhaustive
def test_rates_become_the_champion_where_the_rule_reserves_no_less(ledger: Path, tmp_path: Path) -> None:
    stages = round_of(ledger, tmp_path).go_on()
    judged, gate = stages["judge"], stages["gate"]
    assert (gate["promoted"], gate["passed"], gate["reasons"]) == (True, True, [])
    assert judged["keeps"][LEARNT]
    assert sum(judged["reserved"][LEARNT]) < sum(judged["reserved"][NOW])
    assert judged["replayed_hot_hours"][LEARNT] == [0, 0]
    directory = ModelsWriter(tmp_path / "models")
    rates = read_rates(directory.file_of(directory.champions()[SUBJECT].model)).rates
    # A subscriber that has not agreed is reserved in full.
    assert rates["batch"] == 1.0
    assert rates["web"] < 0.6
    assert "cores reserved" in (tmp_path / "round" / "report.html").read_text()
    assert json.loads((tmp_path / "round" / "summary.json").read_text())["judge"] == judged


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"feasible": {LEARNT: False}}, "nothing was found that keeps the promise"),
        ({"keeps": {LEARNT: False}}, r"up to 2\.0% would have too many hot hours, more than the promised 5\.0%"),
        ({"reserved": {LEARNT: [0.6]}}, "not cheaper than the policy in use"),
        ({"reserved": {LEARNT: [0.6]}, "keeps": {NOW: False}}, "dearer than the tuned rates"),
        ({"reserved": {LEARNT: [0.45]}, "keeps": {RULE: False}}, ""),
        ({"reserved": {LEARNT: [0.4]}}, ""),
        ({"feasible": {REQUESTS: True}}, REQUESTS),
        ({"feasible": {REQUESTS: True}, "reserved": {REQUESTS: [0.36]}}, ""),
        ({"feasible": {REQUESTS: True}, "reserved": {REQUESTS: [0.35]}}, ""),
        ({"feasible": {REQUESTS: True}, "keeps": {REQUESTS: False}}, ""),
        ({"feasible": {REQUESTS: True, LEARNT: False}, "reserved": {REQUESTS: [0.39]}}, REQUESTS),
    ],
)
def test_only_what_keeps_the_promise_and_reserves_less_goes_to_the_gate(
    ledger: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    work = round_of(ledger, tmp_path)
    empty = ("weeks", "texts", "hot", "replayed_hot_hours", "recorded_hot_hours", "recorded_reserved", "against_now")
    judged: dict[str, Any] = {
        "feasible": {RULE: True, LEARNT: True, REQUESTS: False},
        "keeps": {NOW: True, RULE: True, LEARNT: True, REQUESTS: True},
        "upper_95": {LEARNT: 0.02, REQUESTS: 0.03},
        "reserved": {NOW: [0.5], RULE: [0.4], LEARNT: [0.35], REQUESTS: [0.3]},
    }
    filled = {name: {**found, **changes.get(name, {})} for name, found in judged.items()}
    work.state.stages["judge"] = {name: {} for name in empty} | filled
    found = work.challenger()
    if said == REQUESTS:
        assert found == work.rule
    else:
        assert re.search(said, str(found)) if said else found == work.model


def test_the_latest_weeks_are_held_out_and_kept_for_the_whole_round(ledger: Path, tmp_path: Path) -> None:
    first = keep_weeks(tmp_path, lambda: read_pool(str(ledger), "main"))
    held = {
        part: json.loads((tmp_path / part / "main.json").read_text())["recorded"]["weeks"]
        for part in ("earlier", "later")
    }
    assert {part: list(weeks) for part, weeks in held.items()} == {"earlier": ["w0", "w1", "w2"], "later": ["w3", "w4"]}

    def gone() -> Any:
        raise AssertionError("the weeks are there")

    assert keep_weeks(tmp_path, gone) == first
    with pytest.raises(TooLittle, match=r"3 weeks of 24 h .* 4 are"):
        keep_weeks(tmp_path / "few", lambda: read_pool(str(ledger), "main", 1_790_553_600.0 + 2 * 86_400.0))


def test_a_record_that_is_too_short_ends_the_round(ledger: Path, tmp_path: Path) -> None:
    to = ("--ledger", ledger, "--models-dir", tmp_path / "models")
    few = trimtab("learn", "oversubscription", "main", *to, "--out", tmp_path / "few", "--days", 2)
    assert few.exit_code == 4, few.output
    assert "are needed" in few.output
    unknown = trimtab("learn", "oversubscription", "other", *to, "--out", tmp_path / "no")
    assert (unknown.exit_code, "has main" in unknown.output) == (2, True)


def test_a_pool_that_reserves_other_than_its_policy_ends_the_round_and_names_rates(
    ledger: Path, tmp_path: Path
) -> None:
    """Whoever placed its VMs reserved them in full, though the agent told them 0.3."""
    work = round_of(ledger, tmp_path)
    path = tmp_path / "round" / "later" / "main.json"
    held = json.loads(path.read_text())
    held["recorded"]["policy"] = "static:0.3"
    for week in held["recorded"]["weeks"].values():
        week["policies"] = ["static:0.3"]
    path.write_text(json.dumps(held))
    stages = work.go_on()
    assert list(stages) == ["now", "fidelity"]
    found = stages["fidelity"]
    assert (found["holds"], found["named"]) == (False, "rates")
    assert found["off"] < -0.05
    (tmp_path / "round" / "state.json").unlink()
    to = ("--ledger", ledger, "--models-dir", tmp_path / "models", "--out", tmp_path / "round")
    done = trimtab("learn", "oversubscription", "main", *to)
    assert done.exit_code == 3, done.output
    assert "not describe pool main" in done.output
    assert read_rounds(tmp_path / "models", "oversubscription")[0]["main"].outcome is Ending.NOT_TRUE


def test_a_disk_that_is_full_in_the_middle_leaves_a_round_that_goes_on(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    work = round_of(ledger, tmp_path)
    work.state.done("now", work.in_use.as_data(), 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_synced", full)
        with pytest.raises(OSError, match="No space left"):
            work.go_on()
    assert sorted(path.name for path in (tmp_path / "round").iterdir()) == ["earlier", "later", "state.json", "whole"]
    again = opened(tmp_path / "round", {"pool": "main"})
    assert list(again.stages) == ["now"]
    # Nothing decides from what was half done.
    assert ModelsWriter(tmp_path / "models").champions() == {}


@pytest.mark.parametrize("policies", [["moving-average", "static:1"], [f"static:1{AT_RATES}"]])
def test_weeks_of_several_policies_or_of_a_rules_rates_are_not_replayed(
    ledger: Path, tmp_path: Path, policies: list[str]
) -> None:
    work = round_of(ledger, tmp_path)
    work.state.done("now", work.in_use.as_data(), 0.0)
    assert work._fidelity(Budget(60.0)).holds
    path = tmp_path / "round" / "later" / "main.json"
    held = json.loads(path.read_text())
    held["recorded"]["policy"] = policies[-1]
    for week in held["recorded"]["weeks"].values():
        week["policies"] = policies
    path.write_text(json.dumps(held))
    assert "was not checked" in work._fidelity(Budget(60.0)).sentence


@pytest.mark.exhaustive
def test_a_round_on_another_machine_has_the_same_record_and_the_same_rates_to_beat(
    ledger: Path, tmp_path: Path
) -> None:
    tar, there, few = tmp_path / "main.tar", tmp_path / "there", ("--cpu-minutes", 0.01)
    to = ("--ledger", ledger, "--models-dir", tmp_path / "models")
    done = trimtab("learn", "oversubscription", "main", *to, "--export", tar)
    assert done.exit_code == 0, done.output
    trimtab("learn", "oversubscription", "main", *to, *few, "--out", tmp_path / "home")
    away = trimtab("learn", "oversubscription", "main", "--from", tar, *few, "--out", there)
    assert away.exit_code in (0, 5), away.output
    home, elsewhere = (json.loads((place / "state.json").read_text()) for place in (tmp_path / "home", there))
    assert home["facts"] == elsewhere["facts"]
    assert home["stages"]["now"] == elsewhere["stages"]["now"]
    assert read_rounds(tmp_path / "there-models", "oversubscription")[0]["main"].outcome in (Ending.BUDGET, Ending.KEPT)


def test_the_policies_of_the_settings_have_their_words_in_the_simulator() -> None:
    given = ("moving-average", "static:0.4", "rates:/a/rates.json", "rule:/a/r.json", "model:/a/m.onnx", "learned")
    assert [in_words(text) for text in given] == ["ma", "grid:0.4", "/a/rates.json", "/a/r.json", "/a/m.onnx", "none"]
