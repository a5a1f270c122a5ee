"""`trimtab explain` and `trimtab decisions`: why a decision came out as it did, from inputs to what AWS did."""

import json

import pytest

from agent.ledger import Ledger
from tests.agent.commands.conftest import Trimtab
from tests.agent.commands.recorded import POLICY, SHADOW, START, Recorder, fleet, snapshot


def test_it_goes_from_the_inputs_through_every_rail_to_what_aws_did(trimtab: Trimtab, ledger: str) -> None:
    lines = trimtab("explain", "web-1").stdout.splitlines()
    assert [line for line in lines if line in ("Seen", "Proposed", "Rails", "Done")] == [
        *("Seen", "Proposed", "Rails", "Done"),
    ]
    proposed = lines[lines.index("Proposed") + 1 : lines.index("Rails") - 1]
    assert [POLICY in proposed[0], SHADOW in proposed[1]] == [True, True]
    assert [line.split("web-1.workers_l")[1].split()[0] for line in lines[lines.index("Done") + 1 :]] == [
        *("intent:", "in", "partial:"),
    ]


def test_the_rail_that_held_is_named_and_a_minute_without_aws_asked_none(trimtab: Trimtab, ledger: str) -> None:
    lines = trimtab("explain", "web-2").stdout.splitlines()
    rails = lines[lines.index("Rails") + 1 : lines.index("Done") - 1]
    assert [line.split()[2] for line in rails].count("passed") == len(rails) - 1
    (held,) = [line for line in rails if "vetoed" in line]
    assert held.split()[:3] == ["7", "cooldown", "vetoed"]
    lines = trimtab("explain", "web-3").stdout.splitlines()
    assert "(throttle)" in lines[1]
    assert lines[lines.index("Rails") + 2].strip() == ""


@pytest.mark.parametrize("wanted", ["last", "web", "web-4", "4", "web-4.workers_s", "w-4"])
def test_a_decision_may_be_named_in_several_ways(trimtab: Trimtab, ledger: str, wanted: str) -> None:
    result = trimtab("explain", wanted)
    assert result.stdout.split()[0] == "web-4"
    assert result.stdout.splitlines()[-1].split()[0] == "web-4.workers_s"


def test_a_decision_that_is_not_there_is_answered_with_those_near_it(trimtab: Trimtab, ledger: str) -> None:
    result = trimtab("explain", "web-9")
    assert (result.exit_code, "web-3, web-4" in result.stderr) == (2, True)
    assert trimtab("explain", "nonsense").exit_code == 2


def test_with_two_fleets_a_number_alone_is_not_enough(trimtab: Trimtab, ledger: str) -> None:
    with Ledger.open(ledger) as book:
        batch = Recorder(book, fleet("batch"), epoch=book.epoch())
        batch.minute(START + 300, snapshot(batch.fleet, (1, 0), 0, START + 300))
    result = trimtab("explain", "1")
    assert (result.exit_code, "batch, web" in result.stderr) == (2, True)
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

    def test_only_those_that_led_to_something(self, trimtab: Trimtab, ledger: str) -> None:
        data = json.loads(trimtab("decisions", "--changed", "--json").stdout)
        assert [item["decision_id"] for item in data] == ["web-1", "web-4"]

    def test_a_limit_and_a_span_of_time(self, trimtab: Trimtab, ledger: str) -> None:
        lines = trimtab("decisions", "--limit", "1").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["web-4"]
        lines = trimtab("decisions", "--from", "2026-03-01T12:01", "--to", "2026-03-01T12:03").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["web-2", "web-3"]
