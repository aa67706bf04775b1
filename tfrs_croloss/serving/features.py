"""Query features with rules of their own: ids of a list, and values that may be left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfrs_croloss import _checks
from tfrs_croloss.serving.item_ids import as_list, check_ids


@dataclasses.dataclass(frozen=True)
class History:
    """A query feature that holds items of the catalogue, oldest first.

    Requests have their ids, ``[batch, any length]``, padded anywhere. Padding and ids that are not
    in the catalogue are removed, and the model gets the latest of the others, padded at the end.
    Answers then say ``known_items``, the number of items that are in the catalogue, and
    ``is_default``, whether there are none.

    Attributes:
      length: number of the latest known items that the model gets.
      as_numbers: whether the model takes the numbers of the items, their places among the
        candidates, padded with the number of candidates, as the towers of this library do. If not,
        it takes their ids, padded with ``""`` or -1.
    """

    length: int
    as_numbers: bool = True

    def __post_init__(self) -> None:
        _checks.whole_number("length", self.length, remedy="Pass the length used in training.")


@dataclasses.dataclass(frozen=True)
class KnownIds:
    """A query feature that holds one id of a list, such as that of a user who was trained on.

    Requests have the id, ``[batch]``, and the model gets its number, the place in the list. An id
    that is not in the list has the number ``len(ids)``, for which the model should have a vector
    too, and the answer says ``is_default``.

    Attributes:
      ids: distinct strings, or distinct integers of at least 0.
    """

    ids: Sequence[Any]

    def __post_init__(self) -> None:
        ids = as_list(self.ids, "ids")
        if not ids:
            raise ValueError("`ids` should have at least one id. Received: none.")
        check_ids(ids, "ids")
        object.__setattr__(self, "ids", ids)


@dataclasses.dataclass(frozen=True)
class WithDefault:
    """A query feature that a request may leave out, one value ``[batch]`` for each query.

    The model then gets the default, such as ``missing`` of a `tfrs_croloss.models.SideFeature`. The
    default is part of the signatures, where servers look for it. A request with one value for
    several queries gives it to all of them.

    Attributes:
      default: a string or a number.
    """

    default: Any

    def __post_init__(self) -> None:
        if not isinstance(self.default, (str, bytes, int, float)):
            raise ValueError(
                f"`default` should be a string or a number. Received: {self.default!r}."
            )


Feature = History | KnownIds | WithDefault
