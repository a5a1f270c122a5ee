"""A leader in a process of its own that makes one call; run it with `python -m`, giving LEDGER AWS LEASE_S.

On standard error it writes "leading", waits for a line, calls SetDesiredCapacity, and writes "sent" or the error.
"""

from __future__ import annotations

import sys

from agent.ledger import Ledger
from collectors.aws import AwsOptions, AwsSession
from domain.clock import WallClock
from domain.errors import TrimtabError
from tests.agent.ledger.postgres.sharing import leader_of_web


def main(ledger_url: str, aws_url: str, lease_s: str) -> None:
    """Lead, wait, call."""
    ledger = Ledger.open(ledger_url, busy_timeout_s=2.0)
    leader = leader_of_web(ledger, "first", WallClock(), float(lease_s), float(lease_s) / 3.0)
    leader.start()
    epochs = leader.leads().numbers
    assert epochs == (1,)
    options = AwsOptions(
        "us-east-1", aws_url, connect_timeout_s=60.0, access_key_id="AKIA", secret_access_key="simulated"
    )
    aws = AwsSession(options, WallClock(), read_only=False, fence=lambda: leader.fence(epochs))
    print("leading", file=sys.stderr, flush=True)
    sys.stdin.readline()
    try:
        aws.mutate("autoscaling", "SetDesiredCapacity", AutoScalingGroupName="web", DesiredCapacity=9)
        print("sent", file=sys.stderr, flush=True)
    except TrimtabError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
