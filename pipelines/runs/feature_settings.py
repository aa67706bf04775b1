"""The settings of side features, and of the depth of the towers that take them."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from ..common.options import Kind, Option, Real, Whole, dashed
from ..data.features import BELONGINGS
from ..errors import UserError

if TYPE_CHECKING:
    from .settings import TrainSettings

ALL, NONE = "all", "none"
_GROUP = "side features"


@dataclasses.dataclass(frozen=True)
class Names(Kind):
    """Names of features, separated by commas, or ``all`` or ``none``.

    >>> Names().check("brand, price")
    'brand,price'
    """

    requirement = "all, none, or names of prepared features with commas between them"
    metavar = "NAMES"

    def check(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError
        names = [name.strip() for name in value.split(",")]
        if not all(re.fullmatch(r"[^\W\d]\w*", name) for name in names):
            raise ValueError
        if len(set(names)) < len(names) or (len(names) > 1 and {ALL, NONE} & set(names)):
            raise ValueError
        return ",".join(names)


@dataclasses.dataclass(frozen=True)
class Sizes(Kind):
    """Several whole numbers above 0, in their order, or none.

    >>> Sizes().check([128, 64])
    (128, 64)
    """

    requirement = "whole numbers of at least 1"
    metavar = "N"

    def parse(self, text: str) -> int:
        return int(text)

    def check(self, value: Any) -> tuple[int, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError
        return tuple(Whole(1).check(number) for number in value)

    @property
    def arguments(self) -> dict[str, Any]:
        return {**super().arguments, "nargs": "*"}


def _names(what: str) -> Any:
    return Option(Names(), ALL, f"prepared features of {what} to train with", _GROUP).field


@dataclasses.dataclass(frozen=True)
class FeatureFields:
    """The fields of ``TrainSettings`` about side features; the help texts say what each is."""

    item_features: str = _names("the items")
    user_features: str = _names("the users")
    context_features: str = _names("the interactions")
    feature_dim: int = Option(
        Whole(1), 8, "size of the embedding of each feature of users and interactions", _GROUP
    ).field
    item_feature_dim: int | None = Option(
        Whole(1),
        None,
        "size of the embedding of each feature of items; those of the size of the items are added "
        "to their rows as they are",
        _GROUP,
        shown_default="--dim",
    ).field
    item_id_dropout: float = Option(
        Real(least=0.0, most=0.9),
        0.1,
        "share of the items in a batch that are embedded from their features alone, so that the "
        "model learns to embed items without interactions; for data with item features",
        _GROUP,
    ).field
    hidden: tuple[int, ...] = Option(
        Sizes(), (), "sizes of hidden layers in both towers", _GROUP, shown_default="none"
    ).field


def check(settings: TrainSettings) -> None:
    """Checks that the settings go together.

    Raises:
      UserError: they do not.
    """
    if settings.tower == "history":
        return
    for name in ("hidden", *(f"{of}_features" for of in BELONGINGS)):
        value = getattr(settings, name)
        if value not in ((), ALL, NONE):
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise UserError(
                f"{dashed(name)} requires --tower history. Received: {shown} with --tower "
                f"{settings.tower}, which has a vector for each user and nothing else. Use --tower "
                "history, or leave it out."
            )
