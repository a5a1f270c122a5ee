"""`trimtab init`: a checked file of settings, from a few questions, from options, or from what is in the account."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import app, examples, show
from domain.errors import BadInput, CloudError, ConfigurationError

if TYPE_CHECKING:
    from collectors.aws import AwsSession
    from collectors.tagged_groups import TaggedGroup, VmSize

OF_A_GROUP = ("vm_type", "cores", "memory_gb", "min", "max", "price_per_hour")
"""What `--group NAME=...` gives, in this order; the price may be left to the table."""
_PLAIN = re.compile(r"[\w@%+=:,./-]*")
_KEY = re.compile(r"(?=.{1,63}$)[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
"""A key that may be part of the name of a variable, where `-` may not stand and `__` separates keys."""


@app.command(
    "init",
    epilog=examples(
        "trimtab init",
        "trimtab init web.env --group web-workers --queue-url https://sqs.eu-west-1.amazonaws.com/111122223333/web-jobs",
    ),
)
def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="File to write.")] = Path("trimtab.env"),
    fleet: Annotated[str | None, typer.Option(metavar="KEY", help="The fleet's key; else web.")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=TYPE,CORES,GB,MIN,MAX[,PRICE]]",
            help="Auto Scaling group of the fleet, described here or as the account has it; repeatable.",
        ),
    ] = None,
    queue_url: Annotated[str | None, typer.Option(metavar="URL", help="SQS queue of the jobs.")] = None,
    region: Annotated[str | None, typer.Option(help="AWS region; else $AWS_REGION.")] = None,
    mode: Annotated[str | None, typer.Option(help="observe or act; else observe.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy of the fleet; else the default.")] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the ledger; else that of the settings.")
    ] = None,
    endpoint_url: Annotated[str | None, typer.Option(metavar="URL", help="A look-alike in place of AWS.")] = None,
    ask: Annotated[
        bool | None, typer.Option("--ask/--no-ask", help="Ask for what is not given; else on a terminal only.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a file of settings for one fleet, checked as the agent checks it, and say what to do next.

    Groups that are not described are looked up in the account, which is only read. Nothing is written when a setting
    is wrong.
    """
    if os.path.lexists(file) and not force:
        raise BadInput("FILE", str(file), "it is there already: name another, or give --force to overwrite it")
    if not os.access(file.parent, os.W_OK | os.X_OK) or file.is_dir():
        raise BadInput("FILE", str(file), "name a file in a directory that is there and that you may write to")
    asking = sys.stdin.isatty() if ask is None else ask
    name = fleet or (_asked("Key of the fleet", "web") if asking else "web")
    if not _KEY.fullmatch(name):
        remedy = "give lower-case letters, digits and single _ between them, beginning with a letter"
        raise BadInput("--fleet", name, f"{remedy}: it is part of the names of variables")
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and asking:
        region = _asked("AWS region, such as eu-west-1")
    known = _described(group or ())
    groups = {_key(one): _from_text(one, text, region) for one, text in known.items() if text}
    wanted = [one for one, text in known.items() if not text]
    if asking or wanted or not groups:
        session = _session(region, endpoint_url)
        try:
            if wanted or not groups:
                groups |= _from_account(session, wanted, region or "", asking=asking and not known)
            if queue_url is None and asking:
                queue_url = _chosen_queue(session)
        except CloudError as error:
            if not asking:
                raise
            typer.echo(f"the account cannot be read ({error}); describe the group by hand")
            groups |= {} if groups else _by_hand(region)
    mode = mode or (_asked("Mode: observe changes nothing, act does", "observe") if asking else "observe")
    settings = {"MODE": mode, "AWS__REGION": region, "AWS__ENDPOINT_URL": endpoint_url}
    settings["LEDGER__URL"] = None if ledger is None else f"sqlite:///{ledger.absolute()}"
    below = f"FLEETS__{name}"
    settings |= {f"{below}__QUEUE_URL": queue_url or None, f"{below}__POLICY": policy}
    settings |= {f"{below}__GROUPS__{key}__{field.upper()}": v for key, of in groups.items() for field, v in of.items()}
    environ = {f"TRIMTAB_{setting}": str(value) for setting, value in settings.items() if value is not None}
    _check(environ)
    _write(file, environ, force=force)
    show(
        [
            f"wrote {file}, readable by you alone: fleet {name} of {', '.join(groups)}, {mode} mode",
            "what to do next:",
            # Without a slash a shell looks for the file on its path.
            f"  set -a; . {file if file.is_absolute() else f'./{file}'}; set +a",
            "  trimtab config check     every setting, and where it comes from",
            "  trimtab preflight        what the account and the measurements still lack",
            "  trimtab run              in observe mode it decides, and changes nothing",
            "docs/operate/install.md makes a service of it, docs/operate/instrument.md has the VMs report",
        ]
    )


def _asked(question: str, default: str | None = None) -> str:
    return str(typer.prompt(question, default=default)).strip()


def _key(name: str, tags: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the key of a group by its tags, else its name, as the name of a variable can hold it."""
    from agent.settings.discovery import group_key
    from collectors.tagged_groups import TaggedGroup

    return re.sub(r"[-_]+", "_", group_key(TaggedGroup(name, tags, 0, 0, ()))).strip("_")


def _described(options: Sequence[str]) -> dict[str, str]:
    """Return what each `--group` says of its group, by name; BadInput for two that would be one group of the fleet."""
    found: dict[str, str] = {}
    by_key: dict[str, str] = {}
    for option in options:
        name, _, text = option.partition("=")
        key = _key(name)
        if key in by_key:
            raise BadInput("--group", name, f"{by_key[key]} has the key {key} too: give each group of the fleet once")
        by_key[key], found[name] = name, text
    return found


def _session(region: str | None, endpoint_url: str | None) -> AwsSession:
    from collectors.aws import AwsOptions, AwsSession
    from domain.clock import WallClock

    options = AwsOptions(region=region, endpoint_url=endpoint_url, read_attempts=1)
    return AwsSession(options, WallClock(), read_only=True)


def _from_text(name: str, text: str, region: str | None) -> dict[str, Any]:
    """Return the settings of a group that an option describes; the price is that of the table unless it is given."""
    from agent.settings.discovery import price_per_hour

    parts = [part.strip() for part in text.split(",")]
    if len(parts) == len(OF_A_GROUP) - 1 and (price := price_per_hour(parts[0], region or "")) is not None:
        parts.append(f"{price:g}")
    if len(parts) != len(OF_A_GROUP):
        remedy = "give TYPE,CORES,GB,MIN,MAX,PRICE; the price may be left out for types and regions of the price table"
        raise BadInput(f"--group {name}", text, remedy)
    return {"name": name, **dict(zip(OF_A_GROUP, parts, strict=True))}


def _from_account(
    session: AwsSession, wanted: Sequence[str], region: str, *, asking: bool
) -> dict[str, dict[str, Any]]:
    """Return the settings of groups as the account has them; BadInput for one that it does not have, CloudError."""
    from agent.settings.discovery import group_settings
    from collectors.tagged_groups import TaggedGroups

    reader = TaggedGroups(session)
    there = {one.name: one for one in reader.read(None)}
    sizes = reader.sizes(vm_type for one in there.values() for vm_type in one.vm_types)
    if asking:
        wanted = _chosen(there, sizes)
    elif not wanted:
        remedy = f"name the groups of the fleet; the account has {', '.join(there) or 'none in this region'}"
        raise BadInput("--group", "", remedy)
    missing = [one for one in wanted if one not in there]
    if missing:
        raise BadInput("--group", missing[0], f"the account has {', '.join(there) or 'no group in this region'}")
    found: dict[str, dict[str, Any]] = {}
    for one in dict.fromkeys(wanted):
        key = _key(one, there[one].tags)
        if key in found:
            remedy = f"{found[key]['name']} has the key {key} too: tag one of them with trimtab:group"
            raise BadInput("--group", one, remedy)
        found[key] = group_settings(there[one], sizes, region)
    return found


def _chosen(there: Mapping[str, TaggedGroup], sizes: Mapping[str, VmSize]) -> list[str]:
    """Ask which of the account's groups the fleet has."""
    if not there:
        raise BadInput("--group", "", "the account has no Auto Scaling group in this region: make one, or describe it")
    names = list(there)
    for number, name in enumerate(names, 1):
        one = there[name]
        types = ", ".join(f"{t} ({sizes[t].cores} cores)" if t in sizes else t for t in one.vm_types) or "unknown types"
        typer.echo(f"  {number}  {name}: {types}, {one.minimum} to {one.maximum} VMs")
    answer = _asked("Groups of the fleet, numbers separated by commas", "1")
    try:
        numbers = [int(part) for part in answer.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= len(names) for number in numbers):
        raise BadInput("groups of the fleet", answer, f"give numbers from 1 to {len(names)}, separated by commas")
    return [names[number - 1] for number in dict.fromkeys(numbers)]


def _chosen_queue(session: AwsSession) -> str:
    """Ask for the queue of the jobs; an empty answer is for a job source that reports by itself."""
    pages = session.pages("sqs", "ListQueues", MaxResults=100)
    urls = [str(url) for page in pages for url in page.get("QueueUrls", ())]
    for number, url in enumerate(urls, 1):
        typer.echo(f"  {number}  {url}")
    answer = _asked("Queue of its jobs, a number or a URL; empty: the job source reports to the listener", "")
    if not answer.isdigit():
        return answer
    if not 1 <= int(answer) <= len(urls):
        raise BadInput("queue of the jobs", answer, f"give a number from 1 to {len(urls)}, a URL, or nothing")
    return urls[int(answer) - 1]


def _by_hand(region: str | None) -> dict[str, dict[str, Any]]:
    """Ask for one group."""
    from agent.settings.discovery import price_per_hour

    name = _asked("Name of the Auto Scaling group")
    vm_type = _asked("VM type, such as m5a.large")
    found = {"name": name, "vm_type": vm_type, "cores": _asked("vCPUs of one VM"), "memory_gb": _asked("GB of one VM")}
    price = price_per_hour(vm_type, region or "")
    found["price_per_hour"] = _asked("Dollars per hour of one VM", None if price is None else f"{price:g}")
    found |= {"min": _asked("Fewest VMs", "0"), "max": _asked("Most VMs", "10")}
    return {_key(name): found}


def _check(environ: Mapping[str, str]) -> None:
    """Check the settings as the agent does at its start; ConfigurationError with every mistake."""
    from agent.decisions.parts import kinds
    from agent.settings.load import read_settings

    settings = read_settings(environ).settings
    wrong = [mistake for kind in kinds() for mistake in kind.mistakes(settings)]
    if wrong:
        raise ConfigurationError(wrong)


def _write(file: Path, environ: Mapping[str, str], *, force: bool) -> None:
    """Write the file whole or not at all, for its owner alone; BadInput when another made it meanwhile."""
    lines = ["# Settings of the agent; docs/operate/configuration.md explains each. Written by `trimtab init`."]
    lines += [f"{name}={value if _PLAIN.fullmatch(value) else _quoted(value)}" for name, value in environ.items()]
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            os.fchmod(handle, 0o600)
            out.write("\n".join([*lines, ""]))
            out.flush()
            os.fsync(handle)
        if force:
            part.replace(file)
            return
        try:
            os.link(part, file)
        except FileExistsError:
            raise BadInput("FILE", str(file), "another process wrote it meanwhile") from None
        part.unlink()
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _quoted(value: str) -> str:
    """Return a value as a shell and systemd both read it."""
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'
