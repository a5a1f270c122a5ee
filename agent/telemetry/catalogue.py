"""Every metric the agent shows: name, type, labels, unit and meaning, as data.

Names follow Prometheus: prefix `trimtab_`, base units, `_total` for counters. No label holds the id of a VM, a decision
or an intent: those stand in the log and the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "trimtab_"


class Kind(StrEnum):
    """counter: only grows, starts at 0 with the process. gauge: a value now. histogram: counts by upper bound."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `bounds` are a histogram's upper bounds; `unit` is "" for plain numbers."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics that belong together."""

    title: str
    metrics: tuple[Metric, ...]


TICK_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WRITE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
SECONDS, DOLLARS, RATIO, VMS, JOBS, BYTES = "seconds", "dollars", "ratio (0..1)", "VMs", "jobs", "bytes"
CORES = "cores"


def _counter(name: str, meaning: str, *labels: str, unit: str = "") -> Metric:
    return Metric(f"{PREFIX}{name}_total", Kind.COUNTER, unit, meaning, labels)


def _gauge(name: str, meaning: str, *labels: str, unit: str = "") -> Metric:
    return Metric(PREFIX + name, Kind.GAUGE, unit, meaning, labels)


CATALOGUE: tuple[Section, ...] = (
    Section(
        "The agent",
        (
            _gauge("build_info", "1, labelled with what runs.", "version", "python"),
            _gauge("mode", "1 for the mode in force: observe or act.", "mode"),
            _gauge("started_timestamp_seconds", "When the agent started, since the epoch.", unit=SECONDS),
            _gauge("healthy", "1 while the loop turns, as /healthz says."),
            _gauge("ready", "1 while the agent can do its work, as /readyz says."),
            _gauge("stopping", "1 while the agent ends."),
            _gauge("leader", "1 while this process may act, 0 on a standby."),
            _gauge("leader_epoch", "Epoch under which this process leads, 0 when it does not; it only grows."),
            _gauge("problem", "1 for each part that a person should look into.", "part"),
        ),
    ),
    Section(
        "The loop",
        (
            _counter("ticks", "Turns of the loop."),
            _counter("tick_failures", "Turns in which nothing could be executed."),
            _counter("ticks_missed", "Turns that were due and did not happen."),
            _counter("ticks_rescued", "Turns that the watchdog had to start, as after a step of the clock."),
            _counter("ticks_overran", "Turns that lasted beyond their deadline."),
            Metric(
                f"{PREFIX}tick_duration_seconds",
                Kind.HISTOGRAM,
                SECONDS,
                "How long a turn took, calls to AWS included.",
                bounds=TICK_BOUNDS_S,
            ),
            _gauge("tick_interval_seconds", "How often the loop turns, as set.", unit=SECONDS),
            _gauge("last_tick_timestamp_seconds", "When the last turn began, since the epoch.", unit=SECONDS),
            _gauge("last_tick_age_seconds", "Since the last turn ended, on the monotonic clock.", unit=SECONDS),
        ),
    ),
    Section(
        "Decisions",
        (
            _counter("decisions", "Decisions, by the reason that spoke last.", "fleet", "reason"),
            _counter(
                "rail_effects",
                "Changes that a rail made to a proposal; see docs/operate/rails.md.",
                "fleet",
                "rail",
                "verdict",
                "reason",
            ),
            _counter("policy_failures", "Policies that failed and were replaced by the next one in order.", "fleet"),
            _counter("intents", "Changes of a group that were begun.", "fleet", "group", "direction"),
            _counter(
                "outcomes",
                "What came of intents. A status other than unknown is final; unknown is counted in each turn it lasts.",
                "fleet",
                "group",
                "status",
                "reason",
            ),
            _gauge("open_intents", "Changes under way.", "fleet"),
            _counter("events", "What happened to a fleet outside its decisions.", "fleet", "reason"),
            _gauge("paused", "1 while an operator holds this direction: all, in or out.", "fleet", "scope"),
            _gauge("pinned", "1 while an operator's pin holds the size.", "fleet"),
            _gauge("circuit_open", "1 while a group's circuit breaker is open.", "fleet", "group"),
        ),
    ),
    Section(
        "Sizes",
        (
            _gauge("group_requested", "Desired capacity that AWS holds.", "fleet", "group", "vm_type", unit=VMS),
            _gauge("group_observed", "In service, as AWS counts.", "fleet", "group", "vm_type", unit=VMS),
            _gauge("group_warm", "In service and have reported.", "fleet", "group", "vm_type", unit=VMS),
            _gauge("group_booting", "Requested and not yet warm.", "fleet", "group", "vm_type", unit=VMS),
            _gauge("group_overdue", "Booting beyond the boot deadline.", "fleet", "group", "vm_type", unit=VMS),
            _gauge("group_draining", "Leaving, no longer capacity.", "fleet", "group", "vm_type", unit=VMS),
            _gauge(
                "group_silent", "Warm, without enough samples in the minute.", "fleet", "group", "vm_type", unit=VMS
            ),
            _gauge("group_unhealthy", "Unhealthy, as AWS says.", "fleet", "group", "vm_type", unit=VMS),
            _gauge("group_decided", "Size decided in the last turn.", "fleet", "group", "vm_type", unit=VMS),
            _gauge("group_minimum", "Smallest size, as AWS holds it.", "fleet", "group", "vm_type", unit=VMS),
            _gauge("group_maximum", "Largest size, as AWS holds it.", "fleet", "group", "vm_type", unit=VMS),
        ),
    ),
    Section(
        "Load, queue and cost",
        (
            _gauge("cpu_ratio", "Mean CPU over the VMs that report; absent when none does.", "fleet", unit=RATIO),
            _gauge("ram_ratio", "Mean memory in use over the VMs that report.", "fleet", unit=RATIO),
            _gauge("queue_waiting_jobs", "Jobs that wait.", "fleet", unit=JOBS),
            _gauge("queue_running_jobs", "Jobs that run.", "fleet", unit=JOBS),
            _gauge("queue_submitted_jobs", "Jobs submitted, as the job source counts.", "fleet", unit=JOBS),
            _gauge("queue_oldest_wait_seconds", "How long the oldest job has waited.", "fleet", unit=SECONDS),
            _gauge("cost_dollars_per_hour", "What the requested size costs in an hour.", "fleet", unit=DOLLARS),
            _gauge("cost_today_dollars", "Spent since midnight UTC.", "fleet", unit=DOLLARS),
        ),
    ),
    Section(
        "Admission",
        (
            _gauge(
                "cluster_capacity_cores", "Cores of a cluster that deployments ask to come into.", "cluster", unit=CORES
            ),
            _gauge(
                "cluster_taken_cores",
                "Cores of those inside, those admitted and not started included.",
                "cluster",
                unit=CORES,
            ),
            _gauge("cluster_deployments", "Deployments inside: live, or admitted and not started.", "cluster", "stage"),
            _gauge("cluster_safe", "1 while the rule holds for those inside; 0: nobody is admitted.", "cluster"),
            _gauge(
                "cluster_slack_cores",
                "Least room that the rule leaves in a band of time to come; below 0 the rule is broken.",
                "cluster",
                "band",
                unit=CORES,
            ),
            _gauge(
                "cluster_scale_outs_month_to_date", "Requests for more cores in the calendar month (UTC).", "cluster"
            ),
            _gauge("cluster_failures_month_to_date", "Those of them that were refused.", "cluster"),
            _gauge(
                "cluster_sla_budget_used_ratio",
                "Refused ones against those that the promise allows; above 1 it is broken.",
                "cluster",
                unit="ratio",
            ),
            _counter("admissions", "Decisions on admission since the start of the ledger.", "cluster"),
        ),
    ),
    Section(
        "Oversubscription",
        (
            _gauge(
                "oversub_rate",
                "Share of its cores that a subscriber's new VM is reserved.",
                "pool",
                "subscriber",
                unit=RATIO,
            ),
            _gauge(
                "oversub_saved_cores",
                "Requested cores of present VMs that are not reserved.",
                "pool",
                "subscriber",
                unit=CORES,
            ),
            _gauge("oversub_violation_ratio", "Chance of too many hot hours within the horizon.", "pool", unit=RATIO),
            _gauge("oversub_expected_hot_hours", "Hot hours expected within the horizon.", "pool"),
            _gauge("oversub_hot_hours_seen", "Hot hours of the last horizon that count.", "pool"),
            _gauge("oversub_machines_used", "Machines with a VM.", "pool"),
            _gauge("oversub_machines_without", "Machines needed at least with every core reserved.", "pool"),
            _gauge("oversub_frozen", "1 while no rate goes down because one more hot hour breaks the promise.", "pool"),
            _gauge("oversub_rolled_back", "1 while everything is reserved until an operator re-arms the pool.", "pool"),
            _counter("oversub_decisions", "Hours decided since the start of the ledger.", "pool"),
            _counter("oversub_requests", "Requests answered.", "pool"),
            _counter("oversub_fallback", "Rates of 1.0 because something was missing or wrong.", "pool"),
            _counter("oversub_shield_interventions", "Requests whose rate the shield raised.", "pool"),
            _counter("oversub_rejects", "Requests for which no machine had room.", "pool"),
            _counter("oversub_drift_alarms", "Subscribers found to use their cores otherwise than before.", "pool"),
            _counter("oversub_hot_machine_hours", "Hours of machines that were hot.", "pool"),
            _counter(
                "oversub_predicted_hot_hours",
                "Chances of a hot next hour, added up: beside it, those that came.",
                "pool",
            ),
            _counter("oversub_realised_hot_hours", "Hours in which a machine was hot.", "pool"),
            _counter("oversub_clipped_samples", "Readings above 100 % that were taken as 100 %.", "pool"),
            _counter("oversub_rejected_samples", "Readings of usage that were refused.", "pool"),
            _gauge(
                "oversub_decision_seconds", "How long the last hour took to decide, once folded.", "pool", unit=SECONDS
            ),
        ),
    ),
    Section(
        "Measurements",
        (
            _gauge(
                "coverage_ratio",
                "VMs that reported in the minute, of those due: warm, or in service beyond the boot deadline. "
                "1 where none is due.",
                "fleet",
                unit=RATIO,
            ),
            _gauge(
                "newest_sample_age_seconds",
                "Age of a fleet's newest sample, of a VM or of the queue.",
                "fleet",
                unit=SECONDS,
            ),
            _gauge("newest_vm_sample_age_seconds", "Age of the newest sample of a fleet's VMs.", "fleet", unit=SECONDS),
            _gauge(
                "newest_queue_sample_age_seconds", "Age of the newest sample of a fleet's queue.", "fleet", unit=SECONDS
            ),
            _gauge(
                "stale_minutes", "Minutes in a row without an input that the policy needs.", "fleet", unit="minutes"
            ),
            _gauge("series", "Series held in memory."),
            _gauge(
                "unknown_vms",
                "VMs that report and are not in AWS, or in a pool's inventory: they wait for two collections.",
                "fleet",
                "group",
            ),
            _counter("unknown_vms_refused", "Readings and names of such VMs refused.", "fleet", "group"),
            _counter(
                "claims_refused",
                "Readings that no source may claim, whoever brought them; see docs/operate/instrument.md.",
                "fleet",
                "group",
                "metric",
            ),
            _counter("collector_successes", "Collections that succeeded.", "collector"),
            _counter("collector_failures", "Collections that failed.", "collector"),
            _counter("collector_overruns", "Collections that lasted beyond their timeout.", "collector"),
            _counter("collector_skipped", "Collections left out because the one before still ran.", "collector"),
            _counter("collector_refused_samples", "Samples that the store did not take.", "collector"),
            _gauge(
                "collector_last_success_timestamp_seconds",
                "When a collection last succeeded, since the epoch.",
                "collector",
                unit=SECONDS,
            ),
            _gauge("collector_last_duration_seconds", "How long the last one took.", "collector", unit=SECONDS),
            _counter("listener_lines_accepted", "Lines that the listener took."),
            _counter("listener_lines_rejected", "Lines that the listener refused.", "reason"),
            _gauge("listener_open_connections", "Connections open now."),
            _counter("listener_connections_opened", "Connections ever opened."),
            _counter("listener_connections_refused", "Connections refused, too many being open and none idle."),
            _counter("listener_connections_displaced", "Idle connections closed to make room for others."),
            _counter(
                "listener_connections_foreign",
                "Connections refused, their address being outside the networks let in.",
            ),
            _counter("listener_connections_idled_out", "Connections closed for silence."),
            _counter("listener_datagrams", "UDP datagrams received."),
            _counter("listener_datagrams_foreign", "Of them those refused, as such connections are."),
        ),
    ),
    Section(
        "AWS, ledger and HTTP",
        (
            _counter(
                "aws_calls",
                "Calls by service, kind (read or change) and what came of them: ok, a failure class, or refused for "
                "those that the call budget held back.",
                "service",
                "kind",
                "outcome",
            ),
            Metric(
                f"{PREFIX}ledger_write_duration_seconds",
                Kind.HISTOGRAM,
                SECONDS,
                "How long a transaction took until it was on disk.",
                bounds=WRITE_BOUNDS_S,
            ),
            _counter("ledger_write_failures", "Transactions that did not come to their end."),
            _gauge("ledger_size_bytes", "Size of the ledger, SQLite's write-ahead log included.", unit=BYTES),
            _gauge("ledger_usable", "1 when the last turn could read and write the ledger."),
            _counter("http_requests", "Requests answered, by route.", "method", "route", "status"),
            _counter("self_metrics_sent", "Lines of these metrics written to Graphite."),
            _counter("self_metrics_dropped", "Lines of these metrics given up, Graphite being out of reach."),
        ),
    ),
)

PROCESS = Section(
    "The process (as every Prometheus client names them)",
    (
        Metric("process_virtual_memory_bytes", Kind.GAUGE, BYTES, "Virtual memory size in bytes."),
        Metric("process_resident_memory_bytes", Kind.GAUGE, BYTES, "Resident memory size in bytes."),
        Metric("process_start_time_seconds", Kind.GAUGE, SECONDS, "Start time since the epoch."),
        Metric("process_cpu_seconds_total", Kind.COUNTER, SECONDS, "User and system CPU time spent."),
        Metric("process_open_fds", Kind.GAUGE, "", "Open file descriptors."),
        Metric("process_max_fds", Kind.GAUGE, "", "Most file descriptors that may be open."),
    ),
)
"""Read from the kernel by prometheus_client."""

SECTIONS: tuple[Section, ...] = (*CATALOGUE, PROCESS)


def own_metrics() -> tuple[Metric, ...]:
    """Return the metrics that the agent fills itself, in the order of the catalogue."""
    return tuple(metric for section in CATALOGUE for metric in section.metrics)


def all_metrics() -> tuple[Metric, ...]:
    """Return every metric that /metrics shows."""
    return tuple(metric for section in SECTIONS for metric in section.metrics)
