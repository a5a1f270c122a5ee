"""Settings of the inputs beside the listener: reading from Graphite and CloudWatch, and what a VM reports."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from agent.settings.kinds import Authorization, Directory, Host, Key, Section, Url, VmId


class SeriesForm(StrEnum):
    """The two ways to name a series in Graphite."""

    DOTTED = "dotted"
    TAGGED = "tagged"


class Transport(StrEnum):
    """How lines travel to the listener or to Graphite."""

    TCP = "tcp"
    UDP = "udp"


class MeasuredBy(StrEnum):
    """Who measures a fleet's CPU, and who counts its submitted jobs."""

    REPORTS = "reports"
    CLOUDWATCH = "cloudwatch"


class RenderSettings(Section):
    """Reading measurements from graphite-web, for VMs and job sources that report to a Graphite of their own."""

    url: Url | None = Field(
        None,
        description="Address of graphite-web. Not set: nothing is read from it.",
        examples=["http://graphite.internal:8080"],
    )
    authorization: Authorization | None = Field(
        None,
        description="Value of the Authorization header, such as `Bearer ...`; give it as the credential "
        "`trimtab_render__authorization`.",
    )
    form: SeriesForm = Field(SeriesForm.DOTTED, description="Whether the series there are dotted paths or tagged.")
    interval_s: float = Field(15.0, ge=5, le=300, description="How often it is asked, once for each fleet.")
    timeout_s: float = Field(10.0, gt=0, le=60, description="Longest duration of one question and its answer.")
    lag_s: float = Field(
        5.0, ge=0, le=300, description="Nothing younger than this is asked for: Graphite may not have it complete."
    )
    window_s: float = Field(
        120.0, ge=10, le=600, description="How far back each question reaches, so that what came late is found."
    )
    max_response_mb: float = Field(16.0, gt=0, le=1024, description="Longest answer that is read.")


class CloudWatchSettings(Section):
    """Reading measurements from CloudWatch, for fleets whose `CPU_FROM` or `SUBMITTED_FROM` says so."""

    interval_s: float = Field(60.0, ge=60, le=900, description="How often it is asked; AWS charges by the metric.")
    period_s: int = Field(
        60,
        ge=60,
        le=3600,
        multiple_of=60,
        description="Period of EC2's CPUUtilization: 60 with detailed monitoring, else 300.",
    )
    timeout_s: float = Field(30.0, gt=0, le=120, description="A longer collection counts as overrun.")


class CollectSettings(Section):
    """What `trimtab collect` reports, run on each VM: CPU and memory, and what the VM's job worker tells."""

    host: Host = Field("127.0.0.1", description="Where to send: the agent's listener, or Graphite.")
    port: int = Field(2003, ge=1, le=65535, description="Its port.")
    protocol: Transport = Field(Transport.TCP, description="How to send. Over UDP nobody learns of a lost line.")
    form: SeriesForm = Field(SeriesForm.DOTTED, description="Whether to send dotted paths or tagged series.")
    fleet: Key | None = Field(None, description="Key of the VM's fleet. `trimtab collect` needs it.", examples=["web"])
    group: Key | None = Field(
        None, description="Key of the VM's group. `trimtab collect` needs it.", examples=["workers_s"]
    )
    vm: VmId | None = Field(
        None,
        description="The VM's id. Not set: the instance id from the instance metadata, else the host name.",
        examples=["i-0abc1234"],
    )
    timeout_s: float = Field(5.0, gt=0, le=60, description="Longest time to connect and to send a batch.")
    buffer_lines: int = Field(
        10_000, ge=100, le=1_000_000, description="Lines kept while they cannot be sent; then the oldest go first."
    )
    run_directory: Directory | None = Field(
        None,
        description="Directory shared with the VM's job worker: it writes there how busy it is, and reads whether to "
        "drain. Not set: neither.",
        examples=["/run/trimtab"],
    )
    worker_silence_s: float = Field(
        60.0, ge=5, le=3600, description="A worker that has not written for so long counts as unknown, not as idle."
    )
    metadata_url: Url = Field(
        "http://169.254.169.254", description="The instance metadata service (version 2, with a token)."
    )
    metadata_interval_s: float = Field(
        5.0, ge=1, le=60, description="How often it is asked whether the VM is to be terminated."
    )
