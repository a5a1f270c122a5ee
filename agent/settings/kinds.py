"""The types of settings, and the description of what each accepts."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import SplitResult, urlsplit

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

INTEGER = re.compile(r" *[+-]?[0-9]{1,30}(\.0+)? *")
DECIMAL = re.compile(r" *[+-]?([0-9]{1,30}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})? *")


def plainly_written(field: FieldInfo, value: Any) -> Any:
    """Return the value; ValueError for one that is parsed otherwise than it looks.

    Python parses 1_0 as ten and true as one. In a text, a control character or a line break would appear in paths of
    metrics, in logs and in pages.
    """
    kind, _ = _unwrapped(field)
    members = value if isinstance(value, list) else [value]
    if isinstance(value, str) and not value.isprintable():
        raise ValueError
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    if kind in (int, float):
        for member in members:
            pattern = INTEGER if kind is int else DECIMAL
            if isinstance(member, bool) or (isinstance(member, str) and not pattern.fullmatch(member)):
                raise ValueError
    return value


class Section(BaseModel):
    """A group of settings; an unknown name is a mistake."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _plainly_written(cls, value: Any, info: ValidationInfo) -> Any:
        return plainly_written(cls.model_fields[info.field_name or ""], value)


@dataclass(frozen=True, slots=True)
class ValueHint:
    """The values that a text setting accepts, as a phrase after the word "give"."""

    phrase: str


Key = Annotated[
    str,
    Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$"),
    ValueHint("at most 63 lower-case letters, digits, - and _, the first a letter"),
]
"""The short name of a fleet or group: one segment of a metric path and of an environment variable's name."""
KEY_PHRASE = "a key of lower-case letters, digits, - and _ that begins with a letter (keys are read in lower case)"


def host_name(host: str) -> str:
    """Return the host; ValueError for what is neither a host name nor an IP address."""
    try:
        ip_address(host)
    except ValueError:
        # A name that ends in a number is an invalid address.
        labels = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
        if len(host) > 253 or re.fullmatch(rf"({labels}\.)*(?![0-9]+\.?$){labels}\.?", host) is None:
            raise ValueError from None
    return host


def web_address(url: str) -> SplitResult:
    """Return the parts of an http or https URL; ValueError for one that cannot receive requests."""
    if re.fullmatch(r"https?://[!-~]+", url) is None:
        raise ValueError
    # Reading a port above 65535 raises ValueError.
    parts = urlsplit(url)
    if parts.port == 0 or parts.netloc.endswith(":"):
        raise ValueError
    host_name(parts.hostname or "")
    return parts


def _url(url: str) -> str:
    web_address(url)
    return url


Url = Annotated[
    str,
    AfterValidator(_url),
    ValueHint("a URL that begins with http:// or https://, with a host and, if any, a port from 1 to 65535"),
]
Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+$"), ValueHint("an AWS region such as eu-west-1")]
Account = Annotated[str, Field(pattern=r"^[0-9]{12}$"), ValueHint("an AWS account's 12 digits")]
Accounts = Annotated[
    str, Field(pattern=r"^([0-9]{12}(,[0-9]{12})*)?$"), ValueHint("AWS accounts of 12 digits, separated by commas")
]
HookName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9\-_/]{1,255}$"), ValueHint("the name of a lifecycle hook, such as drain")
]
Host = Annotated[str, AfterValidator(host_name), ValueHint("a host name or address such as 127.0.0.1")]
VmId = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_-]{1,128}$"),
    ValueHint("an id of letters, digits, - and _ such as i-0abc1234, without dots"),
]
VmTypeName = Annotated[
    str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$"), ValueHint("an EC2 instance type such as m5a.large")
]
GroupName = Annotated[
    str,
    Field(pattern=r"^[^\s:][^:]{0,254}$"),
    ValueHint("the name of an Auto Scaling group, at most 255 characters, none of them a colon or a line break"),
]
QuotaCode = Annotated[
    str, Field(pattern=r"^L-[0-9A-Z]{8}$"), ValueHint("the code of a service quota such as L-1216C47A")
]
ReservationId = Annotated[
    str,
    Field(pattern=r"^cr-[0-9a-f]{8,17}$"),
    ValueHint("the id of a capacity reservation such as cr-0123456789abcdef0"),
]


def _authorization(value: SecretStr) -> SecretStr:
    if re.fullmatch(r"[A-Za-z]+ [!-~]+", value.get_secret_value()) is None:
        raise ValueError
    return value


def _ledger_url(url: SecretStr) -> SecretStr:
    text = url.get_secret_value()
    if text.startswith("sqlite:"):
        # Three slashes begin a path relative to the working directory, and none a database in memory.
        if re.fullmatch(r"sqlite:////[^?]+", text) is None or text.endswith("/"):
            raise ValueError
        return url
    if not text.startswith(("postgresql://", "postgresql+psycopg://")):
        raise ValueError
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(text)
    except ArgumentError:
        raise ValueError from None
    # Without a database the driver would take one with the name of the user.
    if not parts.database and not {"dbname", "service"} & parts.query.keys():
        raise ValueError
    if parts.port is not None and not 1 <= parts.port <= 65535:
        raise ValueError
    return url


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError
    return path


def networks_of(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks in a text separated by commas; ValueError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not text.isascii() or any(not part or part.isdigit() for part in parts):
        raise ValueError
    found = tuple(ip_network(part) for part in parts)
    if any(network.version == 6 and network.network_address.ipv4_mapped is not None for network in found):
        # A peer with an IPv4-mapped IPv6 address counts as IPv4: this network would admit no peer.
        raise ValueError
    return found


def _networks(text: str) -> str:
    networks_of(text)
    return text


Networks = Annotated[
    str,
    AfterValidator(_networks),
    ValueHint("networks separated by commas, such as 10.0.0.0/16,fd00:12::/64, without bits beyond each one's prefix"),
]
Directory = Annotated[Path, AfterValidator(_absolute), ValueHint("the absolute path of a directory")]
File = Annotated[Path, AfterValidator(_absolute), ValueHint("the absolute path of a file")]
SocketPath = Annotated[Path, AfterValidator(_absolute), ValueHint("the absolute path of a unix socket")]

Authorization = Annotated[
    SecretStr, AfterValidator(_authorization), ValueHint("a scheme and its credentials, such as Bearer TOKEN")
]
LedgerUrl = Annotated[
    SecretStr,
    AfterValidator(_ledger_url),
    ValueHint("sqlite:////FILE, an absolute path, or postgresql://USER:PASSWORD@HOST/DATABASE"),
]

UNITS = {
    "per_hour": "dollars per hour",
    "per_day": "dollars per day",
    "submitted_per_minute": "jobs per minute",
    "_per_minute": "calls per minute",
    "_gb": "GB",
    "_mb": "MB",
    "_days": "days",
    "_core_s": "core-seconds",
    "_cores": "cores",
    "_s": "seconds",
}


def unit(name: str) -> str:
    """Return the unit in a setting's name, "" when it has none."""
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def expected(name: str, field: FieldInfo) -> str:
    """Return the values that the setting accepts, as a phrase after the word "give"."""
    kind, metadata = _unwrapped(field)
    phrase = next((item.phrase for item in metadata if isinstance(item, ValueHint)), None)
    if phrase is not None:
        return phrase
    if kind is bool:
        return "true or false"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    if get_origin(kind) is tuple:
        return "a JSON list of numbers, such as [0.5, 1.0]"
    if kind in (int, float):
        what, measure = "a whole number" if kind is int else "a number", unit(name)
        of = f" of {measure}" if measure else ""
        return f"{what}{of} {_bounds(metadata)}".rstrip()
    return "a text"


def _unwrapped(field: FieldInfo) -> tuple[Any, list[Any]]:
    kind, metadata = field.annotation, list(field.metadata)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        metadata += _flat(more)
    return kind, metadata


def _flat(metadata: list[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _bounds(metadata: list[Any]) -> str:
    low: Any = None
    high: Any = None
    for item in metadata:
        match item:
            case Ge(ge=value):
                low = ("not below", value)
            case Gt(gt=value):
                low = ("above", value)
            case Le(le=value):
                high = ("at most", value)
            case Lt(lt=value):
                high = ("below", value)
            case _:
                pass
    if low and high and low[0] == "not below" and high[0] == "at most":
        return f"from {_shown(low[1])} to {_shown(high[1])}"
    return " and ".join(f"{words} {_shown(value)}" for words, value in filter(None, (low, high)))


def _shown(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
