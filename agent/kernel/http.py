"""What every request's values are made of: no unknown fields, numbers that are written as numbers, orders."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from agent.kernel.controls import LONGEST_S, LONGEST_WORDS

LARGEST_SEQ = 2**63 - 1
DECIMAL = re.compile(r"-?[0-9]{1,20}")


class Body(BaseModel):
    """The body of a request; a field that it does not have is refused, and no value is repeated in an error."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def _number(value: Any) -> Any:
    """Refuse what pydantic would make a number of: true, false and text."""
    if isinstance(value, bool | str | bytes):
        raise PydanticCustomError("number_type", "Input should be a number, not text or true or false")
    return value


def _decimal(value: Any) -> Any:
    """Refuse what pydantic would make a whole number of: 1_0, 1.0, signs and spaces."""
    if isinstance(value, str) and DECIMAL.fullmatch(value) is None:
        raise PydanticCustomError("int_parsing", "Input should be a whole number in decimal digits")
    return value


NUMERIC = BeforeValidator(_number)
"""Of a number in a body. It stands behind the bounds: before them, they would be left out of the description."""
DIGITS = BeforeValidator(_decimal)
"""Of a whole number in a query, where everything comes as text; behind the bounds likewise."""


NOT_FOUND = "no such path; /api/v1/openapi.json lists the paths"


class Wrong(BaseModel):
    """One thing that is wrong with a request."""

    field: str = Field(description="Where: a name in the body, the query or the path.")
    remedy: str = Field(description="What to give instead.")


class Problem(BaseModel):
    """Why a request was not answered as asked."""

    error: str = Field(description="The status in words.", examples=["Not Found"])
    detail: str = Field(description="The error and its remedy.", examples=[NOT_FOUND])
    wrong: list[Wrong] = Field([], description="With 404, 409 and 422: each value that is wrong.")


UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "Nothing has that name."}}
"""Of operations that name a fleet, cluster, pool or decision."""


CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "It contradicts the records; nothing was changed."}
}
"""Of operations that what was recorded before may forbid."""


Owner = Annotated[
    str,
    Field(
        min_length=1,
        max_length=LONGEST_WORDS // 5,
        description="Name of the requester, for the journal.",
        examples=["ada"],
    ),
]
Why = Annotated[
    str,
    Field(
        min_length=1,
        max_length=LONGEST_WORDS,
        description="Reason, shown in status and in every decision.",
        examples=["load test"],
    ),
]
OneFleet = Annotated[
    str | None, Field(max_length=63, description="Fleet meant; not needed when there is one.", examples=["web"])
]
Length = Annotated[
    float,
    Field(gt=0, le=LONGEST_S, allow_inf_nan=False, description="For how many seconds.", examples=[7200]),
    NUMERIC,
]


class Order(Body):
    """What every order of an operator says: the fleet, or other subject, and by whom."""

    fleet: OneFleet = None
    owner: Owner
