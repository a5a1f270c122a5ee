"""Writes the reference page of all metrics, docs/operate/metrics.md, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from agent.telemetry.catalogue import SECTIONS, Kind, Metric

PREAMBLE = """\
# Metrics

<!-- Written by `trimtab config metrics` from agent/telemetry/catalogue.py; a test fails when it is stale. -->

`/metrics` serves them to Prometheus, on the unix socket without and on TCP with a token
(`TRIMTAB_HTTP__OPEN_METRICS=true` serves them there without one):

```sh
curl --unix-socket /var/lib/trimtab/trimtab.sock http://localhost/metrics
```

With `TRIMTAB_SELF_METRICS__HOST` set they also go to Graphite after each turn of the loop, as
`<prefix>.<name without trimtab_>.<values of the labels, in the order below>`; of a histogram its `_count` and `_sum`.

What could not be measured is absent, never zero. No label holds the id of a VM, a decision or an intent: those stand in
the log and in the ledger.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([PREAMBLE, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    for number, section in enumerate(SECTIONS):
        if number:
            yield ""
        yield f"## {section.title}\n"
        yield "| name | type | labels | unit | meaning |"
        yield "|---|---|---|---|---|"
        yield from (_row(metric) for metric in section.metrics)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    bounds = f" Bounds: {', '.join(f'{bound:g}' for bound in metric.bounds)}." if metric.kind is Kind.HISTOGRAM else ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.meaning}{bounds} |"
