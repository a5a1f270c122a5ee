"""Many training jobs: over processes, on Ray, and on Ray while a machine is lost."""

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.errors import BadInput, TrimtabError
from simulator import compilation
from tests.trainer.autoscaling.train.tiny_run import data_of, tiny
from tests.trainer.kit.light_work import (
    Counting,
    fail,
    refuse,
    refuse_in_two_parts,
    square_and_die_once,
    square_or_die,
)
from tests.trainer.kit.tiny_job import LOST_AT, train_marked, train_tiny
from trainer.autoscaling.ppo_runs import run
from trainer.kit import jobs
from trainer.kit.jobs import (
    Job,
    JobFailed,
    Plan,
    Planned,
    Pool,
    WorkerLost,
    Workers,
    grid_of,
    in_turn,
    run_jobs,
    seeds_of,
)

UPDATES = 40


def jobs_in(directory: Path, seeds: int) -> list[Job]:
    return [
        Job(f"seed-{seed}", {"directory": str(directory / f"seed-{seed}"), "seed": seed, "updates": UPDATES})
        for seed in range(seeds)
    ]


def test_seeds_are_numbers_and_ranges_each_once() -> None:
    assert seeds_of("0-4") == [0, 1, 2, 3, 4]
    assert seeds_of("7, 3-4,3") == [7, 3, 4]


@pytest.mark.parametrize("text", ["", "a", "4-1", "1,,2", "-3", "0-99999"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="0-4 or 1,3,8-9"):
        seeds_of(text)


def test_a_sweep_is_every_combination_in_the_order_given() -> None:
    assert grid_of([]) == [{}]
    assert grid_of(["lr=3e-4,1e-3", "network=gru, lstm"]) == [
        {"lr": "3e-4", "network": "gru"},
        {"lr": "3e-4", "network": "lstm"},
        {"lr": "1e-3", "network": "gru"},
        {"lr": "1e-3", "network": "lstm"},
    ]


@pytest.mark.parametrize("texts", [["lr"], ["=1"], ["lr="], ["lr=1,"], ["lr=1", "lr=2"]])
def test_a_sweep_of_another_form_is_refused(texts: list[str]) -> None:
    with pytest.raises(BadInput, match="--sweep is"):
        grid_of(texts)


@pytest.mark.exhaustive
def test_processes_answer_in_the_order_of_the_jobs_as_one_process_would(tmp_path: Path) -> None:
    here = [train_tiny(job.data) for job in jobs_in(tmp_path / "here", 3)]
    glances: list[float] = []
    there = run_jobs(train_tiny, jobs_in(tmp_path / "there", 3), Workers(2), lambda: glances.append(time.monotonic()))
    assert there == here
    assert len(glances) >= 1


@pytest.mark.exhaustive
def test_a_job_that_raises_is_named() -> None:
    with pytest.raises(JobFailed, match="bad one: the third law"):
        run_jobs(fail, [Job("bad one", {})], Workers())


def test_a_job_whose_process_dies_again_and_again_is_named() -> None:
    with pytest.raises(WorkerLost, match="bad one: the worker was lost 4 times"):
        run_jobs(fail, [Job("bad one", {"die": True})], Workers())


def test_a_killed_process_costs_its_items_alone(tmp_path: Path) -> None:
    # The fatal item, 3, is the last but one: only those in hand at its death may run twice.
    items = [(tmp_path, number) for number in (*range(4, 16), 3, 0)]
    with Pool(square_and_die_once, Workers(2)) as pool:
        assert list(pool.run(items)) == [number * number for _, number in items]
    attempts = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())
    # The executor has at most five items whose answers it has not read: two at work, and three in the workers' queue.
    assert attempts.count("3") == 2
    assert len(attempts) <= len(items) + 5


def test_items_that_follow_a_fatal_one_are_completed_before_it_is_given_up() -> None:
    done: dict[int, int] = {}
    with (
        Pool(square_or_die, Workers(2), name=lambda item: f"case {item}") as pool,
        pytest.raises(WorkerLost, match="case -1: "),
    ):
        done.update(pool.completed([-1, 2, 3, 4, 5]))
    assert done == {1: 4, 2: 9, 3: 16, 4: 25}


class Pretended(jobs._Processes):
    """Processes that finish one task after another, until a fatal one is among those at work: it ends at once."""

    def __init__(self, size: int, fatal: Collection[int]) -> None:
        super().__init__(square_or_die, size)
        self.fatal, self.rounds = fatal, list[list[int]]()

    def _until_a_loss(
        self, tasks: Mapping[int, Sequence[Any]], watch: Callable[[], None]
    ) -> Iterator[tuple[int, jobs.Outcome]]:
        self.rounds.append(list(tasks))
        assert len(self.rounds) < 100
        order = list(tasks)
        while order and not set(self.fatal) & set(order[: self.size]):
            yield order.pop(0), ([], None)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("fatal", [*((at,) for at in range(5)), (1, 2), (0, 4)])
def test_a_task_is_lost_by_its_own_deaths_alone(size: int, fatal: tuple[int, ...]) -> None:
    """A task that never ends before a fatal one in its company is not named, and is finished first."""
    processes = Pretended(size, fatal)
    done: dict[int, jobs.Outcome] = {}
    with pytest.raises(jobs._Lost) as lost:
        done.update(processes.completed({at: [at] for at in range(5)}, lambda: None))
    assert lost.value.task in fatal
    assert processes.rounds.count([lost.value.task]) == jobs.RETRIES + 1
    assert sorted(done) == [at for at in range(5) if at not in fatal]


def test_the_function_is_sent_to_each_process_once() -> None:
    """An object keeps its state between the calls that one process has."""
    with Pool(Counting().call, Workers(2)) as pool:
        found = list(pool.run(range(8)))
    last = dict(sorted(found, key=lambda call: call[1]))
    assert sum(last.values()) == 8


def test_processes_end_with_the_one_that_started_them() -> None:
    """Also where that one has no time to end them: its output, which they share, has an end."""
    code = (
        "import os, signal\n"
        "from tests.trainer.kit.light_work import square_or_die\n"
        "from trainer.kit.jobs import Pool, Workers\n"
        "if __name__ == '__main__':\n"
        "    with Pool(square_or_die, Workers(2)) as pool:\n"
        "        print(list(pool.run(range(8))), flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=40)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "[0, 1, 4, 9, 16, 25, 36, 49]\n"), killed.stderr


@pytest.mark.parametrize("workers", [Workers(), Workers(2)])
def test_an_error_of_the_work_comes_as_it_was_raised(workers: Workers) -> None:
    with Pool(refuse, workers) as pool, pytest.raises(BadInput) as caught:
        list(pool.run([1]))
    assert (caught.value.field, caught.value.value, caught.value.remedy) == ("number", 1, "give another")


def test_an_error_that_cannot_be_sent_is_no_lost_worker() -> None:
    with Pool(refuse_in_two_parts, Workers(2)) as pool, pytest.raises(TrimtabError, match="TwoParts: the third law of"):
        list(pool.run([1, 2]))


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_ray_on_this_machine_answers_as_one_process_would_and_names_a_job_that_raises(tmp_path: Path) -> None:
    here = [train_tiny(job.data) for job in jobs_in(tmp_path / "here", 2)]
    assert run_jobs(train_tiny, jobs_in(tmp_path / "there", 2), Workers(2, "local")) == here
    with pytest.raises(JobFailed, match="bad one: the third law"):
        run_jobs(fail, [Job("bad one", {})], Workers(1, "local"))
    with Pool(square_and_die_once, Workers(2, "local")) as pool:
        assert list(pool.run([(tmp_path, 2), (tmp_path, 3)])) == [4, 9]
    assert len(list(tmp_path.glob("3-*"))) == 2


def facts(result: dict[str, Any]) -> dict[str, Any]:
    """What of a run's outcome is not a matter of time."""
    return {name: result[name] for name in ("name", "steps", "weights_hash", "selection_cost", "model", "report")}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_losing_a_machine_of_two_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.cluster_utils import Cluster

    config = tiny(total_steps=16 * 256, evaluate_every_steps=256)

    def jobs(place: Path) -> list[Job]:
        return [
            Job(f"seed {seed}", data_of(replace(config, seed=seed), place / f"{seed}", name=f"seed {seed}"))
            for seed in range(2)
        ]

    undisturbed = [facts(run(job.data)) for job in jobs(tmp_path / "here")]
    # Ray's sockets need a short path.
    folder, memory = tempfile.mkdtemp(prefix="trimtab-ray-", dir="/tmp"), 80 * 1024 * 1024
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": memory}
    monkeypatch.setenv("RAY_TMPDIR", folder)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    there = tmp_path / "there"
    lost: list[Path] = []
    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=memory, env_vars={"TINY_NODE": "second"})

        def lose_the_second_machine() -> None:
            """Wait until its job is well under way, then take the machine away with everything on it."""
            while not lost:
                for attempts in there.glob("*/attempts"):
                    saved = [int(path.name) for path in attempts.parent.glob("checkpoints/0*")]
                    if attempts.read_text().startswith("second") and max(saved, default=0) >= LOST_AT:
                        lost.append(attempts)
                time.sleep(0.02)
            cluster.remove_node(second, allow_graceful=False)

        reaper = threading.Thread(target=lose_the_second_machine, daemon=True)
        reaper.start()
        results = run_jobs(train_marked, jobs(there), Workers(1, cluster.address))
        reaper.join(30)
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

    assert [facts(result) for result in results] == undisturbed
    first, again = lost[0].read_text().splitlines()
    assert first == "second 0"
    machine, update = again.split()
    assert machine == "first"
    assert int(update) == LOST_AT


def planned(items: list[int], *, workers: Workers, weight: Any = lambda item: 1.0) -> Plan:
    with Pool(square_or_die, workers, weight=weight) as pool, pytest.raises(Planned) as raised:
        list(pool.run(items))
    return raised.value.plan


def test_a_plan_measures_items_in_this_process_and_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of processor for each: four of five items make it 4 s, three workers need the time of two items."""
    ticks = iter(range(100))
    monkeypatch.setattr(jobs, "_cpu_s", lambda: float(next(ticks)))
    monkeypatch.setattr(jobs, "PLAN_S", 1.5)
    monkeypatch.setattr(jobs, "_Processes", None)
    plan = planned([1, 2, 3, 4, 5], workers=Workers(3, plan=True))
    assert (plan.items, plan.measured, plan.cpu_s, plan.longest_s, plan.start_s) == (5, 1, 5.0, 1.0, 0.0)
    assert (plan.wall_s(1), plan.wall_s(2), plan.wall_s(8)) == (5.0, 2.5, 1.0)
    assert plan.memory > 10_000_000


def test_a_plan_counts_items_to_come_and_weighs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(jobs, "_cpu_s", lambda: float(next(ticks)))
    plan = planned([1, 3], workers=Workers(plan=True, expected=10), weight=float)
    # One of the two is measured warm, at a second for its weight.
    assert plan.items == 10
    assert plan.cpu_s in (10 * 2.0 / 1.0, 10 * 2.0 / 3.0)


def test_the_time_of_compilation_is_that_of_the_start_and_not_of_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three items takes 300 s, of which 299 s compile; more are measured until these are PLAN_S."""
    clock, compiled = iter([0.0, 0.0, 300.0, 300.0, 301.0, 301.0, 302.0]), iter([0.0, *[299.0] * 6])
    monkeypatch.setattr(jobs, "_cpu_s", lambda: next(clock))
    monkeypatch.setattr(compilation, "compilation_timed", lambda: nullcontext(lambda: next(compiled)))
    plan = planned([1, 2, 3], workers=Workers(plan=True))
    assert (plan.measured, plan.cpu_s, plan.longest_s, plan.start_s) == (2, 3.0, 1.0, 299.0)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_without_a_cluster_is_refused_before_ray_waits_for_it(address: str) -> None:
    with pytest.raises(BadInput) as refused, jobs._connected(address, 1):
        pass
    assert (refused.value.field, refused.value.value) == ("--ray", address)


def test_plans_of_several_parts_are_added() -> None:
    def work(part: list[int]) -> int:
        with Pool(square_or_die, Workers(plan=True)) as pool:
            return sum(pool.run(part))

    with pytest.raises(Planned) as raised:
        in_turn(work, [[1, 2], [3], []])
    assert raised.value.plan.items == 3
    assert in_turn(len, [[1, 2], [3]]) == [2, 1]
