"""Kinds of values that settings hold, and how a person is told what a setting accepts."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A group of settings; a name it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a text setting accepts, as it reads after the word "give"."""

    phrase: str


Key = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
"""The short name of a fleet or group: one segment of a metric path and of an environment variable's name."""
KEY_PHRASE = "a key of lower-case letters, digits, - and _ that begins with a letter (keys are read in lower case)"

Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+\S*$"), Expected("a URL that begins with http:// or https://")]
Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d+$"), Expected("an AWS region such as eu-west-1")]
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$"), Expected("a host name or address such as 127.0.0.1")]
VmId = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_-]{1,128}$"),
    Expected("an id of letters, digits, - and _ such as i-0abc1234, without dots"),
]
VmTypeName = Annotated[
    str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$"), Expected("an EC2 instance type such as m5a.large")
]
GroupName = Annotated[
    str,
    Field(pattern=r"^[^\s:][^:]{0,254}$"),
    Expected("the name of an Auto Scaling group, at most 255 characters and none of them a colon"),
]
QuotaCode = Annotated[
    str, Field(pattern=r"^L-[0-9A-Z]{8}$"), Expected("the code of a service quota such as L-1216C47A")
]
ReservationId = Annotated[
    str,
    Field(pattern=r"^cr-[0-9a-f]{8,17}$"),
    Expected("the id of a capacity reservation such as cr-0123456789abcdef0"),
]


def _authorization(value: SecretStr) -> SecretStr:
    if re.fullmatch(r"[A-Za-z]+ [!-~]+", value.get_secret_value()) is None:
        raise ValueError
    return value


def _ledger_url(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("sqlite:///", "postgresql+psycopg://")):
        raise ValueError
    return url


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError
    return path


def networks_of(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks that a text lists; ValueError where it names none or something else."""
    parts = [part.strip() for part in text.split(",")]
    if not text.isascii() or any(not part or part.isdigit() for part in parts):
        raise ValueError
    found = tuple(ip_network(part) for part in parts)
    if any(network.version == 6 and network.network_address.ipv4_mapped is not None for network in found):
        # A peer whose IPv4 address is written as IPv6 counts as IPv4: this one would let in nobody.
        raise ValueError
    return found


def _networks(text: str) -> str:
    networks_of(text)
    return text


Networks = Annotated[
    str,
    AfterValidator(_networks),
    Expected("networks separated by commas, such as 10.0.0.0/16,fd00:12::/64, without bits beyond each one's prefix"),
]
Directory = Annotated[Path, AfterValidator(_absolute), Expected("the absolute path of a directory")]

Authorization = Annotated[
    SecretStr, AfterValidator(_authorization), Expected("a scheme and its credentials, such as Bearer TOKEN")
]
LedgerUrl = Annotated[
    SecretStr,
    AfterValidator(_ledger_url),
    Expected("sqlite:////FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"),
]

UNITS = {
    "per_hour": "dollars per hour",
    "per_day": "dollars per day",
    "_per_minute": "calls per minute",
    "_gb": "GB",
    "_mb": "MB",
    "_days": "days",
    "_core_s": "core-seconds",
    "_cores": "cores",
    "_s": "seconds",
}


def unit(name: str) -> str:
    """Return the unit that a setting's name carries, "" when it has none."""
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def expected(name: str, field: FieldInfo) -> str:
    """Return what the setting accepts, as it reads after the word "give"."""
    kind, metadata = _unwrapped(field)
    phrase = next((item.phrase for item in metadata if isinstance(item, Expected)), None)
    if phrase is not None:
        return phrase
    if kind is bool:
        return "true or false"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
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
