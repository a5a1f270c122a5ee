"""The settings of the HTTP interface, and of the agent's own metrics where they go to Graphite too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from agent.settings.kinds import Expected, File, Host, Section, SocketPath

SHORTEST_TOKEN = 16
ROLE_VERBS = {"token": "reads", "ask_token": "asks"}


def _token(value: SecretStr) -> SecretStr:
    if re.fullmatch(rf"[!-~]{{{SHORTEST_TOKEN},512}}", value.get_secret_value()) is None:
        raise ValueError
    return value


Token = Annotated[
    SecretStr,
    AfterValidator(_token),
    Expected(f"a secret of at least {SHORTEST_TOKEN} letters, digits and signs, such as `openssl rand -hex 32` makes"),
]
MetricPrefix = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_-]{1,100}(\.[A-Za-z0-9_-]{1,100}){0,5}$"),
    Expected("a metric path such as trimtab-agent"),
]


class HttpSettings(Section):
    """The HTTP interface: page, status, metrics and switches, on a unix socket and, with a token, on TCP."""

    socket: SocketPath | None = Field(
        None,
        description="Unix socket, mode 0660: who may open it may read and switch everything. "
        "Not set: `trimtab.sock` in the state directory.",
        examples=["/run/trimtab/trimtab.sock"],
    )
    host: Host = Field("127.0.0.1", description="Address for TCP; `0.0.0.0` for every interface.")
    port: int | None = Field(
        None, ge=0, le=65535, description="TCP port; needs `TOKEN`. 0 takes any free one. Not set: no TCP."
    )
    token: Token | None = Field(
        None,
        description="Over TCP, opens what is read. Give it as the credential `trimtab_http__token`.",
    )
    ask_token: Token | None = Field(
        None,
        description="Over TCP, for allocators: asks for admission and rates, reports events of deployments, reads what "
        "it asks about, and opens nothing else. Give it as the credential `trimtab_http__ask_token`.",
    )
    operator_token: Token | None = Field(
        None,
        description="Over TCP, opens everything: pause, resume, pin, unpin and re-arming too. Not set: these work over "
        "the socket only. Give it as the credential `trimtab_http__operator_token`.",
    )
    certificate: File | None = Field(
        None, description="TLS certificate chain (PEM) for TCP. Not set: plain HTTP, for a network that is yours."
    )
    private_key: File | None = Field(None, description="Private key (PEM) of the certificate.")
    open_metrics: bool = Field(False, description="Serve `/metrics` over TCP without a token.")
    max_connections: int = Field(
        64, ge=4, le=4096, description="Connections open at once, on the socket and on TCP each; more are turned away."
    )
    request_timeout_s: float = Field(
        10.0, ge=1, le=60, description="A request must have arrived within so long, head and body each."
    )


class SelfMetricsSettings(Section):
    """The agent's own metrics, sent to Graphite once a turn beside being served to Prometheus."""

    host: Host | None = Field(
        None, description="Graphite's plaintext receiver. Not set: none are sent.", examples=["graphite.example.org"]
    )
    port: int = Field(2003, ge=1, le=65535, description="Its TCP port.")
    prefix: MetricPrefix = Field(
        "trimtab-agent",
        description="What their paths begin with; the path is the metric's name and the values of its labels.",
    )


def mistakes(http: HttpSettings) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Return what contradicts: the setting, those it depends on, and what to do."""
    if http.port is not None and http.token is None:
        remedy = "give TRIMTAB_HTTP__TOKEN as a credential, or leave the port out and use the unix socket"
        yield "port", ("token",), remedy
    for name, narrower in (("ask_token", ("token",)), ("operator_token", ("token", "ask_token"))):
        secret = getattr(http, name)
        same = next((other for other in narrower if getattr(http, other) == secret), None)
        if secret is None:
            continue
        if http.token is None:
            yield name, ("token",), "give TRIMTAB_HTTP__TOKEN as well"
        elif same is not None:
            yield name, (same,), f"give another one than TRIMTAB_HTTP__{same.upper()}, which only {ROLE_VERBS[same]}"
    if (http.certificate is None) != (http.private_key is None):
        given, lacking = ("certificate", "private_key") if http.certificate else ("private_key", "certificate")
        yield given, (lacking,), f"give TRIMTAB_HTTP__{lacking.upper()} as well"
