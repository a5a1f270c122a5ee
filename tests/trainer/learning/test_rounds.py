"""Every round: results are read back by type, a budget ends it in order, and a promotion counts once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.admission import Cluster
from tests.trainer.learning import rounds, test_cluster, test_placement, test_pool
from tests.trainer.learning.recorded_clusters import SMALL, record
from tests.trainer.learning.test_pools import lived
from trainer.learning.round import BudgetUsed, GateResult, Report, Round

Rounds = Callable[[Path], Round]
SUBJECTS = ("fleet", "cluster", "pool", "placement")


@pytest.fixture(scope="module", params=SUBJECTS)
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    """Opens the round of a subject in a folder, with the record that is always the same."""
    folder = tmp_path_factory.mktemp("recorded")
    if request.param == "fleet":
        recorded = rounds.recorded_hours(10.0)
        return lambda place: rounds.round_of(place, recorded)
    if request.param == "cluster":
        record(folder / "ledger.db", Cluster("main", SMALL, 100_000, 4.0, 1e-3), 150.0)
        return lambda place: test_cluster.round_of(folder / "ledger.db", place)
    if request.param == "pool":
        lived(folder, 5, every_h=1, policy="static:1").ledger.close()
        return lambda place: test_pool.round_of(folder / "ledger.db", place)
    return test_placement.round_of


@pytest.fixture(scope="module")
def done(begun: Rounds, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a round that is over."""
    folder = tmp_path_factory.mktemp("done")
    begun(folder).go_on()
    return folder


def test_a_budget_that_is_used_up_ends_a_round_in_order(begun: Rounds, tmp_path: Path) -> None:
    with pytest.raises(BudgetUsed, match="--cpu-minutes"):
        replace(begun(tmp_path), cpu_s=1e-6).go_on()
    assert begun(tmp_path).state.stages == {}


@pytest.mark.exhaustive
def test_results_are_read_back_as_they_were_written_and_no_stage_is_done_again(begun: Rounds, done: Path) -> None:
    work = begun(done)
    announced: list[str] = []
    work.announce = announced.append
    kinds = [*work.stages(), Report, GateResult]
    assert list(work.go_on()) == [kind.STAGE for kind in kinds]
    assert announced == []
    for kind in kinds:
        assert work.state.result(kind).as_data() == work.state.stages[kind.STAGE]


@pytest.mark.exhaustive
def test_a_promotion_after_which_the_round_was_stopped_is_found_and_not_repeated(begun: Rounds, done: Path) -> None:
    work = begun(done)
    before = work.state.result(GateResult)
    stages = {name: found for name, found in work.state.stages.items() if name != GateResult.STAGE}
    replace(work, state=replace(work.state, stages=stages)).go_on()
    assert begun(done).state.result(GateResult).promoted is before.promoted
    assert len(work.directory.history()) == before.promoted
