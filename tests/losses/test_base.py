"""The base classes: their options, custom losses, and configurations saved by older versions."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tfrs_croloss import losses
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

SHARED = {"num_items": 50, "mask_rows_without_positive": True, "check_scores": False}
KERAS = {"reduction": "sum", "name": "mine"}
RANKS = {"weighting": None, "normalized": True, "retrieval_size": None, "count_copies": True}
# As written by versions in which one base class had the options of all losses.
SAVED = {
    "CROLoss": {
        "alpha": 0.7,
        "kernel": {"name": "hinge", "margin": 2.5},
        "rank_estimate": "unbiased",
        **RANKS,
    },
    "LambdaCROLoss": {
        "alpha": 1.0,
        "kernel": {"name": "softplus"},
        "rank_kernel": {"name": "sigmoid"},
        "rank_estimate": "paper",
        **RANKS,
        "retrieval_size": 50,
    },
    "BinaryCrossEntropy": {"calibration": 0.75},
    "PairwiseSoftmaxLoss": {"rank_estimate": "paper", "activation": "atan", "temperature": 0.1},
    "BilateralSoftmax": {"negative_exponent": 1.3},
    "SoftmaxAtK": {
        "retrieval_size": 9,
        "weight_temperature": 2.0,
        "differentiate_weight": False,
    },
    "Talos": {"retrieval_size": 9, "temperature": 0.2},
    "LowerLeftPartialAUC": {"positive_share": 0.7, "negative_share": 0.2},
}
# Options that came later, with the values that keep what was saved before as it was.
NEWER = {"CROLoss": {"pull": 1.0}, "LambdaCROLoss": {"pull": 1.0, "descent": "rank"}}


class SumOfNegatives(losses.RowLoss):
    """The sum of the negatives' scores, less that of the positives'."""

    def losses_and_gradient(self, scores, positives, negatives, estimator):
        slopes = tf.cast(negatives, scores.dtype) - tf.cast(positives, scores.dtype)
        return tf.reduce_sum(tf.where(slopes == 0.0, 0.0, slopes * scores), axis=-1), slopes


class LogRank(losses.RankLoss):
    """Softmax cross-entropy, as a loss of ranks."""

    @property
    def objective(self):
        kernel = losses.kernels.Exponential()
        return losses.RankObjective(losses.PowerWeighting(1.0), kernel)


@pytest.mark.parametrize("name", SAVED)
def test_saved_configurations_load_and_keep_their_keys(name):
    config = {**KERAS, **SHARED, **SAVED[name]}
    kind = getattr(tfrs_croloss, name)
    saved = {
        "module": "tfrs_croloss.rivals",
        "class_name": name,
        "config": config,
        "registered_name": f"tfrs_croloss>{name}",
    }
    loaded = tf.keras.losses.deserialize(saved)
    assert type(loaded) is kind
    assert loaded.get_config() == {**config, **NEWER.get(name, {})}
    assert set(loaded.get_config()) == set(inspect.signature(kind).parameters)


def test_the_base_knows_what_every_loss_has_and_nothing_else():
    options = {*SHARED, *KERAS}
    assert set(inspect.signature(losses.RetrievalLoss).parameters) == options
    assert set(losses.RetrievalLoss().get_config()) == options
    with pytest.raises(NotImplementedError, match="RetrievalLoss should define `objective`"):
        losses.RetrievalLoss().per_query([[1.0, 2.0]], [[1, 0]])
    with pytest.raises(NotImplementedError, match="RowLoss should define `losses_and_gradient"):
        losses.RowLoss().per_query([[1.0, 2.0]], [[1, 0]])
    with pytest.raises(ValueError, match="`num_items` should be"):
        losses.RetrievalLoss(-1)


def test_a_row_loss_of_ones_own_works_in_every_task():
    generator = np.random.default_rng(0)
    queries, items = generator.normal(size=[4, 3]), generator.normal(size=[9, 3])
    scores = queries @ items.T
    expected = np.sum(scores.sum(axis=1) - 2.0 * np.diag(scores))
    loss = SumOfNegatives(num_items=9)
    assert float(loss(np.eye(4, 9), scores)) == pytest.approx(expected)
    assert float(Retrieval(loss)(queries, items)) == pytest.approx(expected)
    whole = CatalogueRetrieval(loss)(queries, items, np.arange(4))
    assert float(whole) == pytest.approx(expected)
    assert repr(loss) == "SumOfNegatives(num_items=9)"


def test_a_rank_loss_of_ones_own_estimates_ranks_as_it_says():
    scores, labels = [[0.5, 2.0, -1.0, 1.0]], [[1, 0, 0, 0]]
    total = sum(np.exp(gap) for gap in (1.5, -1.5, 0.5))
    paper = LogRank(num_items=8).per_query(scores, labels)
    np.testing.assert_allclose(paper, [np.log(8 / 4 * (1 + total))], rtol=1e-6)
    unbiased = LogRank(num_items=8, rank_estimate="unbiased").per_query(scores, labels)
    np.testing.assert_allclose(unbiased, [np.log(1 + 7 / 3 * total)], rtol=1e-6)
    with pytest.raises(ValueError, match="`rank_estimate` should be one of"):
        LogRank(rank_estimate="exact")
