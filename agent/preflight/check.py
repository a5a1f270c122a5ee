"""Runs the checks in order: the ledger, files, then the identity, which all requests need, then those of every part."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from agent.api import unix_socket
from agent.kernel.checks import Account, Arrivals, CheckResult, advice, missing, ok, unknown
from agent.kernel.parts import kinds
from agent.kernel.text import time_text
from agent.ledger import Ledger
from agent.ledger.postgresql import lacks_sslmode
from agent.models.directory import ModelsDirectory
from agent.models.rounds import read_rounds
from agent.models.unused_champion import readable_champions, unused_champion
from agent.service.assembly import AwsKeys, aws_session, started_listener
from agent.settings import Settings
from agent.settings.discovery import discover
from agent.settings.model import LearningSettings
from agent.settings.names import plain
from collectors.aws import AwsSession
from collectors.aws_clock import LARGEST_DIFFERENCE_S, REMEDY
from collectors.base import SampleSink
from collectors.intake import IntakeCounters
from collectors.tagged_groups import TaggedGroups
from domain.clock import Clock
from domain.decisions import Mode
from domain.errors import CloudError, TrimtabError

NOTABLE_SKEW_S = 2.0
"""AWS refuses calls from a clock that is five minutes off; measurements become useless long before."""


def check_everything(
    settings: Settings,
    clock: Clock,
    *,
    wait_s: float = 15.0,
    keys: AwsKeys | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[CheckResult]:
    """Yield the results one by one. The session refuses every call that changes anything.

    wait_s: how long to listen for measurements where no agent runs on this host.
    """
    observing = settings.model_copy(update={"mode": Mode.OBSERVE})
    session = aws_session(observing, clock, keys, lambda: None)
    try:
        yield ok("mode", f"{settings.mode}")
        yield check_ledger(settings)
        yield from check_encryption(settings)
        yield from check_learning(settings)
        for kind in kinds():
            yield from kind.files(settings)
        if session.region is None:
            yield missing("region", "none is set or in the AWS chain", "set TRIMTAB_AWS__REGION, such as eu-west-1")
            return
        identity, results = check_identity(session, clock.now(), settings.aws.account)
        yield from results
        if identity is None:
            return
        if not settings.fleets and settings.discovery.enabled:
            settings, results = _discovered(settings, session, session.region)
            yield from results
        if not any(getattr(settings, kind.configured_in) for kind in kinds() if kind.configured_in):
            yield missing("fleets", "none is set", "set one, or tag its groups: docs/operate/install.md")
        for kind in kinds():
            yield from kind.preflight(settings, Account(session, identity))
    finally:
        session.close()
    arrivals = arrivals_of(settings, clock, wait_s, wait)
    for kind in kinds():
        yield from kind.arrivals(settings, arrivals)


def arrivals_of(
    settings: Settings, clock: Clock, wait_s: float, wait: Callable[[float], object] = time.sleep
) -> Arrivals:
    """Return how to find out what arrives at this host."""

    def listen(sink: SampleSink) -> IntakeCounters:
        listener = started_listener(settings, sink, clock)
        try:
            wait(wait_s)
        finally:
            listener.stop()
        return listener.counters

    return Arrivals(wait_s, lambda: unix_socket.read(settings.http_socket, "/metrics"), listen)


def _discovered(settings: Settings, session: AwsSession, region: str) -> tuple[Settings, list[CheckResult]]:
    """Return the settings with the fleets that tags describe, and the results of their discovery."""
    try:
        found = discover(TaggedGroups(session), settings, region)
    except CloudError as error:
        remedy = "allow the call (deploy/iam/observe.json)"
        return settings, [missing("discovery", str(error), remedy)]
    fleets = [
        ok("discovery", f"tags describe the fleet {name} with {len(fleet.groups)} groups")
        for name, fleet in found.settings.fleets.items()
    ]
    refused = [missing("discovery", detail, "correct the tags") for detail in found.refused.values()]
    return found.settings, fleets + refused


def check_ledger(settings: Settings) -> CheckResult:
    """Return whether the ledger exists and is writable, or can be created; nothing is written."""
    url = settings.ledger_url.get_secret_value()
    shown = plain(settings.ledger_url)
    file = Path(make_url(url).database or "") if url.startswith("sqlite") else None
    if file is not None and not file.exists():
        place = next(parent for parent in file.parents if parent.exists())
        if os.access(place, os.W_OK | os.X_OK):
            return ok("ledger", f"{shown} will be created at the first start")
        return missing(
            "ledger",
            f"{place} cannot be written by this user, so {file.name} cannot be created there",
            "run this check as the service's user, or choose another TRIMTAB_STATE_DIRECTORY; under systemd "
            "StateDirectory= creates it",
        )
    try:
        Ledger.open(url, read_only=True).close()
    except TrimtabError as error:
        return missing("ledger", str(error), "see docs/operate/troubleshooting.md")
    if file is not None and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)):
        return missing("ledger", f"{file} cannot be written by this user", "run this check as the service's user")
    return ok("ledger", f"{shown} exists")


def check_learning(settings: Settings) -> Iterator[CheckResult]:
    """Yield what is missing for rounds of learning on this host; nothing where no setting asks for any.

    Whether the timer is enabled cannot be seen from here: how the last round ended is.
    """
    champions = readable_champions(ModelsDirectory(settings.models_directory))
    for name, fleet in settings.fleets.items():
        if unused := unused_champion(champions, name, str(fleet.policy)):
            sentence, _, todo = unused.partition("; ")
            yield advice("learning", sentence, todo)
    if settings.learning == LearningSettings():
        return
    subject, remedy = "learning", "run deploy/install.sh --role learn (docs/operate/install.md)"
    absent = [name for name in ("torch", "numba") if find_spec(name) is None]
    if absent:
        lacking = (
            f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed: no round can be made here"
        )
        yield advice(subject, lacking, "run deploy/upgrade.sh --role learn, or learn on another machine")
    models, url = settings.models_directory, settings.ledger_url.get_secret_value()
    file = Path(make_url(url).database or "") if url.startswith("sqlite") else None
    for path, bits, words in (
        (models, stat.S_IWGRP | stat.S_ISGID, "cannot be written by its group, or does not hand that on"),
        (file, stat.S_IRGRP, "cannot be read by its group"),
    ):
        if path is None:
            continue
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            yield advice(subject, f"{path} is not there yet", remedy)
        except OSError as error:
            yield unknown(subject, f"{path} cannot be looked at ({error.strerror})", "run this check by sudo")
        else:
            if mode & bits != bits:
                yield advice(subject, f"{path} {words}: the learner runs as another user", remedy)
    for kind in kinds():
        discovered = settings.discovery.enabled and kind.subject_word == "fleet"
        if kind.learns and (discovered or (kind.configured_in and getattr(settings, kind.configured_in))):
            yield from _rounds_of(kind.name, models)


def _rounds_of(decision: str, models: Path) -> Iterator[CheckResult]:
    rounds, problems = read_rounds(models, decision)
    for problem in problems:
        yield advice("learning", problem, "remove the file, or make it readable for this user")
    if not rounds and not problems:
        enable = "systemctl enable --now trimtab-{learn,watch}.timer; systemctl start trimtab-learn for a round at once"
        yield advice("learning", f"no round of {decision} has ended yet", enable)
    for name, last in rounds.items():
        sentence = f"the last round for {name} ended {time_text(last.at)}: {last.outcome}"
        if last.outcome.good:
            yield ok("learning", sentence)
        else:
            yield advice("learning", f"{sentence}: {last.sentence}", "look at journalctl -u trimtab-learn")


def check_encryption(settings: Settings) -> Iterator[CheckResult]:
    """Yield that the ledger's server is not verified, where its URL has no sslmode."""
    if lacks_sslmode(make_url(settings.ledger_url.get_secret_value())):
        yield unknown(
            "ledger's server",
            f"TRIMTAB_LEDGER__URL={plain(settings.ledger_url)} has no sslmode: the connection is encrypted "
            "(sslmode=require), and the server is not verified",
            "add ?sslmode=verify-full&sslrootcert=FILE to the URL; FILE holds the certificate of its authority",
        )


def check_identity(session: AwsSession, now: float, named: str | None = None) -> tuple[str | None, list[CheckResult]]:
    """Return the identity's ARN, None when there is none, and the results for identity and clock.

    now: this host's time right before the call, epoch seconds. named: the account in the settings. Later calls of the
    session are held to the account found.
    """
    session.account.expected = named
    try:
        answer = session.read("sts", "GetCallerIdentity")
    except CloudError as error:
        remedy = "give the host an instance profile with deploy/iam/observe.json or act.json (docs/operate/install.md)"
        return None, [missing("credentials", str(error), remedy)]
    arn, session.account.expected = str(answer["Arn"]), str(answer["Account"])
    return arn, [ok("credentials", f"account {answer['Account']}, {arn}"), _clock(answer, now)]


def _clock(answer: Mapping[str, Any], now: float) -> CheckResult:
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        skew_s = now - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return unknown("clock", "AWS's response has no date to compare with")
    detail = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} AWS"
    # The header has whole seconds, and the response has a delay.
    if abs(skew_s) <= NOTABLE_SKEW_S:
        return ok("clock", "agrees with AWS to within 2 s")
    if abs(skew_s) <= LARGEST_DIFFERENCE_S:
        return advice("clock", detail, REMEDY)
    return missing("clock", detail, REMEDY)
