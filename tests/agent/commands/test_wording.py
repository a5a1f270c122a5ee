"""What the verbs print, held in one golden file: on the recorded story, for people."""

from __future__ import annotations

from pathlib import Path

import pytest
import time_machine

from agent.ledger import Ledger
from agent.settings.location import MODELS_VARIABLE
from domain.controls import Pause, PauseScope, Pin
from tests.agent.commands.conftest import Trimtab
from tests.agent.commands.recorded import START
from tests.golden import check_wording

pytestmark = pytest.mark.usefixtures("at_200_s")
READING = (
    "status",
    "status --fleet blue",
    "explain web-1",
    "explain web-2",
    "explain web-3",
    "explain web-4",
    "explain web-9",
    "explain nonsense",
    "decisions",
    "replay",
    "replay --from 2026-03-01T12:01 --to 2026-03-01T12:03",
    "replay --policy threshold:low=0.5",
    "replay --policy magic",
    "decisions --from yesterday",
)
SWITCHING = (
    "pause in --reason a --for 2h",
    "pause out --reason b --owner bob",
    "pause all --reason x --for soon",
    "resume in",
    "resume",
    "resume in",
    "pause all --reason moving --fleet staging",
    "resume --fleet staging",
    "pin 3 --for 1d --reason large --group workers_l",
    "pin 6 --for 2h --reason launch",
    "pin 8 --for 2h --reason x",
    "pin 4 --for 2h --reason x --group workers_l",
    "pin 1 --for 2h --reason x --group gpu",
    "unpin",
    "unpin",
    "rehearse --rails none",
    "rehearse --prices spot",
    "rehearse --policy magic",
    "collect",
    "collect queue:web",
    "collect --json",
    "collect queue:web --once",
)


def test_the_verbs_print_what_is_held_in_the_golden_file(
    trimtab: Trimtab, ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No models of an agent of this machine.
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path / "models"))

    def printed(line: str) -> str:
        result = trimtab(*line.split())
        return f"exit status {result.exit_code}\n{result.output}"

    with Ledger.open(ledger) as book:
        book.pause("autoscaling", "web", Pause(PauseScope.IN, "ada", "load test", START + 100, START + 1100))
        book.pin("autoscaling", "web", Pin({"workers_s": 3}, "bob", "launch", START + 100, START + 7400))
    texts = {line: printed(line) for line in READING}
    with time_machine.travel(START + 1000.0, tick=False):
        texts["status, of a loop that stands still"] = printed("status").splitlines()[1]
    with Ledger.open(ledger) as book:
        book.resume("autoscaling", "web", PauseScope.ALL, at=START + 199, owner="ada")
        book.unpin("autoscaling", "web", at=START + 199, owner="ada")
    monkeypatch.setenv("TRIMTAB_CLUSTERS__staging__CAPACITY_CORES", "256")
    texts |= {f"{number}. {line}": printed(line) for number, line in enumerate(SWITCHING, 1)}
    monkeypatch.setenv("TRIMTAB_MODE", "on")
    monkeypatch.setenv("TRIMTAB_LISTNER__PORT", "1")
    texts["config check, of two mistakes"] = printed("config check")
    check_wording("commands", texts)
