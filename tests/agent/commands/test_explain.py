"""`trimtab explain` and `trimtab decisions`: why a decision came out as it did, from inputs to what AWS did."""

import json

import pytest

from agent.ledger import Ledger
from tests.agent.commands.conftest import Trimtab
from tests.agent.commands.recorded import POLICY, SHADOW, START, Recorder, fleet, snapshot


def test_it_goes_from_the_inputs_through_every_rail_to_what_aws_did(trimtab: Trimtab, ledger: str) -> None:
    result = trimtab("explain", "web-1")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "web-1  2026-03-01 12:00:00 UTC  act",
        "  grew workers_l 0 -> 2: CPU 90 %, 36 jobs wait, the oldest for 30 s",
    ]
    seen = lines[lines.index("Seen") + 1 : lines.index("Proposed") - 1]
    assert seen == [
        "  group      type         requested  in service  warm  booting  idle  CPU",
        "  workers_s  m5a.large            1           1     1        0     0  90.0%",
        "  workers_l  m5a.2xlarge          0           0     0        0     0  absent",
        "  1 of 1 VM due reported (100%), newest report of a VM 8 s old, newest report of the queue 3 s old",
        "  CPU 90.0% in the mean, 90th percentile 90.0%",
        "  36 jobs wait, the oldest for 30 s; 2 run; 5 came this minute",
    ]
    proposed = lines[lines.index("Proposed") + 1 : lines.index("Rails") - 1]
    assert proposed[0].startswith(f"  {POLICY}: workers_l 0 -> 2 (queue_grew): 36 jobs")
    assert proposed[1].startswith(
        f"  (shadow, not done) {SHADOW}: workers_s 1 -> 2, workers_l 0 -> 1 (load_high): mean"
    )
    assert lines[lines.index("Done") + 1 :] == [
        "  2026-03-01 12:00:00 UTC  web-1.workers_l  intent: workers_l 0 -> 2 (scale out)",
        "  2026-03-01 12:00:01 UTC  web-1.workers_l  in progress: 0 of 2 (accepted)",
        "  2026-03-01 12:00:45 UTC  web-1.workers_l  partial: 1 of 2 (no_capacity): no m5a.2xlarge in us-east-1b",
    ]


def test_the_rail_that_held_says_before_after_and_why(trimtab: Trimtab, ledger: str) -> None:
    lines = trimtab("explain", "web-2").stdout.splitlines()
    rails = lines[lines.index("Rails") + 1 : lines.index("Done") - 1]
    assert [line.split()[2] for line in rails].count("passed") == len(rails) - 1
    (held,) = [line for line in rails if "vetoed" in line]
    assert held.split(maxsplit=2) == [
        "7",
        "cooldown",
        "vetoed  workers_l 3 -> 1  workers_l 1 -> 3 held at 1: cooling down for another 4 min after the last scale-out",
    ]
    assert lines[-1] == "  nothing: no intent came of it"


def test_a_minute_in_which_aws_could_not_be_read_is_explained(trimtab: Trimtab, ledger: str) -> None:
    lines = trimtab("explain", "web-3").stdout.splitlines()
    assert lines[1] == "  kept the sizes: AWS could not be read (throttle)"
    assert lines[lines.index("Rails") + 1] == "  none was asked"


@pytest.mark.parametrize("wanted", ["last", "web", "web-4", "4", "web-4.workers_s", "w-4"])
def test_a_decision_may_be_named_in_several_ways(trimtab: Trimtab, ledger: str, wanted: str) -> None:
    result = trimtab("explain", wanted)
    assert result.stdout.startswith("web-4  2026-03-01 12:03:00 UTC")
    assert result.stdout.splitlines()[-1] == "  web-4.workers_s is still open"


def test_a_decision_that_is_not_there_is_answered_with_those_near_it(trimtab: Trimtab, ledger: str) -> None:
    result = trimtab("explain", "web-9")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: decision is 'web-9': no such decision is recorded")
    assert "web-3, web-4" in result.stderr
    assert trimtab("explain", "nonsense").stderr.startswith("error: decision is 'nonsense': no such decision")


def test_with_two_fleets_a_number_alone_is_not_enough(trimtab: Trimtab, ledger: str) -> None:
    with Ledger.open(ledger) as book:
        batch = Recorder(book, fleet("batch"), epoch=book.epoch())
        batch.minute(START + 300, snapshot(batch.fleet, (1, 0), 0, START + 300))
    result = trimtab("explain", "1")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: --fleet is '': there are several fleets, name one of: batch, web\n",
    )
    assert trimtab("explain", "1", "--fleet", "batch").stdout.startswith("batch-1  ")
    assert trimtab("explain", "last").stdout.startswith("batch-1  ")
    assert trimtab("explain", "last", "--fleet", "web").stdout.startswith("web-4  ")


def test_as_data_it_holds_inputs_decision_and_outcomes(trimtab: Trimtab, ledger: str) -> None:
    data = json.loads(trimtab("explain", "web-1", "--json").stdout)
    assert data["inputs"]["snapshot"]["queue"]["waiting"] == 36
    assert data["decision"]["desired"] == [1, 2]
    assert [outcome["status"] for outcome in data["intents"][0]["outcomes"]] == ["in_progress", "partial"]
    assert data["intents"][0]["open"] is False


class TestDecisions:
    def test_they_are_listed_newest_last(self, trimtab: Trimtab, ledger: str) -> None:
        lines = trimtab("decisions").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["web-1", "web-2", "web-3", "web-4"]
        assert lines[2] == "web-3  2026-03-01 12:02:00 UTC  kept the sizes: AWS could not be read (throttle)"

    def test_only_those_that_led_to_something(self, trimtab: Trimtab, ledger: str) -> None:
        data = json.loads(trimtab("decisions", "--changed", "--json").stdout)
        assert [item["decision_id"] for item in data] == ["web-1", "web-4"]

    def test_a_limit_and_a_span_of_time(self, trimtab: Trimtab, ledger: str) -> None:
        lines = trimtab("decisions", "--limit", "1").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["web-4"]
        lines = trimtab("decisions", "--from", "2026-03-01T12:01", "--to", "2026-03-01T12:03").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["web-2", "web-3"]
