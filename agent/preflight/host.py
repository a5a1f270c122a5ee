"""What the agent needs on its host: a place for the ledger, and measurements that arrive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.engine import make_url

from agent.api.running_agent import RunningAgent
from agent.autoscaling.policies.ppo_lstm import names_model
from agent.autoscaling.snapshot.series import ABSENT_ROW, SeriesStore
from agent.ledger import Ledger
from agent.ledger.postgresql import lacks_sslmode
from agent.models.shelf import ModelShelf, named_policy
from agent.preflight.results import Finding, advice, missing, ok, unknown
from agent.service.assembly import claims_of, started_listener
from agent.service.inputs import collectors_of
from agent.settings import Settings
from agent.settings.effective import plain
from agent.settings.inputs import MeasuredBy
from collectors.aws import AwsSession
from domain.clock import Clock
from domain.errors import BadInput, CollectionFailed, TrimtabError
from domain.samples import QueueMetric

AGE = "trimtab_newest_sample_age_seconds"
INSTRUMENT = "see docs/operate/instrument.md"


def check_ledger(settings: Settings) -> Finding:
    """Return whether the ledger is there and can be written, or its place can; nothing is written."""
    url = settings.ledger_url.get_secret_value()
    shown = plain(settings.ledger_url)
    file = Path(make_url(url).database or "") if url.startswith("sqlite") else None
    if file is not None and not file.exists():
        place = next(parent for parent in file.parents if parent.exists())
        if os.access(place, os.W_OK | os.X_OK):
            return ok("ledger", f"{shown} will be made at the first start")
        return missing(
            "ledger",
            f"{place} cannot be written by this user, so {file.name} could not be made there",
            "run this check as the service's user, or choose another TRIMTAB_STATE_DIRECTORY; under systemd "
            "StateDirectory= makes it",
        )
    try:
        Ledger.open(url, read_only=True).close()
    except TrimtabError as error:
        return missing("ledger", str(error), "see docs/operate/troubleshooting.md")
    if file is not None and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)):
        return missing("ledger", f"{file} cannot be written by this user", "run this check as the service's user")
    return ok("ledger", f"{shown} is there")


def check_models(settings: Settings) -> Iterator[Finding]:
    """Yield for each fleet with a learned policy which model decides for it, or why none does."""
    shelf = ModelShelf(settings.models_directory, key=settings.promotion_key)
    for key, fleet in settings.fleets.items():
        for role, text in (("policy", fleet.policy_text), ("shadow", fleet.shadow_text)):
            if text is None or not names_model(text):
                continue
            subject = f"model of {key}, {role}"
            try:
                shelf.check(named_policy(settings, text), settings.fleet(key))
                name = shelf.resolve(named_policy(settings, text), settings.fleet(key))
            except BadInput as error:
                yield missing(subject, str(error), "promote a model that was trained for it, or choose another policy")
            else:
                yield ok(subject, f"{name} fits")


def check_collectors(settings: Settings, session: AwsSession) -> Iterator[Finding]:
    """Yield what each collector that the settings ask for gives, asked once."""
    fleets = [settings.fleet(key) for key in settings.fleets]
    for collector in collectors_of(settings, fleets, session):
        subject = f"collector {collector.name}"
        try:
            samples = collector.collect(time.time())
        except Exception as error:
            remedy = "correct the address, or allow the call (deploy/iam/observe.json)"
            yield missing(subject, f"{type(error).__name__}: {error}", remedy)
            continue
        count = len(list(samples))
        if count:
            yield ok(subject, f"gives {count} samples")
        else:
            yield advice(subject, "answers, and has no samples yet", f"look again when VMs run; {INSTRUMENT}")


def check_arrivals(
    settings: Settings, clock: Clock, wait_s: float, wait: Callable[[float], object] = time.sleep
) -> Iterator[Finding]:
    """Yield for each fleet since when measurements arrive: as the running agent says, else by listening `wait_s`."""
    needing = [key for key, fleet in settings.fleets.items() if fleet.cpu_from is MeasuredBy.REPORTS]
    if settings.render.url is not None or not needing:
        return
    agent = RunningAgent(settings.http_socket)
    try:
        families = text_string_to_metric_families(agent.text("/metrics"))
        ages = {
            sample.labels["fleet"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == AGE
        }
    except CollectionFailed:
        yield from _listened(settings, needing, clock, wait_s, wait)
        return
    for key in needing:
        subject, age_s = f"measurements of {key}", ages.get(key)
        if age_s is None:
            yield missing(subject, "the running agent has none", f"send some: {INSTRUMENT}")
        elif age_s > settings.limits(key).max_age_s:
            yield missing(subject, f"the running agent had the last {age_s:.0f} s ago", f"send some: {INSTRUMENT}")
        else:
            yield ok(subject, f"the running agent had the last {age_s:.0f} s ago")


def check_encryption(settings: Settings) -> Iterator[Finding]:
    """Yield that nobody checks who answers as the ledger's server, where its URL does not say how to."""
    if lacks_sslmode(make_url(settings.ledger_url.get_secret_value())):
        yield unknown(
            "ledger's server",
            f"TRIMTAB_LEDGER__URL={plain(settings.ledger_url)} has no sslmode: the connection is encrypted "
            "(sslmode=require), and who answers is not checked",
            "add ?sslmode=verify-full&sslrootcert=FILE to the URL; FILE holds the certificate of its authority",
        )


def _listened(
    settings: Settings, needing: list[str], clock: Clock, wait_s: float, wait: Callable[[float], object]
) -> Iterator[Finding]:
    if wait_s <= 0:
        yield unknown("measurements", "no agent runs on this host, and nothing was listened for", "give --wait 15")
        return
    fleets = [settings.fleet(key) for key in settings.fleets]
    store = SeriesStore(watched=fleets, claims=claims_of(settings))
    try:
        listener = started_listener(settings, store, clock)
    except BadInput as error:
        yield missing("listener", str(error), "end what holds the port, or ask its agent: TRIMTAB_HTTP__SOCKET")
        return
    try:
        wait(wait_s)
    finally:
        listener.stop()
    place = f"{settings.listener.host}:{settings.listener.port}"
    for fleet in fleets:
        if fleet.name not in needing:
            continue
        vms = {vm for group in fleet.groups for vm in store.vm_rows(fleet.name, group.key)}
        counted = any(store.queue_row(fleet.name, metric) != ABSENT_ROW for metric in QueueMetric)
        subject = f"measurements of {fleet.name}"
        if vms or counted:
            queue = " and its queue" if counted else ""
            yield ok(subject, f"within {wait_s:.0f} s, {len(vms)} VMs{queue} reported to {place}")
        else:
            detail = f"within {wait_s:.0f} s, nothing of it arrived at {place}"
            yield advice(subject, detail, f"none is right while no VM runs; otherwise {INSTRUMENT}")
