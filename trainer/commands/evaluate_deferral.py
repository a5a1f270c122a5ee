"""`trimtab evaluate deferral`: policies on the same episodes, against the optimum and FIFO that skips."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from agent.kernel.text import columns
from domain.errors import BadInput
from trainer.commands.options import PageOption, Rows, WorkersOption, epilog, labelled
from trainer.commands.simulate_deferral import scenario_and_log
from trainer.commands.verb import Answer, TableVerb

if TYPE_CHECKING:
    from trainer.deferral.evaluation import Evaluation, Subject
    from trainer.deferral.report import Recorded

SUFFIX = ".toml"
KEPT = {True: "yes", False: "NO", None: "no verdict"}


@dataclass(frozen=True, kw_only=True)
class EvaluateDeferral(TableVerb):
    """Play policies on the same weeks of deferrable jobs, and hold them to the optimum and to what was asked.

    The same options give the same figures, for any number of workers. With --out a report is written, with the
    tables of the paper beside ours, and the day as a picture.
    """

    EPILOG = epilog(
        """
Always compared: FIFO, SJF and Tetris, FIFO and SJF that skip jobs without room,
earliest latest start, the per-step knapsack, the rolling plan, the optimum.
Others: any policy of `trimtab simulate deferral`, also rolling:quantile=0.2 and
FILE.onnx; a LABEL that is given twice is one method with two seeds.
""",
        """
The rolling plan reads a forecast that is fitted to the training seeds of the
scenario. Each schedule passes an independent check before a figure is shown.
""",
        calls=(
            "trimtab evaluate deferral --scenario sched_drop --seeds 0-7",
            "trimtab evaluate deferral --scenario all --seeds 0-99 --workers 8 --out evidence",
            "trimtab evaluate deferral --scenario mine.toml --policies low=rolling:quantile=0.1",
            "trimtab evaluate deferral --runs FOLDER --seeds 0-99 --out evidence",
            "trimtab evaluate deferral --trace azure_like,LOG.swf.gz --seeds 0-7 --json",
        ),
    )

    scenario: Annotated[
        list[str] | None, "NAME|FILE|all", "valley, sched_drop, ..., a FILE.toml, or all; repeatable, else valley."
    ] = None
    trace: Annotated[
        list[str] | None, "SCENARIO,LOG", "Load of an oversubscription scenario, jobs of a log; repeatable."
    ] = None
    seeds: Annotated[str, "SEEDS", "Episodes, such as 0-99 or 1,3,8-9."] = "0-9"
    policies: Annotated[list[str] | None, "LABEL=POLICY", "One more; repeatable."] = None
    runs: Annotated[
        list[str] | None, "FOLDER", "An --out of `trimtab train deferral`, every method and seed; repeatable."
    ] = None
    workers: WorkersOption = 1
    out: PageOption = None

    def run(self) -> Answer:
        """Play the episodes of each scenario."""
        from trainer.deferral.evaluation import checks_of, contenders_of, evaluate
        from trainer.deferral.report import write
        from trainer.kit.jobs import seeds_of
        from trainer.kit.progress import phases

        numbers = seeds_of(self.seeds)
        trained, recorded = trained_in(self.runs or [])
        given = labelled("--policies", self.policies, "LABEL=POLICY, such as low=rolling:quantile=0.1")
        contenders = contenders_of([*given, *trained])
        subjects = subjects_of(self.scenario or ([] if self.trace else ["valley"]), self.trace or [])
        with phases(self.as_json) as on_phase:
            done = [evaluate(one, contenders, numbers, workers=self.workers, on_progress=on_phase) for one in subjects]
        checks = checks_of(done)
        files = [] if self.out is None else [str(file) for file in write(self.out, done, recorded)]
        data = {
            "checks": [check.as_data() for check in checks],
            "evaluations": [one.as_data() for one in done],
            "files": files,
        }
        asked = [("kept", "", "asked", "found"), *((KEPT[one.kept], one.key, one.asked, one.found) for one in checks)]
        notes = [*(columns(asked) if checks else ()), *(f"report: {file}" for file in files[:1])]
        return Answer(data, notes, tables=[_table(one) for one in done])


def subjects_of(scenarios: list[str], traces: list[str]) -> list[Subject]:
    """Return what the options name; BadInput for what is no scenario, file or trace."""
    from simulator.deferral.scenarios import SCENARIOS, read_scenario, scenario_of
    from trainer.deferral.evaluation import Subject, trace_subject

    found: dict[str, Subject] = {}
    for name in scenarios:
        if name == "all":
            found |= {key: Subject(key, made) for key, made in SCENARIOS.items()}
        elif name.endswith(SUFFIX):
            label = Path(name).stem
            # A file of the name of a scenario must not be held to what was asked of that one.
            label = name if label in SCENARIOS else label
            found[label] = Subject(label, read_scenario(Path(name)))
        else:
            found[name] = Subject(name, scenario_of(name))
    for text in traces:
        found[text] = trace_subject(*scenario_and_log(text))
    return list(found.values())


def trained_in(given: list[str]) -> tuple[list[tuple[str, str]], list[Recorded]]:
    """Return the models under the folders by label, and the figures of what has no model file.

    A method as published has the paper's name and decoding, and is played with the decoding of its card too.
    """
    from trainer.deferral.report import PAPER_1, Recorded
    from trainer.kit.runs import RUN_FILE

    names = {method: label for _, label, method, *_ in PAPER_1 if method}
    pairs: list[tuple[str, str]] = []
    recorded: list[Recorded] = []
    for name in given:
        try:
            files = sorted(Path(name).glob(f"**/{RUN_FILE}"))
            if not files:
                raise ValueError("there is no finished run in it")
            for file in files:
                run = json.loads(file.read_text("utf-8"))
                place = file.parent.parent.name
                method = str(run["config"]["method"])
                label = names[method] if place.endswith("-paper") else f"{place}:prefix"
                if run["model"] is not None:
                    model = file.parent / run["model"]
                    pairs += [(label, f"{model}:prefix"), (place, str(model))]
                else:
                    means = {key: one["prefix"] for key, one in run["reports"].items() if "prefix" in one}
                    recorded.append(Recorded(label, means))
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = f"give the --out of a finished `trimtab train deferral`: {error}"
            raise BadInput("--runs", name, remedy) from None
    return pairs, recorded


def _table(one: Evaluation) -> tuple[str, Rows]:
    from trainer.deferral.evaluation import REFERENCE

    rows: list[tuple[object, ...]] = [
        ("policy", "total", "s.e.", "utilisation", "delay", "violation", f"against {REFERENCE}", "of optimum")
    ]
    for own in one.figures:
        data, versus = own.as_data(), own.to_reference
        error = data["standard_error"]
        rows.append(
            (
                own.label,
                f"{own.total:.1f}",
                "" if error is None else f"{error:.1f}",
                f"{data['utilisation']:.1f}",
                f"{data['delay_charge']:.1f}",
                f"{data['violation']:.2f}",
                f"{versus.mean:+.1f} [{versus.low:+.1f}, {versus.high:+.1f}]",
                "" if own.to_optimum is None else f"{own.to_optimum:.2%}",
            )
        )
    head = (
        f"{one.subject.name}: {len(one.seeds)} episodes, {one.offered:.0f} core-steps wanted of {one.capacity:.0f} left"
    )
    return head, rows
