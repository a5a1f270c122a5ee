"""`trimtab trace` and `trimtab world`: traces, instances, scenarios and worlds as files, from logs, tables, ledgers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from agent.commands.options import examples, moment
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.options import Bounds, ForceOption, Written, epilog
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from domain.workload import Trace
    from simulator.workloads.swf import SwfOptions, SwfReport

TABLE = """
A field without --column is read from the column of the same name. Times are
ISO 8601 (in UTC where they have no zone), or numbers: seconds of any clock, or epoch
time in milliseconds, microseconds or nanoseconds.
"""
LedgerArgument = Annotated[str, Argument(metavar="LEDGER", help="SQLite file, or URL.")]
TableArgument = Annotated[Path, Argument(metavar="TABLE", help="FILE.csv, FILE.csv.gz or FILE.parquet.")]
ColumnOption = Annotated[
    list[str] | None, "--column", "FIELD=NAME", "The column that has a field, see below; repeatable."
]
NameOption = Annotated[str | None, "Its name, else that of the log or table."]
SinceOption = Annotated[str | None, "TIME", "Not before: 2026-03-01T12:00, or 30d ago."]
UntilOption = Annotated[str | None, "TIME", "Before: 2026-03-08T12:00, or 2h ago."]
OutputOption = Annotated[Path, "--output", "-o", "FILE.csv", "CSV to write.", Written((".csv",), also=".json")]


@dataclass(frozen=True, kw_only=True)
class TraceMake(Verb):
    """Write a generated trace to a CSV, and to FILE.csv.json how it was made and the CSV's SHA-256.

    The same text makes the same file. `simulate --workload FILE.csv` plays it.
    """

    EPILOG = examples(
        "trimtab trace make train-rand:7 -o load.csv",
        "trimtab trace make coevolution:seed=3,generations=5 -o loop.csv --json",
    )

    workload: Annotated[str, Argument(metavar="NAME[:SEED|PARAMETERS]", help="As for simulate --workload.")]
    output: OutputOption
    force: ForceOption = False

    def run(self) -> Answer:
        """Generate the trace, and save it."""
        from simulator.workloads.named import save_trace, workload_of

        trace = workload_of(self.workload)
        generator, seed, parameters = origin(self.workload)
        made: dict[str, Any] = {"generator": generator, "seed": seed, "parameters": parameters}
        digest = save_trace(trace, self.output, version=_version(), **made)
        return _answer({"file": str(self.output), "sha256": digest, **summary(trace)})


@dataclass(frozen=True, kw_only=True)
class TraceCheck(Verb):
    """Verify a saved trace, digest, columns and every value, and tell what is in it; an error if anything is wrong."""

    EPILOG = examples("trimtab trace check load.csv", "trimtab trace check load.csv --json")

    file: Annotated[Path, Argument(metavar="FILE.csv", help="A saved trace, with its FILE.csv.json.")]

    def run(self) -> Answer:
        """Read the trace."""
        from simulator.workloads.named import load_trace, origin_of

        file = self.file
        if file.is_file() and not file.with_name(file.name + ".json").exists():
            remedy = (
                f"it is a plain table, no saved trace: `trimtab trace import-csv {file} -o NEW.csv --column "
                "submit=NAME --column runtime=NAME --column cores=NAME` makes one; a table of arrival_s and service_s "
                "is a --workload as it is"
            )
            raise BadInput("FILE", str(file), remedy)
        trace, made = load_trace(file), origin_of(file)
        facts = {name: made.get(name) for name in ("generator", "version", "seed", "parameters", "sha256")}
        return _answer({"file": str(file), **facts, **summary(trace)})


@dataclass(frozen=True, kw_only=True)
class ImportOfJobs(Verb):
    """The options of logs and tables of jobs: widths, the window, scales, and the trace to write."""

    output: OutputOption
    width: Annotated[
        str,
        "split|cap|mold",
        "A job of many cores becomes that many one-core jobs; dropped if wider than the largest VM; the same "
        "work on fewer cores.",
    ] = "split"
    largest_vm_cores: Annotated[int, "N", "Where cap and mold cut."] = 8
    from_s: Annotated[float | None, "SECONDS", "Start of the window on the log's clock, else its first job."] = None
    hours: Annotated[float | None, "H", "Length of the window, else the whole log."] = None
    time_scale: Annotated[float, "X", "Divides the times between arrivals."] = 1.0
    run_scale: Annotated[float, "X", "Multiplies run times."] = 1.0
    thin: Annotated[float, "P", "Keep each job with this probability."] = 1.0
    seed: Annotated[int, "Seed of the thinning.", Bounds(min=0)] = 0
    name: NameOption = None
    force: ForceOption = False

    def options(self, *, drop_failed: bool = False) -> SwfOptions:
        """Return the conversion to a trace."""
        from simulator.workloads.swf import SwfOptions, WidthRule

        same = ("largest_vm_cores", "from_s", "hours", "time_scale", "run_scale", "thin", "seed")
        given = {name: getattr(self, name) for name in same}
        return SwfOptions(width_rule=WidthRule(self.width), drop_failed=drop_failed, **given)

    def saved(
        self, trace: Trace, report: SwfReport, generator: str, source: Path, options: SwfOptions, **more: object
    ) -> Answer:
        """Save a trace with its origin; return the lines kept and dropped, and its summary."""
        from hashlib import file_digest

        from simulator.workloads.named import save_trace

        with source.open("rb") as stream:
            sha256 = file_digest(stream, "sha256").hexdigest()
        parameters = {"log": source.name, "log_sha256": sha256, **asdict(options), **more}
        made: dict[str, Any] = {"generator": generator, "seed": options.seed, "parameters": parameters}
        digest = save_trace(trace, self.output, version=_version(), **made)
        dropped = {reason.value: count for reason, count in sorted(report.dropped.items())}
        counts = {"lines": report.lines, "kept": report.kept, "dropped": dropped}
        return _answer({"file": str(self.output), "sha256": digest, **counts, **summary(trace)})


@dataclass(frozen=True, kw_only=True)
class TraceImportSwf(ImportOfJobs):
    """Make a saved trace of a job log; tell how many lines were kept, and how many dropped for which reason.

    A malformed line is an error that names its number and field: nothing is written then.
    """

    EPILOG = examples(
        "trimtab trace import-swf log.swf.gz -o log.csv --hours 24",
        "trimtab trace import-swf log.swf -o day.csv --from-s 86400 --hours 24 \\",
        "    --time-scale 6 --run-scale 0.1667 --thin 0.5",
    )

    log: Annotated[Path, Argument(metavar="LOG", help="Log in the Standard Workload Format, plain or .gz.")]
    drop_failed: Annotated[bool, "Drop failed and cancelled jobs."] = False

    def run(self) -> Answer:
        """Read the log, and save the trace."""
        from simulator.workloads.swf import read_swf

        options = self.options(drop_failed=self.drop_failed)
        with _reading(self.log.name, quiet=self.as_json) as shown:
            trace, report = read_swf(self.log, options, self.name, lambda lines: shown(f"{lines:,} lines"))
        return self.saved(trace, report, "swf", self.log, options)


@dataclass(frozen=True, kw_only=True)
class TraceImportCsv(ImportOfJobs):
    """Make a saved trace of a table of jobs with columns of any name, and print how many rows were kept and dropped.

    A wrong value is an error that names its line and field: nothing is written then.
    """

    EPILOG = epilog(
        f"Fields: submit (a time), runtime (seconds) or end (a time), cores (else 1).\n{TABLE}",
        calls=(
            "trimtab trace import-csv jobs.csv -o mine.csv --column submit=submit_time \\",
            "    --column runtime=elapsed --column cores=req_cpus",
            "trimtab trace import-csv jobs.parquet -o mine.csv --column submit=t --column end=done",
        ),
    )

    table: TableArgument
    column: ColumnOption = None

    def run(self) -> Answer:
        """Read the table, and save the trace."""
        from simulator.workloads.tables import JOB_FIELDS, columns_of, read_jobs

        options, fields = self.options(), columns_of(self.column or (), JOB_FIELDS)
        trace, report = read_jobs(self.table, fields, options, self.name)
        return self.saved(trace, report, "table", self.table, options, columns=fields)


@dataclass(frozen=True, kw_only=True)
class TraceImportRequests(Verb):
    """Make an instance of placement of a table of requests, for `simulate`, `train` and `evaluate placement`."""

    EPILOG = epilog(
        "Fields: time, cores and memory (GiB) of a container; disk (GB), end (a time),\napplication, count.\n" + TABLE,
        calls=(
            "trimtab trace import-requests pods.csv -o pods.json --host 64,256,2000 \\",
            "    --column time=created --column memory=mem_gib",
            "trimtab simulate placement --instance pods.json --policy bf",
        ),
    )

    table: TableArgument
    output: Annotated[
        Path, "--output", "-o", "FILE.json", "Instance to write, also .json.gz.", Written((".json", ".json.gz"))
    ]
    host: Annotated[str, "CORES,GIB[,GB]", "Cores, memory and disk of a host."]
    column: ColumnOption = None
    name: NameOption = None
    force: ForceOption = False

    def run(self) -> Answer:
        """Read the table, and write the instance."""
        from simulator.placement.instances import write_instance
        from simulator.workloads.tables import REQUEST_FIELDS, columns_of, read_placement

        wanted = "cores, GiB of memory and, where requests have disk, GB: 64,256,2000"
        sizes = _sizes("--host", self.host, (2, 3), wanted)
        # Without disks each container takes 1 GB, and a host has room for one per core.
        host = (sizes[0], sizes[1], sizes[2] if len(sizes) == 3 else sizes[0])
        found = read_placement(self.table, columns_of(self.column or (), REQUEST_FIELDS), host, self.name)
        write_instance(found, self.output)
        counts = {"applications": len(found.applications), "requests": len(found.requests)}
        counts |= {"containers": sum(request.count for request in found.requests), "releases": len(found.releases)}
        return _answer({"file": str(self.output), **counts})


@dataclass(frozen=True, kw_only=True)
class TraceImportUsage(Verb):
    """Make a scenario of a table of VMs' usage, for `simulate`, `tune`, `train` and `evaluate oversubscription`.

    Weeks begin at the first midnight of the table, the folder's profiles are fitted to the usage in all weeks.
    """

    EPILOG = epilog(
        "Fields: time, vm, cores, usage (share of the VM's cores in use); subscriber,\nmemory (GB), network (Gbit/s).\n"
        + TABLE,
        calls=(
            "trimtab trace import-usage vms.parquet -o mine --machine 64,512 --machines 40 \\",
            "    --column time=timestamp --column usage=cpu_percent --usage-scale 0.01",
            "trimtab simulate oversubscription --scenario mine --week w0 --policy grid:0.5",
        ),
    )

    table: TableArgument
    output: Annotated[Path, "--output", "-o", "FOLDER", "Scenario to write.", Written()]
    machine: Annotated[str, "CORES,GB", "Cores and memory of a machine."]
    machines: Annotated[int, "N", "How many machines there are.", Bounds(min=1)]
    column: ColumnOption = None
    usage_scale: Annotated[float, "X", "Multiplies usage; 0.01 of percent."] = 1.0
    horizon: Annotated[int, "--hours", "H", "Length of a week.", Bounds(min=24)] = 120
    timezone: Annotated[str, "ZONE", "Whose midnight begins a week."] = "UTC"
    force: ForceOption = False

    def run(self) -> Answer:
        """Read the table, and write the scenario."""
        from simulator.workloads.tables import USAGE_FIELDS, columns_of
        from trainer.learning.pools import export_scenario, table_of_usage

        sizes = _sizes("--machine", self.machine, (2,), "cores and GB of memory, such as 64,512")
        pool = table_of_usage(
            self.table,
            columns_of(self.column or (), USAGE_FIELDS),
            machines=self.machines,
            machine=(float(sizes[0]), float(sizes[1])),
            horizon_h=self.horizon,
            timezone=self.timezone,
            scale=self.usage_scale,
        )
        found = export_scenario(pool, self.output)
        weeks = found["recorded"]["weeks"]
        shown = {"folder": str(self.output), "weeks": ", ".join(weeks), "subscribers": found["n_subscribers"]}
        return _answer({**shown, "vms": sum(week["vms"] for week in weeks.values())})


@dataclass(frozen=True, kw_only=True)
class TraceFromLedger(Verb):
    """Make a saved trace of the jobs that a ledger recorded, a table of a cluster's deployments, or a pool's weeks.

    Of a fleet: minute by minute, with the lengths measured then; FILE.csv.gz.json beside it lists gaps, boot times,
    spot notices, refusals by AWS and cost. Of a cluster: a row for each core, with hashed ids; the file beside it
    lists gaps and what no table shows. Of a pool: its weeks, requests, usage and profiles, in a folder.
    """

    EPILOG = examples(
        "trimtab trace from-ledger /var/lib/trimtab/ledger.db --fleet web --out web.csv.gz",
        "trimtab trace from-ledger ledger.db --fleet web --since 2026-03-01 --until 2026-03-08 --out week.csv.gz",
        "trimtab trace from-ledger ledger.db --cluster main --out main.csv.gz",
        "trimtab trace from-ledger ledger.db --pool main --since 60d --out main",
    )

    ledger: LedgerArgument
    out: Annotated[Path, "--out", "-o", "FILE.csv.gz|DIR", "What to write; of a pool a folder."]
    fleet: Annotated[str | None, "NAME", "Fleet of the ledger: a trace of its jobs."] = None
    cluster: Annotated[str | None, "NAME", "Cluster: the table that `trimtab fit admission` reads."] = None
    pool: Annotated[str | None, "NAME", "Pool: a scenario folder, as `evaluate oversubscription` reads it."] = None
    since: SinceOption = None
    until: UntilOption = None
    force: ForceOption = False

    def run(self) -> Answer:
        """Write the record."""
        from trainer.learning.tables import ENDINGS

        given = {"--fleet": self.fleet, "--cluster": self.cluster, "--pool": self.pool}
        if sum(name is not None for name in given.values()) != 1:
            raise BadInput("--fleet", self.fleet, f"give one of {', '.join(given)}")
        written = Written() if self.pool is not None else Written(ENDINGS, also=".json")
        written.check("--out", self.out, self.force)
        if self.pool is not None:
            return _answer(self._of_pool(self.pool))
        return _answer(self._of_fleet(self.fleet) if self.fleet is not None else self._of_cluster(str(self.cluster)))

    def _of_fleet(self, fleet: str) -> dict[str, Any]:
        from trainer.learning.exported import export_trace
        from trainer.learning.recorded import read_recorded

        recorded = read_recorded(self.ledger, fleet, *_span(self.since, self.until))
        parameters = {"ledger": recorded.source, "fleet": fleet, "since": self.since, "until": self.until}
        with _reading_days(quiet=self.as_json) as on_day:
            side = export_trace(recorded, self.out, _version(), parameters, on_day)
        facts = side["recorded"]
        boots = {key: found["count"] for key, found in facts["boots_s"].items()}
        names = ("from", "until", "duration_s", "gaps_s", "lengths", "boots", "spot_notices", "refusals_by_aws")
        facts |= {"gaps_s": _missing_s(facts), "boots": boots}
        shown = {name: facts[name] for name in (*names, "rent_dollars", "waiting_dollars")}
        return {"file": str(self.out), "sha256": side["sha256"], "jobs": side["jobs"], **shown}

    def _of_cluster(self, cluster: str) -> dict[str, Any]:
        from trainer.learning.clusters import export_table, read_cluster

        recorded = read_cluster(self.ledger, cluster, *_span(self.since, self.until))
        parameters = {"ledger": recorded.source, "cluster": cluster, "since": self.since, "until": self.until}
        with _reading_days(quiet=self.as_json) as on_day:
            side = export_table(recorded, self.out, _version(), parameters, on_day)
        facts, shown = side["recorded"], {name: side[name] for name in ("sha256", "machines", "deployments")}
        return {"file": str(self.out), **shown, **facts, "gaps_s": _missing_s(facts)}

    def _of_pool(self, pool: str) -> dict[str, Any]:
        from trainer.learning.pools import export_scenario, read_pool

        recorded = read_pool(self.ledger, pool, *_span(self.since, self.until))
        with _reading_days(quiet=self.as_json) as on_day:
            found = export_scenario(recorded, self.out, on_time=on_day)
        facts, weeks = found["recorded"], found["recorded"]["weeks"].values()
        sums = {name: sum(week[name] for week in weeks) for name in ("hours", "vms")}
        shown = {"folder": str(self.out), "weeks": len(weeks), **sums, "gaps": len(facts["gaps"])}
        return {**shown, "subscribers": found["n_subscribers"], "share_of_vms": facts["share_of_vms"]}


@dataclass(frozen=True, kw_only=True)
class WorldFromLedger(Verb):
    """Write the world that a fleet was in: types, prices, limits, cool-down, and boot times as they were measured.

    Comments in the file say what was measured, of how many boots, and what is an assumption.
    """

    EPILOG = examples(
        "trimtab world from-ledger /var/lib/trimtab/ledger.db --fleet web --out web.toml",
        "trimtab world from-ledger postgresql://host/trimtab --fleet web --since 60d --out web.toml --json",
    )

    ledger: LedgerArgument
    fleet: Annotated[str, "NAME", "Fleet of the ledger."]
    out: Annotated[Path, "--out", "-o", "FILE.toml", "World file to write.", Written((".toml",))]
    since: SinceOption = None
    until: UntilOption = None
    base: Annotated[str, "--world", "NAME|FILE", "World for the fields that a ledger does not record."] = "live-like"
    force: ForceOption = False

    def run(self) -> Answer:
        """Read the record, and write the world."""
        from simulator.autoscaling.world_file import world_named
        from trainer.learning.exported import export_world
        from trainer.learning.recorded import read_recorded

        usual = world_named(self.base)
        recorded = read_recorded(self.ledger, self.fleet, *_span(self.since, self.until))
        with _reading_days(quiet=self.as_json) as on_day:
            made, notes = export_world(recorded, self.out, usual, on_day)
        line = f"{self.out}: {len(made.config.types)} VM types, SHA-256 {made.digest}"
        data = {"file": str(self.out), "sha256": made.digest, "notes": list(notes)}
        return Answer(data, [line, *(f"  {note}" for note in notes)])


def origin(text: str) -> tuple[str, int | None, dict[str, str]]:
    """Return generator, seed and other parameters of a workload's text, such as `coevolution:3,generations=5`."""
    generator, _, rest = text.strip().partition(":")
    seed: int | None = None
    parameters: dict[str, str] = {}
    for part in filter(None, (pair.strip() for pair in rest.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key == "seed" and equals:
            seed = int(value)
        elif equals:
            parameters[key] = value
        elif key.isdecimal():
            seed = int(key)
        else:
            parameters["order"] = key
    return generator, seed, parameters


def summary(trace: Trace) -> dict[str, Any]:
    """Return what a trace holds, in counts; seconds are those of the trace's own clock."""
    import numpy as np

    fixed = trace.arrival_s[trace.release_after == -1]
    widths, jobs = np.unique(trace.width, return_counts=True)
    return {
        "name": trace.name,
        "jobs": trace.jobs,
        "released_jobs": int(trace.jobs - fixed.size),
        "stages": int(np.unique(trace.stage).size),
        "last_arrival_s": float(fixed.max()) if fixed.size else 0.0,
        "work_core_h": trace.work_core_s / HOUR_S,
        "mean_service_s": float(trace.service_s.mean()) if trace.jobs else 0.0,
        "jobs_by_width": {"whole VM" if w == 0 else str(w): int(n) for w, n in zip(widths, jobs, strict=True)},
        "digest": trace.digest,
    }


def _sizes(option: str, text: str, counts: tuple[int, ...], wanted: str) -> tuple[int, ...]:
    """Return the sizes of a host, whole numbers from 1 on; BadInput where their number is not one of `counts`."""
    from trainer.autoscaling.worlds import whole_numbers

    sizes = tuple(whole_numbers(option, text))
    if len(sizes) not in counts or min(sizes) < 1:
        raise BadInput(option, text, f"give {wanted}")
    return sizes


def _missing_s(facts: dict[str, Any]) -> float:
    return sum((end - start for start, end in facts["gaps_s"]), 0.0)


def _version() -> str:
    from importlib.metadata import version

    return version("trimtab")


@contextmanager
def _reading(source: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show the present place of a long read on standard error while it is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(f"reading {source}") as bar:
        yield lambda place: bar.update(f"reading {source}: {place}")


@contextmanager
def _reading_days(*, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Show the day of the epoch seconds that were read last."""
    with _reading("the ledger", quiet=quiet) as shown:
        yield lambda end_s: shown(f"{datetime.fromtimestamp(end_s, UTC):%Y-%m-%d}")


def _span(since: str | None, until: str | None) -> tuple[float | None, float | None]:
    """Return the epoch seconds that --since and --until mean, None for one that is not given; BadInput."""
    now = time.time()
    start = None if since is None else moment("--since", since, now)
    end = None if until is None else moment("--until", until, now)
    if start is not None and end is not None and not start < end:
        raise BadInput("--until", until, f"give a time after --since {since}")
    return start, end


def _answer(facts: dict[str, Any]) -> Answer:
    shown = {name: value for name, value in facts.items() if value not in (None, {})}
    rows = [(name.removesuffix("_s").replace("_", " "), _text(name, value)) for name, value in shown.items()]
    return Answer(facts, columns(rows, indent=""))


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_text(key, inner)}" for key, inner in value.items())
    if name.endswith("_s") and isinstance(value, float):
        return f"{value:,.0f} s ({duration_text(value)})" if value >= 120 else f"{value:,.4g} s"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and name != "seed" else str(value)
