"""The ledger's benchmark: one JSON object with the promised figures, measured on a ledger that explains itself."""

from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from benchmarks import ledger as benchmark
from benchmarks.report import Target, repeat, report


@pytest.mark.exhaustive
def test_the_large_ledger_it_builds_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.db"
    benchmark.build(path, 5000)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        assert len(ledger.journal(limit=10**6)) >= 5000
        acted = FleetStore(ledger).decisions(changed_only=True, limit=1)[0].decision
        record = FleetStore(ledger).decision(acted.decision_id)
        assert record.decision == acted
        assert [outcome.status for outcome in record.intents[0].outcomes] == ["in_progress", "done"]
        assert record.intents[0].intent.intent_id.startswith(acted.decision_id)


def test_a_missed_target_shows_in_the_exit_status_and_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    figures = repeat(iter([{"ms": 9.0}, {"ms": 1.0}, {"ms": 5.0}]).__next__, 3)
    assert figures == {"ms": 5.0}
    assert report("demo", figures, as_json=False, targets=[Target("ms", 4.0)]) == 1
    assert "(<= 4: MISSED)" in capsys.readouterr().out
    assert report("demo", figures, as_json=False, targets=[Target("ms", 4.0, at_most=False)]) == 0
    assert "(>= 4: met)" in capsys.readouterr().out
