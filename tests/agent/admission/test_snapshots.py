"""A snapshot puts everything inside into another ledger, futures included; a wrong one is refused with its reason."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.admission.records import Taken
from agent.admission.service import AdmissionService
from agent.admission.store import AdmissionStore
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.errors import BadInput
from tests.agent.admission.clusters import HOUR_S, SEEN, START, ask, event, rules
from tests.agent.admission.conftest import Make


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'other.db'}") as opened:
        yield opened


@pytest.fixture
def lived(make: Make, clock: VirtualClock) -> AdmissionService:
    service = make()
    for n in range(5):
        service.admit(ask(f"d{n}", 5 + n, *([SEEN] if n % 2 else [])))
        service.observe(event(f"d{n}", "started", 5 + n, START + n, event_id=f"start-{n}"))
    clock.advance(50 * HOUR_S)
    service.observe(event("d1", "scaled", 4, START + 40 * HOUR_S, event_id="grew"))
    service.observe(event("d2", "refused", 4, START + 41 * HOUR_S, event_id="refused"))
    service.observe(event("d3", "shutdown", 0, START + 42 * HOUR_S, event_id="ended"))
    return service


def test_another_service_knows_and_decides_the_same_afterwards(
    lived: AdmissionService, elsewhere: Ledger, clock: VirtualClock, tmp_path: Path
) -> None:
    written = lived.snapshot(tmp_path / "kept")
    assert sorted(path.name for path in tmp_path.glob("kept*")) == ["kept.json", "kept.npz"]
    other = AdmissionService(rules(), AdmissionStore(elsewhere), clock)
    assert other.restore(written) == 4
    assert other.deployments() == lived.deployments()
    assert other.gauges(clock.now()) == lived.gauges(clock.now())
    one, two = lived.admit(ask("new", 9)), other.admit(ask("new", 9))
    assert one.refreshed == two.refreshed
    assert (one.decision_id, one.admit, one.slack_cores) == (two.decision_id, two.admit, two.slack_cores)


def test_it_takes_the_place_of_what_was_there(lived: AdmissionService, clock: VirtualClock, tmp_path: Path) -> None:
    written, before = lived.snapshot(tmp_path / "kept"), lived.deployments()
    lived.observe(event("later", "started", 30, clock.now()))
    lived.observe(event("d0", "shutdown", 0, clock.now()))
    lived.restore(written)
    assert lived.deployments() == before
    assert lived.deployment("later") is None


def test_numbers_of_decisions_go_on_after_a_snapshot_that_had_fewer(lived: AdmissionService, tmp_path: Path) -> None:
    written = lived.snapshot(tmp_path / "kept")
    newest = [lived.admit(ask(f"later-{n}", 1)).decision_id for n in range(3)][-1]
    lived.restore(written)
    after = lived.admit(ask("after", 1)).decision_id
    assert int(after.removeprefix("main-a")) == int(newest.removeprefix("main-a")) + 1


def test_an_event_that_was_told_before_it_counts_once_after_it(
    lived: AdmissionService, elsewhere: Ledger, clock: VirtualClock, tmp_path: Path
) -> None:
    other = AdmissionService(rules(), AdmissionStore(elsewhere), clock)
    other.restore(lived.snapshot(tmp_path / "kept"))
    again = event("d1", "scaled", 4, START + 40 * HOUR_S, event_id="grew")
    assert other.observe(again) == Taken("grew", "d1", 10, already_seen=True)


def test_without_the_futures_of_other_rules(
    lived: AdmissionService, elsewhere: Ledger, clock: VirtualClock, tmp_path: Path
) -> None:
    other = AdmissionService(rules(kappa=3.0), AdmissionStore(elsewhere), clock)
    other.restore(lived.snapshot(tmp_path / "kept"))
    assert other.admit(ask("new", 1)).refreshed == 4


def changed(path: Path, **fields: object) -> Path:
    body = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**body, **fields}), "utf-8")
    return path


class TestARefusedSnapshot:
    def test_of_another_version(self, lived: AdmissionService, tmp_path: Path) -> None:
        written = changed(lived.snapshot(tmp_path / "kept"), version=1)
        with pytest.raises(BadInput, match="it has version 1, this Trimtab reads version 2"):
            lived.restore(written)

    def test_of_another_cluster(self, lived: AdmissionService, make: Make, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="it is of the cluster 'main', not of east"):
            make(name="east").restore(lived.snapshot(tmp_path / "kept"))

    def test_whose_files_are_of_two(self, lived: AdmissionService, clock: VirtualClock, tmp_path: Path) -> None:
        first, second = lived.snapshot(tmp_path / "one"), tmp_path / "two"
        lived.observe(event("d0", "shutdown", 0, clock.now()))
        lived.snapshot(second)
        first.with_suffix(".npz").write_bytes(second.with_suffix(".npz").read_bytes())
        with pytest.raises(BadInput, match=r"does not belong to its \.json file"):
            lived.restore(first)

    @pytest.mark.parametrize("field", ["counts", "deployments", "events", "ids", "at", "config_hash"])
    def test_that_lacks_a_part(self, lived: AdmissionService, tmp_path: Path, field: str) -> None:
        written = lived.snapshot(tmp_path / "kept")
        body = json.loads(written.read_text("utf-8"))
        del body[field]
        written.write_text(json.dumps(body), "utf-8")
        with pytest.raises(BadInput, match="it is damaged"):
            lived.restore(written)

    def test_that_is_not_there_or_no_json(self, lived: AdmissionService, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="give a snapshot that can be read"):
            lived.restore(tmp_path / "nothing")
        (tmp_path / "odd.json").write_text("[1,", "utf-8")
        (tmp_path / "odd.npz").write_bytes(b"")
        with pytest.raises(BadInput, match="give a snapshot that can be read"):
            lived.restore(tmp_path / "odd")

    def test_changes_nothing(self, lived: AdmissionService, tmp_path: Path) -> None:
        before = lived.deployments()
        with pytest.raises(BadInput):
            lived.restore(changed(lived.snapshot(tmp_path / "kept"), deployments=[{"cores": "many"}]))
        assert lived.deployments() == before
