"""`trimtab run` with a learned policy: models are taken up, refused or given up beside the loop, which goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.ledger.journal import Kind
from agent.models.shipped import shipped_models
from domain.decisions import Reason
from tests.agent.models.making import endless, promote
from tests.agent.service.site import FLEET, Daemon, Site, running_site
from tests.oracles.lstm_model import write_model
from tests.waiting import until

pytestmark = pytest.mark.exhaustive

LEARNED = {**FLEET, "TRIMTAB_FLEETS__web__GROUPS__workers__MIN": "1", "TRIMTAB_FLEETS__web__POLICY": "learned"}


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site(30.0) as made:
        made.make_group()
        made.start()
        yield made


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "agent" / "models"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def daemon(site: Site, tmp_path: Path, models: Path) -> Iterator[Daemon]:
    """An agent that has started with a champion that cannot be read: the rules stand in until there is a good one."""
    (models / "champion.json").write_text("{")
    made = Daemon(site, tmp_path / "agent", **LEARNED)
    try:
        made.start()
        made.await_ready()
        yield made
    finally:
        made.close()


def events(daemon: Daemon, reason: Reason) -> list[str]:
    with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
        rows = ledger.journal(limit=10_000)
    return [str(row.body["detail"]) for row in rows if row.kind is Kind.EVENT and row.reason == reason]


def decisions(daemon: Daemon) -> int:
    with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
        return len(FleetStore(ledger).decisions("web", limit=10_000))


def hang_up(daemon: Daemon) -> None:
    assert daemon.popen is not None
    daemon.popen.send_signal(signal.SIGHUP)


def test_a_hangup_takes_up_the_new_champion_and_the_process_goes_on(daemon: Daemon, models: Path) -> None:
    assert "restore a valid one" in events(daemon, Reason.MODEL_REFUSED)[0]
    path = write_model(models, hidden=4)
    promote(models, path)
    hang_up(daemon)
    # It was trained for three VM types, and the fleet has one: the scorer that comes along decides.
    scorer = next(model.sha256 for model in shipped_models() if model.name == "scorer")
    until(lambda: any(scorer in text for text in events(daemon, Reason.MODEL_READY)))
    path.with_name("spoilt.onnx").write_bytes(b"spoilt")
    promote(models, "spoilt.onnx")
    hang_up(daemon)
    until(lambda: "spoilt.onnx" in "".join(events(daemon, Reason.MODEL_REFUSED)))
    before = decisions(daemon)
    until(lambda: decisions(daemon) > before)
    daemon.terminate()
    assert daemon.wait() == 0
    with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
        last = FleetStore(ledger).decisions("web", limit=1)[0].decision
    assert last.proposal.policy == f"learned:{scorer}"


def test_a_named_pipe_as_the_champion_is_reported_and_no_turn_is_lost(daemon: Daemon, models: Path) -> None:
    (models / "champion.json").unlink()
    os.mkfifo(models / "champion.json")
    hang_up(daemon)
    until(lambda: "it is a named pipe, a regular file is needed" in "".join(events(daemon, Reason.MODEL_REFUSED)))
    before = decisions(daemon)
    until(lambda: decisions(daemon) >= before + 3)
    daemon.terminate()
    assert daemon.wait() == 0


def test_a_model_without_an_end_costs_no_turn_and_sigterm_amid_its_trial_ends_the_process_in_order(
    daemon: Daemon, models: Path
) -> None:
    before = decisions(daemon)
    promote(models, endless(models, write_model(models, hidden=4)))
    hang_up(daemon)
    until(lambda: "it fails on its golden inputs (no answer within 5 s)" in daemon.log.read_text())
    # Five seconds are two and a half minutes at this clock's speed.
    assert decisions(daemon) > before
    promote(models, endless(models, write_model(models, seed=1, hidden=4)))
    pending = daemon.log.read_text().count("models_pending")
    hang_up(daemon)
    until(lambda: daemon.log.read_text().count("models_pending") > pending)
    daemon.terminate()
    assert daemon.wait() == 0
    assert '"event": "stopped"' in daemon.log.read_text()


def test_a_learned_policy_for_a_fleet_that_no_model_fits_is_refused_at_the_start(site: Site, tmp_path: Path) -> None:
    small = write_model(tmp_path, limits=(3, 3, 3))
    refused = Daemon(site, tmp_path / "agent", **LEARNED, TRIMTAB_LEARNED__MODEL_FILE=str(small))
    try:
        refused.start()
        assert refused.wait() == 2
        text = refused.log.read_text()
        assert "trained for the fleet" in text
        assert "web has 10 of 2 cores" in text
    finally:
        refused.close()
