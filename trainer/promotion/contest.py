"""Champion against challenger: the runs, the verdict, the sealed report, and the change of the pointer (§12.4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from agent.models.champions import EVERY_FLEET
from agent.models.file import load_model
from agent.models.promotion_seal import canonical, sealed
from domain.errors import BadInput
from trainer.autoscaling.evaluation.contenders import ANYWHERE, Contender
from trainer.autoscaling.evaluation.defaults import queue_rule
from trainer.autoscaling.evaluation.suite import Case, World
from trainer.autoscaling.evaluation.table import code_version
from trainer.promotion.entry_states import ENTRY_SHARES, Told, trials
from trainer.promotion.gate import Judgement, Limits, Trial, judge
from trainer.promotion.models_directory import ModelsDirectory

FORMAT = 1
PACKAGES = ("trimtab", "numpy", "onnxruntime", "numba")
CHUNK = 8


@dataclass(frozen=True, slots=True)
class Contest:
    """What came of it: the verdict, the sealed report, and under which name it lies in the models directory."""

    judgement: Judgement
    report: Mapping[str, Any]
    report_name: str
    promoted: bool


def opponent(
    directory: ModelsDirectory, world: World = World.LIVE_LIKE, fleet: str = EVERY_FLEET
) -> tuple[Contender, str | None]:
    """Return the fleet's champion and its SHA-256; before the first promotion the queue rule, and None.

    Raises ModelRefused when the champion's own file is damaged: there is nothing sound to compare with.
    """
    champion = directory.champion(fleet)
    if champion is None:
        return queue_rule(world), None
    path = directory.model_path(champion.model)
    return Contender("champion", {ANYWHERE: str(path)}), load_model(path).name


def hold(
    challenger: Path,
    directory: ModelsDirectory,
    cases: Sequence[Case],
    limits: Limits,
    *,
    at: str,
    key: bytes | None,
    facts: Mapping[str, Any],
    fleet: str = EVERY_FLEET,
    world: World = World.LIVE_LIKE,
    workers: int = 1,
    try_only: bool = False,
    told: Told = lambda _: None,
) -> Contest:
    """Let the challenger run against the champion; if it passes, it is the champion when this returns.

    at: the time for the record. facts: how the cases were chosen. fleet: whose champion it is to be. world: of T3, T5
    and T6. try_only: judge and report, change nothing. A file that is refused (ModelRefused, BadInput) leaves
    everything as it is. The report is stored either way.
    """
    model = load_model(challenger)
    champion, champion_sha = opponent(directory, world, fleet)
    runs = _runs(champion, Contender("challenger", {ANYWHERE: str(challenger)}), cases, workers, told)
    judgement = judge(runs, limits)
    if champion_sha == model.name:
        known = ("it is the champion already", *judgement.reasons)
        judgement = Judgement(False, known, judgement.overall, judgement.families)
    report = sealed(
        {
            "format": FORMAT,
            "at": at,
            **({"fleet": fleet} if fleet != EVERY_FLEET else {}),
            "passed": judgement.passed,
            "reasons": list(judgement.reasons),
            "challenger": {"sha256": model.name, "training": _plain(model.card.training)},
            "champion": {"sha256": champion_sha, "label": champion.label}
            | ({} if champion_sha else {"policies": dict(champion.texts)}),
            "limits": asdict(limits),
            "suite": {**facts, "entry_shares": list(ENTRY_SHARES), "sha256": _digest(_suite(cases))},
            "cases": _suite(cases),
            "overall": asdict(judgement.overall),
            "families": [asdict(family) for family in judgement.families],
            "results": {"sha256": _digest([asdict(run) for run in runs]), "trials": [asdict(run) for run in runs]},
            "code": code_version(),
            "packages": {name: version(name) for name in PACKAGES},
        },
        key,
    )
    name = f"report-{report['sha256'][:16]}.json"
    directory.store((json.dumps(report, indent=1, sort_keys=True) + "\n").encode("utf-8"), name)
    promoted = judgement.passed and not try_only
    if promoted:
        # Only now, so that a rollback need not wait for the runs.
        with directory.locked():
            _unchanged(directory, champion_sha, fleet)
            directory.promote(challenger, name, at, fleet)
    return Contest(judgement, report, name, promoted)


def _unchanged(directory: ModelsDirectory, champion_sha: str | None, fleet: str) -> None:
    """Raise BadInput when another model than the one that was beaten is champion by now."""
    now = directory.champion(fleet)
    if (now.model if now else None) != (f"{champion_sha}.onnx" if champion_sha else None):
        raise BadInput("champion", now.model if now else None, "it has changed during the runs: promote again")


def _suite(cases: Sequence[Case]) -> list[dict[str, Any]]:
    return [
        {
            "case": c.name,
            "family": c.family,
            "world": c.world,
            "trace_sha256": c.trace.digest,
            "seed": c.seed,
            "key": c.key,
        }
        for c in cases
    ]


def _digest(data: Any) -> str:
    return hashlib.sha256(canonical({"data": data})).hexdigest()


def _plain(data: Mapping[str, Any] | None) -> Any:
    return None if data is None else json.loads(json.dumps(data, default=str))


def _runs(champion: Contender, challenger: Contender, cases: Sequence[Case], workers: int, told: Told) -> list[Trial]:
    if workers <= 1:
        return trials(champion, challenger, cases, told=told)
    chunks = [tuple(cases[k : k + CHUNK]) for k in range(0, len(cases), CHUNK)]
    made: list[Trial] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        answers = pool.map(trials, [champion] * len(chunks), [challenger] * len(chunks), chunks)
        for chunk, found in zip(chunks, answers, strict=True):
            made += found
            told(len(chunk))
    return made
