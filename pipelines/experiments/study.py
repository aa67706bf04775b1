"""The database of a search: its address for Optuna, and one line about what goes wrong with it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError


@contextlib.contextmanager
def study_database(path: Path, optuna: Any) -> Iterator[str]:
    """A scope in which damage to the database is an error that names the file and the remedy.

    Args:
      path: file of the database; Optuna creates it if it does not exist.
      optuna: the module.

    Yields:
      The address of the database, as Optuna takes it.

    Raises:
      UserError: the database is damaged, or cannot be read or written.
    """
    from sqlalchemy.exc import SQLAlchemyError  # Optuna requires it.

    _check(path)
    try:
        yield f"sqlite:///{path.absolute()}"
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, json.JSONDecodeError) as error:
        _check(path)
        if isinstance(error, json.JSONDecodeError):
            raise _damaged(path, f"a value is not JSON: {error}") from error
        cause = error.__cause__ or error
        raise _unusable(path, getattr(cause, "orig", None) or cause) from error
    except RuntimeError as error:
        # Optuna refuses tables of another version in this way.
        if type(error) is not RuntimeError or not _raised_in(error).startswith("optuna."):
            raise
        raise UserError(
            f"{path} cannot be used ({str(error).splitlines()[0].rstrip('.')}). Install the "
            "version of Optuna that wrote it, or remove it."
        ) from error


def _check(path: Path) -> None:
    """Raises an error if the file exists and is not a sound database."""
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            # In a file that is not a database at all, this raises an error.
            found = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        raise _unusable(path, error) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from error
    if found != "ok":
        raise _damaged(path, " ".join(str(found).split()))


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(
        f"{path} is damaged ({reason}). Restore it from a copy, or remove it: the search then "
        "begins again, and a trial whose settings it draws again is not trained again."
    )


def _unusable(path: Path, reason: object) -> UserError:
    return UserError(
        f"{path} cannot be used ({reason}). Check its permissions, the space on its disk, and that "
        "no other program has it open."
    )


def _raised_in(error: BaseException) -> str:
    """The module that raised an error."""
    place = error.__traceback__
    name = ""
    while place is not None:
        name, place = str(place.tb_frame.f_globals.get("__name__", "")), place.tb_next
    return name
