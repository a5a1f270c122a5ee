"""Moto's time follows our clock: one second of an SQS visibility timeout is one second of the simulated cloud.

Moto reads the time through `moto.core.utils.utcnow`, which most of its modules import by name. `follow` loads the
services we serve and replaces that one function wherever moto holds it; `moto.core.utils.unix_time`, which SQS uses for
visibility, delay and retention, calls it, so it follows too. This is process-wide: one clock at a time, and `follow`
returns the call that undoes it. Long polls do not go through this: `queues.receive` waits outside moto, on the clock.
"""

from __future__ import annotations

import datetime
import importlib
import sys
from collections.abc import Callable

from domain.clock import Clock

SERVICES = ("autoscaling", "cloudwatch", "ec2", "elb", "elbv2", "events", "iam", "sns", "sqs", "ssm", "sts")


def load_parameter_store() -> None:
    """Load what moto else reads with the first call to Parameter Store; it takes longer than a call may be given."""
    importlib.import_module("moto.ssm.urls")
    backends = importlib.import_module("moto.backends").get_backend("ssm")
    # Asking for one region makes those of the account.
    backends[importlib.import_module("moto.core").DEFAULT_ACCOUNT_ID]["us-east-1"]


def follow(clock: Clock) -> Callable[[], None]:
    """Make moto read `clock` in this process; return the call that gives moto the machine's time back."""
    for service in SERVICES:
        importlib.import_module(f"moto.{service}.models")
        importlib.import_module(f"moto.{service}.responses")
    core = importlib.import_module("moto.core.utils")
    original = core.utcnow

    def utcnow() -> datetime.datetime:
        return datetime.datetime.fromtimestamp(clock.now(), tz=datetime.UTC).replace(tzinfo=None)

    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("moto.") and vars(module).get("utcnow") is original
    ]
    for module in holders:
        vars(module)["utcnow"] = utcnow

    def restore() -> None:
        for module in holders:
            vars(module)["utcnow"] = original

    return restore
