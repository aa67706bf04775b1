"""What an entry of the registry is, and the questions that the steps ask of all entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...common.options import Option
from ...errors import UserError
from ..spaces import Draw, Space

if TYPE_CHECKING:
    from tfrs_croloss.losses import RetrievalLoss

    from ..settings import TrainSettings

REDUCTION = "sum_over_batch_size"
"""The reduction of every loss that the pipelines build: their learning rates are for a mean."""

GROUPS = ("conventional", "baselines", "family")
"""Groups of losses: special cases of CROLoss, losses of other papers, and the CROLoss family."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A loss as ``compare`` trains it.

    Attributes:
      loss: name of the loss.
      options: settings with the same value in every trial.
      space: search spaces of the settings that are tuned beside the temperature.
      sized: whether ``retrieval_size`` is the N of the Recall@N that decides.
      first: settings of the first trial, the temperature among them, where a paper or an earlier
        experiment suggests some.
    """

    loss: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    space: Mapping[str, Space] = dataclasses.field(default_factory=dict)
    sized: bool = False
    first: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Loss:
    """An entry of the registry.

    Attributes:
      summary: what the loss is, in a few words, for the help text.
      build: returns the loss of the library, from the settings and the number of items.
      title: returns the loss with its options in words, for reports; by default the summary.
      options: the settings that the loss takes, by name. Losses may share an option.
      group: one of ``GROUPS``.
      fixed: settings of other losses that this loss fixes.
      defaults: its own defaults, in place of None.
      required: settings that should be given.
      space: search spaces of its settings, for ``compare`` and ``tune``.
      first: settings of the first trial, see `Contestant`.
      contestants: the loss as ``compare`` trains it, by name; by default once, under its own name
        and with ``space``.
      search: returns the settings of a trial of ``tune``, from a function that draws values and
        the retrieval size; by default it draws each setting of ``space``.
    """

    summary: str
    build: Callable[[TrainSettings, int], RetrievalLoss]
    title: Callable[[TrainSettings], str] | None = None
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    group: str = "baselines"
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    required: tuple[str, ...] = ()
    space: Mapping[str, Space] = dataclasses.field(default_factory=dict)
    first: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    contestants: Mapping[str, Contestant] = dataclasses.field(default_factory=dict)
    search: Callable[[Draw, int], dict[str, Any]] | None = None

    @property
    def sized(self) -> bool:
        """Whether the loss takes the number of items that will be retrieved."""
        return "retrieval_size" in self.options

    def draw_options(self, draw: Draw, retrieval_size: int) -> dict[str, Any]:
        """The settings of a trial of ``tune``."""
        if self.search is not None:
            return self.search(draw, retrieval_size)
        options = {name: draw(name, space) for name, space in self.space.items()}
        if "retrieval_size" in self.required:
            options["retrieval_size"] = retrieval_size
        return options


LOSSES: dict[str, Loss] = {}
"""Every loss that ``--loss`` takes, by name: those of ``family``, then those of ``baselines``."""


def names(group: str | None = None) -> tuple[str, ...]:
    """The names of all losses, or of those in a group."""
    return tuple(name for name, loss in LOSSES.items() if group in (None, loss.group))


def choose(given: Iterable[str], members: Mapping[str, Iterable[str]], option: str) -> list[str]:
    """The names that a list of names and groups stands for.

    >>> choose(["b", "all"], {"all": ["a", "b"], "a": ["a"], "b": ["b"]}, "--losses")
    ['b', 'a']

    Args:
      given: what the user wrote.
      members: the names that each valid word stands for.
      option: the option, for the error.
    """
    chosen: dict[str, None] = {}
    for word in given:
        if word not in members:
            raise UserError(f"{option} should be among {', '.join(members)}. Received: {word!r}.")
        chosen.update(dict.fromkeys(members[word]))
    return list(chosen)


def contestants() -> dict[str, Contestant]:
    """The losses as ``compare`` trains them, by name, group after group."""
    found: dict[str, Contestant] = {}
    for group in GROUPS:
        for name in names(group):
            loss = LOSSES[name]
            sized = "retrieval_size" in loss.required
            alone = Contestant(name, {}, loss.space, sized, loss.first)
            found.update(loss.contestants or {name: alone})
    return found


def loss_options() -> dict[str, Option]:
    """The settings of all losses, each with the losses that take it in its help text."""
    takers: dict[str, list[str]] = {}
    found: dict[str, Option] = {}
    for name, loss in LOSSES.items():
        for option_name, option in loss.options.items():
            if found.setdefault(option_name, option) != option:
                raise ValueError(
                    f"the setting `{option_name}` should be one option that losses share. Received "
                    f"another one in the entry of {name!r}. Give it a name of its own."
                )
            takers.setdefault(option_name, []).append(name)
    return {
        name: dataclasses.replace(option, help=f"{option.help} [{', '.join(takers[name])}]")
        for name, option in found.items()
    }
