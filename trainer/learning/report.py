"""The report of a round: what was found on the held-out windows, as a page, as JSON, and the rule as settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domain.units import HOUR_S
from trainer.autoscaling.tuned_settings import settings_of
from trainer.kit.files import replace_file
from trainer.kit.intervals import FEWEST_CASES
from trainer.kit.report import Section, chip, document, escape, lines, table

if TYPE_CHECKING:
    from trainer.learning.round import Round

PAGE_FILE, DATA_FILE, RULE_FILE = "report.html", "summary.json", "rule.env"


def write_round(work: Round) -> list[Path]:
    """Write page, data and settings of the rule into the round's folder, each whole or not at all."""
    stages = work.state.stages
    data = {"facts": work.state.facts, **stages}
    files = {DATA_FILE: json.dumps(data, indent=1) + "\n", RULE_FILE: rule_text(work), PAGE_FILE: page(work)}
    for name, text in files.items():
        replace_file(work.state.folder / name, text)
    return [work.state.folder / name for name in files]


def write_folder(folder: Path, page: str, data: Mapping[str, Any]) -> Path:
    """Write a page and its data into a folder, each whole or not at all, and return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / DATA_FILE, json.dumps(data, indent=1) + "\n")
    replace_file(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def rule_text(work: Round) -> str:
    """Return the tuned rule as lines for the agent's environment, with where it comes from and what it brings."""
    setting, judged = work.setting, work.state.stages["judge"]
    text = f"queue-rule:horizon_s={setting.horizon_s:g}"
    text += f",job_core_s={setting.job_core_s:g}" if setting.job_core_s else ""
    fleet = work.learner.fleet
    pairs = settings_of(text, fleet) | {f"TRIMTAB_FLEETS__{fleet}__IDLE_S": f"{setting.idle_s:g}"}
    if work.policy_now.partition(":")[0] != "queue-rule":
        # The rule stands beside a learned policy, which goes on to decide.
        pairs.pop(f"TRIMTAB_FLEETS__{fleet}__POLICY")
    gain = judged["against_now"]["tuned rule"]["relative"]
    windows = work.windows.held_out
    lines = [
        f"# The queue rule tuned on the record of fleet {fleet}, world {work.learner.world}",
        f"# On {len(windows)} held-out windows: {gain['mean']:+.1%} of the cost of the policy in use "
        f"(95 %: {gain['low']:+.1%} to {gain['high']:+.1%})",
        *(f"{name}={value}" for name, value in pairs.items()),
    ]
    return "\n".join(lines) + "\n"


def page(work: Round) -> str:
    """Return the page of a round."""
    stages = work.state.stages
    judged, truth = stages["judge"], stages["fidelity"]
    facts = {
        "fleet": work.learner.fleet,
        "world": work.learner.world,
        "decides now": work.policy_now,
        "windows": f"{len(work.windows.earlier)} to learn on, {len(work.windows.held_out)} held out, "
        f"{work.windows.window_s / HOUR_S:.3g} h each",
    }
    return document(
        f"The learning record of fleet {work.learner.fleet}",
        [
            Section("cost", "Cost on the held-out windows", _costs(judged)),
            Section("truth", "Is the simulator true?", _truth(truth)),
            Section("rule", "The queue rule", lines(rule_text(work))),
            Section("scorer", "The scorer", _scorer(stages["scorer"])),
        ],
        facts,
    )


def _costs(judged: Mapping[str, Any]) -> str:
    names = list(judged["means"])
    bounds = {one["window"]: one.get("bound") for one in judged["bounds"]}
    rows = []
    for place, window in enumerate(judged["windows"]):
        bound = bounds.get(window)
        cells = [f"{judged['means'][name][place]:.4f} $" for name in names]
        rows.append([escape(window), f"{judged['recorded'][place]:.4f} $", *cells, f"{bound:.4f} $" if bound else "—"])
    ratio = []
    for name, found in judged["against_now"].items():
        r = found["relative"]
        enough = r["cases"] >= FEWEST_CASES
        cheaper = None if not enough or r["low"] <= 0.0 <= r["high"] else r["high"] < 0.0
        ratio.append(
            [
                escape(name),
                f"{1.0 + r['mean']:.3f}",
                chip(cheaper, f"{r['mean']:+.1%}"),
                f"{r['low']:+.1%} to {r['high']:+.1%}",
                f"{found['probability_lower']:.1%}" if enough else chip(None, "no verdict"),
            ]
        )
    head = ["policy", "times the cost of the policy in use", "change", "95 %", "sure it is cheaper"]
    words = (
        "All play the same jobs and boots under the fleet's own limits; a window's figure is the mean over the boot "
        "seeds. The bound is a cost that no policy beats, in a world without rests. "
        f"From fewer than {FEWEST_CASES} windows there is no verdict; these are {len(judged['windows'])}."
    )
    return (
        f'<p class="soft">{escape(words)}</p>{table(head, ratio)}{table(["window", "recorded", *names, "bound"], rows)}'
    )


def _truth(truth: Mapping[str, Any]) -> str:
    rows = []
    for one in truth["windows"]:
        recorded = one["recorded_rent"] + one["recorded_penalty"]
        replayed = one["replayed_rent"] + one["replayed_penalty"]
        off = replayed / recorded - 1.0 if recorded > 0.0 else 0.0
        rows.append([escape(one["name"]), f"{recorded:.4f} $", f"{replayed:.4f} $", f"{off:+.1%}"])
    return f"<p>{escape(truth['sentence'])}.</p>{table(['window', 'recorded', 'replayed', 'off'], rows)}"


def _scorer(found: Mapping[str, Any]) -> str:
    if found["model"] is None:
        return f"<p>None was trained: {escape(found['why'])}.</p>"
    used = "new weights" if found["used"] else "the weights from before: the new ones were not surely better"
    lessons = "+".join(map(str, found["lessons"]))
    return f"<p>{escape(found['model'])}: {escape(used)}; {lessons} lessons. The gate decides whether it is used.</p>"
