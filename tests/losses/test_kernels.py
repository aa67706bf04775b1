"""Comparison kernels: values, derivatives, log-domain sums, and how they are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.support import oracle
from tfrs_croloss import CROLoss, LambdaCROLoss
from tfrs_croloss.losses import kernels
from tfrs_croloss.losses._chunk_sums import has_fast_form
from tfrs_croloss.tasks import Retrieval

GAPS = [-1e4, -80.0, -5.5, -5.0, -1.0, -1e-6, 0.0, 1e-6, 0.5, 3.0, 40.0]


@pytest.mark.parametrize("name", oracle.KERNELS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_values_and_derivatives(name, dtype):
    kernel = kernels.get(name, gradient=False)
    gaps = tf.constant(GAPS, dtype)
    truth = [oracle.Decimal(float(gap)) for gap in gaps]
    tolerance = {"rtol": 40 * np.finfo(dtype.as_numpy_dtype).eps, "atol": 1e-37}
    expected = [float(oracle.kernel(name, gap)) for gap in truth]
    np.testing.assert_allclose(kernel(gaps), expected, **tolerance)
    if kernel.has_gradient:
        expected = [float(oracle.kernel_slope(name, gap)) for gap in truth]
        np.testing.assert_allclose(kernel.derivative(gaps), expected, **tolerance)


@pytest.mark.parametrize("name", oracle.KERNELS)
def test_the_paper_s_conditions(name):
    """Increasing, vanishing far below, between 0.5 and 1 at a tie (the hinge has a margin)."""
    kernel = kernels.get(name, gradient=False)
    values = kernel(tf.linspace(-30.0, 30.0, 121)).numpy()
    assert (np.diff(values) >= 0).all()
    assert values[0] < 1e-6 and values[-1] >= 1 - 1e-6
    at_tie = float(kernel(tf.constant(0.0)))
    assert at_tie == 5.0 if name == "hinge" else 0.5 <= at_tie <= 1.0


def test_options_by_mapping_and_object():
    assert kernels.get("hinge") == kernels.Hinge(5.0)
    assert kernels.get({"name": "hinge", "margin": 2}) == kernels.Hinge(2.0)
    assert kernels.get(kernels.Sigmoid()) == kernels.Sigmoid()
    assert kernels.Hinge(2.0) != kernels.Hinge(3.0)
    assert len({kernels.Hinge(2.0), kernels.Hinge(2.0), kernels.Softplus()}) == 2


def test_any_function_is_a_kernel_and_is_differentiated():
    kernel = kernels.get(lambda gaps: tf.nn.elu(gaps) + 1.0)
    gaps = tf.constant([-2.0, 0.5])
    np.testing.assert_allclose(kernel(gaps), [math.exp(-2.0), 1.5], rtol=1e-6)
    np.testing.assert_allclose(kernel.derivative(gaps), [math.exp(-2.0), 1.0], rtol=1e-6)


def test_a_function_without_gradient_or_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="should be differentiable"):
        kernels.get(lambda gaps: tf.ones_like(gaps)).derivative(tf.constant([1.0]))
    with pytest.raises(ValueError, match="element by element"):
        kernels.get(tf.reduce_sum)(tf.constant([1.0, 2.0]))
    with pytest.raises(ValueError, match="differentiable"):
        kernels.UnitStep().derivative(tf.constant([1.0]))


@pytest.mark.parametrize("name", oracle.KERNELS)
def test_log1p_sum_leaves_out_what_is_not_valid_and_weighs_the_rest(name):
    kernel = kernels.get(name, gradient=False)
    gaps = tf.constant([[1.0, -2.0, 7.0], [0.5, 0.25, 3.0]], tf.float64)
    valid = tf.constant([[True, True, False], [False, False, False]])
    weights = tf.constant([[0.5, 3.0, 9.0]], tf.float64)
    total = sum(
        oracle.Decimal(weight) * oracle.kernel(name, oracle.Decimal(gap))
        for gap, weight in ((1.0, 0.5), (-2.0, 3.0))
    )
    np.testing.assert_allclose(
        kernel.log1p_sum(gaps, valid, weights), [float(oracle.log(1 + total)), 0.0], rtol=1e-13
    )


def test_the_exponential_s_sum_is_taken_in_the_log_domain():
    kernel = kernels.Exponential()
    valid, weights = tf.constant([[True, True]]), tf.ones([1, 1])
    assert float(kernel.log1p_sum(tf.constant([[1e4, 1e4]]), valid, weights)[0]) == pytest.approx(
        1e4 + math.log(2)
    )
    tiny = float(kernel.log1p_sum(tf.constant([[-50.0, -50.0]]), valid, weights)[0])
    assert tiny == pytest.approx(2 * math.exp(-50), rel=1e-5)
    weights = tf.constant([[1e-30, 1e-30]])
    heavy = float(kernel.log1p_sum(tf.constant([[100.0, 100.0]]), valid, weights)[0])
    assert heavy == pytest.approx(math.log(2e-30) + 100.0, rel=1e-6)


def test_config_round_trip_of_every_built_in_kernel():
    for kernel in (kernels.Hinge(1.5), *(kind() for kind in kernels.NAMED.values())):
        assert kernels.get(kernels.to_config(kernel), gradient=False) == kernel


class Squared(kernels.ComparisonKernel):
    """Half the square of the hinge, which is exactly zero below its margin."""

    vanishes_far_below = True

    def __call__(self, gaps):
        return 0.5 * tf.square(tf.nn.relu(gaps + 1.0))


class Cautious(Squared):
    """The same kernel, without a declaration of its own."""


class NarrowSigmoid(kernels.Sigmoid):
    """A subclass of a built-in kernel."""


class OverflowingRoot(kernels.ComparisonKernel):
    """Small far below a tie, but not in floating point: the square of the gap overflows."""

    vanishes_far_below = True

    def __call__(self, gaps):
        return 0.5 * (gaps + tf.sqrt(tf.square(gaps) + 1.0))


def test_the_fast_form_is_for_classes_that_declare_it_themselves():
    def is_fast(kernel, rank_kernel=None):
        if rank_kernel is None:
            return has_fast_form(CROLoss(kernel=kernel).objective)
        return has_fast_form(LambdaCROLoss(rank_kernel=rank_kernel, kernel=kernel).objective)

    assert is_fast(Squared()) and is_fast("softplus", Squared()) and is_fast(Squared(), "unit_step")
    assert not is_fast(Cautious()) and not is_fast(NarrowSigmoid()) and not is_fast(tf.exp)
    assert not is_fast("softplus", Cautious()) and not is_fast(Cautious(), "softplus")
    ours = [kind for kind in kernels.NAMED.values() if kind.__module__.startswith("tfrs_croloss.")]
    assert len(ours) >= 6 and all(kind.vanishes_far_below for kind in ours)


@pytest.mark.parametrize("kind", kernels.NAMED.values())
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_named_kernels_vanish_far_below_a_tie(kind, dtype):
    kernel, gaps = kind(), tf.constant([[kernels.FAR_BELOW]], dtype)
    values = kernel.block_values(gaps) if kernel.has_gradient else (kernel(gaps),)
    for value in values:
        np.testing.assert_array_equal(value, [[0.0]])


def test_a_wrong_declaration_is_refused():
    with pytest.raises(ValueError, match="`rank_kernel` should be exactly 0.*OverflowingRoot"):
        LambdaCROLoss(rank_kernel=OverflowingRoot())
    with pytest.raises(ValueError, match="`kernel` should be exactly 0.*vanishes_far_below"):
        tf.function(lambda: CROLoss(kernel=OverflowingRoot()).per_query([[1.0]], [[1.0]]))()


@pytest.mark.parametrize(
    "options", [{}, {"score_mask": np.eye(5, 11) + np.arange(11) % 3 > 0}], ids=["all", "masked"]
)
@pytest.mark.parametrize("rank_kernel", ["sigmoid", "unit_step", "exponential", Squared()])
def test_a_kernel_of_ones_own_gives_the_same_numbers_block_by_block(rank_kernel, options):
    generator = np.random.default_rng(0)
    arguments = [tf.constant(generator.normal(size=[count, 4])) for count in (5, 11)]
    results = []
    for kernel in (Squared(), Cautious()):
        loss = LambdaCROLoss(1.2, rank_kernel, kernel, 300)
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = Retrieval(loss, memory_budget=2 * 8 * 11)(*arguments, **options)
        results.append((value, *tape.gradient(value, arguments)))
    for fast, slow in zip(*results):
        np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-12)


def test_a_name_is_one_line_beside_the_class(monkeypatch):
    monkeypatch.setattr(kernels.naming, "NAMED", dict(kernels.NAMED))
    kernels.named("squared")(Squared)
    loss = CROLoss(kernel="squared")
    assert loss.get_config()["kernel"] == {"name": "squared"}
    assert type(CROLoss.from_config(loss.get_config()).kernel) is Squared
    kernels.named("squared")(Squared)  # A notebook's cell that is run again.
    with pytest.raises(ValueError, match="no other kernel has. Received: 'softplus'"):
        kernels.named("softplus")(Squared)
    with pytest.raises(ValueError, match="'squared', .*'unit_step'.*import the module"):
        CROLoss(kernel="unknown")
