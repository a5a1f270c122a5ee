"""The report of an evaluation of placement: tables, packings as pictures, the spread over orders, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from domain.rules.placement.instance import DIMENSIONS, Instance
from trainer.kit.drawing import GRID, INK, POLICIES, SOFT, colours, panel, svg
from trainer.kit.report import Plot, Section, chip, document, escape, table, write_report
from trainer.placement.evaluation import REFERENCE, Evaluation, Figures
from trainer.placement.exact import REJECTED, Packing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FREE_EDGES = (0, 1, 4, 8, 16, 32, 64)
"""Free cores on a host by which stranded cores are told from useful ones."""


def write(
    folder: Path, evaluations: Sequence[Evaluation], runs: Mapping[str, Sequence[str]] | None = None
) -> list[Path]:
    """Write `report.html`, `summary.json` and the drawings into a folder; return the files.

    runs: lines about the training of learned policies by label, shown beside the figures.
    """
    plots: dict[str, Plot] = {}
    sections = []
    for done in evaluations:
        key = "".join(letter if letter.isalnum() else "-" for letter in done.instance.name)
        own = {
            f"{key}-orders": Plot("Hosts that each policy opens, one point an order of the requests", _orders(done)),
            f"{key}-free": Plot("Where the free cores lie, in the given order", _free(done)),
        }
        shown = [one for one in (*_shown(done), *([_known(done)] if done.optimum else [])) if one is not None]
        for label, packing in shown:
            caption = f"{label}: cores of each host, by size of container; empty space is free"
            own[f"{key}-{len(own)}"] = Plot(caption, packing_picture(done.instance, packing))
        content = [_summary(done), _table(done), *(plot.html(name) for name, plot in own.items())]
        sections.append(Section(key, f"{done.instance.name} — {len(done.shuffles)} orders", "\n".join(content)))
        plots |= own
    if runs:
        rows = [[escape(label), *map(escape, lines)] for label, lines in runs.items()]
        sections.append(Section("training", "Training", table(("policy", "instances", "method", "cost"), rows)))
    facts = {
        "code": str(evaluations[0].as_data()["code"]),
        "test shuffles": _numbers([k for done in evaluations for k in done.shuffles]),
    }
    page = document("Placement policies", sections, facts)
    return write_report(folder, page, {"evaluations": [done.as_data() for done in evaluations]}, plots)


def _numbers(shuffles: Sequence[int]) -> str:
    return f"{min(shuffles)} to {max(shuffles)}" if shuffles else "none"


def _summary(done: Evaluation) -> str:
    best = done.optimum
    known = "not known" if best is None else f"{best.hosts} hosts by {best.method}"
    proof = "" if best is None else f" {chip(best.optimal, 'optimal' if best.optimal else 'not proven')}"
    return (
        f"<p>{done.instance.containers:,} containers in {len(done.instance.requests):,} requests. No packing has fewer "
        f"than <b>{done.bound.hosts}</b> hosts (by {escape(done.bound.by)}); with full knowledge {escape(known)}{proof}"
        ". Every packing behind these figures passed the independent checker.</p>"
        + ("" if done.bound_hours is None else f"<p>No policy has fewer than {done.bound_hours:,.0f} host-hours.</p>")
    )


def _table(done: Evaluation) -> str:
    head = (
        *("policy", "given<br>order", "mean", "± s.e.", "p5 to p95", "min to max", "range"),
        *("cores", "memory", "rejected", "against best fit [95 %]", "over the bound"),
        *(("host-hours",) if done.bound_hours is not None else ()),
    )
    rows, marked = [], []
    for place, one in enumerate(sorted(done.figures, key=lambda figures: float(figures.hosts.mean()))):
        data = one.as_data()
        if one.policy == REFERENCE:
            marked.append(place)
        error = data["standard_error"]
        rates = [f"{data['rates'][name]:.2%}" if name in data["rates"] else "" for name in DIMENSIONS[:2]]
        versus = data["to_best_fit"]
        rows.append(
            [
                escape(one.policy),
                str(data["nominal"]),
                f"{data['mean']:.2f}",
                "" if error is None else f"{error:.2f}",
                f"{data['p5']:.0f} to {data['p95']:.0f}",
                f"{data['min']:.0f} to {data['max']:.0f}",
                f"{data['range']:.0f}",
                *rates,
                str(data["rejected"]),
                f"{versus['mean']:+.2f} [{versus['low']:+.2f}, {versus['high']:+.2f}]",
                f"{data['gap']:+.2%}",
                *(() if data["host_hours"] is None else (f"{data['host_hours']:,.0f}",)),
            ]
        )
    return table(head, rows, "The range grows with the number of orders: read it with p5 to p95.", marked=marked)


def _shown(done: Evaluation) -> list[tuple[str, Packing]]:
    """Return best fit and the best of the others, by their mean."""
    best = min((one for one in done.figures if one.policy != REFERENCE), key=lambda one: float(one.hosts.mean()))
    return [(one.policy, one.packing) for one in (done.of(REFERENCE), best) if one.packing.kinds]


def _known(done: Evaluation) -> tuple[str, Packing] | None:
    return None if done.optimum is None else ("With full knowledge", done.optimum.packing)


def used(instance: Instance, packing: Packing) -> NDArray[np.int64]:
    """Return the cores in use by host and size of container, (hosts, sizes), sizes in order of cores and memory."""
    demand = {app.name: app.demand for app in instance.applications}
    sizes = sorted({need[:2] for need in demand.values()})
    table_of = np.zeros((len(packing.kinds), len(sizes)), dtype=np.int64)
    owners = [request.application for request in instance.requests for _ in range(request.count)]
    for owner, host in zip(owners, packing.hosts, strict=True):
        if host != REJECTED:
            table_of[host, sizes.index(demand[owner][:2])] += demand[owner][0]
    for host, (_, running) in enumerate(instance.snapshot):
        for name, number in running.items():
            table_of[host, sizes.index(demand[name][:2])] += number * demand[name][0]
    return table_of


def packing_picture(instance: Instance, packing: Packing) -> str:
    """Return a packing as SVG: hosts in the order of their opening, their cores by size of container."""
    cores = {kind.name: kind.capacity[0] for kind in instance.hosts}
    sizes = sorted({app.demand[:2] for app in instance.applications})
    filled = used(instance, packing).cumsum(axis=1)
    whole = np.array([cores[kind] for kind in packing.kinds])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        edges = np.arange(len(whole) + 1)
        below = np.zeros(len(whole))
        for k, (wanted, memory) in enumerate(sizes):
            top = filled[:, k]
            axes.stairs(
                top, edges, baseline=below, fill=True, color=POLICIES[k % len(POLICIES)], label=f"{wanted}c{memory}g"
            )
            below = top
        axes.stairs(whole, edges, color=SOFT, linewidth=0.6)
        axes.set_xlim(0, max(1, len(whole)))
        axes.set_ylim(0, 1.05 * whole.max(initial=1))
        figure.legend(loc="outside upper right", ncols=8)
        panel(axes, f"{len(whole)} hosts", x="host, in the order of opening", y="in use, cores")

    return svg((9.5, 2.7), draw)


def _orders(done: Evaluation) -> str:
    ranked = sorted(done.figures, key=lambda figures: float(figures.hosts.mean()))
    tint = colours([one.policy for one in done.figures])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        jitter = np.random.default_rng(0)
        for row, one in enumerate(ranked):
            spread = jitter.uniform(-0.28, 0.28, len(one.hosts))
            axes.plot(one.hosts, row + spread, ".", color=tint[one.policy], markersize=3.5, alpha=0.7)
            axes.plot([one.hosts.mean()] * 2, [row - 0.36, row + 0.36], color=INK, linewidth=1.6)
        axes.axvline(done.bound.hosts, color=SOFT, linewidth=1.0, linestyle="--")
        axes.set_yticks(range(len(ranked)), [one.policy for one in ranked])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        panel(axes, "Mean as a bar; the dashed line is the lower bound", x="open, hosts", y="policy, by name")

    return svg((9.5, 0.6 + 0.36 * len(ranked)), draw)


def _free(done: Evaluation) -> str:
    shown: list[Figures] = [one for one in done.figures if one.packing.kinds]
    tint = colours([one.policy for one in done.figures])
    cores = {kind.name: kind.capacity[0] for kind in done.instance.hosts}
    names = [f"{low} to {high - 1}" for low, high in zip(FREE_EDGES[1:], (*FREE_EDGES[2:], 97), strict=False)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        width = 0.8 / max(1, len(shown))
        for k, one in enumerate(shown):
            whole = np.array([cores[kind] for kind in one.packing.kinds])
            free = whole - used(done.instance, one.packing).sum(axis=1)
            lying = [
                int(free[(free >= low) & (free < high)].sum())
                for low, high in zip(FREE_EDGES[1:], (*FREE_EDGES[2:], np.inf), strict=False)
            ]
            share = np.array(lying) / max(1, free.sum())
            axes.bar(np.arange(len(share)) + k * width, share, width, color=tint[one.policy], label=one.policy)
        axes.set_xticks(np.arange(len(names)) + 0.4 - width / 2, names)
        axes.legend(ncols=2)
        axes.grid(axis="x", visible=False)
        axes.spines["bottom"].set_color(GRID)
        title = "Share of all free cores, by how many are free on their host"
        panel(axes, title, x="free on the host, cores", y="free, share of all")

    return svg((9.5, 2.6), draw)
