"""The summary shows how each figure was obtained, also when another fleet would have been cheaper."""

import io
import json
import shlex
from dataclasses import replace

import pytest
from rich.console import Console

from agent.rails.base import RailLimits
from agent.rehearsal.faults import plan_named
from agent.rehearsal.summary import FleetParameters, LiveRun, Other, RunCost, Summary, compare
from domain.decisions import Mode, Reason
from domain.workload import make_trace
from tests.agent.rehearsal.turns import FLEET
from tests.golden import check_wording

RUN = RunCost("queue-rule:horizon_s=150", 1.40, 0.36, 73.0, 434.0, 414)
LIVE = LiveRun(RUN, 446, 10.0 * 3600.0, 0, 8)
SUMMARY = Summary(
    "story",
    LIVE,
    (
        Other("75 % threshold", "simulated, same faults", RunCost("threshold", 1.20, 0.56, 130.0, 446.0, 417)),
        Other("best constant fleet", "simulated, same faults", RunCost("constant:2,1,2", 1.03, 0.21, 42.0, 408.0, 414)),
    ),
    60,
    9,
    23,
    (),
    ".venv/bin/trimtab",
    ".trimtab/dry-run/ledger.db",
    "web-4",
    Other("held at maximum: 3 + 3 + 3", "simulated, same faults", RunCost("constant:3,3,3", 1.80, 0.40, 5.0, 9.0, 430)),
)


def rendered(summary: Summary, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, color_system=None)
    console.print(summary.table(), highlight=False)
    return console.export_text()


def test_the_cost_of_waiting_is_added_to_the_rent():
    assert RUN.cost == pytest.approx(1.76)


def test_every_row_shows_how_it_was_obtained():
    lines = rendered(SUMMARY).splitlines()
    how = [line.split(",")[0].strip() for line in lines[2:] if line.startswith("  ")]
    assert how == ["measured", "simulated", "simulated", "simulated"]
    assert "without faults" in rendered(replace(SUMMARY, plan="none"))


def test_the_table_holds_rent_waiting_total_waits_and_jobs():
    lines = rendered(SUMMARY).splitlines()
    (row,) = [line for line in lines if line.startswith("this run")]
    assert row.split() == ["this", "run:", "queue-rule", "$1.40", "$0.36", "$1.76", "73", "s", "434", "s", "414"]
    assert max(map(len, lines)) <= 80


def test_what_the_agent_saved_and_cost_is_worded_as_in_the_golden_file() -> None:
    dear = replace(SUMMARY, live=replace(LIVE, cost=replace(RUN, rent=2.0)))
    cheap = replace(SUMMARY, live=replace(LIVE, cost=replace(RUN, rent=0.5)))
    check_wording(
        "dry_run_summary",
        {
            "saved": SUMMARY.headline(),
            "saved without faults": replace(SUMMARY, plan="none").headline(),
            "saved nothing": dear.headline(),
            "observed": replace(SUMMARY, mode=Mode.OBSERVE).headline(),
            "as much as the threshold": SUMMARY.verdict(),
            "less than both": cheap.verdict(),
            "jobs handed back": SUMMARY.sentence(),
            "jobs lost": replace(SUMMARY, live=replace(LIVE, lost=3)).sentence(),
            "the table": "\n".join(line.rstrip() for line in rendered(SUMMARY).splitlines()),
        },
    )


def test_the_commands_to_try_are_quoted_for_the_shell():
    spaced = replace(SUMMARY, ledger="my runs/ledger.db")
    for command in spaced.next_commands():
        program, verb, *_, ledger = shlex.split(command)
        assert (program, verb in ("explain", "replay"), ledger) == (".venv/bin/trimtab", True, "my runs/ledger.db")


def test_as_data_it_survives_json_with_costs_and_what_is_missing():
    data = json.loads(json.dumps(replace(SUMMARY, missing=(Reason.DRAINED,)).as_json()))
    assert data["kind"] == "summary"
    assert data["lived"]["cost"] == pytest.approx(1.76)
    assert data["lived"]["how"] == "measured, with faults"
    assert [other["cost"] for other in data["others"]] == pytest.approx([1.76, 1.24, 2.20])
    assert data["saved"]["dollars"] == pytest.approx(0.44)
    assert data["saved"]["against"].startswith("held at maximum")
    assert data["missing"] == ["drained"]
    assert data["waiting_price_per_hour"] == 0.036


def test_compared_are_the_runs_own_policy_the_threshold_and_two_constant_fleets():
    trace = make_trace("burst", [60.0] * 6, [300.0] * 6)
    parameters = FleetParameters(FLEET, RailLimits(), 300.0)
    rows = compare(parameters, "queue-rule", trace, (1, 0, 0), 900.0, 0)
    assert [row.name for row in rows[:2]] == ["queue-rule", "75 % threshold"]
    assert rows[2].name.startswith("best in hindsight: ")
    assert (rows[3].name, rows[3].run.policy) == ("held at maximum: 3 + 3 + 3", "constant:3,3,3")
    # A run of the threshold itself is not compared with itself twice.
    assert len(compare(parameters, "threshold", trace, (1, 0, 0), 900.0, 0)) == 3


def test_every_row_of_the_comparison_has_met_the_faults_of_the_run():
    trace = make_trace("burst", [60.0] * 20, [300.0] * 20)
    parameters, faults = FleetParameters(FLEET, RailLimits(), 300.0), plan_named("story").simulated()
    plain = compare(parameters, "queue-rule", trace, (1, 0, 0), 3000.0, 0)
    faulty = compare(parameters, "queue-rule", trace, (1, 0, 0), 3000.0, 0, faults=faults)
    assert ({row.how for row in faulty}, len({row.how for row in plain})) == ({SUMMARY.others[0].how}, 1)
    # No m5a.2xlarge in the first eight minutes: the queue rule takes smaller ones, later.
    assert faulty[0].run.waiting_cost > plain[0].run.waiting_cost
