"""One training run of a scorer in a directory: it goes on where it was stopped, and ends with the same weights.

    recipe.json      what the run depends on: recipe, seed, where lessons come from, version of the code
    samples/         what lessons taught, in parts of a few lessons: 000120.npz begins with lesson 120 of the run
    curve.csv        a row per part and per round
    MODEL.onnx       the file that the agent runs, named after its content
    run.json         the figures and the name of the model file; a run is finished once it is there

A part is written whole or not at all. Networks are fitted anew from the samples, from seeds alone, so that nothing else
has to be kept: a run that is stopped at any moment loses at most the parts that were being played.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent.models.card import ScorerCard
from agent.models.file import load_model
from agent.models.shipped import DIRECTORY, shipped_models
from domain.errors import BadInput
from simulator.autoscaling.branching import BranchedEpisodes, Branches, Weights
from simulator.autoscaling.world_file import preset
from trainer.autoscaling.scorer import (
    HELD_OUT,
    Lessons,
    Map,
    Recipe,
    Samples,
    Trained,
    Workshop,
    check_seed,
    gather,
    general_lessons,
    network_of,
    own_parts,
    train,
    with_margin,
)
from trainer.autoscaling.scorer_file import read_trained, write_model
from trainer.kit.checkpoint import OtherConfiguration, differences, package_versions, plain, weights_hash
from trainer.kit.files import code_version, replace_file, write_json
from trainer.kit.jobs import Pool
from trainer.kit.progress import (
    BAR,
    CURVE_FILE,
    LINES,
    SILENT,
    Curve,
    Lines,
    Listeners,
    Progress,
    log_of,
    read_curve,
)
from trainer.kit.runs import RUN_FILE, on_screen

RECIPE_FILE, SAMPLES_FOLDER = "recipe.json", "samples"
SOURCES = (
    *("domain/announcements.py", "domain/observations/autoscaling_scorer.py", "domain/rules/autoscaling.py"),
    *("domain/workload.py", "domain/units.py", "simulator/autoscaling", "simulator/workloads"),
    *(
        f"trainer/autoscaling/{name}.py"
        for name in ("announcing", "evaluation/suite", "fleets", "scorer", "scorer_runs", "tasks")
    ),
)
"""Program text that decides weights: a run of another version is not gone on with."""
FIT = 0.15
"""What fitting one network takes per lesson learnt from, in times of playing a lesson; only for the time left."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run depends on.

    lessons: a function of a module or a partial of one, so that any process can be asked; see
    `trainer.autoscaling.scorer.Lessons`. facts: where they come from, as JSON data. conclude: chooses the margin and
    adds figures once the weights are fitted. start: what the networks go on from.
    """

    recipe: Recipe
    seed: int
    lessons: Callable[[int, int], Any]
    facts: Mapping[str, Any]
    conclude: Callable[[Trained, Map], Trained]
    start: Trained | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        whole = {"form": "scorer", "recipe": asdict(self.recipe), "seed": self.seed, "lessons": dict(self.facts)}
        data: dict[str, Any] = plain(whole)
        return data | {"code": code_version(SOURCES)}


def general_plan(recipe: Recipe, seed: int) -> Plan:
    """Return the plan of a scorer for fleets at large, at home in the `live-like` world."""
    world = preset("live-like")
    lessons = partial(general_lessons, world=world)
    facts = {"kind": "fleets at large and live-like"}
    return Plan(recipe, seed, lessons, facts, lambda trained, spread: with_margin(trained, world, spread))


def run(plan: Plan, directory: Path, *, jobs: int = 1, resume: bool = False, show: str = SILENT) -> Trained:
    """Train as planned, or go on with the run in the directory, and return what was trained.

    jobs: processes that play lessons and fit networks; the result does not depend on how many. Raises BadInput when
    the directory holds a run and `resume` is false, OtherConfiguration when it holds one of another plan.
    """
    check(plan, directory, resume=resume)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / RECIPE_FILE, plan.plain())
    if not (directory / RUN_FILE).exists():
        meter = _Meter(plan, directory, show)
        with _one_thread(), Pool(_timed, jobs) as pool, meter.listeners:

            def spread(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
                for answer, cpu_s in pool.run([partial(work, item) for item in items]):
                    meter.cpu_s += cpu_s
                    yield answer

            shop = _Filed(directory, spread, meter)
            trained = train(plan.lessons, plan.recipe, plan.seed, meter.round_over, shop, plan.start)
            trained = plan.conclude(trained, lambda work, items: meter.concluding(spread(work, items), len(items)))
            meter.finished(trained)
        model = write_model(trained, _minutes(plan), directory)
        write_json(directory / RUN_FILE, {**summary_of(plan, trained, meter), "model": model.name})
    shutil.rmtree(directory / SAMPLES_FOLDER, ignore_errors=True)
    return trained_in(directory)


def check(plan: Plan, directory: Path, *, resume: bool) -> None:
    """Raise BadInput for a seed that is not for training, or when a run would go over another one or another plan's."""
    check_seed(plan.seed)
    try:
        saved = json.loads((directory / RECIPE_FILE).read_text("utf-8"))
    except FileNotFoundError:
        if (directory / RUN_FILE).exists() or (directory / "checkpoints").exists():
            raise BadInput("--out", str(directory), "it holds a run of another form: give another --out") from None
        return
    except ValueError:
        raise BadInput("--out", str(directory), f"{RECIPE_FILE} is damaged: give another --out") from None
    if not resume:
        raise BadInput("--out", str(directory), "it holds a run: give --resume to continue it, or another --out")
    wrong = differences(saved, plan.plain())
    if wrong:
        raise OtherConfiguration(directory, wrong)


def _timed(task: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a task returns, and the seconds of a processor that it took."""
    torch.set_num_threads(1)
    begun = time.process_time()
    return task(), time.process_time() - begun


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread: how many it uses would change the last bits of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Filed(Workshop):
    """Plays lessons in parts that are kept in files, and fits networks, both in so many processes."""

    def __init__(self, directory: Path, spread: Map, meter: _Meter) -> None:
        super().__init__()
        self._folder, self._map, self._meter = directory / SAMPLES_FOLDER, spread, meter
        self._folder.mkdir(exist_ok=True)
        self._paths: list[Path] = []
        self._lessons = 0

    def gather(self, lessons: Lessons, recipe: Recipe, weights: tuple[Weights, ...], explore: float) -> None:
        """Add what these lessons teach, from files where they have been played."""
        parts = {
            self._folder / f"{self._lessons + some.first - lessons.first:06d}.npz": some for some in lessons.parts()
        }
        known = {path: found for path in parts if (found := _read(path)) is not None}
        missing = [(part, recipe, weights, explore) for path, part in parts.items() if path not in known]
        answers = iter(self._map(_played, missing))
        for path, part in parts.items():
            kept = known.get(path)
            if kept is None:
                before_s = self._meter.cpu_s
                samples = next(answers)
                replace_file(path, _as_bytes(samples, self._meter.cpu_s - before_s))
            else:
                samples = kept[0]
                self._meter.cpu_s += kept[1]
            self.samples.extend(samples)
            self._meter.played(part.count, self.samples, anew=kept is None)
        self._paths += parts
        self._lessons += lessons.count

    def fit(self, recipe: Recipe, seeds: Sequence[int], start: Trained | None) -> list[tuple[Weights, ...]]:
        """Return the weights of a network per seed, each fitted by a process that reads the files."""
        found = []
        items = [(tuple(own_parts(self._paths, recipe, seed)), recipe, seed, start) for seed in seeds]
        for weights in self._map(_fitted, items):
            found.append(weights)
            self._meter.fitted()
        return found


def _played(item: tuple[Lessons, Recipe, tuple[Weights, ...], float]) -> Samples:
    """Return what lessons teach."""
    lessons, recipe, weights, explore = item
    samples = Samples()
    gather(lessons, recipe, weights, explore, samples)
    return samples


def _fitted(item: tuple[tuple[Path, ...], Recipe, int, Trained | None]) -> tuple[Weights, ...]:
    """Return the weights that the samples in files lead to."""
    paths, recipe, seed, start = item
    return network_of(map(_kept, paths), recipe, seed, start)


def _kept(path: Path) -> Samples:
    """Return a part that was written; BadInput where it is gone."""
    found = _read(path)
    if found is None:
        raise BadInput("samples", str(path), "it was removed meanwhile: run it again with --resume")
    return found[0]


_COLUMNS = ("states", "candidates", "gains", "worths")


def _as_bytes(samples: Samples, cpu_s: float) -> bytes:
    arrays = {f"{name}{at}": part for name in _COLUMNS for at, part in enumerate(getattr(samples, name))}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, counts=np.array([samples.steps, cpu_s]), **arrays)
    return buffer.getvalue()


def _read(path: Path) -> tuple[Samples, float] | None:
    """Return a part with its seconds of a processor; None where it is absent or damaged, so that it is played again."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            episodes = sum(name.startswith("states") for name in stored.files)
            columns = {name: [stored[f"{name}{at}"] for at in range(episodes)] for name in _COLUMNS}
            steps, cpu_s = stored["counts"].tolist()
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        path.unlink(missing_ok=True)
        return None
    return Samples(**columns, steps=int(steps)), cpu_s


class _Meter:
    """Counts what is done, and tells the listeners of it with the time left.

    The unit is the time of a lesson; a network takes FIT of it per lesson learnt from.
    """

    def __init__(self, plan: Plan, directory: Path, show: str) -> None:
        recipe = plan.recipe
        last = len(recipe.rounds) - 1
        networks = [recipe.networks + 1 if number == last else 1 for number in range(len(recipe.rounds))]
        self._fits = [FIT * sum(recipe.rounds[: number + 1]) / recipe.groups for number in range(len(networks))]
        self._total = sum(recipe.rounds) + sum(n * f for n, f in zip(networks, self._fits, strict=True))
        self._total += 2.0 * recipe.selection
        self._done = self._kept = 0.0
        self._began = time.monotonic()
        self._row = self._minutes = self._steps = 0
        self._rounds = self._lessons = 0
        self.cpu_s, self._earlier_s = 0.0, _seconds_so_far(directory)
        told = (f"scorer, seed {plan.seed}", {"queue rule": 1.0}, HELD_OUT)
        log = Lines(*told, log_of(directory, resumed=self._earlier_s > 0.0))
        self.listeners = Listeners([Curve(directory), log, *on_screen(show, *told)])
        self.listeners.phase("compiling the simulator, and playing the first lessons")

    @property
    def wall_s(self) -> float:
        """Seconds of the run so far, those before it was stopped included."""
        return self._earlier_s + time.monotonic() - self._began

    def played(self, lessons: int, samples: Samples, *, anew: bool) -> None:
        """Take in a part of a round, played now or read from a file."""
        self._lessons += lessons
        self._minutes, self._steps = samples.minutes, samples.steps
        self._kept += 0.0 if anew else float(lessons)
        self._move(float(lessons))

    def fitted(self) -> None:
        """Take in a network."""
        self._move(self._fits[self._rounds])

    def round_over(self, line: str) -> None:
        """Take in a round."""
        self._rounds += 1
        self._tell(line)

    def concluding(self, answers: Iterator[Any], count: int) -> Iterator[Any]:
        """Yield the answers, and take in each: most of what is left of the run."""
        units = 0.9 * (self._total - self._done) / max(count, 1)
        for answer in answers:
            self._move(units)
            yield answer

    def finished(self, trained: Trained) -> None:
        """Take in the end."""
        self._done = self._total
        ratio = trained.figures.get(HELD_OUT)
        self._tell(f"margin {trained.margin:g}", {} if ratio is None else {HELD_OUT: ratio}, ratio)

    def _move(self, units: float) -> None:
        self._done += units
        self._tell("")

    def _tell(self, line: str, figures: Mapping[str, float] | None = None, best: float | None = None) -> None:
        share = min(self._done / self._total, 1.0)
        if line and self._kept < self._done < self._total:
            left_s = (time.monotonic() - self._began) * (self._total - self._done) / (self._done - self._kept)
            line = f"{line}, about {_rounded(left_s)} left"
        self._row += 1
        known = {"lessons": float(self._lessons), "branched_minutes": float(self._minutes), "share": share}
        self.listeners(
            Progress(
                update=self._row,
                steps=self._steps,
                total_steps=max(round(self._steps / share), 1) if share > 0.0 else 1,
                wall_s=self.wall_s,
                cpu_s=self.cpu_s,
                figures=known | dict(figures or {}),
                best_cost=best,
                note=line,
            )
        )


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"


def _seconds_so_far(directory: Path) -> float:
    path = directory / CURVE_FILE
    rows = read_curve(path) if path.exists() else []
    return float(rows[-1]["wall_s"]) if rows else 0.0


def _minutes(plan: Plan) -> Branches:
    """Return branched minutes of a lesson, to compare the model file with what it was made of."""
    for lesson in Lessons(plan.lessons, 0, 20):
        episodes = BranchedEpisodes(lesson.config, lesson.trace, lesson.rule)
        found = episodes.play(lesson.seed, branch_share=1.0, most=40, steps=0, announcements=lesson.announcements)
        if found.counts.size:
            return found
    raise BadInput("lessons", 0, "no minute has a choice: give loads with jobs that wait")


def summary_of(plan: Plan, trained: Trained, meter: _Meter) -> dict[str, Any]:
    """Return what stands in `run.json`."""
    return {
        **plan.plain(),
        "margin": trained.margin,
        "idle_limit_min": trained.idle_limit_min,
        "weights_hash": hash_of(trained),
        "figures": dict(trained.figures),
        "wall_s": meter.wall_s,
        "cpu_s": meter.cpu_s,
        "packages": package_versions(),
    }


def hash_of(trained: Trained) -> str:
    """Return the SHA-256 of all weights."""
    parts = {"votes": trained.weights, "gains": trained.gains}
    return weights_hash({f"{name}{at}": part for name, parts_ in parts.items() for at, part in enumerate(parts_)})


SHIPPED_SCORER = "scorer"


def shipped_scorer() -> Path:
    """Return the file of the scorer that comes with the program; BadInput where none does."""
    for shipped in shipped_models(DIRECTORY):
        if isinstance(load_model(shipped.path).card, ScorerCard):
            return shipped.path
    remedy = "no scorer ships with this version: give a FILE.onnx or the directory of a run"
    raise BadInput("--from", SHIPPED_SCORER, remedy)


def trained_in(directory: Path) -> Trained:
    """Return what a finished run has trained; BadInput for the directory of anything else."""
    path = directory / RUN_FILE
    try:
        summary = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput("run", str(path), f"{error}: give the directory of a finished run") from None
    if summary.get("form") != "scorer":
        raise BadInput("run", str(path), "it is the run of another form: give that of a scorer")
    return read_trained(directory / summary["model"])


def start_of(text: str) -> Trained:
    """Return the scorer that `scorer`, a model file or the directory of a run names; BadInput otherwise."""
    path = Path(text)
    if text == SHIPPED_SCORER:
        return read_trained(shipped_scorer())
    if path.suffix == ".onnx":
        return read_trained(path)
    for place in (path, path / "seed-0"):
        if (place / RUN_FILE).is_file():
            return trained_in(place)
    raise BadInput("--from", text, "give scorer, a FILE.onnx of a scorer, or the directory of a finished run")


def shown_as(silent: bool) -> str:
    """Return how a run of the command line shows its progress."""
    return SILENT if silent else BAR if sys.stderr.isatty() else LINES
