"""`trimtab simulate admission`: what was seen before, a second rule beside the first, and the events as a file."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from simulator.admission import cluster_of, draw_run, play, rule_of
from trainer.admission import playing

YEARS = 0.04
HOURS = YEARS * 8760.0


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text('preset = "K"\ncapacity = 400\n')
    return str(path)


def call(small: str, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["simulate", "admission", "--preset", small, "--years", str(YEARS), *arguments])


def simulated(small: str, *arguments: str) -> dict[str, Any]:
    answer = call(small, *arguments, "--json")
    assert answer.exit_code == 0, answer.output
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("word", "drawn"), [("posterior", "evidence"), ("static", "static")])
@pytest.mark.parametrize("scale_outs", ["gaps", "counts"])
def test_what_was_seen_before_is_drawn_as_asked(small: str, word: str, drawn: str, scale_outs: str) -> None:
    options = ("--observations", "5", "--labels", "unlabelled", "--weights", word, "--scale-outs", scale_outs)
    data = simulated(small, "--policy", "second:2,marginal=1", *options)
    run = draw_run(
        cluster_of(small), 0, observations=5, hours=HOURS, labels="unlabelled", weights=drawn, scale_outs=scale_outs
    )
    outcome = play(run, rule_of("second:2,marginal=1"))
    assert (data["weights"], data["scale_outs"], data["config_hash"]) == (word, scale_outs, outcome.config_hash)
    assert (data["utilisation"], data["admitted"]) == (outcome.utilisation, outcome.admitted)


def test_a_rule_beside_itself_is_always_of_its_opinion_and_one_that_admits_all_refuses_none(small: str) -> None:
    same = simulated(small, "--policy", "second:2", "--beside", "second:2")["beside"]
    assert (same["alike"], same["alike_share"]) == (same["asked"], 1.0)
    assert same["both_refuse"] > 0
    easy = simulated(small, "--policy", "second:2", "--beside", "zeroth:401")["beside"]
    assert easy["both_admit"] == same["both_admit"]
    assert (easy["only_rule_refuses"], easy["both_refuse"], easy["only_beside_refuses"]) == (same["both_refuse"], 0, 0)
    assert easy["alike_share"] == same["both_admit"] / same["asked"]
    text = call(small, "--policy", "second:2", "--beside", "zeroth:401").stdout
    assert f"second:2 alone {same['both_refuse']}" in " ".join(text.split())


def test_a_rule_beside_has_no_say(small: str) -> None:
    alone, beside = (
        simulated(small, "--policy", "second:2"),
        simulated(small, "--policy", "second:2", "--beside", "second:4"),
    )
    apart = {"wall_s", "beside"}
    assert {k: v for k, v in alone.items() if k not in apart} == {k: v for k, v in beside.items() if k not in apart}


@pytest.mark.parametrize("first_room", [50, 1_000_000])
def test_the_log_holds_every_event_and_adds_up(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_room: int
) -> None:
    monkeypatch.setattr(playing, "FIRST_ROOM", first_room)
    data = simulated(small, "--policy", "second:1", "--log", str(tmp_path / "events.csv"))
    with (tmp_path / "events.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    counts = Counter(row["event"] for row in rows)
    assert counts["admitted"] == data["admitted"]
    assert counts["turned_away"] == data["rejected_no_room"] + data["rejected_by_rule"]
    assert counts["scaled"] + counts["scale_out_refused"] == data["requests"]
    assert (counts["scale_out_refused"], counts["core_ended"]) == (data["failures"], data["cores_ended"])
    assert counts["shutdown"] == data["shutdowns"]
    total = 0
    for row in rows:
        change = {"admitted": 1, "scaled": 1, "core_ended": -1, "shutdown": -1}.get(row["event"], 0)
        total += change * int(row["cores"])
        assert total == int(row["total"]), row
    assert max(int(row["total"]) for row in rows) == data["peak_cores"]
    times = [float(row["hours"]) for row in rows]
    assert times == sorted(times)


def test_lines_of_json_hold_the_same(small: str, tmp_path: Path) -> None:
    for name in ("events.csv", "events.jsonl"):
        simulated(small, "--policy", "zeroth:200", "--log", str(tmp_path / name))
    with (tmp_path / "events.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [{key: str(value) for key, value in line.items()} for line in lines] == rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scale-outs", "rates"), ("--scale-outs", "gaps, counts")),
        (("--log", "events.txt"), ("--log", ".csv, .jsonl")),
        (("--log", "no-such-place/events.csv"), ("--log", "folder that exists")),
        (("--beside", "seventh:1"), ("policy", "seventh:1")),
        (("--policy", "zeroth:100", "--beside", "second:2"), ("beside", "put zeroth beside")),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(
    small: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    answer = call(small, *arguments)
    assert answer.exit_code == 2
    text = " ".join(answer.stderr.split())
    for word in words:
        assert word in text
