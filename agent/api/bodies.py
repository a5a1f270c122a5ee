"""What every request's values are made of: no unknown fields, and numbers that are written as numbers."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

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
