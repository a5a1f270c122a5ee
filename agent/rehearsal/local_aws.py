"""A local AWS with the launch templates, groups and queues of a settings file, for an agent to try it on."""

from __future__ import annotations

import json
import re
import shlex
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.rehearsal.scenario import AGENT_KEY, OWNER_KEY, REGION, SECRET, VISIBILITY_S, aws_client, make_group
from agent.settings import load_settings, read_settings
from agent.settings.file import CONFIG, read_settings_file
from agent.settings.names import name_of, values
from domain.clock import WallClock
from domain.errors import BadInput
from simulator.aws.client import CloudControl
from simulator.aws.process import load_parameter_store, start_in_thread

QUEUE_URL = re.compile(r"https?://[^/\s]+/[^/\s]+/([\w-]+(?:\.fifo)?)")
"""An SQS queue, by which its name is known."""
SQS_HOST = re.compile(r"^https?://(?:sqs\.|queue\.|127\.0\.0\.1|localhost)")
BATCH = 10


@dataclass(frozen=True, slots=True)
class LocalAws:
    """A running local AWS. settings: the file that an agent on it takes; groups, queues: names of those made."""

    endpoint: str
    settings: Path
    groups: tuple[str, ...]
    queues: tuple[str, ...]


def variables_of(path: Path) -> dict[str, str]:
    """Return the variables of a settings file, NAME=VALUE a line as a shell reads them; BadInput names the line.

    Of a TOML file that is the one which names it.
    """
    if path.suffix == ".toml":
        found = {CONFIG: str(path.absolute())}
        try:
            read_settings_file(found)
        except BadInput as error:
            raise BadInput("FILE", str(path), error.remedy) from None
        return found
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("FILE", str(path), f"give a settings file, as `trimtab init` writes it: {error}") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        try:
            words = [word for word in shlex.split(line, comments=True) if word != "export"]
        except ValueError as error:
            raise BadInput("FILE", f"{path} line {number}", f"close the quotes: {error}") from None
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name.isidentifier():
                raise BadInput("FILE", f"{path} line {number}", f"write NAME=VALUE in place of {word!r}")
            found[name] = value
    return found


def furnish(endpoint: str, given: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Make the queues and groups of these settings on a local AWS, each group at its minimum and in service.

    Return the settings for an agent on it, and the names of groups and queues. Raises ConfigurationError for wrong
    settings.
    """
    loaded = read_settings({name: text for name, text in given.items() if name.startswith("TRIMTAB_")})
    settings = loaded.settings
    region = settings.aws.region or given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION") or REGION
    own = dict(given)
    own |= {
        "TRIMTAB_AWS__ENDPOINT_URL": endpoint,
        "TRIMTAB_AWS__REGION": region,
        "AWS_ACCESS_KEY_ID": AGENT_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": region,
    }
    if loaded.origin(("state_directory",)) is None:
        own["TRIMTAB_STATE_DIRECTORY"] = str(Path(".trimtab/local-aws").resolve())
    sqs = aws_client("sqs", endpoint, OWNER_KEY, region)
    queues: dict[str, str] = {}
    for path, value in values(settings):
        found = QUEUE_URL.fullmatch(str(value))
        if found is not None and SQS_HOST.match(str(value)):
            variable = loaded.given.get(path)
            # A variable goes before the file, and may have its key in capitals.
            name = variable.name if variable is not None and variable.name in given else name_of(path)
            queues[found[1]] = own[name] = _make_queue(sqs, found[1])
    groups = aws_client("autoscaling", endpoint, OWNER_KEY, region)
    machines = aws_client("ec2", endpoint, OWNER_KEY, region)
    zones = [f"{region}{letter}" for letter in "ab"]
    made = []
    for fleet in (settings.fleet(name) for name in settings.fleets):
        for group in fleet.groups:
            make_group(groups, machines, fleet.name, group, group.minimum, zones)
            made.append(group.name)
    CloudControl(endpoint).ready_now()
    return own, tuple(made), tuple(queues)


def _make_queue(sqs: Any, name: str) -> str:
    attributes = {"VisibilityTimeout": str(VISIBILITY_S)}
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    url: str = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def local_settings(path: Path, own: Mapping[str, str]) -> Path:
    """Write the settings of an agent on the local AWS to the folder of `path`, and return the file: `web.local.env`."""
    target = path.with_name(f"{path.stem}.local.env")
    head = f"# Settings of {path.name} for a local AWS, written by `trimtab local-aws`; they lead to no account.\n"
    target.write_text(head + "".join(f"{name}={shlex.quote(text)}\n" for name, text in own.items()), "utf-8")
    return target


def serve(path: Path, port: int, seed: int, messages: int, on_ready: Callable[[LocalAws], None]) -> None:
    """Serve a local AWS with the groups of the settings in `path` until SIGINT or SIGTERM; `on_ready` when it serves.

    messages: sent to each queue of a fleet, as jobs of which no worker takes any. Raises BadInput, ConfigurationError,
    and OSError where the port is taken.
    """
    given = variables_of(path)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopping.set())
    running = start_in_thread(WallClock(), seed=seed, port=port)
    try:
        load_parameter_store()
        own, groups, queues = furnish(running.endpoint, given)
        sqs = aws_client("sqs", running.endpoint, OWNER_KEY, own["TRIMTAB_AWS__REGION"])
        settings = load_settings({name: text for name, text in own.items() if name.startswith("TRIMTAB_")})
        for fleet in settings.fleets.values():
            for first in range(0, messages if fleet.queue_url is not None else 0, BATCH):
                numbers = range(first, min(first + BATCH, messages))
                entries = [{"Id": str(n), "MessageBody": json.dumps({"job": n})} for n in numbers]
                sqs.send_message_batch(QueueUrl=str(fleet.queue_url), Entries=entries)
        on_ready(LocalAws(running.endpoint, local_settings(path, own), groups, queues))
        stopping.wait()
    finally:
        running.stop()
