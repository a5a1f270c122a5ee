"""Every setting: its type, bounds, default and meaning, and what the settings of a fleet become."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from agent.rails.base import RailLimits
from agent.settings.admission import ClusterSettings
from agent.settings.alarms import AlarmSettings
from agent.settings.fleet import FleetSettings
from agent.settings.http import HttpSettings, SelfMetricsSettings
from agent.settings.inputs import CloudWatchSettings, CollectSettings, RenderSettings
from agent.settings.kinds import (
    Account,
    Directory,
    Host,
    Key,
    LedgerUrl,
    Networks,
    Region,
    Section,
    Url,
    plainly_written,
)
from agent.settings.learned import LearnedSettings
from agent.settings.location import DEFAULT_STATE_DIRECTORY, models_of, promotion_key_of, socket_of, sqlite_url
from agent.settings.oversubscription import PoolSettings
from domain.decisions import Mode
from domain.errors import BadInput
from domain.fleet import Fleet

LOOPBACK = "127.0.0.0/8,::1/128"


class DriftHandling(StrEnum):
    """What to do when a group's desired capacity was changed by somebody else."""

    ADOPT = "adopt"
    REPORT = "report"


class LogLevel(StrEnum):
    """What is logged: this and whatever is graver."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LedgerSettings(Section):
    """The ledger: where decisions, intents and outcomes are recorded."""

    url: LedgerUrl | None = Field(
        None,
        description="SQLAlchemy URL of the ledger. Not set: SQLite, `ledger.db` in the state directory. "
        "With a password, give it as the credential `trimtab_ledger__url`. A PostgreSQL server on another host is "
        "connected with `sslmode=require` unless the URL says otherwise; `?sslmode=verify-full&sslrootcert=FILE` also "
        "checks who answers.",
        examples=["sqlite:////var/lib/trimtab/ledger.db"],
    )
    retention_days: int = Field(
        90,
        ge=1,
        le=3650,
        description="Decisions and their inputs older than this are removed; what the loop needs stays.",
    )


class LeaderSettings(Section):
    """Who leads when several agents share a PostgreSQL ledger; on SQLite there is one agent and none of it is used."""

    lease_s: float = Field(
        30.0, ge=1, le=600, description="A leader that is not heard of for so long is replaced by another agent."
    )
    renew_s: float = Field(10.0, gt=0, le=200, description="How often a leader says that it is there.")


class DiscoverySettings(Section):
    """Fleets found by the tags of their Auto Scaling groups instead of being described by settings."""

    enabled: bool = Field(
        False,
        description="Manage the groups tagged `trimtab:fleet=<name>`, when no fleet is described by settings.",
    )
    interval_s: float = Field(300.0, ge=30, le=86_400, description="How often to look for them again.")


class ListenerSettings(Section):
    """The Graphite plaintext listener that VMs and job sources send their measurements to."""

    host: Host = Field(
        "127.0.0.1", description="Address to listen on; one that other hosts can reach needs `NETWORKS` as well."
    )
    networks: Networks = Field(
        LOOPBACK,
        description="Who may send: networks of IPv4 and IPv6, separated by commas. All others are turned away and "
        "counted. Senders are not authenticated, so name your VMs' subnets and nothing wider.",
        examples=["10.0.0.0/16"],
    )
    port: int = Field(2003, ge=0, le=65535, description="Port to listen on, for TCP and UDP; 0 takes any free one.")
    tcp: bool = Field(True, description="Listen on TCP.")
    udp: bool = Field(
        False,
        description="Listen on UDP too. A sender's address is easily forged there, and what the network drops is not "
        "counted: only for a network that is yours.",
    )
    max_connections: int = Field(
        4096,
        ge=1,
        le=65536,
        description="TCP connections open at once. When all are taken, one that has brought nothing goes, else the "
        "one idle for longest.",
    )
    connections_per_peer: int = Field(
        1024, ge=1, le=65536, description="Of them at most so many from one address. Raise it for a relay or NAT."
    )
    unknown_vms_per_peer: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="VMs that AWS, or a pool's inventory, does not show yet, of which one address may report. Raise it "
        "for a relay before a larger fleet.",
    )


class AwsSettings(Section):
    """How AWS is called. Credentials come from the AWS chain (instance profile, environment, shared files)."""

    region: Region | None = Field(
        None, description="AWS region. Not set: as the AWS chain finds it.", examples=["eu-west-1"]
    )
    account: Account | None = Field(
        None,
        description="AWS account to which the ledger is bound. Not set: STS is asked, and nothing is executed before "
        "it answers; set it where the host cannot reach STS.",
        examples=["111122223333"],
    )
    endpoint_url: Url | None = Field(
        None,
        description="Endpoint for every service, for a look-alike such as moto. Not set: AWS itself.",
        examples=["http://127.0.0.1:5000"],
    )
    connect_timeout_s: float = Field(3.0, gt=0, le=60, description="Longest wait for a connection to AWS.")
    read_timeout_s: float = Field(10.0, gt=0, le=60, description="Longest wait for an answer from AWS.")
    calls_per_minute: int = Field(
        120, ge=1, le=10_000, description="Budget of AWS calls; what exceeds it waits for the next minute."
    )


class Settings(BaseSettings):
    """The agent's settings. Making one reads nothing: `load_settings` reads environment and credentials."""

    model_config = SettingsConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        frozen=True,
        env_prefix="TRIMTAB_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    mode: Mode = Field(
        Mode.OBSERVE, description="`observe` decides and records and changes nothing; `act` also does what was decided."
    )
    state_directory: Directory = Field(
        DEFAULT_STATE_DIRECTORY, description="Directory of the ledger and of whatever else must survive a restart."
    )
    deployment: Key = Field(
        "default",
        description="Name of this deployment. The ledger is bound to it, to the AWS account and to the region; both "
        "agents of a pair share it, and an agent of another is refused.",
    )
    tick_interval_s: float = Field(60.0, ge=10, le=600, description="A decision is made once in this time.")
    sample_interval_s: float = Field(
        10.0, ge=1, le=60, description="How often a VM reports, and so how many samples a minute needs."
    )
    grace_s: float = Field(5.0, ge=0, le=30, description="How long after the minute late samples are still taken.")
    log_level: LogLevel = Field(
        LogLevel.INFO, description="What is logged, as a line of JSON per event on standard error."
    )
    drift: DriftHandling = Field(
        DriftHandling.ADOPT,
        description="When somebody else changed a size: `adopt` takes the new one as ours, `report` announces it "
        "as something to look into. Either way the next decision starts from it.",
    )
    protect_busy: bool = Field(
        True, description="Set scale-in protection on VMs that run a job, so that AWS does not take them."
    )
    interruption_queue_url: Url | None = Field(
        None,
        description="SQS queue that receives spot and rebalance notices from EventBridge. Not set: none are read.",
        examples=["https://sqs.eu-west-1.amazonaws.com/123456789012/trimtab-interruptions"],
    )
    ledger: LedgerSettings = LedgerSettings()
    leader: LeaderSettings = LeaderSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    listener: ListenerSettings = ListenerSettings()
    render: RenderSettings = RenderSettings()
    cloudwatch: CloudWatchSettings = CloudWatchSettings()
    collect: CollectSettings = CollectSettings()
    aws: AwsSettings = AwsSettings()
    http: HttpSettings = HttpSettings()
    alarms: AlarmSettings = AlarmSettings()
    self_metrics: SelfMetricsSettings = SelfMetricsSettings()
    learned: LearnedSettings = LearnedSettings()
    fleets: dict[Key, FleetSettings] = Field({}, description="The fleets, by their key.")
    clusters: dict[Key, ClusterSettings] = Field({}, description="The clusters, by their key.")
    pools: dict[Key, PoolSettings] = Field({}, description="The pools, by their key.")

    @field_validator("*", mode="before")
    @classmethod
    def _plainly_written(cls, value: Any, info: ValidationInfo) -> Any:
        return plainly_written(cls.model_fields[info.field_name or ""], value)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what the caller gives and nothing else."""
        return (init_settings,)

    @property
    def ledger_url(self) -> SecretStr:
        """Where the ledger is, the default filled in."""
        return self.ledger.url or SecretStr(sqlite_url(self.state_directory))

    @property
    def http_socket(self) -> Path:
        """Where the unix socket is, the default filled in."""
        return self.http.socket or socket_of(self.state_directory)

    @property
    def models_directory(self) -> Path:
        """Where the champion of learned policies is, the default filled in."""
        return self.learned.models_dir or models_of(self.state_directory)

    @property
    def promotion_key(self) -> bytes | None:
        """What signs the reports of champions, None where any whole report will do."""
        key = self.learned.promotion_key
        return promotion_key_of(None if key is None else key.get_secret_value())

    def fleet(self, name: str) -> Fleet:
        """Return the fleet of that key; BadInput names the fleets there are."""
        return self._of(name).fleet(name)

    def limits(self, name: str) -> RailLimits:
        """Return the rails' limits of the fleet of that key, its safe floor in the order of the fleet's groups."""
        return self._of(name).limits()

    def _of(self, name: str) -> FleetSettings:
        try:
            return self.fleets[name]
        except KeyError:
            raise BadInput(
                "fleet", name, f"choose one of: {', '.join(sorted(self.fleets)) or '(none is set)'}"
            ) from None
