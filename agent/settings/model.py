"""Every setting of the agent: its type, bounds, default and meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, create_model, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from agent.models.directory import SHORTEST_KEY_BYTES, Then
from agent.rails.base import RailLimits
from agent.settings.fleet import FleetSettings
from agent.settings.kinds import (
    Account,
    Accounts,
    Authorization,
    Directory,
    File,
    Host,
    Key,
    LedgerUrl,
    Networks,
    Region,
    Section,
    SocketPath,
    Url,
    ValueHint,
    VmId,
    plainly_written,
    web_address,
)
from agent.settings.location import DEFAULT_STATE_DIRECTORY, models_of, promotion_key_of, socket_of, sqlite_url
from agent.settings.plug_ins import ACTUATORS, DECISIONS, installed
from agent.settings.subjects import Subjects, described_subjects
from domain.decisions import Mode
from domain.errors import BadInput, ConfigurationError, Mistake
from domain.fleet import Fleet

LOOPBACK = "127.0.0.0/8,::1/128"


class DriftHandling(StrEnum):
    """The response to a change of a group's desired capacity that the agent did not make."""

    ADOPT = "adopt"
    REPORT = "report"


class LogLevel(StrEnum):
    """The least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LedgerSettings(Section, title="Ledger"):
    """The ledger, in which decisions, intents and outcomes are recorded."""

    url: LedgerUrl | None = Field(
        None,
        description="SQLAlchemy URL of the ledger. Not set: SQLite, `ledger.db` in the state directory. "
        "With a password, give it as the credential `trimtab_ledger__url`. A PostgreSQL server on another host is "
        "connected with `sslmode=require` unless the URL has another; `?sslmode=verify-full&sslrootcert=FILE` also "
        "verifies the server.",
        examples=["sqlite:////var/lib/trimtab/ledger.db"],
    )
    retention_days: int = Field(
        90,
        ge=1,
        le=3650,
        description="Decisions and their inputs older than this are removed; the state of the loop is kept.",
    )
    learning_days: int = Field(
        400,
        ge=1,
        le=3650,
        description="Retention of learning records: about 150 bytes per minute of "
        "a fleet, the events of clusters, the hours of pools.",
    )


class LeaderSettings(Section, title="Leader"):
    """The leases of agents that share a PostgreSQL ledger; not used with SQLite."""

    name: Key | None = Field(
        None,
        description="Name of this agent, another one for each agent and the same after a restart: its share of the "
        "subjects follows from it. Not set: the name of the host and the state directory.",
        examples=["agent-1"],
    )
    lease_s: float = Field(
        30.0, ge=1, le=600, description="An agent that has not renewed for so long is replaced by the others."
    )
    renew_s: float = Field(10.0, gt=0, le=200, description="Interval at which an agent renews its leases.")


class DiscoverySettings(Section, title="Discovery"):
    """Fleets discovered by the tags of their Auto Scaling groups instead of described by settings."""

    enabled: bool = Field(
        False,
        description="Manage the groups tagged `trimtab:fleet=<name>`, when no fleet is described by settings.",
    )
    interval_s: float = Field(300.0, ge=30, le=86_400, description="Interval of the discovery.")


class ListenerSettings(Section, title="Listener"):
    """The Graphite plaintext listener, which receives measurements of VMs and job sources."""

    host: Host = Field(
        "127.0.0.1", description="Address to listen on; one that other hosts can reach needs `NETWORKS` as well."
    )
    relay_host: Host | None = Field(
        None,
        description="Address of this agent for the other agents on its PostgreSQL ledger, which forward lines of its "
        "fleets and pools to `RELAY_PORT`; it forwards theirs. Not set: it forwards none, so send every "
        "line to all agents.",
        examples=["10.0.0.5"],
    )
    relay_port: int = Field(
        2103,
        ge=1,
        le=65535,
        description="Port for lines of other agents, on `HOST`; its senders name other senders, so let nothing else "
        "reach it.",
    )
    networks: Networks = Field(
        LOOPBACK,
        description="Permitted senders: networks of IPv4 and IPv6, separated by commas. All others are refused and "
        "counted. Senders are not authenticated: give the subnets of your VMs and nothing wider.",
        examples=["10.0.0.0/16"],
    )
    port: int = Field(2003, ge=0, le=65535, description="Port to listen on, for TCP and UDP; 0 takes any free one.")
    tcp: bool = Field(True, description="Listen on TCP.")
    udp: bool = Field(
        False,
        description="Listen on UDP too, only in a private network: a sender's address is easily forged, and lines lost "
        "on the way are not counted.",
    )
    max_connections: int = Field(
        4096,
        ge=1,
        le=65536,
        description="TCP connections open at once. When all are in use, one without any data is closed, else the "
        "one idle for longest.",
    )
    connections_per_peer: int = Field(
        1024, ge=1, le=65536, description="Most connections from one address. Raise it for a relay or NAT."
    )
    unknown_vms_per_peer: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="VMs unknown to AWS and to the pools' inventories that one address may report. Raise it "
        "for a relay before a larger fleet.",
    )


class AwsSettings(Section, title="AWS"):
    """Calls to AWS. Credentials come from the AWS chain (instance profile, environment, shared files)."""

    region: Region | None = Field(
        None, description="AWS region. Not set: that of the AWS chain.", examples=["eu-west-1"]
    )
    account: Account | None = Field(
        None,
        description="AWS account that is managed. While an answer of AWS names another one, nothing is executed. Not "
        "set: that of STS, and nothing is executed before it responds; set it where the host cannot reach STS.",
        examples=["111122223333"],
    )
    queue_accounts: Accounts = Field(
        "",
        description="Other AWS accounts whose SQS queues may be used, separated by commas. Not set: a queue URL of "
        "another account is refused.",
        examples=["444455556666"],
    )
    endpoint_url: Url | None = Field(
        None,
        description="Endpoint for every service, for a simulation such as moto. Not set: AWS itself.",
        examples=["http://127.0.0.1:5000"],
    )
    connect_timeout_s: float = Field(3.0, gt=0, le=60, description="Longest wait for a connection to AWS.")
    read_timeout_s: float = Field(10.0, gt=0, le=60, description="Longest wait for a response from AWS.")
    calls_per_minute: int = Field(
        120, ge=1, le=10_000, description="Budget of AWS calls; calls beyond it wait for the next minute."
    )


def _webhook(value: SecretStr) -> SecretStr:
    parts = web_address(value.get_secret_value())
    host = parts.hostname or ""
    # The key in its path must not cross a network in the clear.
    is_here = host == "localhost" or re.fullmatch(r"127\.[0-9]+\.[0-9]+\.[0-9]+|::1", host) is not None
    if parts.scheme != "https" and not is_here:
        raise ValueError
    return value


WebhookUrl = Annotated[
    SecretStr, AfterValidator(_webhook), ValueHint("the https:// address of a webhook; http:// only for this machine")
]


TopicArn = Annotated[
    str,
    Field(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$"),
    ValueHint("the ARN of an SNS topic such as arn:aws:sns:eu-west-1:123456789012:ops"),
]


OWN_ACTUATOR = "autoscaling_group"


def _actuator(name: str) -> str:
    # Every installed package is looked at only for the name of another one's.
    if name != OWN_ACTUATOR and name not in installed(ACTUATORS):
        raise ValueError
    return name


ActuatorName = Annotated[str, AfterValidator(_actuator), ValueHint("the name of an installed actuator")]


class AlarmSettings(Section, title="Alarms"):
    """Alarms: sent when they begin, again while they last, and when they end. They are always logged."""

    webhook_url: WebhookUrl | None = Field(
        None,
        description='Receives a POST of {"text": ..., "alarm": {...}} per alarm; a secret. Not set: no webhook.',
    )
    sns_topic_arn: TopicArn | None = Field(
        None,
        description="SNS topic for alarms; in observe mode nothing is published. Not set: none.",
        examples=["arn:aws:sns:eu-west-1:123456789012:ops"],
    )
    repeat_s: float = Field(3600.0, ge=60, le=604_800, description="An alarm that lasts is sent again after this time.")
    quiet_s: float = Field(
        1800.0,
        ge=60,
        le=604_800,
        description="An alarm about an event ends when the event has not occurred for so long.",
    )


class SeriesForm(StrEnum):
    """The two ways to name a series in Graphite."""

    DOTTED = "dotted"
    TAGGED = "tagged"


class Transport(StrEnum):
    """The protocol of lines to the listener or to Graphite."""

    TCP = "tcp"
    UDP = "udp"


class RenderSettings(Section, title="Graphite"):
    """Reading measurements from graphite-web, for VMs and job sources that report to another Graphite."""

    url: Url | None = Field(
        None,
        description="Address of graphite-web. Not set: Graphite is not read.",
        examples=["http://graphite.internal:8080"],
    )
    authorization: Authorization | None = Field(
        None,
        description="Value of the Authorization header, such as `Bearer ...`; give it as the credential "
        "`trimtab_render__authorization`.",
    )
    form: SeriesForm = Field(SeriesForm.DOTTED, description="Dotted paths or tagged series.")
    interval_s: float = Field(15.0, ge=5, le=300, description="Interval of the requests, one for each fleet.")
    timeout_s: float = Field(10.0, gt=0, le=60, description="Time limit of one request and its response.")
    lag_s: float = Field(
        5.0, ge=0, le=300, description="Younger samples are not requested: they may be incomplete in Graphite."
    )
    window_s: float = Field(
        120.0, ge=10, le=600, description="Time range of each request, so that late samples are read."
    )
    max_response_mb: float = Field(16.0, gt=0, le=1024, description="Largest response that is read.")


class PrometheusSettings(Section, title="Prometheus"):
    """Reading measurements from Prometheus, by the queries in the file of `TRIMTAB_INPUT_MAP`."""

    url: Url | None = Field(
        None,
        description="Address of Prometheus, or of a server with the same `/api/v1/query`. Not set: no queries.",
        examples=["https://prometheus.internal:9090"],
    )
    authorization: Authorization | None = Field(
        None,
        description="Value of the Authorization header, such as `Bearer ...`; give it as the credential "
        "`trimtab_prometheus__authorization`.",
    )
    ca_certificate: File | None = Field(None, description="Certificates (PEM) of additional certificate authorities.")
    certificate: File | None = Field(None, description="Certificate (PEM) that the agent shows to it.")
    private_key: File | None = Field(None, description="Private key (PEM) of the certificate.")
    interval_s: float = Field(15.0, ge=5, le=300, description="Interval of the requests, for each fleet.")
    timeout_s: float = Field(10.0, gt=0, le=60, description="Time limit of all requests of one interval together.")
    max_age_s: float = Field(
        90.0,
        ge=5,
        le=600,
        description="Samples older than this are not taken. At least two scrape intervals.",
    )
    max_response_mb: float = Field(16.0, gt=0, le=1024, description="Largest response that is read.")


class CloudWatchSettings(Section, title="CloudWatch"):
    """Reading measurements from CloudWatch, for fleets with `CPU_FROM` or `SUBMITTED_FROM` set to it."""

    interval_s: float = Field(60.0, ge=60, le=900, description="Interval of the requests; AWS charges by the metric.")
    period_s: int = Field(
        60,
        ge=60,
        le=3600,
        multiple_of=60,
        description="Period of EC2's CPUUtilization: 60 with detailed monitoring, else 300.",
    )
    timeout_s: float = Field(30.0, gt=0, le=120, description="A longer collection counts as overrun.")


class CollectSettings(Section, title="On each VM"):
    """`trimtab collect`, which runs on each VM: CPU, memory, and the reports of the VM's job worker."""

    host: Host = Field("127.0.0.1", description="Receiver: the agent's listener, or Graphite.")
    port: int = Field(2003, ge=1, le=65535, description="Its port.")
    protocol: Transport = Field(Transport.TCP, description="Protocol. Lines lost over UDP are not noticed.")
    form: SeriesForm = Field(SeriesForm.DOTTED, description="Dotted paths or tagged series.")
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
        10_000,
        ge=100,
        le=1_000_000,
        description="Lines kept while they cannot be sent; beyond that the oldest are dropped.",
    )
    run_directory: Directory | None = Field(
        None,
        description="Directory shared with the VM's job worker, which writes its load there and reads whether to "
        "drain. Not set: neither.",
        examples=["/run/trimtab"],
    )
    worker_silence_s: float = Field(
        60.0, ge=5, le=3600, description="The load of a worker that has not written for so long is unknown, not idle."
    )
    metadata_url: Url = Field(
        "http://169.254.169.254", description="The instance metadata service (version 2, with a token)."
    )
    metadata_interval_s: float = Field(
        5.0, ge=1, le=60, description="Interval of the requests whether the VM is to be terminated."
    )


SHORTEST_TOKEN = 16


def _token(value: SecretStr) -> SecretStr:
    if re.fullmatch(rf"[!-~]{{{SHORTEST_TOKEN},512}}", value.get_secret_value()) is None:
        raise ValueError
    return value


Token = Annotated[
    SecretStr,
    AfterValidator(_token),
    ValueHint(
        f"a secret of at least {SHORTEST_TOKEN} letters, digits and signs, such as the output of `openssl rand -hex 32`"
    ),
]
MetricPrefix = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_-]{1,100}(\.[A-Za-z0-9_-]{1,100}){0,5}$"),
    ValueHint("a metric path such as trimtab-agent"),
]


class HttpSettings(Section, title="HTTP"):
    """The HTTP interface: page, status, metrics and switches, on a unix socket and, with a token, on TCP."""

    socket: SocketPath | None = Field(
        None,
        description="Unix socket, mode 0660; access to it gives every permission. "
        "Not set: `trimtab.sock` in the state directory.",
        examples=["/var/lib/trimtab/trimtab.sock"],
    )
    host: Host = Field("127.0.0.1", description="Address for TCP; `0.0.0.0` for every interface.")
    port: int | None = Field(
        None, ge=0, le=65535, description="TCP port; needs `TOKEN`. 0 takes any free one. Not set: no TCP."
    )
    token: Token | None = Field(
        None,
        description="Over TCP, gives read access. Give it as the credential `trimtab_http__token`.",
    )
    ask_token: Token | None = Field(
        None,
        description="Over TCP, for allocators: requests decisions, reports their events, reads "
        "these decisions, and permits nothing else. Give it as the credential `trimtab_http__ask_token`.",
    )
    operator_token: Token | None = Field(
        None,
        description="Over TCP, permits everything, including pause, resume, pin, unpin and re-arm. Not set: only over "
        "the socket. Give it as the credential `trimtab_http__operator_token`.",
    )
    certificate: File | None = Field(
        None, description="TLS certificate chain (PEM) for TCP. Not set: plain HTTP, for a private network."
    )
    private_key: File | None = Field(None, description="Private key (PEM) of the certificate.")
    open_metrics: bool = Field(False, description="Serve `/metrics` over TCP without a token.")
    max_connections: int = Field(
        64, ge=4, le=4096, description="Connections open at once, on the socket and on TCP each; more are refused."
    )
    request_timeout_s: float = Field(
        10.0, ge=1, le=60, description="Time limit for the arrival of a request, head and body each."
    )


class SelfMetricsSettings(Section, title="The agent's own metrics"):
    """The agent's own metrics, sent to Graphite once a turn in addition to `/metrics` for Prometheus."""

    host: Host | None = Field(
        None, description="Graphite's plaintext receiver. Not set: none are sent.", examples=["graphite.example.org"]
    )
    port: int = Field(2003, ge=1, le=65535, description="Its TCP port.")
    prefix: MetricPrefix = Field(
        "trimtab-agent",
        description="Beginning of their paths; the path is the metric's name and the values of its labels.",
    )


def _key(value: SecretStr) -> SecretStr:
    if len(promotion_key_of(value.get_secret_value()) or b"") < SHORTEST_KEY_BYTES:
        raise ValueError
    return value


PromotionKey = Annotated[SecretStr, AfterValidator(_key), ValueHint(f"a key of at least {SHORTEST_KEY_BYTES} bytes")]


class LearnedSettings(Section, title="Learned policies"):
    """Learned policies: the models that the policy `learned` takes."""

    models_dir: Directory | None = Field(
        None,
        description="Directory of models and of `champion.json`, which `trimtab promote` writes. A new champion is "
        "taken up at the next tick, or at SIGHUP. Not set: `models` in the state directory. Without a champion that "
        "fits the fleet, a model that comes with the agent and fits it decides.",
        examples=["/var/lib/trimtab/models"],
    )
    promotion_key: PromotionKey | None = Field(
        None,
        description="Key that signs the reports of promotions (`PROMOTION_KEY` of `trimtab promote`): with it a "
        "champion is taken up only if its report is signed. Not set: the report must be whole. Give it as the "
        "credential `trimtab_learned__promotion_key`.",
    )
    model_file: File | None = Field(
        None,
        description="ONNX file of the model that decides for every fleet with the policy `learned`, named after its "
        "SHA-256, in place of the champion. A refused one is a problem on /readyz, and the rules decide.",
        examples=["/var/lib/trimtab/models/3f7a51d0.onnx"],
    )


class LearningSettings(Section, title="Learning"):
    """Learning: the rounds that `trimtab learn` makes of what the ledger recorded, and the alarm about them."""

    probation_hours: float = Field(
        0.0,
        ge=0,
        le=720,
        description="How long a model that the gate lets pass runs as a shadow before it can decide, in hours. 0: it "
        "decides at once.",
    )
    then: Then = Field(
        Then.PROMOTE,
        description="After a probation that kept its promise: `promote` puts the model in use, `approve` waits for "
        "`trimtab approve`, `nothing` ends with the report.",
    )
    watch_hours: float = Field(
        168.0,
        ge=0,
        le=2160,
        description="Hours after a promotion in which measured results are compared with predicted ones. If a fleet "
        "significantly costs more, or a pool or cluster significantly violates its limit, the promotion is "
        "rolled back.",
    )
    cpu_minutes: float = Field(
        10.0, gt=0, le=1440, description="Time of a processor that a round may take for one subject, in minutes."
    )
    max_age_hours: float | None = Field(
        None,
        gt=0,
        le=8760,
        description="An alarm is raised for a subject whose last round that judged to its end is older, in hours. Not "
        "set: none is.",
        examples=[48],
    )


class Settings(BaseSettings):
    """The agent's settings. The constructor reads nothing: `load_settings` reads environment and credentials."""

    model_config = SettingsConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        frozen=True,
        env_prefix="TRIMTAB_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    mode: Mode = Field(
        Mode.OBSERVE,
        description="`observe` decides and records without changing anything; `act` also executes decisions.",
    )
    state_directory: Directory = Field(
        DEFAULT_STATE_DIRECTORY, description="Directory of the ledger and of all other files that survive a restart."
    )
    deployment: Key = Field(
        "default",
        description="Name of this deployment. The ledger is bound to it, to the AWS account and to the region; both "
        "agents of a pair share it, and an agent of another deployment is refused.",
    )
    tick_interval_s: float = Field(60.0, ge=10, le=600, description="Interval of decisions.")
    sample_interval_s: float = Field(
        10.0, ge=1, le=60, description="Interval of a VM's reports, which determines the samples needed in a minute."
    )
    grace_s: float = Field(5.0, ge=0, le=30, description="Time after the end of a minute for late samples.")
    log_level: LogLevel = Field(
        LogLevel.INFO, description="Least severity of log events, which are lines of JSON on standard error."
    )
    drift: DriftHandling = Field(
        DriftHandling.ADOPT,
        description="After a change of a size that the agent did not make: `adopt` accepts the new size, `report` also "
        "raises an alarm. In both cases the next decision starts from it.",
    )
    protect_busy: bool = Field(
        True, description="Set scale-in protection on VMs that run a job, so that AWS does not take them."
    )
    unprotect_new: bool = Field(
        False,
        description="Remove the scale-in protection of idle VMs launched since the agent started, in groups "
        "that protect each new VM. Protection by other parties is removed too. It needs `TRIMTAB_PROTECT_BUSY`.",
    )
    actuator: ActuatorName = Field(
        OWN_ACTUATOR,
        description="Actuator of fleets: `autoscaling_group` resizes Auto Scaling groups; other "
        "packages bring further ones (docs/operate/plug-ins.md).",
    )
    interruption_queue_url: Url | None = Field(
        None,
        description="SQS queue with spot and rebalance notifications from EventBridge. Not set: none are read.",
        examples=["https://sqs.eu-west-1.amazonaws.com/123456789012/trimtab-interruptions"],
    )
    input_map: File | None = Field(
        None,
        description="Input map: measurements by Graphite path of other senders, such as collectd, "
        "and by Prometheus query (docs/operate/inputs.md). Not set: only Trimtab's paths are accepted.",
        examples=["/etc/trimtab/inputs.toml"],
    )
    ledger: LedgerSettings = LedgerSettings()
    leader: LeaderSettings = LeaderSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    listener: ListenerSettings = ListenerSettings()
    render: RenderSettings = RenderSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    cloudwatch: CloudWatchSettings = CloudWatchSettings()
    collect: CollectSettings = CollectSettings()
    aws: AwsSettings = AwsSettings()
    http: HttpSettings = HttpSettings()
    alarms: AlarmSettings = AlarmSettings()
    self_metrics: SelfMetricsSettings = SelfMetricsSettings()
    learned: LearnedSettings = LearnedSettings()
    learning: LearningSettings = LearningSettings()
    fleets: dict[Key, FleetSettings] = Field({}, description="The fleets, by their key.")

    def __new__(cls, **values: Any) -> Self:
        """Return settings that have the subjects of every installed decision as well."""
        return cast("Self", object.__new__(described() if cls is Settings else cls))

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
        """Use only the values given by the caller."""
        return (init_settings,)

    @property
    def ledger_url(self) -> SecretStr:
        """URL of the ledger."""
        return self.ledger.url or SecretStr(sqlite_url(self.state_directory))

    @property
    def http_socket(self) -> Path:
        """Path of the unix socket."""
        return self.http.socket or socket_of(self.state_directory)

    @property
    def models_directory(self) -> Path:
        """Directory of models and champions."""
        return self.learned.models_dir or models_of(self.state_directory)

    @property
    def promotion_key(self) -> bytes | None:
        """Key that verifies the reports of champions, None to accept unsigned reports."""
        key = self.learned.promotion_key
        return promotion_key_of(None if key is None else key.get_secret_value())

    def fleet(self, name: str) -> Fleet:
        """Return the fleet of that key; BadInput lists the keys."""
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


def described() -> type[Settings]:
    """Return the settings with a dictionary for the subjects of every installed decision."""
    return _described(described_subjects())


@lru_cache(maxsize=4)
def _described(subjects: tuple[Subjects[Any], ...]) -> type[Settings]:
    taken = [one.name for one in subjects if one.name in Settings.model_fields]
    if taken:
        remedy = "its package must choose another name: settings of the agent have this one"
        raise ConfigurationError([Mistake(DECISIONS, taken[0], remedy)])
    fields: dict[str, Any] = {
        one.name: (dict[Key, one.model], Field({}, description=f"The {one.words}, by their key."))  # type: ignore[name-defined]  # known when it runs
        for one in subjects
    }
    return create_model(Settings.__name__, __base__=Settings, __module__=__name__, __doc__=Settings.__doc__, **fields)


def named_policy(settings: Settings, text: str) -> str:
    """Return the policy's name; a learned one is that of the model file in the settings, where one is set."""
    path = settings.learned.model_file
    return f"model:{path}" if text == "learned" and path is not None else text


def learned_policies(settings: Settings) -> Iterator[tuple[str, str, Fleet]]:
    """Yield setting, policy and fleet of every policy or shadow that is a model."""
    for name, fleet in settings.fleets.items():
        roles = [("POLICY", fleet.policy_text), *(("SHADOW", text) for text in fleet.shadow_texts)]
        roles += [(f"SCHEDULE__{one.name}__POLICY", one.policy) for one in fleet.planned]
        for role, text in roles:
            if text.partition(":")[0] in ("learned", "model"):
                yield f"TRIMTAB_FLEETS__{name}__{role}", named_policy(settings, text), settings.fleet(name)
