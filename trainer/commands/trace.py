"""`trimtab trace`: write a trace of jobs to a file, check one, or make one of a job log; what a ledger recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, examples, print_json
from agent.kernel.text import duration_text
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.options import (
    ForceOption,
    RecordedSinceOption,
    RecordedUntilOption,
    check_output,
    epilog,
    recording,
    shown_days,
    span_of_options,
)

if TYPE_CHECKING:
    from domain.workload import Trace
    from simulator.workloads.swf import SwfOptions, SwfReport

ColumnOption = Annotated[
    list[str] | None,
    Option("--column", metavar="FIELD=NAME", help="The column that has a field, see below; repeatable."),
]
WidthOption = Annotated[
    str,
    Option(
        metavar="split|cap|mold",
        help="A job of many cores becomes that many one-core jobs; dropped if wider than the largest VM; "
        "the same work on fewer cores.",
    ),
]
LargestVmOption = Annotated[int, Option(metavar="N", help="Where cap and mold cut.")]
FromOption = Annotated[
    float | None, Option(metavar="SECONDS", help="Start of the window on the log's clock, else its first job.")
]
HoursOption = Annotated[float | None, Option(metavar="H", help="Length of the window, else the whole log.")]
TimeScaleOption = Annotated[float, Option(metavar="X", help="Divides the times between arrivals.")]
RunScaleOption = Annotated[float, Option(metavar="X", help="Multiplies run times.")]
ThinOption = Annotated[float, Option(metavar="P", help="Keep each job with this probability.")]
ThinSeedOption = Annotated[int, Option(help="Seed of the thinning.", min=0)]
TableArgument = Annotated[Path, Argument(metavar="TABLE", help="FILE.csv, FILE.csv.gz or FILE.parquet.")]
TABLE = """
A field without --column is read from the column of the same name. Times are
ISO 8601 (in UTC where they have no zone), or numbers: seconds of any clock, or epoch
time in milliseconds, microseconds or nanoseconds.
"""
OutputOption = Annotated[Path, Option("--output", "-o", metavar="FILE.csv", help="CSV to write.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    trace = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Write a trace of jobs to a file, check one, or make one of a job log or a ledger.",
    )
    trace.command(
        epilog=examples(
            "trimtab trace make train-rand:7 -o load.csv",
            "trimtab trace make coevolution:seed=3,generations=5 -o loop.csv --json",
        )
    )(make)
    trace.command(epilog=examples("trimtab trace check load.csv", "trimtab trace check load.csv --json"))(check)
    trace.command(
        "import-swf",
        epilog=examples(
            "trimtab trace import-swf log.swf.gz -o log.csv --hours 24",
            "trimtab trace import-swf log.swf -o day.csv --from-s 86400 --hours 24 \\",
            "    --time-scale 6 --run-scale 0.1667 --thin 0.5",
        ),
    )(import_swf)
    trace.command(
        "import-csv",
        epilog=epilog(
            """
Fields: submit (a time), runtime (seconds) or end (a time), cores (else 1).
"""
            + TABLE,
            calls=(
                "trimtab trace import-csv jobs.csv -o mine.csv --column submit=submit_time \\",
                "    --column runtime=elapsed --column cores=req_cpus",
                "trimtab trace import-csv jobs.parquet -o mine.csv --column submit=t --column end=done",
            ),
        ),
    )(import_csv)
    trace.command(
        "import-requests",
        epilog=epilog(
            """
Fields: time, cores and memory (GiB) of a container; disk (GB), end (a time),
application, count.
"""
            + TABLE,
            calls=(
                "trimtab trace import-requests pods.csv -o pods.json --host 64,256,2000 \\",
                "    --column time=created --column memory=mem_gib",
                "trimtab simulate placement --instance pods.json --policy bf",
            ),
        ),
    )(import_requests)
    trace.command(
        "import-usage",
        epilog=epilog(
            """
Fields: time, vm, cores, usage (share of the VM's cores in use); subscriber,
memory (GB), network (Gbit/s).
"""
            + TABLE,
            calls=(
                "trimtab trace import-usage vms.parquet -o mine --machine 64,512 --machines 40 \\",
                "    --column time=timestamp --column usage=cpu_percent --usage-scale 0.01",
                "trimtab simulate oversubscription --scenario mine --week w0 --policy grid:0.5",
            ),
        ),
    )(import_usage)
    trace.command(
        "from-ledger",
        epilog=examples(
            "trimtab trace from-ledger /var/lib/trimtab/ledger.db --fleet web --out web.csv.gz",
            "trimtab trace from-ledger ledger.db --fleet web --since 2026-03-01 --until 2026-03-08 --out week.csv.gz",
            "trimtab trace from-ledger ledger.db --cluster main --out main.csv.gz",
            "trimtab trace from-ledger ledger.db --pool main --since 60d --out main",
        ),
    )(from_ledger)
    app.add_typer(trace, name="trace")


def make(
    workload: Annotated[str, Argument(metavar="NAME[:SEED|PARAMETERS]", help="As for simulate --workload.")],
    output: OutputOption,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a generated trace to a CSV, and to FILE.csv.json how it was made and the CSV's SHA-256.

    The same text makes the same file. `simulate --workload FILE.csv` plays it.
    """
    from simulator.workloads.named import save_trace, workload_of

    trace = workload_of(workload)
    generator, seed, parameters = origin(workload)
    _may_write(output, force)
    digest = save_trace(trace, output, generator=generator, version=_version(), seed=seed, parameters=parameters)
    _show({"file": str(output), "sha256": digest, **summary(trace)}, as_json)


def check(
    file: Annotated[Path, Argument(metavar="FILE.csv", help="A saved trace, with its FILE.csv.json.")],
    as_json: JsonOption = False,
) -> None:
    """Verify a saved trace, digest, columns and every value, and tell what is in it; an error if anything is wrong."""
    from simulator.workloads.named import load_trace, origin_of

    if file.is_file() and not file.with_name(file.name + ".json").exists():
        remedy = (
            f"it is a plain table, no saved trace: `trimtab trace import-csv {file} -o NEW.csv --column submit=NAME "
            "--column runtime=NAME --column cores=NAME` makes one; a table of arrival_s and service_s is a --workload "
            "as it is"
        )
        raise BadInput("FILE", str(file), remedy)
    trace, made = load_trace(file), origin_of(file)
    origin_facts = {name: made.get(name) for name in ("generator", "version", "seed", "parameters", "sha256")}
    _show({"file": str(file), **origin_facts, **summary(trace)}, as_json)


def import_swf(
    log: Annotated[Path, Argument(metavar="LOG", help="Log in the Standard Workload Format, plain or .gz.")],
    output: OutputOption,
    width: WidthOption = "split",
    largest_vm_cores: LargestVmOption = 8,
    from_s: FromOption = None,
    hours: HoursOption = None,
    time_scale: TimeScaleOption = 1.0,
    run_scale: RunScaleOption = 1.0,
    thin: ThinOption = 1.0,
    seed: ThinSeedOption = 0,
    drop_failed: Annotated[bool, Option("--drop-failed", help="Drop failed and cancelled jobs.")] = False,
    name: Annotated[str | None, Option(help="Name of the trace, else the log's.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a saved trace of a job log; tell how many lines were kept, and how many dropped for which reason.

    A malformed line is an error that names its number and field: nothing is written then.
    """
    from simulator.workloads.swf import read_swf

    options = _options(width, largest_vm_cores, from_s, hours, time_scale, run_scale, thin, seed, drop_failed)
    _may_write(output, force)
    with _reading(log, quiet=as_json) as on_lines:
        trace, report = read_swf(log, options, name, on_lines)
    _save_import(trace, report, output, "swf", log, options, {}, as_json)


def import_csv(
    table: TableArgument,
    output: OutputOption,
    column: ColumnOption = None,
    width: WidthOption = "split",
    largest_vm_cores: LargestVmOption = 8,
    from_s: FromOption = None,
    hours: HoursOption = None,
    time_scale: TimeScaleOption = 1.0,
    run_scale: RunScaleOption = 1.0,
    thin: ThinOption = 1.0,
    seed: ThinSeedOption = 0,
    name: Annotated[str | None, Option(help="Name of the trace, else the table's.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a saved trace of a table of jobs with columns of any name, and print how many rows were kept and dropped.

    A wrong value is an error that names its line and field: nothing is written then.
    """
    from simulator.workloads.tables import JOB_FIELDS, columns_of, read_jobs

    options = _options(width, largest_vm_cores, from_s, hours, time_scale, run_scale, thin, seed, drop_failed=False)
    columns = columns_of(column or (), JOB_FIELDS)
    _may_write(output, force)
    trace, report = read_jobs(table, columns, options, name)
    _save_import(trace, report, output, "table", table, options, {"columns": columns}, as_json)


def import_requests(
    table: TableArgument,
    output: Annotated[Path, Option("--output", "-o", metavar="FILE.json", help="Instance to write, also .json.gz.")],
    host: Annotated[str, Option(metavar="CORES,GIB[,GB]", help="Cores, memory and disk of a host.")],
    column: ColumnOption = None,
    name: Annotated[str | None, Option(help="Name of the instance, else the table's.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make an instance of placement of a table of requests, for `simulate`, `train` and `evaluate placement`."""
    from simulator.placement.instances import write_instance
    from simulator.workloads.tables import REQUEST_FIELDS, columns_of, read_placement

    sizes = _sizes("--host", host, (2, 3), "cores, GiB of memory and, where requests have disk, GB: 64,256,2000")
    if not output.name.endswith((".json", ".json.gz")):
        raise BadInput("--output", str(output), "give a file that ends in .json or .json.gz")
    check_output(output, force)
    # Without disks each container takes 1 GB, and a host has room for one per core.
    disk = sizes[2] if len(sizes) == 3 else sizes[0]
    found = read_placement(table, columns_of(column or (), REQUEST_FIELDS), (sizes[0], sizes[1], disk), name)
    write_instance(found, output)
    counts = {"applications": len(found.applications), "requests": len(found.requests)}
    containers = sum(request.count for request in found.requests)
    _show({"file": str(output), **counts, "containers": containers, "releases": len(found.releases)}, as_json)


def import_usage(
    table: TableArgument,
    output: Annotated[Path, Option("--output", "-o", metavar="FOLDER", help="Scenario to write.")],
    machine: Annotated[str, Option(metavar="CORES,GB", help="Cores and memory of a machine.")],
    machines: Annotated[int, Option(metavar="N", min=1, help="How many machines there are.")],
    column: ColumnOption = None,
    usage_scale: Annotated[
        float, Option("--usage-scale", metavar="X", help="Multiplies usage; 0.01 of percent.")
    ] = 1.0,
    horizon: Annotated[int, Option("--hours", metavar="H", min=24, help="Length of a week.")] = 120,
    timezone: Annotated[str, Option(metavar="ZONE", help="Whose midnight begins a week.")] = "UTC",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a scenario of a table of VMs' usage, for `simulate`, `tune`, `train` and `evaluate oversubscription`.

    Weeks begin at the first midnight of the table, the folder's profiles are fitted to the usage in all weeks.
    """
    from simulator.workloads.tables import USAGE_FIELDS, columns_of
    from trainer.learning.pools import export_scenario, table_of_usage

    sizes = _sizes("--machine", machine, (2,), "cores and GB of memory, such as 64,512")
    check_output(output, force)
    pool = table_of_usage(
        *(table, columns_of(column or (), USAGE_FIELDS)),
        machines=machines,
        machine=(float(sizes[0]), float(sizes[1])),
        horizon_h=horizon,
        timezone=timezone,
        scale=usage_scale,
    )
    found = export_scenario(pool, output)
    weeks = found["recorded"]["weeks"]
    shown = {"folder": str(output), "weeks": ", ".join(weeks), "subscribers": found["n_subscribers"]}
    _show({**shown, "vms": sum(week["vms"] for week in weeks.values())}, as_json)


def _sizes(option: str, text: str, counts: tuple[int, ...], wanted: str) -> tuple[int, ...]:
    """Return the sizes of a host, whole numbers from 1 on; BadInput where their number is not one of `counts`."""
    from trainer.autoscaling.worlds import whole_numbers

    sizes = tuple(whole_numbers(option, text))
    if len(sizes) not in counts or min(sizes) < 1:
        raise BadInput(option, text, f"give {wanted}")
    return sizes


def _options(
    width: str,
    largest_vm_cores: int,
    from_s: float | None,
    hours: float | None,
    time_scale: float,
    run_scale: float,
    thin: float,
    seed: int,
    drop_failed: bool,
) -> SwfOptions:
    from simulator.workloads.swf import SwfOptions, WidthRule

    if width not in list(WidthRule):
        raise BadInput("--width", width, f"choose one of {', '.join(WidthRule)}")
    return SwfOptions(
        width_rule=WidthRule(width),
        largest_vm_cores=largest_vm_cores,
        drop_failed=drop_failed,
        from_s=from_s,
        hours=hours,
        time_scale=time_scale,
        run_scale=run_scale,
        thin=thin,
        seed=seed,
    )


def _save_import(
    trace: Trace,
    report: SwfReport,
    output: Path,
    generator: str,
    log: Path,
    options: SwfOptions,
    more: dict[str, Any],
    as_json: bool,
) -> None:
    from simulator.workloads.named import save_trace

    parameters = {"log": log.name, "log_sha256": _sha256(log), **asdict(options), **more}
    digest = save_trace(
        trace, output, generator=generator, version=_version(), seed=options.seed, parameters=parameters
    )
    _show({"file": str(output), "sha256": digest, **_lines(report), **summary(trace)}, as_json)


def from_ledger(
    ledger: Annotated[str, Argument(metavar="LEDGER", help="SQLite file, or URL.")],
    out: Annotated[Path, Option("--out", "-o", metavar="FILE.csv.gz|DIR", help="What to write; of a pool a folder.")],
    fleet: Annotated[str | None, Option(metavar="NAME", help="Fleet of the ledger: a trace of its jobs.")] = None,
    cluster: Annotated[
        str | None, Option(metavar="NAME", help="Cluster: the table that `trimtab fit admission` reads.")
    ] = None,
    pool: Annotated[
        str | None, Option(metavar="NAME", help="Pool: a scenario folder, as `evaluate oversubscription` reads it.")
    ] = None,
    since: RecordedSinceOption = None,
    until: RecordedUntilOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a saved trace of the jobs that a ledger recorded, a table of a cluster's deployments, or a pool's weeks.

    Of a fleet: minute by minute, with the lengths measured then; FILE.csv.gz.json beside it lists gaps, boot times,
    spot notices, refusals by AWS and cost. Of a cluster: a row for each core, with hashed ids; the file beside it
    lists gaps and what no table shows. Of a pool: its weeks, requests, usage and profiles, in a folder.
    """
    given = {"--fleet": fleet, "--cluster": cluster, "--pool": pool}
    if sum(name is not None for name in given.values()) != 1:
        raise BadInput("--fleet", fleet, f"give one of {', '.join(given)}")
    if pool is not None:
        check_output(out, force, "--out")
        _show(_of_pool(ledger, pool, out, since, until, quiet=as_json), as_json)
        return
    from trainer.learning.exported import ENDINGS

    if not out.name.endswith(ENDINGS):
        raise BadInput("--out", str(out), f"give a file that ends in {' or '.join(ENDINGS)}")
    for path in (out, out.with_name(out.name + ".json")):
        check_output(path, force, "--out")
    if fleet is not None:
        _show(_of_fleet(ledger, fleet, out, since, until, quiet=as_json), as_json)
    elif cluster is not None:
        _show(_of_cluster(ledger, cluster, out, since, until, quiet=as_json), as_json)


def _of_fleet(
    ledger: str, fleet: str, out: Path, since: str | None, until: str | None, *, quiet: bool
) -> dict[str, Any]:
    from trainer.learning.exported import export_trace

    recorded = recording(ledger, fleet, since, until)
    parameters = {"ledger": recorded.source, "fleet": fleet, "since": since, "until": until}
    with shown_days(quiet=quiet) as on_day:
        side = export_trace(recorded, out, _version(), parameters, on_day)
    facts = side["recorded"]
    missing_s = sum((end - start for start, end in facts["gaps_s"]), 0.0)
    boots = {key: found["count"] for key, found in facts["boots_s"].items()}
    shown = {"file": str(out), "sha256": side["sha256"], "jobs": side["jobs"], "from": facts["from"]}
    shown |= {"until": facts["until"], "duration_s": facts["duration_s"], "gaps_s": missing_s}
    shown |= {"lengths": facts["lengths"], "boots": boots, "spot_notices": facts["spot_notices"]}
    shown |= {"refusals_by_aws": facts["refusals_by_aws"], "rent_dollars": facts["rent_dollars"]}
    return shown | {"waiting_dollars": facts["waiting_dollars"]}


def _of_cluster(
    ledger: str, cluster: str, out: Path, since: str | None, until: str | None, *, quiet: bool
) -> dict[str, Any]:
    from trainer.learning.clusters import export_table, read_cluster

    recorded = read_cluster(ledger, cluster, *span_of_options(since, until))
    parameters = {"ledger": recorded.source, "cluster": cluster, "since": since, "until": until}
    with shown_days(quiet=quiet) as on_day:
        side = export_table(recorded, out, _version(), parameters, on_day)
    facts = side["recorded"]
    missing_s = sum((end - start for start, end in facts["gaps_s"]), 0.0)
    shown = {"file": str(out), "sha256": side["sha256"], "machines": side["machines"]}
    return {**shown, "deployments": side["deployments"], **facts, "gaps_s": missing_s}


def _of_pool(ledger: str, pool: str, out: Path, since: str | None, until: str | None, *, quiet: bool) -> dict[str, Any]:
    from trainer.learning.pools import export_scenario, read_pool

    with shown_days(quiet=quiet) as on_day:
        found = export_scenario(read_pool(ledger, pool, *span_of_options(since, until)), out, on_time=on_day)
    facts = found["recorded"]
    hours, vms = (sum(week[name] for week in facts["weeks"].values()) for name in ("hours", "vms"))
    shown = {"folder": str(out), "weeks": len(facts["weeks"]), "hours": hours, "vms": vms, "gaps": len(facts["gaps"])}
    return {**shown, "subscribers": found["n_subscribers"], "share_of_vms": facts["share_of_vms"]}


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


def _lines(report: SwfReport) -> dict[str, Any]:
    return {
        "lines": report.lines,
        "kept": report.kept,
        "dropped": {reason.value: count for reason, count in sorted(report.dropped.items())},
    }


def _may_write(output: Path, force: bool) -> None:
    side = output.with_name(output.name + ".json")
    if output.suffix != ".csv":
        raise BadInput("--output", str(output), "give a file that ends in .csv")
    for path in (output, side):
        check_output(path, force)


def _version() -> str:
    from importlib.metadata import version

    return version("trimtab")


def _sha256(path: Path) -> str:
    from hashlib import file_digest

    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


@contextmanager
def _reading(log: Path, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show the lines read on standard error while it is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(f"reading {log.name}") as bar:
        yield lambda lines: bar.update(f"reading {log.name}: {lines:,} lines")


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    texts = {
        name.removesuffix("_s").replace("_", " "): _text(name, value)
        for name, value in facts.items()
        if value not in (None, {})
    }
    wide = max(map(len, texts))
    for name, value in texts.items():
        typer.echo(f"{name:<{wide}}  {value}")


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_text(key, inner)}" for key, inner in value.items())
    if name.endswith("_s") and isinstance(value, float):
        return f"{value:,.0f} s ({duration_text(value)})" if value >= 120 else f"{value:,.4g} s"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and name != "seed" else str(value)
