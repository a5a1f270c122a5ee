"""The gates of pools and clusters: what keeps the promise and reserves less takes the place of the present policy."""

import json
from pathlib import Path

import pytest

from agent.admission.settings import champion_of, cluster_model_in
from agent.models.directory import ModelRefused, read_model_file
from agent.oversubscription.settings import read_rates as rates_in_agent
from domain.errors import BadInput
from domain.subject import Subject
from tests.trainer.oversubscription.small import LEVELS, staggered_pair
from tests.trainer.promotion.arena import AT
from trainer.oversubscription.policies import RatesFile, scenario_sha256, write_rates
from trainer.promotion.admission import cluster_gate
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import Contest, Limits, PolicyCosts, Verdict, hold, verdict
from trainer.promotion.oversubscription import pool_gate

POOL, CLUSTER = Subject("oversubscription", "main"), Subject("admission", "main")
COSTS = {"cheap": 0.5, "dear": 0.6, "much": 0.9}


def played(cost: str, broken: float = 0.01) -> PolicyCosts:
    return PolicyCosts(tuple(("redrawn", f"week {n}", COSTS[cost] + 0.001 * n) for n in range(8)), broken, 0.05)


@pytest.mark.parametrize(
    ("challenger", "now", "tuned", "why"),
    [
        (played("cheap"), played("dear"), played("cheap"), ""),
        (played("cheap", 0.2), played("dear"), played("cheap"), "it may break the promise in 20.00%, more than 5.00%"),
        (played("dear"), played("cheap"), played("dear"), "cheaper is 0.00%"),
        (played("dear"), played("much"), played("cheap"), "on redrawn against the best tuned rule"),
        # What breaks the promise is no measure: no challenger has to be as cheap.
        (played("dear"), played("cheap", 0.2), played("much"), ""),
        (played("dear"), played("much"), played("cheap", 0.2), ""),
        (played("dear", 0.2), played("much", 0.2), played("much", 0.2), "it may break the promise"),
    ],
)
def test_a_challenger_keeps_the_promise_and_is_cheaper_than_what_keeps_it_too(
    challenger: PolicyCosts, now: PolicyCosts, tuned: PolicyCosts, why: str
) -> None:
    costs = {"challenger": challenger, "champion": now, "tuned": tuned}
    judgement = verdict("admission", costs, Limits(), "rule", {}).judgement
    assert judgement.passed == (why == "")
    assert any(why in reason for reason in judgement.reasons) or not why


@pytest.fixture
def directory(tmp_path: Path) -> ModelsWriter:
    return ModelsWriter(tmp_path / "models", b"0123456789abcdef")


def rates(path: Path, *each: float) -> Path:
    """A file of rates for the two subscribers."""
    scenario = staggered_pair()
    facts = (scenario.name, scenario_sha256(scenario), "cold", 0.95, LEVELS, ("0", "1"), each)
    write_rates(RatesFile(str(path), *facts), path)
    return path


def promote_rates(directory: ModelsWriter, file: Path, now: str = "none") -> Contest:
    gate = pool_gate(staggered_pair(), Limits(), now=now, budget=0.003, drawn=4, episodes=20, evaluations=10)
    return hold(file, directory, POOL, rates_in_agent, gate, at=AT)


def test_rates_that_reserve_less_and_keep_the_promise_decide_for_the_pool(
    directory: ModelsWriter, tmp_path: Path
) -> None:
    first = promote_rates(directory, rates(tmp_path / "half.json", 0.5, 0.5))
    assert first.judgement.reasons == ()
    assert first.report["champion"]["label"] == "none"
    # What reserves everything is dearer than what decides now.
    second = promote_rates(directory, rates(tmp_path / "full.json", 1.0, 1.0))
    assert not second.promoted
    assert any("on redrawn" in reason for reason in second.judgement.reasons)
    champion = directory.champion(POOL)
    assert champion is not None
    assert champion.model == f"{first.report['challenger']['sha256']}.json"
    assert directory.check(POOL, champion)["passed"] is True


def test_rates_that_break_the_promise_are_not_promoted(directory: ModelsWriter, tmp_path: Path) -> None:
    gate = pool_gate(staggered_pair(), Limits(), now="none", budget=24.0, drawn=4, episodes=20, evaluations=10)
    contest = hold(rates(tmp_path / "none.json", 0.2, 0.2), directory, POOL, rates_in_agent, gate, at=AT)
    assert not contest.promoted
    assert "may break the promise" in contest.judgement.reasons[0]
    assert directory.champion(POOL) is None


def test_what_is_evaluated_is_what_is_stored_though_the_file_is_replaced_meanwhile(
    directory: ModelsWriter, tmp_path: Path
) -> None:
    file = rates(tmp_path / "half.json", 0.5, 0.5)
    content = file.read_bytes()
    real = pool_gate(staggered_pair(), Limits(), now="none", budget=0.003, drawn=4, episodes=20, evaluations=10)

    def replacing(challenger: Path, champion: Path | None) -> Verdict:
        rates(file, 0.2, 0.2)
        return real(challenger, champion)

    assert hold(file, directory, POOL, rates_in_agent, replacing, at=AT).promoted
    champion = directory.champion(POOL)
    assert champion is not None
    assert directory.read(champion.model).content == content


def cluster(path: Path, rule: str) -> Path:
    world = {"preset": "K", "name": "small", "capacity": 400, "arrival_rate": 0.1, "sla": 0.1}
    path.write_text(json.dumps({**world, "rule": rule}))
    return path


def promote_rule(directory: ModelsWriter, file: Path) -> Contest:
    gate = cluster_gate(Limits(), now="zeroth:100", tuned="zeroth:150", runs=12, hours=4380.0)
    return hold(file, directory, CLUSTER, cluster_model_in, gate, at=AT)


def test_a_rule_that_fills_the_cluster_more_within_its_promise_decides_for_it(
    directory: ModelsWriter, tmp_path: Path
) -> None:
    assert promote_rule(directory, cluster(tmp_path / "a.json", "zeroth:150")).judgement.reasons == ()
    assert champion_of(directory, "main").rule == "zeroth:150"
    strict = promote_rule(directory, cluster(tmp_path / "b.json", "zeroth:60"))
    assert not strict.promoted
    loose = promote_rule(directory, cluster(tmp_path / "c.json", "zeroth:401"))
    assert not loose.promoted
    assert "may break the promise" in loose.judgement.reasons[0]


def test_a_world_is_scaled_to_the_cluster_arrivals_too(directory: ModelsWriter, tmp_path: Path) -> None:
    gate = cluster_gate(Limits(), now="zeroth:50", tuned="zeroth:75", runs=4, hours=4380.0, capacity=200)
    report = hold(cluster(tmp_path / "a.json", "zeroth:75"), directory, CLUSTER, cluster_model_in, gate, at=AT).report
    (world,) = report["suite"]["world"]["clusters"].values()
    assert (world["capacity"], world["arrival_rate"]) == (200, 0.05)


def test_a_cluster_file_without_a_rule_or_with_a_wrong_one_is_refused(tmp_path: Path) -> None:
    for rule, why in ((None, "it names no rule"), ("second:-1", "give finite numbers"), ("magic:2", "magic")):
        with pytest.raises(ModelRefused, match=why):
            cluster_model_in(cluster(tmp_path / "a.json", rule))  # type: ignore[arg-type]


def test_a_clusters_file_that_was_changed_is_not_used(directory: ModelsWriter, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="for the cluster main"):
        champion_of(directory, "main")
    file = cluster(tmp_path / "a.json", "second:3")
    held = directory.force(read_model_file(file), CLUSTER, "a test", AT, cluster_model_in)
    (directory.path / held.model).write_text(file.read_text().replace("second:3", "second:0"))
    with pytest.raises(ModelRefused, match="it is damaged"):
        champion_of(directory, "main")
