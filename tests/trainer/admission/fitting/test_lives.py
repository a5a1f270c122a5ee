"""Deployments that live alone do as in the simulator, and a table made of them tells what they did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domain.rules.admission.population import POPULATIONS
from simulator.admission import PRESETS, Rule, draw_run, play
from simulator.admission.engine import ADMITTED, CORE_ENDED, SCALED, SHUT_DOWN
from simulator.admission.streams import key_of
from trainer.admission.fitting.histories import histories_of, read_vm_table
from trainer.admission.fitting.lives import Deployments, cores_of, drawn_from, lives_of, uniforms, write_table
from trainer.admission.fitting.report import facts_of


@pytest.mark.parametrize("preset", ["T", "H", "K"])
def test_each_does_what_it_does_in_the_simulator_while_nothing_is_refused(preset: str) -> None:
    run = draw_run(replace(PRESETS[preset], capacity=10**6), 3, hours=300.0)
    rows, log = run.arrivals, play(run, Rule("zeroth", 1e9), log=400_000).log
    assert len(log) < 400_000
    keys = np.array([key_of(np.uint64(3), stream) for stream in rows["stream"]], dtype=np.uint64)
    drawn = Deployments(rows["mu"], rows["theta"], rows["sig"], rows["size"], keys, 300.0 - rows["time"])
    lives = lives_of(drawn, PRESETS[preset].population.lifetimes)
    peak, size = np.zeros(len(rows), dtype=int), np.zeros(len(rows), dtype=int)
    activated, ended = np.zeros(len(rows), dtype=int), np.zeros(len(rows), dtype=int)
    for _, number, kind, cores, _ in log.tolist():
        change = {ADMITTED: cores, SCALED: cores, CORE_ENDED: -1, SHUT_DOWN: -cores}[kind]
        size[number] += change
        peak[number] = max(peak[number], size[number])
        (activated if change > 0 else ended)[number] += abs(change)
    assert lives.peak.tolist() == peak.tolist()
    assert lives.activated.tolist() == activated.tolist()
    assert lives.ended.tolist() == ended.tolist()
    assert lives.dead.tolist() == (size == 0).tolist()
    asked = log[log["kind"] == SCALED]["deployment"]
    assert lives.scale_outs.tolist() == np.bincount(asked, minlength=len(rows)).tolist()


def test_the_facts_of_preset_t_are_those_it_was_matched_to() -> None:
    generator = np.random.default_rng(0)
    drawn = drawn_from(POPULATIONS["T"], uniforms(100_000, 5), 720.0 * generator.random(100_000), 5)
    lives = lives_of(drawn, POPULATIONS["T"].lifetimes)
    facts = facts_of(lives)
    assert facts.cores_activated == pytest.approx(148.5, rel=0.04)
    assert facts.ended_share == pytest.approx(0.9746, abs=0.002)
    assert facts.dead_share == pytest.approx(0.755, abs=0.01)
    assert np.mean(lives.last_cores[lives.dead] >= 6) == pytest.approx(0.276, abs=0.02)
    assert facts.cores_at_end == pytest.approx(3.77, rel=0.05)
    assert sum(facts.core_hours_by_class) == pytest.approx(1.0)


def test_every_core_is_accounted_for() -> None:
    drawn = drawn_from(POPULATIONS["H"], uniforms(300, 1), np.full(300, 200.0), 1)
    lives = lives_of(drawn, 25.6)
    owner, began, over = cores_of(drawn, 25.6)
    held = np.minimum(over, 200.0) - began
    assert np.all(held >= 0.0)
    assert np.bincount(owner, weights=held, minlength=300) == pytest.approx(lives.core_hours, rel=1e-9, abs=1e-9)
    assert np.bincount(owner, weights=np.isfinite(over), minlength=300).tolist() == lives.ended.tolist()
    last = np.zeros(300)
    np.maximum.at(last, owner, over)
    at_last = np.bincount(owner, weights=over == last[owner], minlength=300)
    assert at_last[lives.dead].tolist() == lives.last_cores[lives.dead].tolist()


def test_a_table_made_to_the_second_is_read_back_as_it_happened(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = write_table(path, POPULATIONS["T"], 400, seed=2, grid_s=1)
    table = read_vm_table(path)
    histories = histories_of(table)
    assert (len(table.cores), table.rejected) == (rows, {})
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([2, 2])))
    hours = 720.0 - np.sort(generator.random(400)) * 720.0
    lives = lives_of(drawn_from(POPULATIONS["T"], uniforms(400, 2), hours, 2), POPULATIONS["T"].lifetimes)
    assert len(histories) == 400
    assert histories.activated.tolist() == lives.activated.tolist()
    assert histories.hours[~lives.dead] == pytest.approx(hours[~lives.dead], abs=1e-3)
    # To the second, ties are rare: hardly any request or peak is found wrongly.
    assert np.mean(histories.scale_outs == lives.scale_outs) > 0.98
    assert np.mean(histories.peak == lives.peak) > 0.9
    assert np.mean(histories.last_cores == lives.last_cores) > 0.99
    assert histories.core_hours.sum() == pytest.approx(lives.core_hours.sum(), rel=1e-3)


def test_the_same_seed_makes_the_same_table(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("first.csv", "again.csv", "other.csv"))
    for path, seed in ((first, 7), (again, 7), (other, 8)):
        write_table(path, POPULATIONS["K"], 20, seed=seed)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
