"""The summary shows how each figure was obtained, also when another fleet would have been cheaper."""

import io
import json
import shlex
from dataclasses import replace

import pytest
from rich.console import Console

from agent.rails.base import RailLimits
from agent.rehearsal.faults import plan_named
from agent.rehearsal.scenario import shell_lines
from agent.rehearsal.summary import (
    Actions,
    FleetParameters,
    LiveRun,
    Other,
    RunCost,
    Summary,
    actions_of,
    compare,
    tracked_fleets,
)
from domain.decisions import Direction, Reason
from domain.workload import make_trace
from tests.agent.rehearsal.turns import FLEET, decision
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


def test_what_the_run_cost_is_worded_as_in_the_golden_file() -> None:
    check_wording(
        "dry_run_summary",
        {
            "ten lines": shown_brief(80),
            "the table": "\n".join(line.rstrip() for line in rendered(SUMMARY).splitlines()),
        },
    )


def test_the_commands_to_try_are_quoted_for_the_shell():
    spaced = replace(SUMMARY, ledger="my runs/ledger.db")
    for command in spaced.next_commands():
        program, verb, *_, ledger = shlex.split(command)
        assert program == ".venv/bin/trimtab"
        assert verb in ("explain", "replay", "decisions")
        assert ledger == "my runs/ledger.db"


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
    assert [row.name for row in rows[:3]] == ["queue-rule", "75 % threshold", "AWS target tracking"]
    assert rows[3].name.startswith("best in hindsight: ")
    assert (rows[4].name, rows[4].run.policy) == ("held at maximum: 3 + 3 + 3", "constant:3,3,3")
    # A run of the threshold itself is not compared with itself twice.
    assert len(compare(parameters, "threshold", trace, (1, 0, 0), 900.0, 0)) == 4


def test_target_tracking_has_a_vm_of_each_group_or_one_group_with_as_many_cores_as_the_fleet():
    (same, at_first), (alone, first) = tracked_fleets(FLEET)
    assert ([group.minimum for group in same.groups], at_first) == ([1, 1, 1], (1, 1, 1))
    assert same.max_cores == FLEET.max_cores
    assert ([group.vm_type.cores for group in alone.groups], first) == ([2], (1,))
    assert alone.max_cores == FLEET.max_cores


def test_what_the_agent_did_is_counted_by_the_changes_it_made():
    grown = decision(1, (1, 0, 0), (3, 0, 0))
    more = decision(2, (3, 0, 0), (3, 2, 0))
    kept = decision(3, (3, 2, 0), (3, 2, 0))
    down = replace(grown.intents[0], direction=Direction.IN)
    shrunk = replace(decision(4, (3, 2, 0), (2, 0, 0)), intents=(down, replace(down, group="workers_m")))
    found = actions_of([grown, more, kept, shrunk], ["spot notice for a VM"])
    assert found == Actions(2, 5, 1, 2, ("spot notice for a VM",))
    assert actions_of([], []) == Actions(0, 0, 0, 0, ())


BRIEF = replace(
    SUMMARY,
    simulated="4 h, 446 recorded jobs (nasa-day), at most 3+3+3 VMs, 600x",
    actions=Actions(12, 9, 11, 1, ("no m5a.2xlarge for 8 min", "no measurements for 3 min", "spot notice for a VM")),
    others=(
        *SUMMARY.others,
        Other("AWS target tracking", "simulated, same faults", RunCost("target-tracking", 1.9, 0.2, 50.0, 99.0, 300)),
    ),
)
LINES = {
    "admission": "20 of 31 deployments admitted, peak 240 of 256 vCPUs (24 h)",
    "oversubscription": "22% of the cores not reserved; 5 of 216 h hot, by a surge",
    "placement": "1804 containers on at most 41 of 50 hosts; a failure moved 27",
    "deferral": "71 of 86 jobs started, 1 expired; 60% of left-over cores used",
}
SIZES = ((80, 24), (120, 40))


def shown_brief(width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, color_system=None)
    console.print(BRIEF.brief(LINES, width), highlight=False)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


@pytest.mark.parametrize("width", [width for width, _ in SIZES])
def test_no_word_of_the_ten_lines_is_broken_and_a_command_stays_one(width: int) -> None:
    shown = shown_brief(width)
    assert max(map(len, shown.splitlines())) <= width
    words = shown.replace(" \\\n", " ").split()
    assert words == shown_brief(2000).split()
    for command in BRIEF.next_commands():
        assert command in " ".join(words)


def test_there_are_ten_lines_and_three_commands_in_the_order_of_interest() -> None:
    told = ["simulated", "agent", "bill", "target-tracking", "at maximum", *LINES, "in hindsight"]
    for width, height in SIZES:
        lines = shown_brief(width).splitlines()
        assert len(lines) < height
        labels = [line.split("  ")[0] for line in lines if line[:1].strip() and not line.startswith(".venv")]
        assert (labels, len(labels)) == (told, 10)
        assert sum(line.startswith(".venv/bin/trimtab ") for line in lines) == 3
    assert len(shown_brief(120).splitlines()) == 13


def test_a_bill_says_so_where_fewer_jobs_were_done() -> None:
    assert "99 s, 300 jobs done" in shown_brief(2000)
    assert "430 jobs done" not in shown_brief(2000)


def test_a_command_is_continued_between_its_words() -> None:
    assert shell_lines(["trimtab", "explain", "web-4"], 80) == "trimtab explain web-4"
    text = shell_lines(["trimtab", "explain", "web-4", "--ledger", "my runs/ledger.db"], 30)
    assert max(map(len, text.splitlines())) <= 30
    assert shlex.split(text.replace(" \\\n", " ")) == ["trimtab", "explain", "web-4", "--ledger", "my runs/ledger.db"]


def test_every_row_of_the_comparison_has_met_the_faults_of_the_run():
    trace = make_trace("burst", [60.0] * 20, [300.0] * 20)
    parameters, faults = FleetParameters(FLEET, RailLimits(), 300.0), plan_named("story").simulated()
    plain = compare(parameters, "queue-rule", trace, (1, 0, 0), 3000.0, 0)
    faulty = compare(parameters, "queue-rule", trace, (1, 0, 0), 3000.0, 0, faults=faults)
    assert ({row.how for row in faulty}, len({row.how for row in plain})) == ({SUMMARY.others[0].how}, 1)
    # No m5a.2xlarge in the first eight minutes: the queue rule takes smaller ones, later.
    assert faulty[0].run.waiting_cost > plain[0].run.waiting_cost
