"""`trimtab init`: a checked file of settings, from a few questions, from options, or from what is in the account."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import app, duration_s, examples, setting_given, show
from agent.kernel.unfinished import unfinished
from domain.errors import BadInput, CloudError, ConfigurationError, Mistake, TrimtabError

if TYPE_CHECKING:
    from agent.settings import Settings
    from agent.settings.fleet import FleetSettings
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
        "trimtab init hosts.toml --set PLACEMENTS__main__INVENTORY_FILE=/var/lib/trimtab/pool.json",
        "trimtab init web.toml --group web-workers --queue-url https://sqs.eu-west-1.amazonaws.com/111122223333/web-jobs",
    ),
)
def init(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="File to write; the variable that names it goes to a .env file.")
    ] = Path("trimtab.toml"),
    fleet: Annotated[str | None, typer.Option(metavar="KEY", help="The fleet's key; else web.")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=TYPE,CORES,GB,MIN,MAX[,PRICE]]",
            help="Auto Scaling group of the fleet, described here or as the account has it; repeatable.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=DOLLARS", help="Price of a VM type per hour; repeatable.", show_default=False),
    ] = None,
    queue_url: Annotated[str | None, typer.Option(metavar="URL", help="SQS queue of the jobs.")] = None,
    job_length: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long a job takes on one core, such as 90s or 5m; else 2m."),
    ] = None,
    cpu_from: Annotated[
        str | None, typer.Option(help="reports (trimtab collect on each VM) or cloudwatch; else reports.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="AWS region; else $AWS_REGION.")] = None,
    mode: Annotated[str | None, typer.Option(help="observe or act; else observe.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy of the fleet; else the default.")] = None,
    placement: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Placement pool whose hosts are the fleet's VMs; its policy is lifetime."),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, without TRIMTAB_; repeatable. Alone, for pools and clusters, no fleet is written.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the ledger; else that of the settings.")
    ] = None,
    endpoint_url: Annotated[str | None, typer.Option(metavar="URL", help="A look-alike in place of AWS.")] = None,
    ask: Annotated[
        bool | None, typer.Option("--ask/--no-ask", help="Ask for missing values; else on a terminal only.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a checked file of settings for one fleet, or for pools, and show the first decision and the next commands.

    Groups that are not described are looked up in the account, which is only read. Nothing is written when a setting
    is wrong.
    """
    file, variables = file.with_suffix(".toml"), file.with_suffix(".env")
    for one in (file, variables):
        if os.path.lexists(one) and not force:
            raise BadInput("FILE", str(one), "it is there already: name another, or give --force to overwrite it")
        if not os.access(one.parent, os.W_OK | os.X_OK) or one.is_dir():
            raise BadInput("FILE", str(one), "name a file in a directory that is there and that you may write to")
    others = dict(setting_given(text) for text in more or ())
    without_fleet = bool(others) and not (fleet or group or queue_url or placement or ask)
    asking = not without_fleet and (sys.stdin.isatty() if ask is None else ask)
    name = _fleet_key(fleet) if fleet else (_asked("Key of the fleet", "web", _fleet_key) if asking else "web")
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and asking:
        region = _asked("AWS region, such as eu-west-1", check=_setting("AWS__REGION"))
    known, prices = _described(group or ()), _Prices(_given_prices(price or ()), region or "", asking)
    wanted = [one for one, text in known.items() if not text]
    session, below = None, f"FLEETS__{name}"
    if asking or wanted or not (known or without_fleet):
        if region is None and endpoint_url is None:
            raise BadInput("--region", "", "give the region of the groups, such as eu-west-1, or set AWS_REGION")
        session = prices.session = _session(region, endpoint_url)
    groups = {_key(one): _from_text(one, text, prices) for one, text in known.items() if text}
    if session is not None:
        try:
            if wanted or not groups:
                groups |= _from_account(session, wanted, prices, asking=asking and not known)
            if queue_url is None and asking:
                queue_url = _chosen_queue(session, below)
        except CloudError as error:
            if not asking:
                remedy = "check --region and the credentials, or describe each group by --group NAME=TYPE,..."
                raise TrimtabError(f"the account cannot be read ({error}): {remedy}") from error
            typer.echo(f"the account cannot be read ({error}); describe its groups and queue by hand")
            session = prices.session = None
            groups |= {} if groups else _by_hand(prices, below)
            queue_url = queue_url or _asked(f"URL of its SQS queue; {NO_QUEUE}", "", _setting(f"{below}__QUEUE_URL"))
    if asking:
        job_length = job_length or _asked("How long does a job take on one core, such as 90s or 5m", "2m", _length)
        of_cpu = "CPU of the VMs: reports (trimtab collect on each) or cloudwatch"
        cpu_from = cpu_from or _asked(of_cpu, "reports", _setting(f"{below}__CPU_FROM"))
        mode = mode or _asked("Mode: observe changes nothing, act does", "observe", _setting("MODE"))
    mode = mode or "observe"
    settings = {"MODE": mode, "AWS__REGION": region, "AWS__ENDPOINT_URL": endpoint_url}
    settings["LEDGER__URL"] = None if ledger is None else f"sqlite:///{ledger.absolute()}"
    settings |= {f"{below}__QUEUE_URL": queue_url or None, f"{below}__POLICY": policy, f"{below}__CPU_FROM": cpu_from}
    if job_length is not None:
        settings[f"{below}__QUEUE_RULE__JOB_CORE_S"] = f"{_length(job_length):g}"
    if placement is not None:
        pool = f"PLACEMENTS__{_key_of('--placement', placement)}"
        settings |= {f"{pool}__FLEET": name, f"{pool}__POLICY": "lifetime"}
    settings |= {f"{below}__GROUPS__{key}__{field.upper()}": v for key, of in groups.items() for field, v in of.items()}
    environ = {f"TRIMTAB_{setting}": str(value) for setting, value in settings.items() if value is not None} | others
    checked = _check(environ, others)
    _write(file, _toml(checked, environ), 0o644, force=force)
    try:
        _write(variables, _variables(file, environ), 0o600, force=force)
    except BaseException:
        if not force:
            file.unlink()
        raise
    show(
        [
            f"wrote {file}: {_described_by(checked)}, {checked.mode} mode",
            f"wrote {variables}, readable by you alone: the variable that names {file.name}",
            *prices.sources,
            *([] if job_length is None else [_first_guess(checked.fleets[name], name)]),
            *([] if placement is None else [PLACEMENT.format(pool=placement)]),
            *([] if without_fleet else _first_decision(checked, name, session)),
            "next:",
            # Without a slash a shell looks for the file on its path.
            f"  set -a; . {variables if variables.is_absolute() else f'./{variables}'}; set +a",
            "  trimtab preflight        missing permissions and measurements",
            "  trimtab run              in observe mode it decides, and changes nothing",
        ]
    )


def _described_by(settings: Settings) -> str:
    """Return the subjects that settings describe, such as `fleet web of small, large, pool main`."""
    from agent.kernel.parts import kinds

    found = {kind: getattr(settings, kind.configured_in) for kind in kinds() if kind.configured_in}
    named = [
        f"{kind.subject_word} {name}" + (f" of {', '.join(one.groups)}" if hasattr(one, "groups") else "")
        for kind, subjects in found.items()
        for name, one in subjects.items()
    ]
    return ", ".join(named) or "no fleet, cluster or pool"


EXAMPLE_JOBS = 20
PLACEMENT = (
    "placement pool {pool}: put its applications by HTTP or INVENTORY_FILE; policy lifetime for containers that end, "
    "learned (tiers17a) for a pool that fills once, small-pools for 10 to 20 hosts that fill again and again; "
    "trimtab learn placement {pool} --advice compares them on the record"
)


def _first_guess(settings: FleetSettings, name: str) -> str:
    """Return a sentence with the first guess of the queue rule's horizon and its inputs."""
    fleet, rule = settings.fleet(name), settings.queue_rule
    return (
        f"first guess of the queue rule: a horizon of {settings.rule_horizon_s:.0f} s, for jobs of {rule.job_core_s:g} "
        f"core-s, a core at ${fleet.core_price_per_hour:.4f} an hour and waiting at "
        f"${settings.waiting_price_per_hour:g} a job and hour; HORIZON_S replaces it"
    )


def _first_decision(settings: Settings, name: str, session: AwsSession | None) -> list[str]:
    """Return the fleet's first decision, simulated: with the queue's length, else with an example's."""
    import time

    from agent.autoscaling.first_decision import first_decision
    from collectors.cloudwatch import QueueDepthCollector

    fleet, waiting = settings.fleet(name), 0
    try:
        if session is not None and fleet.queue_url is not None:
            waiting = int(QueueDepthCollector(fleet, session.client("sqs")).collect(time.time())[0].value)
    except Exception as error:
        return [f"the queue cannot be read: check --queue-url ({error})"]
    now, example = time.time(), "" if waiting else f" with {EXAMPLE_JOBS} jobs in the queue"
    sentence = first_decision(settings, name, session, waiting or EXAMPLE_JOBS, now)
    return [f"first decision{example}, simulated: {sentence}"]


def _asked(question: str, default: str | None = None, check: Callable[[str], Any] = str) -> str:
    """Return the first answer that the check accepts; one that it refuses by BadInput is asked for again."""
    while True:
        answer = str(typer.prompt(question, default=default)).strip()
        try:
            check(answer)
        except BadInput as error:
            typer.echo(f"error: {error}", err=True)
        else:
            return answer


def _setting(name: str) -> Callable[[str], None]:
    """Return the check of an answer by the setting that it becomes."""
    from agent.settings.load import read_settings

    # Mistakes of other settings do not count: they are asked for later. Discovery takes the place of a fleet.
    given = {"TRIMTAB_DISCOVERY__ENABLED": "true", "TRIMTAB_AWS__REGION": "eu-west-1"}

    def check(answer: str) -> None:
        try:
            read_settings(given | {f"TRIMTAB_{name}": answer})
        except ConfigurationError as error:
            for mistake in error.mistakes:
                if answer and mistake.name == f"TRIMTAB_{name}":
                    raise BadInput("the answer", answer, mistake.remedy) from None

    return check


def _fleet_key(name: str) -> str:
    return _key_of("--fleet", name)


def _key_of(option: str, name: str) -> str:
    if not _KEY.fullmatch(name):
        remedy = "give lower-case letters, digits and single _ between them, beginning with a letter"
        raise BadInput(option, name, f"{remedy}: it is part of the names of variables")
    return name


def _length(text: str) -> float:
    return duration_s("--job-length", text)


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


@dataclass
class _Prices:
    """Prices per hour of VM types: those given, then the table, the Price List API, and the terminal.

    sources: a line for each price that was not given. session: None without credentials.
    """

    given: Mapping[str, float]
    region: str
    asking: bool
    session: AwsSession | None = None
    sources: list[str] = field(default_factory=list)

    def of(self, vm_type: str) -> float | None:
        """Return the price of a type, None where nothing has one."""
        from agent.settings.discovery import price_per_hour, prices_as_of
        from collectors.pricing import listed_price_per_hour

        if vm_type in self.given:
            return self.given[vm_type]
        known, source = price_per_hour(vm_type, self.region), f"the table of {prices_as_of()}"
        if known is None and self.session is not None:
            source = "the AWS Price List"
            try:
                known = listed_price_per_hour(self.session, vm_type, self.region)
            except CloudError as error:
                self._note(f"the AWS Price List cannot be read ({error.code}): allow pricing:GetProducts")
        if known is None and self.asking:
            question = f"Dollars per hour of {vm_type} in {self.region}"
            return float(_asked(question, check=lambda text: _price("the answer", vm_type, text)))
        if known is not None:
            self._note(f"price of {vm_type}: {known:g} dollars per hour, from {source}")
        return known

    def _note(self, line: str) -> None:
        if line not in self.sources:
            self.sources.append(line)


def _given_prices(options: Sequence[str]) -> dict[str, float]:
    pairs = (option.partition("=") for option in options)
    return {vm_type.strip(): _price("--price", vm_type, text) for vm_type, _, text in pairs}


def _price(option: str, vm_type: str, text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = 0.0
    if not vm_type or not 0.0 < price < math.inf:
        raise BadInput(option, f"{vm_type}={text}", "give a VM type and dollars per hour, such as c7i.large=0.0893")
    return price


def _from_text(name: str, text: str, prices: _Prices) -> dict[str, Any]:
    """Return the settings of a group that an option describes; its price may come from elsewhere."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == len(OF_A_GROUP) - 1 and (price := prices.of(parts[0])) is not None:
        parts.append(f"{price:g}")
    if len(parts) != len(OF_A_GROUP):
        remedy = "give TYPE,CORES,GB,MIN,MAX,PRICE; the price may be left out for types and regions of the price table"
        raise BadInput(f"--group {name}", text, f"{remedy}, or given by --price TYPE=DOLLARS")
    return {"name": name, **dict(zip(OF_A_GROUP, parts, strict=True))}


def _from_account(
    session: AwsSession, wanted: Sequence[str], prices: _Prices, *, asking: bool
) -> dict[str, dict[str, Any]]:
    """Return the settings of groups of the account.

    ConfigurationError names every group that cannot be used; CloudError where the account cannot be read.
    """
    from agent.settings.discovery import PriceUnknown, group_settings
    from collectors.tagged_groups import TaggedGroups

    reader = TaggedGroups(session)
    there = {one.name: one for one in reader.read(None)}
    sizes = reader.sizes(vm_type for one in there.values() for vm_type in one.vm_types)
    if asking:
        wanted = _chosen(there, sizes)
    elif not wanted:
        remedy = f"name the groups of the fleet; the account has {', '.join(there) or 'none in this region'}"
        raise BadInput("--group", "", remedy)
    found: dict[str, dict[str, Any]] = {}
    mistakes: list[Mistake] = []
    for one in dict.fromkeys(wanted):
        if one not in there:
            remedy = f"the account has {', '.join(there) or 'no group in this region (--region)'}"
            mistakes.append(Mistake("--group", one, remedy))
            continue
        try:
            key = _key(one, there[one].tags)
            if key in found:
                remedy = f"{found[key]['name']} has the key {key} too: tag one of them with trimtab:group"
                raise BadInput("--group", one, remedy)
            found[key] = group_settings(there[one], sizes, prices.region, prices.of)
        except PriceUnknown as error:
            mistakes.append(Mistake("--group", one, f"no price is known: give --price {error.value}=DOLLARS"))
        except BadInput as error:
            mistakes.append(Mistake("--group", one, str(error)))
    if mistakes:
        raise ConfigurationError(mistakes)
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

    def chosen(answer: str) -> list[str]:
        numbers = [int(part) for part in answer.split(",") if part.strip().isdecimal()]
        if len(numbers) != answer.count(",") + 1 or not all(1 <= number <= len(names) for number in numbers):
            raise BadInput("groups of the fleet", answer, f"give numbers from 1 to {len(names)}, separated by commas")
        return [names[number - 1] for number in dict.fromkeys(numbers)]

    return chosen(_asked("Groups of the fleet, numbers separated by commas", "1", chosen))


NO_QUEUE = "empty: the job source reports to the listener"


def _chosen_queue(session: AwsSession, below: str) -> str:
    """Ask for the queue of the jobs; an empty answer is for a job source that reports by itself."""
    pages = session.pages("sqs", "ListQueues", MaxResults=100)
    urls = [str(url) for page in pages for url in page.get("QueueUrls", ())]
    for number, url in enumerate(urls, 1):
        typer.echo(f"  {number}  {url}")

    def chosen(answer: str) -> str:
        if not answer.isdecimal():
            _setting(f"{below}__QUEUE_URL")(answer)
            return answer
        if not 1 <= int(answer) <= len(urls):
            raise BadInput("queue of the jobs", answer, f"give a number from 1 to {len(urls)}, a URL, or nothing")
        return urls[int(answer) - 1]

    return chosen(_asked(f"Queue of its jobs, a number or a URL; {NO_QUEUE}", "", chosen))


BY_HAND: Mapping[str, tuple[str, str | None]] = {
    "vm_type": ("VM type, such as m5a.large", None),
    "cores": ("vCPUs of one VM", None),
    "memory_gb": ("GB of one VM", None),
    "min": ("Fewest VMs", "0"),
    "max": ("Most VMs", "10"),
}
"""The question about each setting of a group, and the answer where none is given."""


def _by_hand(prices: _Prices, below: str) -> dict[str, dict[str, Any]]:
    """Ask for groups, one after the other, until a name is empty; `below` begins the names of the fleet's settings."""
    groups: dict[str, dict[str, Any]] = {}

    def is_new(name: str) -> None:
        if (key := _key(name)) in groups:
            raise BadInput("the answer", name, f"{groups[key]['name']} has the key {key} too: give each group once")
        _setting(f"{below}__GROUPS__{key}__NAME")(name)

    while True:
        if groups:
            name = _asked("Name of another group; empty: no more", "", is_new)
        else:
            name = _asked("Name of the Auto Scaling group", check=is_new)
        if not name:
            return groups
        at = f"{below}__GROUPS__{_key(name)}"
        groups[_key(name)] = {"name": name} | {
            one: _asked(*question, _setting(f"{at}__{one.upper()}")) for one, question in BY_HAND.items()
        }
        groups[_key(name)]["price_per_hour"] = f"{prices.of(groups[_key(name)]['vm_type']):g}"


OPTIONS = {
    "MODE": "--mode",
    "REGION": "--region",
    "ENDPOINT_URL": "--endpoint-url",
    "LEDGER__URL": "--ledger",
    "QUEUE_URL": "--queue-url",
    "POLICY": "--policy",
    "CPU_FROM": "--cpu-from",
    "JOB_CORE_S": "--job-length",
    "HORIZON_S": "--job-length",
}
"""The option behind each setting, by the end of its name; those of a group come from `--group`."""


def _check(environ: Mapping[str, str], others: Mapping[str, str]) -> Settings:
    """Return the settings, checked as at a start of the agent; ConfigurationError has every mistake with its option.

    others: those of --set, none of which may be a secret.
    """
    from pydantic import SecretStr

    from agent.kernel.parts import kinds
    from agent.settings.load import read_settings
    from agent.settings.names import path_of, values

    try:
        settings = read_settings(environ).settings
        wrong = [mistake for kind in kinds() for mistake in kind.mistakes(settings)]
    except ConfigurationError as error:
        wrong = list(error.mistakes)
    if wrong:
        raise ConfigurationError([replace(one, name=f"{_option(one.name, others)}: {one.name}") for one in wrong])
    secret = {path for path, value in values(settings) if isinstance(value, SecretStr)}
    for name in others:
        if path_of(name) in secret:
            raise BadInput("--set", name, "leave secrets out of the file: docs/operate/install.md loads them")
    return settings


def _option(setting: str, others: Mapping[str, str]) -> str:
    if setting in others or (others and not setting.startswith("TRIMTAB_FLEETS__")):
        return "--set"
    return next((option for end, option in OPTIONS.items() if setting.upper().endswith(f"_{end}")), "--group")


HEAD = """\
# Settings of the agent, written by `trimtab init`; docs/operate/configuration.md has all of them.
# `trimtab config check --all` prints each with its place. A variable such as TRIMTAB_MODE goes before this file.
# Secrets do not belong here: every user may read it.

"""
VARIABLES = "# Load these in a shell, or by EnvironmentFile= of a systemd unit. Secrets may be added.\n"


def _toml(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the given settings, without secrets, as a file for TRIMTAB_CONFIG."""
    from pydantic import SecretStr

    from agent.settings.names import as_toml, path_of, values

    given = {path_of(name) for name in environ}
    return HEAD + as_toml(
        (path, value) for path, value in values(settings) if path in given and not isinstance(value, SecretStr)
    )


def _variables(file: Path, environ: Mapping[str, str]) -> str:
    """Return the lines that name the file, and the ledger's URL if it is given: it may hold a password."""
    of_ledger = {name: text for name, text in environ.items() if name == "TRIMTAB_LEDGER__URL"}
    named = {"TRIMTAB_CONFIG": str(file.absolute()), **of_ledger}
    return VARIABLES + "".join(
        f"{name}={text if _PLAIN.fullmatch(text) else _quoted(text)}\n" for name, text in named.items()
    )


def _write(file: Path, text: str, mode: int, *, force: bool) -> None:
    """Write the file whole or not at all; BadInput when another made it meanwhile."""
    with unfinished(file, mode=0o600) as part:
        with part.open("w", encoding="utf-8") as out:
            os.fchmod(out.fileno(), mode)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if force:
            part.replace(file)
            return
        try:
            os.link(part, file)
        except FileExistsError:
            raise BadInput("FILE", str(file), "another process wrote it meanwhile") from None


def _quoted(value: str) -> str:
    """Return a value as a shell and systemd both read it."""
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'
