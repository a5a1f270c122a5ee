"""Which policy decides, and what stands in for one that raises, is late, or offers a host that cannot take it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.ledger import Ledger
from agent.models.directory import ModelRefused
from agent.placement.choosing import SHIPPED, Chooser, Pick, PolicySource, named_policy, read_policy, share_of
from agent.placement.decision import PlacementPart
from agent.placement.records import HostState
from agent.placement.settings import BUNDLED, PlacementSettings
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.errors import BadInput, ConfigurationError
from domain.rules.placement.cluster import Choice, Scored, best_of
from domain.rules.placement.policies import BF, DP, NAMED, WF, Policy, policy_document, reserve
from tests.agent.placement.hosts import app, ask, inventory, made
from trainer.promotion.directory import ModelsWriter

NO_MODELS = ModelsWriter(Path("/nonexistent"), None)
TIERS = (0.6, 0.2, -0.7, -1.0, *(0.0,) * 12, 1.0)


def raising(found: Scored) -> Choice | None:
    raise ZeroDivisionError


def late(found: Scored) -> Choice | None:
    time.sleep(0.02)
    return best_of(found)


def full(found: Scored) -> Choice | None:
    return Choice(0, 1.0, -1, 0.0, 1, False)


def outside(found: Scored) -> Choice | None:
    return Choice(99, 1.0, -1, 0.0, 1, False)


def refusing(found: Scored) -> Choice | None:
    return None


def without_a_score(found: Scored) -> Choice | None:
    choice = best_of(found)
    return None if choice is None else replace(choice, score=float("nan"))


class TestAPolicyThatFails:
    @pytest.mark.parametrize(
        ("pick", "words"),
        [
            (raising, "raised ZeroDivisionError"),
            (late, "ms for a container (at most 5 ms)"),
            (full, "offered large-1, which cannot: limit"),
            (outside, "offered host 99"),
            (refusing, "offered no host while"),
            (without_a_score, "at score nan"),
        ],
    )
    def test_is_replaced_by_best_fit_from_the_first_container(
        self, ledger: Ledger, clock: VirtualClock, pick: Pick, words: str
    ) -> None:
        document = inventory(app("shop", limit=1))
        # A busy machine makes any policy late.
        within_ms = 5.0 if pick is late else 10_000.0
        pool = made(ledger, clock, document, pick=pick, policy="wf", decide_within_ms=within_ms)
        decision = pool.request(ask("r1", count=3))
        assert words in decision.replaced
        assert (decision.policy, [one.policy for one in decision.containers]) == ("BF", ["BF"] * 3)
        assert [one.host for one in decision.containers] == ["large-1", "large-2", "large-3"]
        assert Reason.POLICY_REPLACED in [entry.reason for entry in ledger.journal()]

    def test_is_not_replaced_by_itself_where_it_is_late(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), pick=late, policy="bf", decide_within_ms=5.0)
        assert pool.request(ask("r1")).replaced == ""

    def test_decides_again_with_the_next_request(self, ledger: Ledger, clock: VirtualClock) -> None:
        picks = [raising, best_of]

        def at_first(found: Scored) -> Choice | None:
            return picks.pop(0)(found)

        pool = made(ledger, clock, inventory(), policy="wf", pick=at_first)
        assert [pool.request(ask(name)).policy for name in ("r1", "r2")] == ["BF", "WF"]
        assert pool.view().head.replaced == 1


class TestAPolicysName:
    @pytest.mark.parametrize(
        ("text", "policy"), [("bf", BF), ("wf", WF), ("dp", DP), ("reserve:40,16,5", reserve(40, 16, 5))]
    )
    def test_means_a_policy(self, text: str, policy: Policy) -> None:
        assert named_policy(text, "main", NO_MODELS) == policy

    def test_small_pools_is_a_bundled_one_by_its_name_alone(self) -> None:
        assert named_policy("small-pools", "main", NO_MODELS).family == "linear14+places1"
        assert PlacementSettings(policy="small-pools").policy == "small-pools"
        with pytest.raises(BadInput, match="small-pools"):
            named_policy("small-pools:1", "main", NO_MODELS)

    @pytest.mark.parametrize("text", [*NAMED, *BUNDLED, "reserve:1,8,10", "BF"])
    def test_means_a_policy_where_the_setting_takes_it(self, text: str) -> None:
        try:
            taken = PlacementSettings(policy=text).policy is not None
        except ValidationError:
            taken = False
        try:
            found = named_policy(text, "main", NO_MODELS) is not None
        except BadInput:
            found = False
        assert found == taken == (text in BUNDLED or text == "reserve:1,8,10")

    def test_learned_is_the_one_that_comes_with_the_agent_where_none_is_in_use(self) -> None:
        assert named_policy("learned", "main", NO_MODELS) == read_policy(SHIPPED)

    @pytest.mark.parametrize("text", ["best", "bf:1", "file:/nothing.json", "reserve:1,0,1", "hand"])
    def test_that_means_none_is_refused(self, text: str) -> None:
        with pytest.raises((BadInput, ConfigurationError)):
            named_policy(text, "main", NO_MODELS)


def test_a_vector_for_one_filling_decides_for_no_pool(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policy_document(Policy("mine", "tiers18a", (*TIERS, 0.0)))))
    with pytest.raises(ConfigurationError, match="give a vector of tiers17a"):
        named_policy(f"file:{path}", "main", NO_MODELS)
    with pytest.raises(ModelRefused, match="one filling"):
        PlacementPart.model(path)
    source = PolicySource(f"file:{path}", "main", NO_MODELS)
    source.look()
    assert (source.policy, "one filling" in source.problem) == (BF, True)


class TestAPolicysFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "policy.json"
        path.write_text(json.dumps(policy_document(Policy("mine", "tiers17", TIERS))))
        return path

    def test_decides_and_is_read_again_when_it_changes(self, file: Path) -> None:
        source = PolicySource(f"file:{file}", "main", NO_MODELS)
        assert (source.look(), source.policy.name, source.problem) == (True, "mine", "")
        assert not source.look()
        file.write_text(json.dumps(policy_document(Policy("later", "tiers17", TIERS))))
        assert (source.look(), source.policy.name) == (True, "later")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"theta": [0.0] * 16}, "theta"),
            ({"theta": [2.0] * 17}, r"theta\[0\]"),
            ({"family": "deep"}, "family"),
            ({"version": 2}, "version"),
        ],
    )
    def test_that_cannot_be_used_leaves_the_one_before(self, file: Path, change: dict[str, object], words: str) -> None:
        source = PolicySource(f"file:{file}", "main", NO_MODELS)
        source.look()
        file.write_text(json.dumps({**policy_document(source.policy), **change}))
        assert not source.look()
        assert source.policy.name == "mine"
        assert "is refused and mine decides" in source.problem
        assert words.replace("\\", "") in source.problem

    def test_tells_the_hosts_that_it_keeps(self, file: Path) -> None:
        chooser = Chooser("main", PlacementSettings(policy=f"file:{file}"), NO_MODELS)
        assert chooser.targets() == pytest.approx({4: 121.0, 8: 91.0, 16: 23.5, 32: 1.0})
        assert Chooser("main", PlacementSettings(policy="reserve:40,16,5"), NO_MODELS).targets() == {16: 40.0}
        assert Chooser("main", PlacementSettings(), NO_MODELS).targets() == {}


class TestACanary:
    def test_decides_for_its_share_of_the_applications(self) -> None:
        chooser = Chooser("main", PlacementSettings(canary="wf", canary_share=0.3), NO_MODELS)
        names = [f"app-{n}" for n in range(1000)]
        taken = [name for name in names if chooser.policy_for(name) == WF]
        assert taken == [name for name in names if share_of(name) < 0.3]
        assert 250 < len(taken) < 350

    def test_that_cannot_be_read_decides_nothing(self) -> None:
        chooser = Chooser(
            "main", PlacementSettings(canary="file:/nothing.json", canary_share=1.0, policy="dp"), NO_MODELS
        )
        assert chooser.policy_for("shop") == DP
        assert "file:/nothing.json is refused" in chooser.problems()


class TestASwitch:
    def test_decides_at_once_in_every_agent_and_after_a_start_anew(self, ledger: Ledger, clock: VirtualClock) -> None:
        one, two = made(ledger, clock, inventory(), policy="dp"), made(ledger, clock, policy="dp")
        assert two.request(ask("r1")).policy == "DP"
        one.switch("wf", "ada", "looks better")
        assert one.switch("wf", "ada", "again").already
        assert [pool.request(ask(name)).policy for name, pool in (("r2", one), ("r3", two))] == ["WF", "WF"]
        assert made(ledger, clock, policy="dp").request(ask("r4")).policy == "WF"
        two.switch("", "ada", "it was not")
        assert one.request(ask("r5")).policy == "DP"

    def test_to_a_policy_that_cannot_be_used_is_refused(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), policy="bf")
        with pytest.raises(BadInput, match="policy"):
            pool.switch("file:/nothing.json", "ada", "try")
        assert pool.request(ask("r1")).policy == "BF"


@pytest.mark.parametrize("partial", [True, False])
def test_a_request_that_does_not_fit_leaves_nothing_behind(ledger: Ledger, clock: VirtualClock, partial: bool) -> None:
    """Nor its count: a policy with a reserve scores by the largest request and by how many large ones there were."""
    pool = made(ledger, clock, inventory(app("shop")), policy="dp")
    cluster, _, _ = pool.snapshot()
    before = cluster.copy()
    chosen = pool.chooser.place(cluster, "shop", range(40), partial=partial, spare=lambda: None)
    assert len(chosen.choices) == (16 if partial else 0)
    memory = [(one.opened, one.largest, one.large, one.open_hosts) for one in (before, cluster)]
    assert (memory[0] == memory[1]) is not partial
    if partial:
        assert (cluster.largest, cluster.large) == (40.0, before.large + 1)


def test_a_drained_pool_has_no_host_to_offer(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, inventory())
    for one in pool.hosts():
        pool.drain(one.name)
    assert {one.state for one in pool.hosts()} == {HostState.DRAINING}
    assert pool.request(ask("r1")).infeasible == {"drained": 4}
