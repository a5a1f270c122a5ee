"""`trimtab run` with a learned policy: a new champion is taken up at SIGHUP, a spoilt one is told and left alone."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ledger import Ledger
from agent.ledger.records import Kind
from benchmarks.lstm_model import write_model
from domain.decisions import Reason
from tests.models.making import promote
from tests.service.site import FLEET, Daemon, Site, running_site, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site(30.0) as made:
        made.make_group()
        made.start()
        yield made


def events(daemon: Daemon, reason: Reason) -> list[str]:
    with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
        rows = ledger.journal(limit=10_000)
    return [str(row.body["detail"]) for row in rows if row.kind is Kind.EVENT and row.reason == reason]


def test_a_hangup_takes_up_the_new_champion_and_the_process_goes_on(site: Site, tmp_path: Path) -> None:
    models = tmp_path / "agent" / "models"
    models.mkdir(parents=True)
    minimum = {"TRIMTAB_FLEETS__web__GROUPS__workers__MIN": "1"}
    daemon = Daemon(site, tmp_path / "agent", **{**FLEET, **minimum}, TRIMTAB_FLEETS__web__POLICY="learned")
    try:
        daemon.start()
        daemon.supervisor.until("READY", 20.0)
        assert "learned policy is 'no champion': promote a model" in events(daemon, Reason.MODEL_REFUSED)[0]
        path = write_model(models, hidden=4)
        promote(models, path)
        assert daemon.popen is not None
        daemon.popen.send_signal(signal.SIGHUP)
        # It was trained for three VM types, and the fleet has one: the queue rule decides.
        wait_until(lambda: f"learned:{path.stem} cannot decide for web" in events(daemon, Reason.MODEL_REFUSED)[-1])
        wait_until(lambda: bool(events(daemon, Reason.POLICY_FAILED)))
        path.with_name("spoilt.onnx").write_bytes(b"spoilt")
        promote(models, "spoilt.onnx")
        daemon.popen.send_signal(signal.SIGHUP)
        wait_until(lambda: "spoilt.onnx" in "".join(events(daemon, Reason.MODEL_REFUSED)))
        daemon.terminate()
        assert daemon.wait() == 0
        with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
            last = ledger.decisions("web", limit=1)[0].decision
        assert last.proposal.policy.startswith("queue-rule")
        assert json.loads(daemon.log.read_text().splitlines()[0])
    finally:
        daemon.close()
