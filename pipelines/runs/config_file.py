"""Settings from a file: YAML or JSON by hand, or the ``config.json`` of a run."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ..common.options import Option, checked
from ..errors import UserError


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """The settings of a file.

    Attributes:
      path: where it is.
      values: settings by name, each of them valid.
      is_record: whether a step wrote it, with all settings of a run under ``settings``.
    """

    path: Path
    values: dict[str, Any]
    is_record: bool


def read_config(
    path: str, options: Mapping[str, Option], names: Iterable[str] | None = None
) -> ConfigFile:
    """Reads a file of settings.

    Args:
      path: a ``.json`` file, or YAML under any other name.
      options: all settings, by name.
      names: the settings of this step; all by default. Those that only other steps have are left
        out of a run's record, and are an error elsewhere.

    Raises:
      UserError: the file cannot be read, or a key or value of it is not valid.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"--config {path} should be a YAML or JSON file. There is no such file.")
    content = _parse(file)
    if not isinstance(content, dict):
        raise UserError(
            f"{path} should map settings to values, such as batch_size: 256. Received: "
            f"{type(content).__name__}."
        )
    is_record = isinstance(content.get("settings"), dict)
    values = content["settings"] if is_record else content
    mine = {name: options[name] for name in (options if names is None else names)}
    known = options if is_record else mine
    found = {name: _value(path, name, value, known) for name, value in values.items()}
    return ConfigFile(
        file, {name: value for name, value in found.items() if name in mine}, is_record
    )


def _value(path: str, name: Any, value: Any, options: Mapping[str, Option]) -> Any:
    if name not in options:
        near = difflib.get_close_matches(str(name).replace("-", "_"), options, n=1)
        hint = f"Did you mean `{near[0]}`?" if near else f"Known keys: {', '.join(options)}."
        raise UserError(f"{path}: `{name}` is not a setting of this step. {hint}")
    try:
        return checked(options[name], f"`{name}`", value)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _parse(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            return json.loads(text)
        return yaml.load(text, _yaml_loader())
    except UnicodeDecodeError as error:
        raise UserError(f"--config {file} should be text in UTF-8. {error}.") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        kind = "JSON" if file.suffix == ".json" else "YAML"
        reason = " ".join(str(error).split())
        raise UserError(f"--config {file} should be {kind}, but: {reason}.") from error


def _yaml_loader() -> Any:
    """A safe loader that knows numbers such as 1e-3, which YAML 1.1 takes for text."""

    class Loader(yaml.SafeLoader):
        """Has resolvers of its own."""

    number = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader
