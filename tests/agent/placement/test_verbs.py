"""`trimtab placement`, and what every verb shows of a placement pool, as a person types it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import app as program
from agent.kernel.text import time_text
from agent.ledger import Ledger
from agent.placement.advice import PolicyAdvice
from agent.placement.curves import LifeCurve
from domain.clock import VirtualClock
from domain.rules.placement.policies import BF, WF
from domain.units import DAY_S
from tests.agent.placement.hosts import app, ask, inventory, made
from tests.golden import figures
from trainer.learning.placement_advice import leave


@pytest.fixture
def trimtab(ledger: Ledger, clock: VirtualClock, path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    pool = made(ledger, clock, inventory(app("shop"), app("lone", limit=1)), policy="bf")
    pool.request(ask("r1", count=5))
    pool.request(ask("r2", "lone", count=9))
    monkeypatch.setenv("TRIMTAB_PLACEMENTS__main__POLICY", "bf")
    monkeypatch.setenv("TRIMTAB_LEDGER__URL", f"sqlite:///{path}")
    return CliRunner()


def shown(trimtab: CliRunner, *arguments: str) -> str:
    done = trimtab.invoke(program, [*arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_if_places_on_a_copy(trimtab: CliRunner) -> None:
    lines = shown(trimtab, "placement", "what-if", "shop=2", "lone=5", "--partial").splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "2 x shop: 2 containers placed",
        "large-2 2",
        "5 x lone: 3 containers placed, 2 opened",
        "large-2 1",
        "large-3 1",
        "large-4 1",
        "2 would find no host (cpu 2, limit 2)",
        "main: 2 hosts open now, 4 with these",
    ]
    again = json.loads(shown(trimtab, "placement", "what-if", "shop=2", "--policy", "wf", "--json"))
    assert (again["requests"][0]["policy"], again["open_after"]) == ("WF", 2)


def test_capacity_for(trimtab: CliRunner) -> None:
    lines = shown(trimtab, "placement", "capacity-for", "lone").splitlines()
    assert [" ".join(line.split()) for line in lines] == ["main: 3 more of lone fit", "cpu 1"]
    assert json.loads(shown(trimtab, "placement", "capacity-for", "shop", "--json"))["containers"] == 11


def test_repack_prints_moves_and_makes_none(trimtab: CliRunner) -> None:
    lines = shown(trimtab, "placement", "repack").splitlines()
    assert lines == ["main: 0 moves would empty 0 of 2 open hosts"]
    plan = json.loads(shown(trimtab, "placement", "repack", "--json", "--budget", "3"))
    assert (plan["open_hosts"], plan["moves"]) == (2, [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("what-if", "shop=many"), "give APPLICATION or APPLICATION=COUNT"),
        (("what-if", "shop", "--policy", "best"), "give lifetime, ff, oldest, bf"),
        (("what-if", "shop=0"), "from 1 to 5000"),
        (("capacity-for", "none"), "which has: lone, shop"),
        (("capacity-for", "shop", "--pool", "west"), "choose one of: main"),
    ],
)
def test_what_cannot_be_asked_is_said(trimtab: CliRunner, arguments: tuple[str, ...], words: str) -> None:
    done = trimtab.invoke(program, ["placement", *arguments])
    assert done.exit_code == 2
    assert words in done.output


def test_status_decisions_and_explain_show_a_pool(trimtab: CliRunner) -> None:
    status = shown(trimtab, "status", "placement", "main").splitlines()
    assert figures(status[0]) == [2, 2, 0.0]
    assert "  found no host: 9 containers (limit 9)" in status
    assert json.loads(shown(trimtab, "status", "placement", "--json"))["placements"][0]["pool"] == "main"
    listed = shown(trimtab, "decisions", "placement").splitlines()
    assert listed[0].startswith("main-p1  2026-09-21")
    assert "5 x shop on large-1 x4, large-2" in listed[0]
    told = shown(trimtab, "explain", "main-p1")
    assert "Best hosts for the first container" in told
    assert "residual cores" in told
    refused = shown(trimtab, "explain", "main-p2")
    assert "Hosts that could not take" in refused


def test_status_has_the_survival_of_a_few_applications_and_the_path_of_all(
    trimtab: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = {f"a{n:04}": LifeCurve(f"a{n:04}", n, 0, None, (60.0,), (1.0,)) for n in range(5000)}
    monkeypatch.setattr("agent.placement.look.PoolQueries.curves", lambda pool: curves)
    text = shown(trimtab, "status", "placement", "--json")
    survival = json.loads(text)["placements"][0]["survival"]
    assert (survival["applications"], survival["all"]) == (5000, "/api/v1/placement/main/applications")
    assert [one["ended"] for one in survival["most_ended"]] == [4999, 4998, 4997, 4996, 4995]
    assert len(text) < 20_000


def test_status_names_the_policy_that_a_replay_of_the_record_advises(
    trimtab: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_STATE_DIRECTORY", str(tmp_path))
    costs = {"bf": (10.0, 10.0, 10.0), "oldest": (9.0, 9.5, 9.7)}
    now = time.time()
    found = PolicyAdvice("main", now - DAY_S, "bf", BF.digest, "oldest", "6.0 % fewer", now - DAY_S, 4.0, costs)
    file = leave(tmp_path / "models", found)
    lines = shown(trimtab, "status", "placement", "main").splitlines()
    assert f"  advice of {time_text(found.at)}: POLICY=oldest: 6.0 % fewer" in lines
    data = json.loads(shown(trimtab, "status", "placement", "--json"))["placements"][0]["advice"]
    assert (data["advised"], data["costs"]["oldest"]) == ("oldest", [9.0, 9.5, 9.7])
    leave(tmp_path / "models", replace(found, at=now - 8.5 * DAY_S))
    assert "; 8 days old" in shown(trimtab, "status", "placement", "main")
    assert [replace(found, at=0.0).old_days(n * DAY_S) for n in (6.9, 7.0, 7.5, 9.0)] == [0, 0, 7, 9]
    leave(tmp_path / "models", replace(found, policy="wf", policy_digest=WF.digest))
    assert json.loads(shown(trimtab, "status", "placement", "--json"))["placements"][0]["advice"] is None
    file.write_text("{}")
    assert json.loads(shown(trimtab, "status", "placement", "--json"))["placements"][0]["problem"]


def test_a_replay_is_refused_with_what_shows_the_record(trimtab: CliRunner) -> None:
    for verb in (["replay", "placement"], ["replay"]):
        done = trimtab.invoke(program, verb)
        assert (done.exit_code, "see trimtab explain" in done.output) == (2, True)


def test_the_last_decision_is_the_newest_of_any_subject_or_of_the_one_named(trimtab: CliRunner) -> None:
    assert shown(trimtab, "explain").startswith("main-p2  ")
    assert shown(trimtab, "explain", "placement/main").startswith("main-p2  ")
    done = trimtab.invoke(program, ["explain", "last", "--fleet", "web"])
    assert (done.exit_code, "neither the ledger nor the settings know a fleet" in done.output) == (2, True)
