"""The report of an evaluation of deferral: what was asked, the paper's tables beside ours, and the day as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domain.errors import BadInput
from trainer.deferral.evaluation import AHEAD, FEWEST, LEVELS, REFERENCE, Evaluation, Figures, checks_of
from trainer.deferral.policies import OPTIMUM
from trainer.kit.drawing import FLEET, QUEUE, SOFT, panel, svg
from trainer.kit.report import Check, Plot, Section, checks_table, document, escape, table, write_report
from trainer.kit.runs import RUN_FILE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_1: tuple[tuple[str, str, str | None, float, float, float], ...] = (
    ("FIFO", "fifo", None, 3602.45, 193.64, 3408.82),
    ("SJF", "sjf", None, 3386.66, 112.06, 3274.66),
    ("Tetris", "tetris", None, 3689.65, 282.42, 3407.20),
    ("REINFORCE", "REINFORCE", "reinforce", 3560.23, 121.64, 3301.06),
    ("PPO", "PPO-MLP", "mlp", 3596.25, 218.74, 3377.48),
    ("PointerNet", "PointerNet", "pointer", 3583.60, 205.76, 3377.91),
    ("PPO+Att", "PPO+Att", "attention", 3495.20, 95.66, 3387.22),
    ("PPO+Att+AuxH", "+AuxH", "aux-high", 3706.87, 101.28, 3444.00),
    ("PPO+Att+AuxL", "+AuxL", "aux-low", 3737.47, 240.42, 3466.22),
    ("OSDEC", "OSDEC", "full", 3761.24, 250.25, 3475.37),
)
"""The paper's name, our label and method of training, utilisation, delay charge and total of its Table 1."""
PAPER_2: dict[str, tuple[float, float]] = {
    "FIFO": (3611.01, 3449.22),
    "SJF": (3398.76, 3298.38),
    "Tetris": (3696.79, 3503.01),
    "REINFORCE": (3567.80, 3360.28),
    "PPO": (3589.87, 3384.50),
    "PointerNet": (3576.02, 3398.82),
    "PPO+Att": (3525.43, 3340.77),
    "PPO+Att+AuxH": (3708.02, 3411.08),
    "PPO+Att+AuxL": (3744.02, 3442.96),
    "OSDEC": (3781.17, 3521.23),
}
"""Utilisation, deferrable and in real time, of its Table 2."""
PAPER_4: dict[str, tuple[float, float, float, float, float, float]] = {
    "FIFO": (3651.49, 7469.07, 5009.48, 8693.60, 5536.08, 3467.29),
    "SJF": (3518.63, 5771.45, 4412.64, 7633.65, 5032.28, 3340.02),
    "Tetris": (3856.63, 9144.62, 5537.23, 9475.69, 5923.69, 3633.64),
    "REINFORCE": (3613.78, 7148.49, 4869.69, 8136.24, 5327.90, 3399.00),
    "PPO": (3648.38, 7415.11, 4972.13, 8324.38, 5386.61, 3427.17),
    "PointerNet": (3649.47, 7126.47, 4859.10, 8281.23, 5388.20, 3442.37),
    "PPO+Att": (3662.41, 7957.08, 4663.42, 8248.63, 5472.42, 3357.90),
    "PPO+Att+AuxH": (3707.01, 8425.30, 5096.22, 8571.09, 5592.46, 3536.01),
    "PPO+Att+AuxL": (3781.08, 8560.46, 5430.28, 9113.23, 5876.61, 3595.21),
    "OSDEC": (3884.28, 9200.82, 5565.89, 9593.68, 5853.81, 3631.21),
}
"""Its Table 4: core cases 1 to 3, duration cases 1 to 3."""
SCENARIOS_4 = ("valley", "core2", "core3", "dur1", "dur2", "valley")
"""Ours of those columns; core case 1 with duration case 3 is `valley`, the base of both."""
_BASE = "valley"
_CAPACITY, _RUNNING = FLEET[0], FLEET[2]


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """Figures of a trained network that has no model file, from its training: by scenario, on seeds 0 to 99."""

    label: str
    means: Mapping[str, Mapping[str, float]]


def trained_in(given: Sequence[str]) -> tuple[list[tuple[str, str]], list[TrainingFigures]]:
    """Return the models under the folders by label, and the figures of methods without a model file.

    A method as published has the paper's name and decoding, and is played with the decoding of its card too.
    """
    names = {method: label for _, label, method, *_ in PAPER_1 if method}
    pairs: list[tuple[str, str]] = []
    recorded: list[TrainingFigures] = []
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
                    recorded.append(TrainingFigures(label, means))
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = f"give the --out of a finished `trimtab train deferral`: {error}"
            raise BadInput("--runs", name, remedy) from None
    return pairs, recorded


def write(folder: Path, done: Sequence[Evaluation], recorded: Sequence[TrainingFigures] = ()) -> list[Path]:
    """Write `report.html`, `summary.json` and the drawings into a folder; return the files.

    recorded: shown in Table 1 where nothing of that label was played; several of a label are its seeds.
    """
    checks = checks_of(done)
    sections = [_checked(checks, len(done[0].seeds)), *_tables(done, recorded)]
    plots: dict[str, Plot] = {}
    for one in done:
        key = "".join(letter if letter.isalnum() else "-" for letter in one.subject.name)
        own = {f"{key}-day": Plot("Core-steps by hour of the day, means of all episodes", day_picture(one))}
        content = [_summary(one), _figures_table(one), *(plot.html(name) for name, plot in own.items())]
        content.append(_coverage(one))
        sections.append(Section(key, f"{one.subject.name} — {len(one.seeds)} episodes", "\n".join(content)))
        plots |= own
    facts = {"code": str(done[0].as_data()["code"]), "seeds": _seeds(done[0].seeds)}
    page = document("Deferral policies", sections, facts)
    data = {"checks": [check.as_data() for check in checks], "evaluations": [one.as_data() for one in done]}
    return write_report(folder, page, data, plots)


def _seeds(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _checked(checks: Sequence[Check], episodes: int) -> Section:
    missed = sum(check.kept is False for check in checks)
    caption = (
        f"Misses first. No verdict on fewer than {FEWEST} episodes ({episodes:,} were played), or on other seeds than "
        "were asked."
    )
    return Section("asked", f"Acceptance figures: {missed} of {len(checks)} missed", checks_table(checks, caption))


def _tables(done: Sequence[Evaluation], recorded: Sequence[TrainingFigures]) -> list[Section]:
    by_name = {one.subject.name: one for one in done}
    base = by_name.get(_BASE)
    if base is None:
        return []
    parts = [_table_1(base, recorded)]
    real_time = by_name.get("realtime")
    if real_time is not None:
        parts.append(_table_2(base, real_time))
    if all(name in by_name for name in SCENARIOS_4):
        parts.append(_table_4(by_name))
    return [Section("paper", "The paper's tables and ours", "\n".join(parts))]


def _ours(one: Evaluation, label: str | None) -> Figures | None:
    """Return the figures of a label, whatever its case and what follows it."""
    wanted = (label or "").lower()
    exact = [figures for figures in one.figures if figures.label.lower() == wanted]
    return exact[0] if exact else None


def _known(one: Evaluation) -> list[Figures]:
    """Return what the paper does not have."""
    labels = {label.lower() for _, label, *_ in PAPER_1}
    return [figures for figures in one.figures if figures.label.lower() not in labels]


def _table_1(base: Evaluation, recorded: Sequence[TrainingFigures]) -> str:
    head = ("", "utilisation<br>paper", "ours", "delay charge<br>paper", "ours", "total<br>paper", "ours", "± seeds")
    rows = []
    for name, label, _, *paper in PAPER_1:
        own = _ours(base, label)
        ours = _remembered(recorded, label) if own is None else [*_three(own), _spread(own.spread)]
        cells = [cell for pair in zip(map(_one, paper), ours, strict=False) for cell in pair]
        rows.append([escape(name), *cells, ours[3]])
    for own in _known(base):
        cells = [cell for value in _three(own) for cell in ("", value)]
        rows.append([escape(own.label), *cells, _spread(own.spread)])
    caption = "Table 1: `valley` replaces its data, and is fitted to it (§7). * as its training reported it."
    return table(head, rows, caption)


def _table_2(base: Evaluation, real_time: Evaluation) -> str:
    head = ("", "deferrable<br>paper", "ours", "real time<br>paper", "ours", "gain<br>paper", "ours")
    rows = []
    labels = [(name, label, PAPER_2[name]) for name, label, *_ in PAPER_1]
    labels += [(own.label, own.label, (np.nan, np.nan)) for own in _known(base)]
    for name, label, paper in labels:
        both = [_ours(one, label) for one in (base, real_time)]
        ours = [np.nan if own is None else float(own.utilisation.mean()) for own in both]
        cells = [_one(v) for pair in zip(paper, ours, strict=True) for v in pair]
        gains = [_one(deferred - live, "+") for deferred, live in (paper, ours)]
        rows.append([escape(name), *cells, *gains])
    return table(head, rows, "Table 2: utilisation with deferral, and with every job due when it is submitted.")


def _table_4(by_name: dict[str, Evaluation]) -> str:
    head = ("", *(f"{kind} case {case}<br>paper / ours" for kind in ("core", "duration") for case in (1, 2, 3)))
    rows = []
    labels: list[tuple[str, str | None, Sequence[float]]] = [
        (name, label, PAPER_4[name]) for name, label, *_ in PAPER_1
    ]
    labels += [(own.label, own.label, (np.nan,) * 6) for own in _known(by_name[_BASE])]
    for name, label, paper in labels:
        found = [_ours(by_name[scenario], label) for scenario in SCENARIOS_4]
        values = [np.nan if own is None else own.total for own in found]
        rows.append([escape(name), *(f"{_one(p)} / {_one(v)}" for p, v in zip(paper, values, strict=True))])
    caption = (
        "Table 4: totals. Of core case 1 and duration case 3 the paper has two figures, for other settings of "
        "the rest; ours are both of `valley`. Capacity is scaled by the mean work of a job (§6, point 11)."
    )
    return table(head, rows, caption)


def _remembered(recorded: Sequence[TrainingFigures], label: str) -> list[str]:
    """Return utilisation, delay charge and total of a training, and their spread over its seeds."""
    own = [one.means[_BASE] for one in recorded if one.label == label and _BASE in one.means]
    if not own:
        return [""] * 4
    totals = np.array([one["total"] for one in own])
    fields = ("utilisation", "delay_charge", "total")
    spread = float(totals.std(ddof=1)) if totals.size > 1 else 0.0
    return [*(f"{_one(float(np.mean([one[field] for one in own])))}*" for field in fields), _spread(spread)]


def _spread(value: float) -> str:
    return f"{value:.1f}" if value else ""


def _three(own: Figures) -> list[str]:
    return [_one(float(own.utilisation.mean())), _one(float(own.delay_charge.mean())), _one(own.total)]


def _one(value: float, sign: str = "") -> str:
    return "" if np.isnan(value) else f"{value:{sign},.1f}"


def _summary(one: Evaluation) -> str:
    return (
        f"<p>Jobs want {one.offered:,.0f} core-steps of {one.capacity:,.0f} that are left over, in the mean of an "
        "episode. Every schedule behind these figures passed the independent check.</p>"
    )


def _figures_table(one: Evaluation) -> str:
    head = (
        *("policy", "total", "± s.e.", "utilisation", "delay charge", "violation", "expired"),
        *(f"against {REFERENCE} [95 %]", "share of optimum", "± seeds", "fallback steps"),
    )
    rows, marked = [], []
    for place, own in enumerate(sorted(one.figures, key=lambda figures: -figures.total)):
        data = own.as_data()
        if own.label == REFERENCE:
            marked.append(place)
        error, versus = data["standard_error"], own.to_reference
        rows.append(
            [
                escape(own.label),
                f"{own.total:,.1f}",
                "" if error is None else f"{error:.1f}",
                *(f"{data[name]:,.1f}" for name in ("utilisation", "delay_charge")),
                f"{data['violation']:.2f}",
                f"{data['expired_core_steps']:,.1f}",
                f"{versus.mean:+.1f} [{versus.low:+.1f}, {versus.high:+.1f}]",
                "" if own.to_optimum is None else f"{own.to_optimum:.2%}",
                _spread(own.spread),
                str(own.fallbacks or ""),
            ]
        )
    caption = "Totals in core-steps: utilisation, less 2 a step of delay, less 10 a core-step above the capacity."
    return table(head, rows, caption, marked=marked)


def _coverage(one: Evaluation) -> str:
    if one.coverage is None:
        return ""
    head = ("quantile", *(f"{k} step{'s' * (k > 1)} ahead" for k in AHEAD))
    rows = [
        [f"{level:.0%}", *("-" if np.isnan(share) else f"{share:.1%}" for share in row)]
        for level, row in zip(LEVELS, one.coverage.tolist(), strict=True)
    ]
    return table(head, rows, "Coverage of the forecast: share of the steps with at most that quantile.")


def day_picture(one: Evaluation) -> str:
    """Return a day as SVG: left-over capacity, work that runs in it, and the part that was deferred, by policy."""
    online = [figures for figures in one.figures if figures.label != OPTIMUM]
    best = max(online, key=lambda figures: figures.total)
    names = dict.fromkeys(("fifo", best.label, OPTIMUM))
    shown = [figures for figures in (one.of(name) for name in names) if figures is not None]

    def draw(figure: Figure) -> None:
        panes = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
        for axes, own in zip(panes, shown, strict=True):
            _day(axes, own)
        panes[0].set_ylabel("at work, cores")
        handles, names = panes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=len(names))

    return svg((9.5, 2.9), draw)


def _day(axes: Axes, own: Figures) -> None:
    edges = np.arange(25)
    style: Any = {"fill": True}
    axes.stairs(own.day.capacity, edges, color=_CAPACITY, label="left over", **style)
    axes.stairs(own.day.running, edges, color=_RUNNING, label="runs on time", **style)
    axes.stairs(own.day.deferred, edges, color=QUEUE, label="runs deferred", **style)
    axes.stairs(own.day.capacity, edges, color=SOFT, linewidth=0.8)
    axes.set_xlim(0, 24)
    axes.set_xticks((0, 6, 12, 18, 24))
    axes.set_ylim(0, None)
    panel(axes, own.label, x="time, hours of the day")
