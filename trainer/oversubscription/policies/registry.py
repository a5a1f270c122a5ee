"""From a text to a policy of the oversubscription simulator."""

from __future__ import annotations

import math
from pathlib import Path

from domain.errors import BadInput
from domain.rules.oversubscription.guards import FILTER, SHIELD, USUAL_BUDGET
from domain.rules.oversubscription.usage import HOURS
from trainer.oversubscription.policies.base import OversubscriptionPolicy
from trainer.oversubscription.policies.guarded import Guarded
from trainer.oversubscription.policies.scheduled import FixedRates, MovingAverage, SupervisedRates
from trainer.oversubscription.policies.static import EVALUATIONS, Rule, StaticOptimum

FORMS = (
    "none",
    "grid:RATE",
    "rates:RATE,RATE,... (; between blocks of the day)",
    "ma",
    "sl",
    "static:alpha=,weeks=s21+s22+s23,cap=,evaluations=,bound=tail|markov,step=,block_h=",
    "shield:base=POLICY,b=,posterior=,psi=,rho=",
    "filter:rate=,b=,posterior=,psi=,rho=",
    "FILE.json or FILE.onnx of `trimtab train oversubscription`",
)
"""The texts there are, for help and messages."""
_STATIC = ("alpha", "weeks", "cap", "evaluations", "bound", "step", "block_h")
_GUARDS = (SHIELD, FILTER)
_GUARD = ("b", "posterior", "psi", "rho")


def policy_of(text: str) -> OversubscriptionPolicy:
    """Return the policy of a text; raises BadInput.

    A guard's base may have settings of its own, in brackets: `shield:base=(static:alpha=0.85),b=0.003`.
    """
    name, _, rest = text.partition(":")
    if text.endswith((".json", ".onnx")) and name not in _GUARDS:
        return _from_file(Path(text))
    if name == "none":
        _settings(text, rest, ())
        return FixedRates(text, ((1.0,),))
    if name in ("ma", "sl"):
        _settings(text, rest, ())
        return MovingAverage() if name == "ma" else SupervisedRates()
    if name in ("grid", "rates"):
        rates = tuple(tuple(_number(text, "rate", part) for part in block.split(",")) for block in rest.split(";"))
        if name == "grid" and (len(rates) != 1 or len(rates[0]) != 1):
            raise BadInput("policy", text, "give grid one rate; rates takes one for each subscriber")
        return FixedRates(text, rates)
    if name == "static":
        return _static(text, _settings(text, rest, _STATIC))
    if name in _GUARDS:
        given = _settings(text, rest, (*_GUARD, "base" if name == SHIELD else "rate"))
        base = given.get("base", "grid:0.5") if name == SHIELD else f"grid:{given.get('rate', '0.2')}"
        return Guarded(
            text,
            policy_of(base),
            name,
            _number(text, "b", given.get("b", str(USUAL_BUDGET))),
            _yes(text, given.get("posterior", "false")),
            _number(text, "psi", given.get("psi", "0.85")),
            _number(text, "rho", given.get("rho", "0")),
        )
    raise BadInput("policy", text, f"give one of {'; '.join(FORMS)}")


def _from_file(path: Path) -> OversubscriptionPolicy:
    # Both files are read with what writes them, which stands on this package.
    if path.suffix == ".json":
        from trainer.oversubscription.rates_file import read_rates

        return read_rates(path)
    from trainer.oversubscription.model_file import read_model

    return read_model(path)


def _static(text: str, given: dict[str, str]) -> StaticOptimum:
    def number(setting: str) -> float | None:
        return _number(text, setting, given[setting]) if setting in given else None

    evaluations = number("evaluations") or float(EVALUATIONS)
    if evaluations < 1 or evaluations != int(evaluations):
        raise BadInput("policy", text, "give evaluations as a whole number, 1 or more")
    alpha, cap = number("alpha"), number("cap")
    for setting, value in (("alpha", alpha), ("cap", cap)):
        if value is not None and not 0.0 < value < 1.0:
            raise BadInput("policy", text, f"give {setting} as a probability between 0 and 1")
    weeks = tuple(filter(None, given.get("weeks", "").split("+")))
    rule = Rule(given.get("bound", "tail"), number("step"), int(number("block_h") or HOURS))
    return StaticOptimum(text, alpha, weeks, cap, int(evaluations), rule)


def _settings(text: str, rest: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return name=value settings; commas within brackets belong to the value."""
    parts, depth = [""], 0
    for letter in rest:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    given: dict[str, str] = {}
    for part in filter(None, parts):
        name, equals, value = part.partition("=")
        if not equals or name not in known:
            raise BadInput("policy", text, f"settings are {', '.join(known)}" if known else "it takes no settings")
        given[name] = value[1:-1] if value.startswith("(") and value.endswith(")") else value
    return given


def _number(text: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise BadInput("policy", text, f"give {name} as a number") from None
    if not math.isfinite(number):
        raise BadInput("policy", text, f"give {name} as a finite number")
    return number


def _yes(text: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise BadInput("policy", text, "give posterior as true or false")
    return value == "true"
