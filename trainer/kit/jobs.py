"""Runs many training jobs: over the cores of this machine, or on a Ray cluster that may lose machines on the way.

A job is plain data, its work a function of a module that every process can import. On Ray a job whose machine is lost
starts again on another one and goes on from its last checkpoint, so the outcome is that of an undisturbed run; for that
its directory must be on storage that every machine sees.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from domain.errors import BadInput, TrimtabError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

LOCAL = "local"
RETRIES = 5
"""How often Ray starts a job again whose machine was lost."""
GLANCE_S = 0.5
"""How often `watch` is called while jobs run."""
OBJECT_STORE_BYTES = 100 * 1024 * 1024
"""Jobs and their answers are small."""

Work = Callable[[Mapping[str, Any]], dict[str, Any]]
Watch = Callable[[], None]
OnAnswer = Callable[["Job", dict[str, Any]], None]
"""Called with each answer as it comes."""


class JobFailed(TrimtabError):
    """A job raised an error, or its machines were lost too often; the message names it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of the work: a name for messages, and the plain data it is called with."""

    name: str
    data: Mapping[str, Any]


def seeds_of(text: str) -> list[int]:
    """Return the seeds of `0-4` or `1,3,8-9`, each once; BadInput otherwise."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < first + 1000:
            raise BadInput("--seeds", text, "give whole numbers and ranges, such as 0-4 or 1,3,8-9")
        seeds.update(dict.fromkeys(range(first, last + 1)))
    return list(seeds)


def grid_of(sweeps: Sequence[str]) -> list[dict[str, str]]:
    """Return every combination of `field=value,value` texts as fields to values; one empty one without any.

    Raises BadInput for a text of another form or a field named twice.
    """
    axes: dict[str, list[str]] = {}
    for text in sweeps:
        name, equals, rest = text.partition("=")
        values = [value.strip() for value in rest.split(",")]
        if not equals or not name.strip() or not all(values):
            raise BadInput("--sweep", text, "give FIELD=VALUE,VALUE,... such as learning_rate=3e-4,1e-3")
        if name.strip() in axes:
            raise BadInput("--sweep", text, "give each field once, with all its values")
        axes[name.strip()] = list(dict.fromkeys(values))
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def in_processes(
    work: Work, jobs: Sequence[Job], workers: int, watch: Watch | None = None, *, on_answer: OnAnswer | None = None
) -> list[dict[str, Any]]:
    """Return the answers in the order of the jobs, worked out by so many processes of one thread each.

    `watch` is called from time to time meanwhile, `on_answer` with each answer as it comes. Raises JobFailed;
    jobs that have not begun are then dropped.
    """
    answers: dict[int, dict[str, Any]] = {}
    with _one_thread_each(), _pool(min(workers, len(jobs))) as pool:
        places: dict[Future[dict[str, Any]], int] = {pool.submit(work, job.data): at for at, job in enumerate(jobs)}
        waiting = set(places)
        while waiting:
            done, waiting = wait(waiting, timeout=GLANCE_S, return_when=FIRST_COMPLETED)
            for future in done:
                job = jobs[places[future]]
                answers[places[future]] = _answer(job, future.result)
                if on_answer is not None:
                    on_answer(job, answers[places[future]])
            if watch is not None:
                watch()
    return [answers[at] for at in range(len(jobs))]


def on_ray(
    work: Work,
    jobs: Sequence[Job],
    address: str,
    *,
    workers: int | None = None,
    watch: Watch | None = None,
    on_answer: OnAnswer | None = None,
    retries: int = RETRIES,
) -> list[dict[str, Any]]:
    """Return the answers in the order of the jobs, worked out on a Ray cluster, one core each.

    address: `local` for a cluster of this machine alone (of `workers` cores, all of them when None), or that of one
    that is running, such as `10.0.0.5:6379`. A job whose machine is lost starts again up to `retries` times, and must
    itself go on from its last checkpoint. Raises JobFailed; BadInput when no cluster answers at the address.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    answers: dict[int, dict[str, Any]] = {}
    with _connected(address, workers):
        remote = ray.remote(num_cpus=1, max_retries=retries)(work)
        places = {remote.remote(job.data): at for at, job in enumerate(jobs)}
        waiting = list(places)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=GLANCE_S)
            for reference in done:
                job = jobs[places[reference]]
                try:
                    answers[places[reference]] = ray.get(reference)
                except RayTaskError as error:
                    raise JobFailed(f"{job.name}: {error.cause or error}") from error
                except RayError as error:
                    first = str(error).strip().splitlines()[0]
                    raise JobFailed(f"{job.name}: its machine was lost more than {retries} times: {first}") from error
                if on_answer is not None:
                    on_answer(job, answers[places[reference]])
            if watch is not None:
                watch()
    return [answers[at] for at in range(len(jobs))]


class Pool(Generic[Item, Answer]):
    """Runs a function of a module over items, here or in so many processes; answers come in the order of the items."""

    def __init__(self, work: Callable[[Item], Answer], workers: int = 1) -> None:
        self._work = work
        # Spawned: a forked process would inherit the threads of ONNX Runtime and numba in the middle of what they do.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(max_workers=workers, mp_context=context) if workers > 1 else None

    def run(self, items: Sequence[Item], chunk: int = 1) -> Iterator[Answer]:
        """Yield the answers; chunk: items that are handed to a process together."""
        if self._pool is None:
            return map(self._work, items)
        return self._pool.map(self._work, items, chunksize=chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(max_workers=workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _answer(job: Job, result: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return result()
    except BrokenProcessPool:
        raise JobFailed(f"{job.name}: its process died (out of memory?): run it again with --resume") from None
    except Exception as error:
        raise JobFailed(f"{job.name}: {error}") from error


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let the processes started meanwhile use one thread: two on a shared core are far slower than one."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _connected(address: str, workers: int | None) -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    # Sockets live in it, and their paths may not be long.
    folder = tempfile.mkdtemp(prefix="trimtab-ray-", dir="/tmp") if address == LOCAL else None
    own: dict[str, Any] = {}
    if folder is not None:
        own = {
            "num_cpus": workers,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "_temp_dir": folder,
        }
    try:
        ray.init(address=address, log_to_driver=False, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise BadInput("--ray", address, f"{first}; give local, or HOST:PORT of a cluster that is running") from None
    try:
        yield
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
