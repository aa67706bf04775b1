"""CROLoss and LambdaCROLoss, and the well-known losses that are special cases of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...common.options import OneOf, Option, Real, Whole
from ..spaces import Choice, Draw, Range
from .registry import LOSSES, REDUCTION, Contestant, Loss

if TYPE_CHECKING:
    from tfrs_croloss.losses import RetrievalLoss

    from ..settings import TrainSettings


def _kernels() -> list[str]:
    from tfrs_croloss.losses import kernels

    return [name for name in _rank_kernels() if kernels.NAMED[name].has_gradient]


def _rank_kernels() -> list[str]:
    from tfrs_croloss.losses import kernels

    # PSL has a loss of its own, which gives its kernel the temperature.
    return [name for name in kernels.NAMED if name != "pairwise_softmax"]


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
    "how strongly positives are pulled up, relative to how strongly negatives are pushed down",
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
    space = {name: spaces[name] for name in first if name in spaces}
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


LOSSES.update(
    {
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
                "lambda-exponential-eased": _of_family(
                    "lambda", "exponential", alpha=1.4, easing=0.03
                ),
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
    }
)
