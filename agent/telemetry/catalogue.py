"""Every metric of the agent: name, type, labels, unit and meaning, as data; and their reference page.

Names follow Prometheus: prefix `trimtab_`, base units, `_total` for counters. No label holds the id of a VM, a decision
or an intent: these are in the log and the ledger.
"""

from __future__ import annotations

from agent.kernel.metrics import Kind, Metric, Section, counter, gauge, histogram
from agent.kernel.parts import kinds

TICK_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WRITE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


def _of_group(name: str, meaning: str) -> Metric:
    return gauge(f"group_{name}", meaning, "fleet", "group", "vm_type", unit="VMs")


CATALOGUE: tuple[Section, ...] = (
    Section(
        "The agent",
        (
            gauge("build_info", "1, labelled with the versions in use.", "version", "python"),
            gauge("mode", "1 for the effective mode: observe or act.", "mode"),
            gauge("started_timestamp_seconds", "Start of the agent, since the epoch."),
            gauge("healthy", "1 while the loop turns, as on /healthz."),
            gauge("ready", "1 while the agent can work, as on /readyz."),
            gauge("stopping", "1 while the agent ends."),
            gauge("leader", "1 while this agent leads any subject."),
            gauge("leader_epoch", "Newest epoch under which this agent leads, 0 when it leads nothing; it only grows."),
            gauge("led_subjects", "Subjects of a shared ledger by the agent that leads them.", "leader"),
            gauge("problem", "1 for each part with a problem.", "part"),
        ),
    ),
    Section(
        "The loop",
        (
            counter("ticks", "Turns of the loop."),
            counter("tick_failures", "Turns in which nothing could be executed."),
            counter("ticks_missed", "Turns that were due and not run."),
            counter("ticks_rescued", "Turns started by the watchdog, as after a step of the clock."),
            counter("ticks_overran", "Turns that lasted beyond their deadline."),
            histogram("tick_duration_seconds", "Duration of a turn, calls to AWS included.", TICK_BOUNDS_S),
            gauge("tick_interval_seconds", "Interval of the loop, as set."),
            gauge("last_tick_timestamp_seconds", "Beginning of the last turn, since the epoch."),
            gauge("last_tick_age_seconds", "Time since the end of the last turn, on the monotonic clock."),
        ),
    ),
    Section(
        "Decisions",
        (
            counter("decisions", "Decisions, by their final reason.", "fleet", "reason"),
            counter(
                "rail_effects",
                "Changes that a rail made to a proposal; see docs/operate/rails.md.",
                "fleet",
                "rail",
                "verdict",
                "reason",
            ),
            counter("policy_failures", "Policies that failed and were replaced by the next one in order.", "fleet"),
            counter("intents", "Intents to change a group.", "fleet", "group", "direction"),
            counter(
                "outcomes",
                "Outcomes of intents. A status other than unknown is final; unknown is counted in each turn it lasts.",
                "fleet",
                "group",
                "status",
                "reason",
            ),
            gauge("open_intents", "Intents without a final outcome.", "fleet"),
            counter(
                "events",
                "Events of a subject; of the agent itself, without decision and subject.",
                "decision",
                "subject",
                "reason",
            ),
            gauge("paused", "1 while an operator holds this direction: all, in or out.", "fleet", "scope"),
            gauge("pinned", "1 while an operator's pin holds the size.", "fleet"),
            gauge("circuit_open", "1 while a group's circuit breaker is open.", "fleet", "group"),
        ),
    ),
    Section(
        "Sizes",
        (
            _of_group("requested", "Desired capacity at AWS."),
            gauge(
                "group_requested_units",
                "Desired capacity as AWS counts it; a VM is one unit unless the group gives it a weight.",
                "fleet",
                "group",
                "vm_type",
                unit="capacity units",
            ),
            _of_group("observed", "In service at AWS."),
            _of_group("warm", "In service, and have reported."),
            _of_group("booting", "Requested and not yet warm."),
            _of_group("overdue", "Booting beyond the boot deadline."),
            _of_group("draining", "Draining, no longer capacity."),
            _of_group("silent", "Warm, without enough samples in the minute."),
            _of_group("unhealthy", "Unhealthy at AWS."),
            _of_group("decided", "Size decided in the last turn."),
            _of_group("minimum", "Minimum size at AWS."),
            _of_group("maximum", "Maximum size at AWS."),
        ),
    ),
    Section(
        "Load, queue and cost",
        (
            gauge("cpu_ratio", "Mean CPU over the VMs that report; absent when none does.", "fleet"),
            gauge("ram_ratio", "Mean memory in use over the VMs that report.", "fleet"),
            gauge("queue_waiting_jobs", "Jobs that wait.", "fleet"),
            gauge("queue_running_jobs", "Jobs that run.", "fleet"),
            gauge("queue_submitted_jobs", "Jobs submitted, by the counter of the job source.", "fleet"),
            gauge("queue_oldest_wait_seconds", "Wait of the oldest job.", "fleet"),
            gauge("signal_value", "A fleet's own signal; absent while it is.", "fleet", "signal", unit="its own"),
            gauge("signal_target", "Its target, as set.", "fleet", "signal", unit="its own"),
            gauge("cost_dollars_per_hour", "Cost of the requested size.", "fleet"),
            gauge("cost_today_dollars", "Cost since midnight UTC.", "fleet"),
        ),
    ),
    Section(
        "Measurements",
        (
            gauge(
                "coverage_ratio",
                "VMs that reported in the minute, of those due: warm, or in service beyond the boot deadline. "
                "1 where none is due.",
                "fleet",
            ),
            gauge("newest_sample_age_seconds", "Age of a fleet's newest sample, of a VM or of the queue.", "fleet"),
            gauge("newest_vm_sample_age_seconds", "Age of the newest sample of a fleet's VMs.", "fleet"),
            gauge("newest_queue_sample_age_seconds", "Age of the newest sample of a fleet's queue.", "fleet"),
            gauge("stale_minutes", "Minutes in a row without an input that the policy needs.", "fleet"),
            gauge("series", "Series held in memory."),
            gauge(
                "unknown_vms",
                "VMs that report and are unknown to AWS and to the pools' inventories; held for two collections.",
                "decision",
                "subject",
                "group",
            ),
            counter("unknown_vms_refused", "Readings and names of such VMs refused.", "decision", "subject", "group"),
            counter(
                "claims_refused",
                "Readings beyond the limits of any source; see docs/operate/instrument.md.",
                "decision",
                "subject",
                "group",
                "metric",
            ),
            counter("collector_successes", "Collections that succeeded.", "collector"),
            counter("collector_failures", "Collections that failed.", "collector"),
            counter("collector_overruns", "Collections that lasted beyond their timeout.", "collector"),
            counter("collector_skipped", "Collections skipped while the one before still ran.", "collector"),
            counter("collector_refused_samples", "Samples that the store refused.", "collector"),
            gauge(
                "collector_last_success_timestamp_seconds",
                "Time of the last successful collection, since the epoch.",
                "collector",
            ),
            gauge("collector_last_duration_seconds", "Duration of the last collection.", "collector"),
            counter("listener_lines_accepted", "Lines that the listener accepted."),
            counter("listener_lines_rejected", "Lines that the listener refused.", "reason"),
            counter("listener_lines_forwarded", "Accepted lines forwarded to the leader of their subject.", "agent"),
            counter(
                "listener_lines_unforwarded", "Accepted lines dropped, as too many waited for the leader.", "agent"
            ),
            gauge("listener_open_connections", "Connections open now."),
            counter("listener_connections_opened", "Connections opened."),
            counter("listener_connections_refused", "Connections refused, as too many were open and none idle."),
            counter("listener_connections_displaced", "Idle connections closed to make room for others."),
            counter(
                "listener_connections_foreign",
                "Connections refused, as their address is outside the permitted networks.",
            ),
            counter("listener_connections_idled_out", "Connections closed after silence."),
            counter("listener_datagrams", "UDP datagrams received."),
            counter(
                "listener_datagrams_foreign",
                "UDP datagrams refused, as their address is outside the permitted networks.",
            ),
        ),
    ),
    Section(
        "Learning",
        (
            gauge("learn_last_end_timestamp_seconds", "End of the last round of learning.", "part", "subject"),
            gauge(
                "learn_last_good_end_timestamp_seconds",
                "End of the last round that judged to its end: promoted, probation, kept or refused.",
                "part",
                "subject",
            ),
            gauge("learn_outcome", "1 for how the last round ended, else 0.", "part", "subject", "outcome"),
            gauge("learn_cpu_seconds", "Time of a processor that the last round took.", "part", "subject"),
            gauge("learn_probation", "1 while a model is on probation.", "part", "subject"),
            gauge("queue_rule_horizon_seconds", "Horizon of the queue rule in force.", "fleet"),
            gauge("queue_rule_idle_seconds", "Idle time of the queue rule in force.", "fleet"),
            gauge("queue_rule_tuned", "1 while a tuned setting of the queue rule is in force.", "fleet"),
            gauge("queue_rule_proposed", "1 while a setting of the queue rule waits for an approval.", "fleet"),
        ),
    ),
    Section(
        "AWS, ledger and HTTP",
        (
            counter(
                "aws_calls",
                "Calls by service, kind (read or change) and outcome: ok, a failure class, or refused for "
                "calls beyond the budget.",
                "service",
                "kind",
                "outcome",
            ),
            histogram(
                "ledger_write_duration_seconds", "Duration of a transaction until it was on disk.", WRITE_BOUNDS_S
            ),
            counter("ledger_write_failures", "Transactions that failed."),
            gauge("ledger_size_bytes", "Size of the ledger, SQLite's write-ahead log included."),
            gauge("ledger_usable", "1 when the last turn could read and write the ledger."),
            counter("http_requests", "Requests, by route.", "method", "route", "status"),
            counter("self_metrics_sent", "Lines of these metrics written to Graphite."),
            counter("self_metrics_dropped", "Lines of these metrics dropped, as Graphite was unreachable."),
        ),
    ),
)

PROCESS = Section(
    "The process (as every Prometheus client names them)",
    (
        Metric("process_virtual_memory_bytes", Kind.GAUGE, "bytes", "Virtual memory size in bytes."),
        Metric("process_resident_memory_bytes", Kind.GAUGE, "bytes", "Resident memory size in bytes."),
        Metric("process_start_time_seconds", Kind.GAUGE, "seconds", "Start time since the epoch."),
        Metric("process_cpu_seconds_total", Kind.COUNTER, "seconds", "User and system CPU time spent."),
        Metric("process_open_fds", Kind.GAUGE, "", "Open file descriptors."),
        Metric("process_max_fds", Kind.GAUGE, "", "Most file descriptors that may be open."),
    ),
)
"""Read from the kernel by prometheus_client."""

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

A value that could not be measured is absent, never zero. No label holds the id of a VM, a decision or an intent: these
are in the log and in the ledger.

Of several agents on one ledger, the leader of a fleet has the series of that fleet; a fleet without a leader has them
at each agent.
"""


def own_metrics() -> tuple[Metric, ...]:
    """Return the metrics of the agent itself, in the order of the catalogue."""
    return tuple(metric for section in CATALOGUE for metric in section.metrics)


def sections() -> tuple[Section, ...]:
    """Return every section on /metrics: the agent's, those of the installed parts, and the process's."""
    return (*CATALOGUE, *(section for kind in kinds() for section in kind.sections), PROCESS)


def page() -> str:
    """Return the reference page of all metrics, docs/operate/metrics.md, as Markdown."""
    lines = [PREAMBLE]
    for section in sections():
        rows = (_row(metric) for metric in section.metrics)
        lines += [
            f"## {section.title}\n",
            "| name | type | labels | unit | meaning |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(lines)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    bounds = f" Bounds: {', '.join(f'{bound:g}' for bound in metric.bounds)}." if metric.kind is Kind.HISTOGRAM else ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.meaning}{bounds} |"
