"""A recording as files: the way there and back, gaps and boots in the side file, worlds that say what they rest on."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.autoscaling.minutes import Boot, JobLengths
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.rehearsal.virtual_time import DEFAULT, Rehearsal, quiet_logs
from domain.fleet import Fleet, VmType
from domain.units import MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import Measures
from simulator.autoscaling.world_file import preset, read_world, world_named
from simulator.workloads.named import load_trace, workload_of
from tests.trainer.learning.recordings import (
    CONTEXT,
    FLEET,
    GROUPS,
    START_S,
    minute,
    recording,
    traces,
    without,
    world_of,
    written,
)
from tests.trainer.learning.steps import trimtab
from trainer.learning.exported import export_trace, export_world
from trainer.learning.minutes import read_record
from trainer.learning.recorded import read_recorded
from trainer.learning.subject import learner_of

MINUTES = 100
WORLD: SimulationConfig = preset(
    "live-like", limits=(30, 4, 2), boot_low_s=71.0, boot_high_s=71.0, integral_penalty=True
)


def known_trace() -> Trace:
    """Jobs of 20 to 100 s, forty at once every 25 minutes among a few each minute."""
    rng = np.random.default_rng(5)
    arrivals = np.concatenate(
        [np.sort(rng.uniform(0.0, 60.0 * MINUTES - 600.0, 300)), *(np.full(60, 1500.0 * k) for k in range(4))]
    )
    return make_trace("known", arrivals, rng.uniform(20.0, 100.0, arrivals.size))


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace, Measures]:
    """The ledger of a rehearsal in virtual time, the trace that was played, and what the simulator measured."""
    folder, trace = tmp_path_factory.mktemp("rehearsed"), known_trace()
    with quiet_logs():
        played = Rehearsal(
            "queue-rule:horizon_s=60",
            trace,
            WORLD,
            DEFAULT,
            ModelShelf(folder),
            folder / "ledger.db",
            hours=MINUTES / 60,
            idle_s=60.0,
            typical_job_core_s=60.0,
        )
        measures = played.run("default").measures
        played.close()
    return folder / "ledger.db", trace, measures


@pytest.mark.exhaustive
def test_what_was_played_comes_back_jobs_per_minute_lengths_and_boots(rehearsed: tuple[Path, Trace, Measures]) -> None:
    path, trace, _ = rehearsed
    recorded = read_recorded(str(path), "web")
    (found,) = traces(recorded)
    # The recording begins a minute before the trace; decisions fall five seconds after a minute, and a job is counted
    # with the next of the reports that come every ten seconds.
    ends = np.arange(0.0, MINUTE_S * MINUTES, MINUTE_S)
    there, _ = np.histogram(np.ceil(trace.arrival_s / 10.0) * 10.0 + MINUTE_S + 5.0, ends)
    back, _ = np.histogram(found.trace.arrival_s, ends)
    assert back.tolist() == there.tolist()
    assert found.trace.jobs == trace.jobs
    assert found.gaps_s == ()
    assert found.trace.service_s.mean() == pytest.approx(trace.service_s.mean(), rel=0.05)
    shares = [0.1, 0.5, 0.9]
    assert np.quantile(found.trace.service_s, shares) == pytest.approx(np.quantile(trace.service_s, shares), rel=0.1)
    assert found.boots is not None
    boots = [seconds for group in found.boots for seconds in group]
    assert len(boots) >= 20
    # Reports come every ten seconds: a boot is seen up to so much later.
    assert all(71.0 <= seconds <= 81.0 for seconds in boots)
    world = world_of(recorded, preset("live-like"))
    assert all(66.0 <= low <= high <= 76.0 for low, high in world.boot_ranges_s)
    assert (world.types, world.limits, world.minimum) == (WORLD.types, WORLD.limits, WORLD.minimum)
    assert world.cooldown_s == DEFAULT.limits.cooldown_out_s


def test_a_round_of_learning_boots_vms_as_they_booted(rehearsed: tuple[Path, Trace, Measures], tmp_path: Path) -> None:
    path, _, _ = rehearsed
    record = read_record(str(path), "web", 28.0)
    shelf = ModelShelf(tmp_path)
    learner = learner_of(record, None, shelf, 120.0)
    assert learner.config.boot_quantiles_s == record.boots
    # Half the interval of reports less than what was measured, see above.
    assert all(66.0 <= seconds <= 76.0 for points in record.boots for seconds in points)
    of_world = learner_of(record, "live-like", shelf, 120.0).config
    assert of_world.boot_quantiles_s != record.boots


@pytest.mark.exhaustive
def test_the_recorded_cost_is_that_of_the_simulator(rehearsed: tuple[Path, Trace, Measures]) -> None:
    path, _, measures = rehearsed
    (found,) = traces(read_recorded(str(path), "web"))
    assert found.rent == pytest.approx(measures.rent, rel=0.05)
    assert found.waiting_cost == pytest.approx(measures.penalty, rel=0.05)


@pytest.mark.parametrize("name", ["web.csv", "web.csv.gz"])
def test_an_exported_trace_is_a_saved_trace(tmp_path: Path, name: str) -> None:
    lengths = JobLengths(60.0, 20.0, 50.0, 100.0, 200.0)
    recorded = recording(minute(n, 3, lengths=lengths) for n in range(2000))
    side = export_trace(recorded, tmp_path / name, "1", {"fleet": "web"})
    back = load_trace(tmp_path / name)
    assert (back.jobs, side["jobs"], back.name) == (6000, 6000, "web")
    assert workload_of(str(tmp_path / name)).digest == back.digest
    whole = traces(recorded)
    assert back.arrival_s[:5].tolist() == whole[0].trace.arrival_s[:5].tolist()
    assert back.work_core_s == pytest.approx(sum(one.trace.work_core_s for one in whole), rel=1e-5)
    assert back.arrival_s[-1] == pytest.approx(2000 * 60.0 - 10.0)


def test_the_same_recording_gives_the_same_file(tmp_path: Path) -> None:
    recorded = recording(minute(n, 2, 60.0) for n in range(10))
    digests = [export_trace(recorded, tmp_path / f"{n}.csv.gz", "1", {})["sha256"] for n in range(2)]
    assert digests[0] == digests[1]


def test_gaps_boots_and_losses_stand_in_the_side_file(tmp_path: Path) -> None:
    minutes = [minute(n, 1, 60.0) for n in range(6)]
    minutes[2] = without(minutes[2], "queue")
    minutes[3] = replace(minutes[3], boots=(Boot(1, 70.0),), interrupted={0: 2}, refused={1: 1}, lost_core_s=7.0)
    side = export_trace(recording(minutes), tmp_path / "t.csv", "1", {})
    assert json.loads((tmp_path / "t.csv.json").read_text()) == side
    found = side["recorded"]
    assert found["gaps_s"] == [[120.0, 180.0]]
    assert found["boots_s"] == {"s": {"count": 0}, "l": {"count": 1, "quantiles": [70.0] * 11}}
    assert (found["spot_notices"], found["refusals_by_aws"]) == ({"s": 2, "l": 0}, {"s": 0, "l": 1})
    assert (found["lost_core_s"], found["duration_s"], found["lengths"]) == (7.0, 360.0, "means, at least in part")


def test_after_the_clock_was_set_back_jobs_go_on_where_they_ended(tmp_path: Path) -> None:
    minutes = [minute(0, 1, 60.0), minute(1, 1), replace(minute(2, 1), end_s=START_S - 7200.0)]
    export_trace(recording(minutes), tmp_path / "t.csv", "1", {})
    assert load_trace(tmp_path / "t.csv").arrival_s.tolist() == [30.0, 90.0, 150.0]


def test_an_export_without_jobs_writes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.db", [minute(0, 0, 60.0), minute(1, 0, 60.0)])
    done = trimtab("trace", "from-ledger", path, "--fleet", "web", "--out", tmp_path / "t.csv.gz")
    assert (done.exit_code, "has no jobs" in done.output) == (2, True)
    assert [file.name for file in tmp_path.glob("*t.csv*")] == []


def test_a_span_is_exported_by_a_command_and_says_what_it_holds(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.db", (minute(n, 1, 60.0, boots=(Boot(0, 66.0),)) for n in range(300)))
    out = tmp_path / "t.csv.gz"
    done = trimtab(
        "trace", "from-ledger", path, "--fleet", "web", "--out", out, "--until", "2026-02-25T08:16", "--json"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["jobs"], found["boots"], found["gaps_s"]) == (121, {"s": 121, "l": 0}, 0.0)
    assert trimtab("trace", "check", out).exit_code == 0
    again = trimtab("trace", "from-ledger", path, "--fleet", "web", "--out", out)
    assert (again.exit_code, "it exists" in again.output) == (2, True)


def test_a_world_is_exported_by_a_command_and_says_what_it_rests_on(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.db", (minute(n, 1, 60.0, boots=(Boot(0, 66.0),)) for n in range(30)))
    done = trimtab("world", "from-ledger", path, "--fleet", "web", "--out", tmp_path / "web.toml")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "web.toml").read_text()
    assert "of s: measured, of 30" in text
    assert "30 boots: it has 0" in text
    assert "# Assumed: removal" in text
    assert tomllib.loads(text)["version"] == 1
    world = read_world(tmp_path / "web.toml").config
    assert (world.boot_ranges_s[0], world.limits, world.cooldown_s) == ((61.0, 61.0), (4, 3), 300.0)


def test_two_groups_of_one_type_are_two_types_of_the_world(tmp_path: Path) -> None:
    same = VmType("m5a.large", 2, 8.0, 0.03)
    context = replace(CONTEXT, fleet=Fleet("web", (GROUPS[0], replace(GROUPS[1], vm_type=same))))
    recorded = recording([minute(0, 1, 60.0, context=context)])
    made, _ = export_world(recorded, tmp_path / "w.toml", world_named("live-like"))
    assert [kind.name for kind in made.config.types] == ["m5a.large s", "m5a.large l"]
    assert read_world(tmp_path / "w.toml").config == made.config


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("trace", "--out", "t.json"), "end the file's name with one of .csv, .csv.gz"),
        (("world", "--out", "t.csv"), "end the file's name with one of .toml"),
        (("trace", "--out", "t.csv", "--since", "2026-03-02", "--until", "2026-03-01"), "give a time after --since"),
        (("trace", "--out", "t.csv", "--fleet", "api"), "has web"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_a_remedy(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    path = written(tmp_path / "ledger.db", [minute(0, 1, 60.0)])
    verb, *options = [str(tmp_path / word) if word.startswith("t.") else word for word in words]
    fleet = () if "--fleet" in options else ("--fleet", FLEET.name)
    done = trimtab(verb, "from-ledger", path, *fleet, *options)
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())
