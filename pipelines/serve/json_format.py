"""The JSON of TensorFlow Serving's REST API: rows (``instances``) and columns (``inputs``).

A string is itself or, as ``{"b64": "…"}``, bytes. Outputs whose names end in ``_bytes``, and bytes
that are not UTF-8, are returned in that form. A float that is not finite is returned as ``null``,
since JSON has no such numbers. An input that has a default may be left out, of single rows as well,
and ``null`` stands for its default.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from .errors import Code, RequestError, invalid
from .limits import MAX_RANK, Limits
from .signatures import Signature, TensorSpec

# Bytes of a value in Python, a list or a small object (the largest on Python 3.10) included.
_SEPARATED = 80
_KNOWN_KEYS = {"signature_name", "instances", "inputs"}


@dataclasses.dataclass(frozen=True)
class PredictBody:
    """The body of a ``:predict`` request.

    Attributes:
      signature_name: name of the signature; empty for the default.
      rows: whether it is in the row format.
      values: value of ``instances`` or ``inputs``.
    """

    signature_name: str
    rows: bool
    values: Any


def parse(body: bytes | bytearray) -> PredictBody:
    """Reads the body of a request.

    Raises:
      RequestError: it is not JSON, or not a request.

    >>> parse(b'{"instances": [1, 2]}')
    PredictBody(signature_name='', rows=True, values=[1, 2])
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise invalid(f"the body should be JSON: {reason}.") from error
    if not isinstance(value, dict):
        raise invalid(f"the body should be a JSON object. Received: {_kind(value)}.")
    if unknown := sorted(set(value) - _KNOWN_KEYS):
        raise invalid(
            f"the body should have the keys signature_name and instances or inputs. Received: "
            f"{', '.join(map(repr, unknown))[:200]}."
        )
    if ("instances" in value) == ("inputs" in value):
        raise invalid(
            "the body should have one of the keys instances and inputs. Received: "
            + ("both." if "inputs" in value else "neither.")
        )
    name = value.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(f"signature_name should be a string. Received: {_kind(name)}.")
    rows = "instances" in value
    return PredictBody(name, rows, value["instances" if rows else "inputs"])


def parsed_bytes(body: bytes | bytearray) -> int:
    """Memory that a body takes once it is parsed, from above.

    Text may take four bytes for each byte of the body, twice, and every value has a separator. The
    separators within strings are counted too.
    """
    text = 2 if body.isascii() else 8
    return len(body) * text + _SEPARATED * sum(body.count(separator) for separator in b",:[{")


def to_inputs(signature: Signature, body: PredictBody, limits: Limits) -> dict[str, np.ndarray]:
    """The tensors of a request, checked against the signature and the limits.

    Raises:
      RequestError: they do not fit the signature, or exceed a limit.
    """
    given = _from_rows(signature, body.values) if body.rows else _named(signature, body.values)
    columns = dict(given)
    if columns.keys() != signature.inputs.keys():
        signature.check_names(set(columns))
    absent = {}
    for name in signature.defaults.keys() & columns.keys():
        columns[name], absent[name] = _without_nulls(signature.inputs[name], columns[name])
    levels = {name: flatten(name, value) for name, value in columns.items()}
    limits.check_shapes({name: shape for name, (shape, _) in levels.items()})
    inputs = {name: _shaped(signature.inputs[name], *levels[name]) for name in levels}
    signature.check(inputs)
    limits.check(inputs)
    for name, places in absent.items():
        inputs[name][places] = signature.defaults[name][0]
    return signature.with_defaults(inputs)


def to_answer(outputs: Mapping[str, np.ndarray], rows: bool) -> bytes:
    """The body of an answer.

    Args:
      outputs: tensors by name.
      rows: whether to answer in the row format.

    Raises:
      RequestError: the row format cannot hold these outputs.

    >>> to_answer({"score": np.array([0.1, np.nan], np.float32)}, rows=True)
    b'{"predictions": [0.1, null]}'
    """
    columns = {name: to_values(name, value) for name, value in outputs.items()}
    single = next(iter(columns.values())) if len(columns) == 1 else None
    answer: dict[str, Any]
    if rows:
        sizes = {value.shape[0] if value.ndim else None for value in outputs.values()}
        if len(sizes) != 1 or None in sizes:
            raise invalid(
                "this signature does not return one output per row. Use 'inputs' instead of "
                "'instances'."
            )
        each = [dict(zip(columns, values)) for values in zip(*columns.values())]
        answer = {"predictions": each if single is None else single}
    else:
        answer = {"outputs": columns if single is None else single}
    return json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()


def answer_bytes(outputs: Mapping[str, np.ndarray]) -> int:
    """Memory that outputs and their answer take, from above."""
    total = 0
    for value in outputs.values():
        total += _SEPARATED * value.size + value.nbytes
        if value.dtype.kind == "O":
            total += 8 * sum(map(len, value.ravel().tolist()))
    return total


def to_array(spec: TensorSpec, value: Any) -> np.ndarray:
    """The tensor of nested lists of JSON values.

    Raises:
      RequestError: the values have another type, or lists at one level differ in length.
    """
    return _shaped(spec, *flatten(spec.name, value))


def flatten(name: str, value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and their values.

    Raises:
      RequestError: lists at one level differ in length, or there are too many levels.
    """
    shape: list[int] = []
    level = [value]
    while level and isinstance(level[0], list):
        lengths = {len(part) if isinstance(part, list) else -1 for part in level}
        if len(lengths) != 1:
            raise invalid(
                f"input '{name}' should have lists of equal length at each level. Received: "
                f"different lengths at level {len(shape) + 1}. Pad the shorter lists."
            )
        if len(shape) == MAX_RANK:
            raise invalid(
                f"input '{name}' should have at most {MAX_RANK} levels of lists. Received: more."
            )
        shape.append(lengths.pop())
        level = list(itertools.chain.from_iterable(level))
    return tuple(shape), level


def to_values(name: str, value: np.ndarray) -> Any:
    """The JSON values of an output."""
    if value.dtype.kind == "O":
        convert = _to_base64 if name.endswith("_bytes") else _to_text
        texts = np.empty(value.shape, object)
        texts.ravel()[:] = [convert(item) for item in value.ravel().tolist()]
        return texts.tolist()
    if value.dtype.kind in "biu":
        return value.tolist()
    if value.dtype.kind == "c":
        raise RequestError(
            Code.UNIMPLEMENTED, f"output '{name}' is complex, which JSON cannot hold."
        )
    if value.dtype != np.float64:
        # By way of text, so that a float32 has no more digits than it needs.
        value = value.astype(np.float32).astype(str).astype(np.float64)
    finite = np.isfinite(value)
    if not finite.all():
        value = value.astype(object)
        value[~finite] = None
    return value.tolist()


def _from_rows(signature: Signature, instances: Any) -> dict[str, Any]:
    if not isinstance(instances, list) or not instances:
        raise invalid(
            f"instances should be a list that is not empty. Received: {_kind(instances)}."
        )
    named = [isinstance(instance, dict) and not _is_bytes(instance) for instance in instances]
    if not any(named):
        return _named(signature, instances)
    if not all(named):
        raise invalid(
            f"instances should all be objects or all be bare values. Received: "
            f"{_kind(instances[named.index(False)])} at {named.index(False)}."
        )
    for place, instance in enumerate(instances):
        if instance.keys() == signature.inputs.keys():
            continue
        try:
            signature.check_names(set(instance))
        except RequestError as error:
            raise invalid(f"instances[{place}]: {error.message}") from error
    return {
        name: [instance.get(name) for instance in instances]
        for name in signature.inputs
        if name not in signature.defaults or any(name in instance for instance in instances)
    }


def _without_nulls(spec: TensorSpec, values: Any) -> tuple[Any, list[int]]:
    """A list whose nulls are replaced by any value of the type, and the places of the nulls.

    In an input that may be left out, a null stands for the default.
    """
    if not isinstance(values, list) or None not in values:
        return values, []
    neutral: Any = "" if spec.dtype.name == "string" else False if spec.dtype.is_bool else 0
    places = [place for place, value in enumerate(values) if value is None]
    return [neutral if value is None else value for value in values], places


def _named(signature: Signature, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and not _is_bytes(value):
        return value
    required = [name for name in signature.inputs if name not in signature.defaults]
    if len(required) != 1:
        raise invalid(
            f"signature '{signature.name}' has {len(signature.inputs)} inputs "
            f"({', '.join(signature.inputs)}): give them by name in an object. Received: "
            f"{_kind(value)}."
        )
    return {required[0]: value}


def _shaped(spec: TensorSpec, shape: tuple[int, ...], values: list[Any]) -> np.ndarray:
    try:
        return _to_flat_array(spec, values).reshape(shape)
    except (OverflowError, ValueError) as error:
        raise invalid(f"input '{spec.name}' should be {spec.dtype.name}: {error}.") from error


def _to_flat_array(spec: TensorSpec, values: list[Any]) -> np.ndarray:
    if spec.dtype.name == "string":
        array = np.empty(len(values), object)
        array[:] = [_to_bytes(value) for value in values]
        return array
    if spec.dtype.is_bool:
        allowed: set[type] = {bool}
    elif spec.dtype.is_integer:
        allowed = {int}
    elif spec.dtype.is_floating:
        allowed = {int, float}
    else:
        raise ValueError("JSON cannot hold this type; use gRPC")
    if set(map(type, values)) - allowed:
        wrong = next(value for value in values if type(value) not in allowed)
        raise ValueError(f"received {_kind(wrong)}")
    with np.errstate(over="ignore"):
        array = np.array(values, spec.dtype.as_numpy_dtype)
    if spec.dtype.is_floating and not np.isfinite(array.astype(np.float64)).all():
        raise ValueError("received a number that is too large")
    return array


def _is_bytes(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if _is_bytes(value) and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"received a b64 that is not base64 ({error})") from error
    raise ValueError(f"received {_kind(value)}")


def _to_base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _to_text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _to_base64(value)


def _kind(value: Any) -> str:
    """A short description of a JSON value, for messages."""
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "…"


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
