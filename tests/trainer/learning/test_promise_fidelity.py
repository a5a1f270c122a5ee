"""Whether replays of pools and clusters are true: the figure is met, or the quantity that is off is named."""

from dataclasses import replace

import pytest

from simulator.admission import Cluster
from tests.trainer.learning.recorded_clusters import SMALL, record
from trainer.admission.fitting.histories import Histories, histories_of, read_vm_table
from trainer.learning.clusters import export_table, read_cluster
from trainer.learning.promise_fidelity import Quantity, cluster_fidelity, truth_of
from trainer.learning.round import Budget, BudgetUsed

CAPACITY = 100_000


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """Forty deployments an hour for two days."""
    folder = tmp_path_factory.mktemp("cluster")
    record(folder / "ledger.db", Cluster("main", SMALL, CAPACITY, 40.0, 1e-3), 48.0)
    export_table(read_cluster(str(folder / "ledger.db"), "main"), folder / "main.csv", "1", {})
    return histories_of(read_vm_table(folder / "main.csv"))


def test_the_population_that_a_cluster_has_describes_it(lived: Histories) -> None:
    found = cluster_fidelity("main", lived, SMALL, CAPACITY, 1e-3, Budget(60.0))
    assert found.holds
    assert "describes cluster main" in found.sentence
    cores = found.quantities["cores taken"]
    assert cores["recorded"] == pytest.approx(cores["replayed"], rel=0.25)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"mu_rate": 0.1}, "ends of cores"), ({"lam_rate": 0.2}, "requests for more cores")],
)
def test_a_population_that_is_another_one_is_named_by_what_is_off(
    lived: Histories, changes: dict[str, float], named: str
) -> None:
    found = cluster_fidelity("main", lived, replace(SMALL, **changes), CAPACITY, 1e-3, Budget(60.0))
    assert (found.holds, found.named) == (False, named)
    assert f"{named} are off" in found.sentence


def test_a_cluster_that_has_no_room_for_who_came_is_another_one(lived: Histories) -> None:
    found = cluster_fidelity("main", lived, SMALL, 100, 1e-3, Budget(60.0))
    assert (found.holds, found.named) == (False, "arrivals")


def test_replays_end_with_the_budget(lived: Histories) -> None:
    with pytest.raises(BudgetUsed):
        cluster_fidelity("main", lived, SMALL, CAPACITY, 1e-3, Budget(0.0))


@pytest.mark.parametrize(
    ("recorded", "replayed", "chance", "differs"),
    [(100.0, 104.9, 0.0, False), (100.0, 105.1, 0.0, True), (100.0, 120.0, 25.0, False), (0.0, 1.0, 0.0, True)],
)
def test_a_quantity_differs_beyond_the_bound_and_beyond_chance(
    recorded: float, replayed: float, chance: float, differs: bool
) -> None:
    quantity = Quantity("cores", recorded, replayed, chance)
    assert quantity.differs is differs
    assert truth_of("pool main", quantity, ()).holds is not differs


def test_what_no_part_explains_is_the_rest() -> None:
    cores, requests = Quantity("cores taken", 100.0, 150.0, 10.0), Quantity("requests", 4.0, 4.1)
    assert truth_of("pool main", cores, (requests,), "sizes").named == "sizes"
    more = Quantity("requests", 4.0, 6.0)
    assert truth_of("pool main", cores, (Quantity("arrivals", 10.0, 11.0), more), "sizes").named == "requests"
