"""A cluster's rules after a round, by the verb and on a real ledger: probation, and the watch afterwards."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import Result

from agent.admission.settings import cluster_model_in
from agent.models.directory import Champion, Probationer
from agent.models.rounds import Ending
from domain.rules.admission.cluster import PolicyKind
from domain.subject import Subject
from simulator.admission import Cluster
from tests.trainer.learning import steps
from tests.trainer.learning.recorded_clusters import HOUR_S, SMALL, START_S, record, rules
from tests.trainer.learning.steps import directory_of, ending, trimtab
from trainer.learning.cluster_trial import divergence_of, lived

SUBJECT = Subject("admission", "main")
CAPACITY = 60
CROWDED = Cluster("main", SMALL, CAPACITY, 4.0, 1e-3)
"""A cluster that is full most of the time: those inside are refused what they ask for more."""


def rule_in(folder: Path, rule: str) -> Path:
    path = folder / f"{rule.replace(':', '-')}.json"
    path.write_text(json.dumps({**asdict(SMALL), "rule": rule}))
    return path


def promoted(folder: Path, rule: str, hour: float = 0.0) -> Champion:
    at = START_S + hour * HOUR_S
    return steps.promoted(directory_of(folder), rule_in(folder, rule), SUBJECT, at, cluster_model_in)


def tried(folder: Path, rule: str, hours: float) -> Probationer:
    return steps.tried(directory_of(folder), rule_in(folder, rule), SUBJECT, START_S, hours, cluster_model_in)


def learn(folder: Path, hour: float, *more: object) -> Result:
    place = ("--ledger", folder / "ledger.db", "--models-dir", folder / "models", "--out", folder / "round")
    given = ("--at", START_S + hour * HOUR_S, "--years", 0.005, *more)
    return trimtab("learn", "admission", "main", *place, *given)


def test_a_rule_under_which_too_many_requests_are_refused_is_rolled_back_with_exit_status_6(tmp_path: Path) -> None:
    before, now = promoted(tmp_path, "second:3"), promoted(tmp_path, f"zeroth:{CAPACITY}")
    record(tmp_path / "ledger.db", CROWDED, 60.0)
    found = lived(str(tmp_path / "ledger.db"), "main", now, f"zeroth:{CAPACITY}", 0.05)
    assert not isinstance(found, str)
    assert found.bad > 0.1 * found.of > 5.0
    directory = directory_of(tmp_path)
    assert replace(found, allowed=0.9).broken is False
    tried_only = learn(tmp_path, 61.0, "--capacity", CAPACITY, "--sla", 0.05, "--try")
    assert (tried_only.exit_code, directory.champions()[SUBJECT]) == (6, now)
    result = learn(tmp_path, 61.0, "--capacity", CAPACITY, "--sla", 0.05)
    assert result.exit_code == 6, result.output
    assert directory.champions()[SUBJECT].model == before.model
    assert ending(tmp_path, SUBJECT) is Ending.ROLLED_BACK
    assert "more cores were refused" in directory.history(SUBJECT)[-1]["reason"]


def test_a_rule_that_decided_nothing_yet_or_was_asked_too_little_is_left_alone(tmp_path: Path) -> None:
    now = promoted(tmp_path, "second:3")
    record(tmp_path / "ledger.db", CROWDED, 24.0)
    source = str(tmp_path / "ledger.db")
    assert "decided nothing" in str(lived(source, "main", now, "second:3", 0.05))
    found = lived(source, "main", replace(now, at=START_S + 19.7 * HOUR_S), f"zeroth:{CAPACITY}", 0.05)
    assert "50 are needed" in str(found)


def test_who_would_have_come_in_and_who_would_not_is_counted(tmp_path: Path) -> None:
    one = tried(tmp_path, "zeroth:1000", 24.0)
    generous = replace(rules(1000), capacity_cores=CAPACITY, policy=PolicyKind.ZEROTH, threshold_cores=1000.0)
    record(tmp_path / "ledger.db", CROWDED, 24.0, shadow=(Path(one.model).stem, generous))
    asked, were, text = divergence_of(str(tmp_path / "ledger.db"), "main", one)
    assert asked == were > 0
    # Whoever does not fit in is refused by every rule; the threshold alone turned the others away.
    assert text.startswith(f"of {asked} ")
    assert text.endswith(" 0 more (0 cores)")
    # Of another model on probation nothing is recorded.
    assert divergence_of(str(tmp_path / "ledger.db"), "main", replace(one, model="0" * 64 + ".json"))[0] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("rule", "sla", "status", "ended"),
    [("second:9", 0.2, 1, Ending.REFUSED), (f"zeroth:{CAPACITY}", 1e-4, 1, Ending.REFUSED)],
)
def test_a_rule_that_leaves_more_idle_or_breaks_the_promise_does_not_decide(
    tmp_path: Path, rule: str, sla: float, status: int, ended: Ending
) -> None:
    one = tried(tmp_path, rule, 150.0)
    model = cluster_model_in(directory_of(tmp_path).file_of(one.model))
    record(tmp_path / "ledger.db", CROWDED, 150.0, shadow=(Path(one.model).stem, rules(CAPACITY, model.population)))
    found = learn(tmp_path, 151.0, "--capacity", CAPACITY, "--sla", sla, "--against", f"zeroth:{CAPACITY}")
    assert (found.exit_code, ending(tmp_path, SUBJECT)) == (status, ended), found.output
    assert directory_of(tmp_path).probationers() == {}
    assert (tmp_path / "round" / "probation" / "report.html").is_file()


@pytest.mark.exhaustive
def test_a_rule_that_fills_the_cluster_as_much_within_the_promise_decides(tmp_path: Path) -> None:
    one = tried(tmp_path, f"zeroth:{CAPACITY}", 150.0)
    record(tmp_path / "ledger.db", CROWDED, 150.0, shadow=(Path(one.model).stem, rules(CAPACITY, SMALL)))
    more = ("--capacity", CAPACITY, "--sla", 0.9, "--against", "second:3")
    assert learn(tmp_path, 149.0, *more).exit_code == 0
    assert ending(tmp_path, SUBJECT) is Ending.PROBATION
    found = learn(tmp_path, 151.0, *more)
    assert (found.exit_code, ending(tmp_path, SUBJECT)) == (0, Ending.PROMOTED), found.output
    assert directory_of(tmp_path).champions()[SUBJECT].model == one.model
