"""Runs a function over many items: here, in processes, or on a Ray cluster; a lost worker costs its items only.

An item is plain data, the work a function of a module that every process can import. The answers do not depend on where
they were computed. An item whose process or machine is lost starts again on another one. A training run then continues
from its last checkpoint; for that its directory must be on storage that every machine sees.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import re
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from importlib.util import find_spec
from operator import add
from random import Random
from statistics import fmean
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar
from uuid import uuid4

from domain.errors import BadInput, TrimtabError, install_command
from trainer.kit.answers import AnswerFile, keys_of
from trainer.kit.progress import write_line

Item = TypeVar("Item")
Answer = TypeVar("Answer")

LOCAL = "local"
RETRIES = 3
"""How often an item starts again whose process or machine was lost."""
GLANCE_S = 0.5
"""How often `watch` is called while items run."""
TASKS_PER_WORKER = 8
"""Tasks into which many small items are grouped for each worker: few enough to be cheap, enough to end together."""
PLAN_S = 10.0
"""CPU seconds for which a plan measures."""
REACHED_WITHIN_S = 10.0
"""A cluster that takes no connection for so long is not there."""
OBJECT_STORE_BYTES = 100 * 1024 * 1024
"""Items and their answers are small."""

Work = Callable[[Mapping[str, Any]], dict[str, Any]]
Watch = Callable[[], None]


class WorkerLost(TrimtabError):
    """The worker of an item was lost more than RETRIES times, or that of a job; the message names it."""


class JobFailed(TrimtabError):
    """A job raised an error; the message names it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of the work: a name for messages, and the plain data it is called with."""

    name: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Workers:
    """Where items run: in `count` processes of this machine (1: in this process), or on a Ray cluster.

    ray: `local` for a cluster of this machine alone, of `count` cores, or the address of one that is running, such as
    `10.0.0.5:6379`, all of whose cores are used. answers: of finished items, which are not computed again. plan: items
    are not run: a few are measured, and Planned is raised. expected: items in all of a pool that is given them in
    several lists, for its plan.
    """

    count: int = 1
    ray: str | None = None
    answers: AnswerFile | None = None
    plan: bool = False
    expected: int | None = None


HERE = Workers()


@dataclass(frozen=True, slots=True)
class Plan:
    """How much work some items are: CPU seconds of all and of the longest, measured on a few of them in this process.

    finished: items whose answers are stored already, not among `items`. start_s: CPU seconds before the first item of a
    worker: it loads and compiles. memory: of one worker, bytes.
    """

    items: int
    finished: int
    measured: int
    cpu_s: float
    longest_s: float
    start_s: float
    memory: int

    def __add__(self, other: Plan) -> Plan:
        return Plan(
            self.items + other.items,
            self.finished + other.finished,
            self.measured + other.measured,
            self.cpu_s + other.cpu_s,
            max(self.longest_s, other.longest_s),
            max(self.start_s, other.start_s),
            max(self.memory, other.memory),
        )

    def wall_s(self, workers: int) -> float:
        """Return about how long this number of workers takes, with a core for each."""
        return self.start_s + max(self.cpu_s / workers, self.longest_s)


class Planned(Exception):
    """Raised in place of answers where a plan is asked for."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.plan = plan


def in_turn(work: Callable[[Item], Answer], parts: Iterable[Item]) -> list[Answer]:
    """Return the answer of each part; where plans are asked for, Planned is raised with the sum of those of all."""
    answers: list[Answer] = []
    plans: list[Plan] = []
    for part in parts:
        try:
            answers.append(work(part))
        except Planned as planned:
            plans.append(planned.plan)
    if plans:
        raise Planned(reduce(add, plans))
    return answers


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


class Pool(Generic[Item, Answer]):
    """Workers that call one function for items; a context manager, which starts and ends them.

    The function is sent to each worker once, so a method of a large object is cheap to call. name: of an item, for
    messages. weight: about how much work an item is compared with another one, for plans. apart: one worker is a
    process too. An error of the function is raised as it is.
    """

    def __init__(
        self,
        work: Callable[[Item], Answer],
        workers: Workers = HERE,
        *,
        name: Callable[[Item], str] = lambda item: "an item",
        weight: Callable[[Item], float] = lambda item: 1.0,
        apart: bool = False,
    ) -> None:
        self._work, self._workers, self._name, self._weight, self._apart = work, workers, name, weight, apart
        self._stack = ExitStack()
        self._executor: _Executor | None = None
        self._finished = 0

    def run(self, items: Sequence[Item], chunk: int | None = 1) -> Iterator[Answer]:
        """Yield the answers in the order of the items.

        chunk: items of one task; None: as many as give each worker TASKS_PER_WORKER tasks. Raises WorkerLost.
        """
        early: dict[int, Answer] = {}
        due = 0
        for at, answer in self.completed(items, chunk):
            early[at] = answer
            while due in early:
                yield early.pop(due)
                due += 1

    def completed(
        self, items: Sequence[Item], chunk: int | None = 1, watch: Watch = lambda: None
    ) -> Iterator[tuple[int, Answer]]:
        """Yield index and answer of each item as it is completed; chunk as in `run`. Raises WorkerLost.

        watch: called from time to time.
        """
        store, remaining, keys = self._workers.answers, dict(enumerate(items)), dict[int, bytes]()
        if store is not None:
            keys = dict(enumerate(keys_of(self._work, items)))
            known = {at: found for at, key in keys.items() if (found := store.find(key)) is not None}
            remaining = {at: item for at, item in remaining.items() if at not in known}
            self._finished += len(known)
            yield from ((at, answer) for at, (answer,) in known.items())
        if self._workers.plan:
            missing = [*remaining.values()] or items
            count = max(len(remaining), (self._workers.expected or 0) - self._finished)
            raise Planned(_plan(self._work, missing, self._weight, count, self._finished))
        for at, answer in self._computed(remaining, chunk, watch):
            if store is not None:
                store.add(keys[at], answer)
            self._finished += 1
            yield at, answer

    def _computed(self, items: Mapping[int, Item], chunk: int | None, watch: Watch) -> Iterator[tuple[int, Answer]]:
        if self._executor is None:
            for at, item in items.items():
                yield at, self._work(item)
                watch()
            return
        size = chunk or max(1, len(items) // (TASKS_PER_WORKER * self._executor.size))
        order = list(items)
        parts = {start: order[start : start + size] for start in range(0, len(order), size)}
        tasks = {start: [items[at] for at in part] for start, part in parts.items()}
        try:
            for start, (answers, error) in self._executor.completed(tasks, watch):
                yield from zip(parts[start], answers, strict=error is None)
                if error is not None:
                    raise error
        except _Lost as lost:
            names = ", ".join(map(self._name, tasks[lost.task]))
            raise WorkerLost(
                f"{names}: the worker was lost {RETRIES + 1} times ({lost.reason}). "
                f"{self._finished} cases are finished. Run it again, with --resume where the command has it:"
                " those cases are not repeated"
            ) from None

    def __enter__(self) -> Self:
        if self._workers.plan:
            return self
        if self._workers.ray is not None:
            self._stack.enter_context(_connected(self._workers.ray, self._workers.count))
            self._executor = _OnRay(self._work)
        elif self._workers.count > 1 or self._apart:
            self._executor = self._stack.enter_context(_Processes(self._work, self._workers.count))
        return self

    def __exit__(self, *_: object) -> None:
        self._executor = None
        self._stack.close()


def run_jobs(work: Work, jobs: Sequence[Job], workers: Workers, watch: Watch = lambda: None) -> list[dict[str, Any]]:
    """Return the answers in the order of the jobs, each computed by a worker that is not this process.

    watch: called from time to time meanwhile. Raises JobFailed and WorkerLost; jobs that have not begun are then
    dropped. BadInput when no Ray cluster answers.
    """
    with Pool(partial(_of_job, work), workers, name=lambda job: job.name, apart=True) as pool:
        answers = dict(pool.completed(jobs, watch=watch))
    return [answers[at] for at in range(len(jobs))]


def _plan(
    work: Callable[[Any], Any], items: Sequence[Any], weight: Callable[[Any], float], count: int, finished: int
) -> Plan:
    """Measure some items, drawn at random: for PLAN_S in all without compilation, at least the first."""
    from simulator.compilation import compilation_timed

    start_s, found = _cpu_s(), list[tuple[float, float]]()
    with compilation_timed() as compiled_s:
        for item in Random(0).sample(items, len(items)) if count else ():
            before = _cpu_s() - compiled_s()
            work(item)
            found.append((max(0.0, _cpu_s() - compiled_s() - before), weight(item)))
            if sum(cpu_s for cpu_s, _ in found) > PLAN_S:
                break
        start_s += compiled_s()
    # The first call loads.
    warm = found[1:] or found
    rate = sum(cpu_s for cpu_s, _ in warm) / sum(one for _, one in warm) if warm else 0.0
    weights = [weight(item) for item in items] or [0.0]
    start_s += max(0.0, found[0][0] - rate * found[0][1]) if found else 0.0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Plan(count, finished, len(warm), rate * count * fmean(weights), rate * max(weights), start_s, memory)


def _cpu_s() -> float:
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system


def _of_job(work: Work, job: Job) -> dict[str, Any]:
    try:
        return work(job.data)
    except Exception as error:
        raise JobFailed(f"{job.name}: {error}") from error


# Executors. A task is some items that one worker computes together, by the index of the first.

Outcome = tuple[list[Any], Exception | None]
"""The answers of a task's items up to the first error, and that error."""


class _Lost(Exception):
    """The worker of this task was lost too often."""

    def __init__(self, task: int, reason: str) -> None:
        super().__init__(task, reason)
        self.task, self.reason = task, reason


class _Executor(Protocol):
    @property
    def size(self) -> int:
        """Number of workers."""

    def completed(self, tasks: Mapping[int, Sequence[Any]], watch: Watch) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcome of each task as it is completed. Raises _Lost."""


_work: dict[str, Callable[[Any], Any]] = {}
"""The function of this worker by the key of its pool, at most one."""


def _set_work(key: str, content: bytes) -> None:
    if key not in _work:
        _work.clear()
        _work[key] = pickle.loads(content)


def _end_after(wait: Callable[[], object]) -> None:
    def follow() -> NoReturn:
        wait()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def end_with_input() -> None:
    """End this process when its standard input ends: the process that writes there ended, perhaps by SIGKILL."""
    _end_after(lambda: os.read(0, 1))


def _begin(key: str, content: bytes) -> None:
    """Prepare a process that ends when the process that started it does, also by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    _end_after(parent.join)
    _set_work(key, content)


def _outcome(items: Sequence[Any]) -> Outcome:
    (work,) = _work.values()
    answers: list[Any] = []
    try:
        answers.extend(map(work, items))
    except Exception as error:
        try:
            # An error whose class takes other arguments than its message cannot be read where it arrives.
            pickle.loads(pickle.dumps(error))
        except Exception:
            return answers, TrimtabError(f"{type(error).__name__}: {error}")
        return answers, error
    return answers, None


def _outcome_on_ray(key: str, content: bytes, items: Sequence[Any]) -> Outcome:
    _set_work(key, content)
    return _outcome(items)


class _Processes:
    """Processes of one thread each. The death of one ends them all: then they start again with the remaining tasks."""

    def __init__(self, work: Callable[[Any], Any], size: int) -> None:
        self._content, self.size = pickle.dumps(work), size
        self._pool: ProcessPoolExecutor | None = None

    def completed(self, tasks: Mapping[int, Sequence[Any]], watch: Watch) -> Iterator[tuple[int, Outcome]]:
        left, losses, alone = dict(tasks), Counter[int](), False
        while left:
            first, before = next(iter(left)), len(left)
            if losses[first] > RETRIES:
                # Every other task is finished, or fatal too.
                raise _Lost(first, "its process died, perhaps for want of memory")
            alone = alone or before == 1
            for at, outcome in self._until_a_loss({first: left[first]} if alone else left, watch):
                del left[at]
                yield at, outcome
            if not left:
                return
            if alone and first not in left:
                alone = False
                continue
            write_line(f"a worker process died: {len(left)} of {len(tasks)} tasks remain and start again")
            # Of several tasks that were at work one is the cause: only a loss of a task that ran alone counts.
            losses[first] += alone
            # Tasks that were running at the loss go last, so that one of them cannot stop the others again and again.
            for at in list(left)[: 1 if alone else self.size]:
                left[at] = left.pop(at)
            alone = len(left) == before

    def _until_a_loss(self, tasks: Mapping[int, Sequence[Any]], watch: Watch) -> Iterator[tuple[int, Outcome]]:
        if self._pool is None:
            # Spawned: a forked process would inherit threads of ONNX Runtime and numba in the middle of their work.
            self._pool = ProcessPoolExecutor(
                self.size,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(uuid4().hex, self._content),
            )
        waiting: set[Future[Outcome]] = set()
        places: dict[Future[Outcome], int] = {}
        try:
            for at, items in tasks.items():
                places[self._pool.submit(_outcome, items)] = at
            waiting = set(places)
            while waiting:
                done, waiting = wait(waiting, timeout=GLANCE_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield places[future], future.result()
                watch()
        except BrokenProcessPool:
            self._end()
        finally:
            for future in waiting:
                future.cancel()

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Self:
        self._threads = os.environ.get("OMP_NUM_THREADS")
        # Two threads on a shared core are far slower than one.
        os.environ["OMP_NUM_THREADS"] = "1"
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = self._threads
        self._end()


class _OnRay:
    """The cores of a Ray cluster, one for each task. Ray starts the tasks of a lost machine again."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        import ray

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.size = max(1, int(resources.get("CPU", 1)))
        self._key, self._content = uuid4().hex, ray.put(ray.cloudpickle.dumps(work))  # type: ignore[no-untyped-call]
        self._remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_outcome_on_ray)

    def completed(self, tasks: Mapping[int, Sequence[Any]], watch: Watch) -> Iterator[tuple[int, Outcome]]:
        import ray
        from ray.exceptions import RayError

        places = {self._remote.remote(self._key, self._content, items): at for at, items in tasks.items()}
        waiting = list(places)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=GLANCE_S)
            for reference in done:
                try:
                    outcome = ray.get(reference)
                except RayError as error:
                    raise _Lost(places[reference], str(error).strip().splitlines()[0]) from error
                yield places[reference], outcome
            watch()


def _refuse_unless_reached(address: str) -> None:
    """Raise BadInput unless something listens at HOST:PORT: Ray itself would try without end."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    remedy = "give local, or HOST:PORT of a cluster that is running"
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise BadInput("--ray", address, remedy)
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_WITHIN_S).close()
    except OSError as error:
        raise BadInput("--ray", address, f"it cannot be reached ({error}); {remedy}") from None


@contextmanager
def _connected(address: str, count: int) -> Iterator[None]:
    """Connect to the cluster at an address, or to one of this machine with that number of cores; BadInput."""
    if find_spec("ray") is None:
        raise BadInput("--ray", address, f"ray is missing: {install_command('distributed')}, or leave it out")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    if ray.is_initialized():
        # Inside a task of a cluster: the items are tasks of the same cluster. A task that waits gives its core back.
        yield
        return
    if address != LOCAL:
        _refuse_unless_reached(address)
    # Sockets live in it, and their paths may not be long.
    folder = tempfile.mkdtemp(prefix="trimtab-ray-", dir="/tmp") if address == LOCAL else None
    own: dict[str, Any] = {}
    if folder is not None:
        own = {
            "num_cpus": count,
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
