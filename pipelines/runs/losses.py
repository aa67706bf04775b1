"""The registry of losses: whatever the pipelines know about a loss is its entry in ``LOSSES``.

An entry gives the loss its name for ``--loss``, its options in ``train``, its title in reports, its
builder, and its search spaces in ``compare`` and ``tune``. This module loads no TensorFlow:
builders import the library when they are called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..common.options import Flag, OneOf, Option, Real, Whole
from ..errors import UserError
from .spaces import Choice, Draw, Range, Space

if TYPE_CHECKING:
    from tfrs_croloss.losses import RetrievalLoss

    from .settings import TrainSettings

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
      first: settings of the first trial, where a paper or an earlier experiment suggests some.
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


# Names that the library decides on.


def _kernels() -> list[str]:
    from tfrs_croloss.losses import kernels

    return [name for name in _rank_kernels() if kernels.NAMED[name].has_gradient]


def _rank_kernels() -> list[str]:
    from tfrs_croloss.losses import kernels

    # PSL has a loss of its own, which gives its kernel the temperature.
    return [name for name in kernels.NAMED if name != "pairwise_softmax"]


def _activations() -> Sequence[str]:
    from tfrs_croloss.losses import kernels

    return kernels.PairwiseSoftmax.ACTIVATIONS


# Options that several losses take.

KERNEL = Option(
    OneOf(_kernels),
    "softplus",
    "comparison kernel; for lambda, the kernel that closes the gaps",
    defining=True,
)
RANK_KERNEL = Option(
    OneOf(_rank_kernels),
    None,
    "kernel that estimates the rank; with it, cro is LambdaCROLoss",
    shown_default="none; sigmoid for lambda",
    defining=True,
)
ALPHA = Option(
    Real(least=0.0),
    1.0,
    "exponent of the rank weighting; a larger alpha favours Recall@N of smaller N",
    defining=True,
)
RETRIEVAL_SIZE = Option(
    Whole(1),
    None,
    "number of items that will be retrieved, the N of the Recall@N to train for; replaces --alpha",
    replaces="alpha",
    defining=True,
)
MARGIN = Option(Real(least=0.0), 5.0, "margin of the hinge kernel")
PULL = Option(
    Real(above=0.0, most=2.0),
    1.0,
    "how strongly positives are pulled, as a share of how strongly negatives are pushed away",
)
EASING = Option(
    Real(least=0.0),
    0.0,
    "how much less positives are pulled the worse they rank; 0.03 suits matrix factorisation",
)
DESCENT = Option(
    OneOf(("rank", "log_rank")),
    "rank",
    "what LambdaCROLoss lowers: the rank, or its logarithm, whose gradients are bounded",
)
RANK_ESTIMATE = Option(
    OneOf(("paper", "unbiased")), "paper", "estimator of the rank from sampled negatives"
)


# CROLoss, and the well-known losses that are special cases of it.


def _build_rank_loss(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import CROLoss, LambdaCROLoss, Pull

    def kernel(name: str) -> str | Mapping[str, Any]:
        return {"name": "hinge", "margin": settings.margin} if name == "hinge" else name

    options: dict[str, Any] = {
        "alpha": settings.alpha,
        "kernel": kernel(settings.kernel),
        "num_items": num_items,
        "rank_estimate": settings.rank_estimate,
        "pull": Pull(settings.pull, settings.easing),
        "reduction": REDUCTION,
        # Negatives are drawn from the catalogue: every copy of an item is a draw of its own.
        "count_copies": True,
    }
    if settings.retrieval_size is not None:
        options["retrieval_size"] = settings.retrieval_size
    if settings.rank_kernel is None:
        return CROLoss(**options)
    rank_kernel = kernel(settings.rank_kernel)
    return LambdaCROLoss(rank_kernel=rank_kernel, descent=settings.descent, **options)


def _rank_loss_title(settings: TrainSettings) -> str:
    kernels = (settings.kernel, settings.rank_kernel)
    details = f", margin {settings.margin:g}" if "hinge" in kernels else ""
    if settings.pull != 1.0:
        details += f", pull {settings.pull:g}"
    if settings.easing:
        details += f", easing {settings.easing:g}"
    if settings.descent != "rank" and settings.rank_kernel is not None:
        details += ", log form"
    aim = f"alpha {settings.alpha:g}"
    if settings.retrieval_size is not None:
        aim = f"for {settings.retrieval_size} retrieved"
    if settings.rank_kernel is not None:
        parts = f"{settings.rank_kernel} ranks, {settings.kernel} gaps"
        return f"LambdaCROLoss ({parts}, {aim}{details})"
    names = [
        name
        for name, loss in LOSSES.items()
        if loss.fixed == {"kernel": settings.kernel, "alpha": settings.alpha}
        and settings.retrieval_size is None
    ]
    known = f" = {names[0]}" if names else ""
    return f"CROLoss ({settings.kernel}, {aim}{details}){known}"


def _search_family(draw: Draw, retrieval_size: int) -> dict[str, Any]:
    options = {"kernel": draw("kernel", Choice(("softplus", "exponential", "sigmoid", "hinge")))}
    if draw("weighting", Choice(("alpha", "retrieval_size"))) == "alpha":
        options["alpha"] = draw("alpha", Range(0.4, 1.8))
    else:
        options["retrieval_size"] = retrieval_size
    if options["kernel"] == "hinge":
        options["margin"] = draw("margin", Range(0.5, 10.0, logarithmic=True))
    if draw("pull_by_rank", Choice((False, True))):
        options["easing"] = draw("easing", _EASINGS)
    return options


def _search_lambda(draw: Draw, retrieval_size: int) -> dict[str, Any]:
    rank_kernel = draw("rank_kernel", Choice(("sigmoid", "unit_step")))
    return {"rank_kernel": rank_kernel, **_search_family(draw, retrieval_size)}


_EASINGS = Range(0.005, 0.08, logarithmic=True)


def _of_family(loss: str, kernel: str, **first: float) -> Contestant:
    spaces = {"alpha": Range(0.6, 1.8), "easing": _EASINGS}
    space = {name: spaces[name] for name in first}
    return Contestant(loss, {"kernel": kernel}, space, first=first)


_PULL = {"pull": PULL, "easing": EASING}
_FAMILY = {
    "kernel": KERNEL,
    "rank_kernel": RANK_KERNEL,
    "alpha": ALPHA,
    "retrieval_size": RETRIEVAL_SIZE,
    "margin": MARGIN,
    "descent": DESCENT,
    "rank_estimate": RANK_ESTIMATE,
    **_PULL,
}


# Losses of other papers.


def _build_bce(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import BinaryCrossEntropy

    return BinaryCrossEntropy(0.0, num_items, reduction=REDUCTION, name="bce")


def _build_gbce(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import BinaryCrossEntropy

    calibration = settings.calibration
    return BinaryCrossEntropy(calibration, num_items, reduction=REDUCTION, name="gbce")


def _build_psl(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import PairwiseSoftmaxLoss

    # Half of it brings differences of cosines into the range that the activations are for.
    temperature = settings.temperature / 2.0
    return PairwiseSoftmaxLoss(settings.activation, temperature, num_items, reduction=REDUCTION)


def _build_bsl(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import BilateralSoftmax

    return BilateralSoftmax(settings.negative_exponent, num_items, reduction=REDUCTION)


def _build_sl_at_k(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import SoftmaxAtK

    # The loss sees scores that the task has divided by the temperature.
    weight_temperature = settings.weight_temperature / settings.temperature
    return SoftmaxAtK(
        settings.retrieval_size,
        weight_temperature,
        num_items,
        differentiate_weight=settings.differentiate_weight,
        reduction=REDUCTION,
    )


def _sl_at_k_title(settings: TrainSettings) -> str:
    form = "" if settings.differentiate_weight else ", without their gradient"
    return f"SL@{settings.retrieval_size} (weights of {settings.weight_temperature:g}{form})"


def _build_talos(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import Talos

    return Talos(settings.retrieval_size, settings.temperature, num_items, reduction=REDUCTION)


def _build_llpauc(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import LowerLeftPartialAUC

    # An example has one positive, so a share of the positives would have no effect.
    share = settings.negative_share
    return LowerLeftPartialAUC(1.0, share, num_items, reduction=REDUCTION)


LOSSES: dict[str, Loss] = {
    "cro": Loss(
        "CROLoss",
        _build_rank_loss,
        _rank_loss_title,
        _FAMILY,
        "family",
        contestants={
            "croloss-softplus": _of_family("cro", "softplus", alpha=1.0),
            "croloss-sigmoid": _of_family("cro", "sigmoid", alpha=1.0),
        },
        search=_search_family,
    ),
    "lambda": Loss(
        "LambdaCROLoss",
        _build_rank_loss,
        _rank_loss_title,
        _FAMILY,
        "family",
        defaults={"rank_kernel": "sigmoid"},
        contestants={
            "lambda-softplus": _of_family("lambda", "softplus", alpha=1.2),
            "lambda-exponential": _of_family("lambda", "exponential", alpha=1.4),
            "lambda-softplus-eased": _of_family("lambda", "softplus", alpha=1.2, easing=0.03),
            "lambda-exponential-eased": _of_family("lambda", "exponential", alpha=1.4, easing=0.03),
            "lambda-sized": Contestant(
                "lambda", space={"kernel": Choice(("softplus", "exponential"))}, sized=True
            ),
        },
        search=_search_lambda,
    ),
    "softmax": Loss(
        "softmax cross-entropy",
        _build_rank_loss,
        _rank_loss_title,
        {"rank_estimate": RANK_ESTIMATE, **_PULL},
        "conventional",
        fixed={"kernel": "exponential", "alpha": 1.0},
    ),
    "triplet": Loss(
        "triplet loss",
        _build_rank_loss,
        _rank_loss_title,
        {"margin": MARGIN, "rank_estimate": RANK_ESTIMATE, **_PULL},
        "conventional",
        fixed={"kernel": "hinge", "alpha": 0.0},
        space={"margin": Range(1.0, 10.0, logarithmic=True)},
    ),
    "bpr": Loss(
        "Bayesian personalized ranking",
        _build_rank_loss,
        _rank_loss_title,
        {"rank_estimate": RANK_ESTIMATE, **_PULL},
        "conventional",
        fixed={"kernel": "softplus", "alpha": 0.0},
    ),
    "bce": Loss("binary cross-entropy", _build_bce),
    "gbce": Loss(
        "gBCE of gSASRec",
        _build_gbce,
        lambda settings: f"gBCE (calibration {settings.calibration:g})",
        {
            "calibration": Option(
                Real(least=0.0, most=1.0), 0.75, "calibration t of gBCE, from 0 (bce) to 1"
            )
        },
        space={"calibration": Range(0.0, 1.0)},
    ),
    "psl": Loss(
        "pairwise softmax loss",
        _build_psl,
        lambda settings: f"PSL ({settings.activation})",
        {"activation": Option(OneOf(_activations), "tanh", "activation function of PSL")},
        space={"activation": Choice(_activations)},
    ),
    "bsl": Loss(
        "bilateral softmax loss",
        _build_bsl,
        lambda settings: f"BSL (exponent {settings.negative_exponent:g})",
        {
            "negative_exponent": Option(
                Real(above=0.0), 1.1, "exponent of the negatives in BSL; 1 is softmax"
            )
        },
        space={"negative_exponent": Range(0.8, 1.35)},
    ),
    "sl_at_k": Loss(
        "SL@K, softmax of the top K, which is --retrieval-size",
        _build_sl_at_k,
        _sl_at_k_title,
        {
            "retrieval_size": RETRIEVAL_SIZE,
            "weight_temperature": Option(
                Real(above=0.0), 1.0, "temperature of the weights, in the unit of the similarity"
            ),
            "differentiate_weight": Option(
                Flag(),
                True,
                "whether the weights take part in the gradient, as the authors have it",
            ),
        },
        required=("retrieval_size",),
        space={"weight_temperature": Range(0.3, 3.0, logarithmic=True)},
        first={"weight_temperature": 2.5},  # its authors' choice on Amazon Health
    ),
    "talos": Loss(
        "Talos, softmax above the threshold of the top K, which is --retrieval-size",
        _build_talos,
        lambda settings: f"Talos@{settings.retrieval_size}",
        {"retrieval_size": RETRIEVAL_SIZE},
        required=("retrieval_size",),
    ),
    "llpauc": Loss(
        "LLPAUC, squared AUC loss of the highest negatives",
        _build_llpauc,
        lambda settings: f"LLPAUC (the highest {settings.negative_share:.3g} of the negatives)",
        {
            "negative_share": Option(
                Real(above=0.0, most=1.0), 0.1, "share of the negatives that LLPAUC looks at"
            )
        },
        space={"negative_share": Range(0.01, 0.2, logarithmic=True)},
    ),
}
"""Every loss that ``--loss`` takes, by name."""


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
