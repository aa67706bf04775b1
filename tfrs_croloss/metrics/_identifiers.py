"""Ids of candidates: the row of each in the catalogue, and what happens to repeated ids."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks

DUPLICATES = ("first", "error")


class Identifiers:
    """The ids of a catalogue's candidates.

    Candidates that have the id of an earlier one are left out, so that a positive does not compete
    with its own copy: rows are those among the candidates that are kept.

    >>> titles = Identifiers(["Hamlet", "Emma", "Chaos"])
    >>> titles.rows([b"Chaos", "Hamlet"], "positives")
    array([2, 0])

    Args:
      values: ``[num_candidates]`` integers, strings or bytes; strings are the same as their UTF-8
        bytes.
      duplicates: ``"first"`` keeps the first candidate of each id and warns of the others;
        ``"error"`` raises a ValueError for them.

    Attributes:
      kept: ``[num_kept]`` the candidates that are kept.
    """

    def __init__(self, values: Any, duplicates: str = "first") -> None:
        ids, self._are_text = _plain(values, "identifiers")
        _checks.one_of("duplicates", duplicates, DUPLICATES)
        self._rows: dict[int | bytes, int] = {}
        places = [self._rows.setdefault(one, len(self._rows)) for one in ids]
        self._places = np.array(places, np.int64)
        self.kept = np.unique(self._places, return_index=True)[1]
        self.num_duplicates = len(ids) - len(self.kept)
        if self.num_duplicates:
            again = int(np.setdiff1d(np.arange(len(ids)), self.kept)[0])
            message = (
                f"{self.num_duplicates:,} of {len(ids):,} candidates have the id of an earlier "
                f"one; the first is {_readable(ids[again])} in row {again}."
            )
            if duplicates == "error":
                raise ValueError(
                    f"`candidates` should have different ids where duplicates='error'. Received: "
                    f"{message} Remove them, or pass duplicates='first' to keep the first of each."
                )
            warnings.warn(
                f"{message} Only the first candidate of each id is ranked. Pass duplicates='error' "
                "to refuse such candidates.",
                stacklevel=3,
            )

    def __len__(self) -> int:
        return len(self._places)

    def rows(self, values: Any, argument: str, *, ignore_unknown: bool = False) -> np.ndarray:
        """The rows of some ids among the candidates that are kept.

        Args:
          values: ``[n]`` ids. Where the candidates' ids are strings, integers are taken for rows of
            all candidates.
          argument: what the caller calls them, for errors.
          ignore_unknown: whether ids of no candidate are left out instead of raising an error.

        Returns:
          ``[n]`` int64, or fewer where unknown ids are left out.
        """
        ids, are_text = _plain(values, argument)
        if are_text and not self._are_text and ids:
            raise ValueError(
                f"`{argument}` should be integers like the ids of the candidates. Received: "
                f"strings such as {_readable(ids[0])}. Convert one of the two."
            )
        if self._are_text and not are_text:
            numbers = np.array(ids, np.int64)
            known = (numbers >= 0) & (numbers < len(self))
            rows = np.where(known, self._places[np.where(known, numbers, 0)], -1)
        else:
            rows = np.array([self._rows.get(one, -1) for one in ids], np.int64)
        unknown = np.flatnonzero(rows < 0)
        if not len(unknown):
            return rows
        if ignore_unknown:
            return rows[rows >= 0]
        raise ValueError(
            f"`{argument}` should be ids of candidates. Received: {len(unknown):,} of {len(ids):,} "
            f"that are not, the first of them {_readable(ids[unknown[0]])} at position "
            f"{unknown[0]}. Add these items to `candidates`, or leave their queries out."
        )

    def rows_by_query(self, values: Any, argument: str, *, ignore_unknown: bool = False) -> Any:
        """Rows in the structure of the ids: one for each query, or several for each.

        Args:
          values: ``[n]`` ids, or ``[num_queries, (ids)]`` as a ragged tensor or as lists.
          argument: what the caller calls them, for errors.
          ignore_unknown: as in ``rows``.
        """
        if isinstance(values, tf.RaggedTensor):
            values = list(np.split(values.values.numpy(), values.row_starts().numpy()[1:]))
        if isinstance(values, (list, tuple)) and any(np.ndim(one) == 1 for one in values):
            return [self.rows(one, argument, ignore_unknown=ignore_unknown) for one in values]
        return self.rows(values, argument, ignore_unknown=ignore_unknown)


def are_text(values: Any) -> bool:
    """Whether ids, flat or by query, are strings or bytes."""
    if isinstance(values, tf.RaggedTensor):
        values = values.values
    if tf.is_tensor(values):
        return values.dtype == tf.string
    while isinstance(values, (list, tuple)):
        filled = [one for one in values if np.size(one)]
        if not filled:
            return False
        values = filled[0]
    return np.asarray(values).dtype.kind in "SUO"


def _plain(values: Any, argument: str) -> tuple[list[int] | list[bytes], bool]:
    """Ids as integers or bytes, and whether they are the latter."""
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 1:
        if array.size == 0 or array.dtype.kind in "iu":
            return array.astype(np.int64).tolist(), False
        listed = array.tolist()
        if array.dtype.kind in "SUO" and all(isinstance(one, (str, bytes)) for one in listed):
            return [one.encode() if isinstance(one, str) else one for one in listed], True
        if array.dtype.kind == "O" and all(isinstance(one, (int, np.integer)) for one in listed):
            return [int(one) for one in listed], False
    raise ValueError(
        f"`{argument}` should be a flat list of integers, strings or bytes. Received: "
        f"{array.dtype} of shape {array.shape}."
    )


def _readable(one: int | bytes) -> str:
    return repr(one.decode(errors="replace") if isinstance(one, bytes) else one)
