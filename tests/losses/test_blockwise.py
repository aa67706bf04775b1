"""The fast paths give the numbers of the readable ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tests.support import oracle
from tests.support.repeats import first_of_each, kernels_of
from tfrs_croloss import CROLoss, LambdaCROLoss
from tfrs_croloss.losses import Pull, _blockwise, _dense
from tfrs_croloss.losses._blockwise import Competition, most_rows, rows_per_block
from tfrs_croloss.losses.baselines import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    LowerLeftPartialAUC,
    SoftmaxAtK,
    Talos,
)
from tfrs_croloss.losses.ranks import rank_estimator
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

LOSSES = [
    make(alpha, kernel)
    for alpha, kernel in itertools.product((1.4, 0.0), oracle.DIFFERENTIABLE)
    for make in (
        lambda alpha, kernel: CROLoss(alpha, kernel, 5000),
        lambda alpha, kernel: LambdaCROLoss(alpha, "sigmoid", kernel, 5000),
        lambda alpha, kernel: LambdaCROLoss(alpha, "unit_step", kernel, reduction="sum"),
        lambda alpha, kernel: LambdaCROLoss(alpha, "exponential", kernel),
    )
]
# The quick ones: each kernel in two of the four kinds of loss, and each kind with two kernels.
CHECKERED = [
    pytest.param(
        loss, marks=[] if number < 16 and (number // 4 + number) % 2 == 0 else [pytest.mark.slow]
    )
    for number, loss in enumerate(LOSSES)
]
PULLED = [
    CROLoss(1.4, "softplus", 5000, pull=Pull(0.95, easing=0.1)),
    CROLoss(1.0, "exponential", pull=0.9),
    LambdaCROLoss(1.4, "sigmoid", "exponential", 5000, pull=Pull(easing=0.1), descent="log_rank"),
    LambdaCROLoss(1.2, "sigmoid", "softplus", descent="log_rank"),
]


def value_and_gradients(function, *arguments):
    arguments = [tf.constant(argument) for argument in arguments]
    with tf.GradientTape() as tape:
        for argument in arguments:
            tape.watch(argument)
        value = function(*arguments)
    return value, tape.gradient(value, arguments)


def assert_same(fast, slow, tolerance):
    np.testing.assert_allclose(fast[0], slow[0], rtol=tolerance)
    for one, other in zip(fast[1], slow[1]):
        largest = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * largest)


def batch(num_queries, num_candidates, dtype="float64", scale=1.0, seed=0):
    generator = np.random.default_rng(seed)
    return (
        scale * generator.normal(size=[num_queries, 6]).astype(dtype),
        generator.normal(size=[num_candidates, 6]).astype(dtype),
    )


def options_of(num_queries, num_candidates):
    generator = np.random.default_rng(1)
    mask = generator.random([num_queries, num_candidates]) < 0.7
    np.fill_diagonal(mask, True)
    ids = generator.integers(0, num_candidates // 2 + 1, size=num_candidates)
    return {
        "plain": ({}, {}),
        "masked": ({}, {"score_mask": mask}),
        "hits": ({"remove_accidental_hits": True}, {"candidate_ids": ids}),
        "known": (
            {},
            {
                "candidate_ids": ids,
                "known_positive_ids": tf.RaggedTensor.from_row_lengths(
                    ids[generator.integers(0, num_candidates, size=3 * num_queries)],
                    [3] * num_queries,
                ),
            },
        ),
        "probability": (
            {},
            {"candidate_sampling_probability": generator.uniform(1e-4, 0.1, num_candidates)},
        ),
        "probability of each": (
            {},
            {
                "candidate_sampling_probability": generator.uniform(
                    1e-4, 0.1, [num_queries, num_candidates]
                )
            },
        ),
        "weighted": ({"temperature": 0.3}, {"sample_weight": generator.random(num_queries)}),
    }


@pytest.mark.parametrize("loss", [*CHECKERED, *PULLED], ids=repr)
def test_the_fused_task_equals_the_one_with_scores(loss):
    """Blocks of odd size, one row, more candidates than queries, every option."""

    class Unfused(Retrieval):
        def _can_be_fused(self, query_embeddings):
            return False

    for num_queries, num_candidates in ((7, 11), (1, 1), (5, 5)):
        queries, candidates = batch(num_queries, num_candidates)
        for task, call in options_of(num_queries, num_candidates).values():
            budget = 3 * 8 * num_candidates  # three rows
            fast = value_and_gradients(
                lambda q, c: Retrieval(loss, memory_budget=budget, **task)(q, c, **call),
                queries,
                candidates,
            )
            slow = value_and_gradients(
                lambda q, c: Unfused(loss, **task)(q, c, **call), queries, candidates
            )
            assert_same(fast, slow, 1e-9)
        if loss.alpha != 0.0:
            break


@pytest.mark.parametrize("loss", [*CHECKERED, *PULLED], ids=repr)
def test_chunks_make_no_difference(loss, monkeypatch):
    queries, candidates = batch(7, 18)
    for task, call in options_of(7, 18).values():
        outcomes = []
        for chunk_bytes in (_blockwise._CHUNK_BYTES, 8 * 4 * 7):
            monkeypatch.setattr(_blockwise, "_CHUNK_BYTES", chunk_bytes)
            outcomes.append(
                value_and_gradients(
                    lambda q, c: Retrieval(loss, **task)(q, c, **call), queries, candidates
                )
            )
            assert len(_blockwise.chunk_bounds(18, 7, 8)) == (2 if len(outcomes) == 1 else 6)
        monkeypatch.undo()
        assert_same(outcomes[1], outcomes[0], 1e-9)


@pytest.mark.parametrize("loss", [*first_of_each(LOSSES, kernels_of), *PULLED], ids=repr)
def test_positives_by_index_give_what_the_readable_form_gives(loss, monkeypatch):
    """Labelled scores with one positive in each row: masks, probabilities, both types."""
    generator = np.random.default_rng(0)
    for dtype, tolerance in (("float64", 1e-9), ("float32", 2e-5)):
        scores = generator.normal(size=[5, 9]).astype(dtype)
        labels = np.eye(9, dtype=dtype)[generator.integers(0, 9, size=5)]
        mask = np.logical_or(labels, generator.random([5, 9]) < 0.6)
        probability = generator.uniform(1e-3, 0.1, 9).astype(dtype)
        for options in ({}, {"mask": mask}, {"sampling_probability": probability}):

            def weighted(values):
                losses = loss.per_query(values, labels, **options)
                return tf.reduce_sum(losses * tf.range(1, 6, dtype=dtype))

            fast = value_and_gradients(weighted, scores)
            with monkeypatch.context() as patch:
                patch.setattr(_dense, "has_fast_form", lambda objective: False)
                slow = value_and_gradients(weighted, scores)
            assert_same(fast, slow, tolerance)


def test_only_rows_with_one_positive_in_sight_go_by_its_index(monkeypatch):
    asked = []
    monkeypatch.setattr(
        _dense, "_all_positives", lambda *_: asked.append(True) or (tf.zeros(2), tf.zeros(()))
    )
    one, two = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    hidden = [[False, True, True], [True, True, True]]
    for labels, mask in ((one, None), (np.array(one, bool), None), (np.array(one, int), None)):
        CROLoss().per_query(tf.zeros([2, 3]), labels, mask=mask)
    assert not asked
    CROLoss().per_query(tf.zeros([2, 3]), two)
    CROLoss(mask_rows_without_positive=True).per_query(tf.zeros([2, 3]), one, mask=hidden)
    assert len(asked) == 2


@pytest.mark.parametrize("scale", [0.5, 3.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize(
    "loss", [LambdaCROLoss(1.0, "sigmoid", "softplus"), CROLoss(1.0, "sigmoid")]
)
def test_the_length_of_the_vectors_makes_no_difference(loss, scale):
    """The bound from the lengths allows large gaps, whether or not there are any."""
    queries, candidates = batch(4, 9, scale=scale)
    fast = value_and_gradients(Retrieval(loss), queries, candidates)
    slow = value_and_gradients(
        lambda q, c: loss(tf.eye(4, 9), tf.matmul(q, c, transpose_b=True)), queries, candidates
    )
    assert_same(fast, slow, 1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_extreme_gaps_stay_finite(loss):
    queries, candidates = batch(4, 9, "float32", scale=2000.0)
    value, gradients = value_and_gradients(Retrieval(loss), queries, candidates)
    assert np.isfinite(value)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_nan_embeddings_give_a_nan_loss():
    queries, candidates = batch(4, 9, "float32")
    queries[2] = np.nan
    for loss in LOSSES[:8]:
        assert np.isnan(Retrieval(loss)(queries, candidates))


def test_second_use_of_the_embeddings_adds_up():
    queries, candidates = batch(4, 9)
    task = Retrieval(CROLoss())
    _, once = value_and_gradients(task, queries, candidates)
    _, twice = value_and_gradients(
        lambda q, c: 3.0 * task(q, c) + tf.reduce_sum(q), queries, candidates
    )
    np.testing.assert_allclose(twice[0], 3.0 * once[0] + 1.0, rtol=1e-12)
    np.testing.assert_allclose(twice[1], 3.0 * once[1], rtol=1e-12)


def test_block_sizes():
    table = tf.zeros([1000, 8])
    row = 4 * 1000
    assert most_rows(table, 10 * row) == 10
    assert most_rows(table, 1) == 1
    assert most_rows(table, None) == 1572  # 6 MB
    assert most_rows(tf.zeros([10**5, 1]), None) == 40
    assert most_rows(tf.zeros([18 * 10**5, 1]), None) == 75  # 545 MB
    assert most_rows(tf.zeros([18 * 10**5, 1]), None, is_chunked=False) == 40
    # It would be 555 by the number of candidates alone.
    assert most_rows(tf.zeros([10**7, 1]), None) == 40
    assert int(rows_per_block(tf.constant(100), 10)) == 10
    assert int(rows_per_block(tf.constant(100), 10**9)) == 100
    assert int(rows_per_block(tf.constant(100), 99)) == 50  # even blocks
    assert int(rows_per_block(tf.constant(0), 40)) == 1


def test_blocks_of_as_many_candidates_as_there_are_in_the_end():
    @tf.function(input_signature=[tf.TensorSpec([None, 1])])
    def rows(candidates):
        return most_rows(candidates, None), most_rows(candidates, 40)

    by_default, given = rows(tf.zeros([5, 1]))
    assert int(by_default) == 6 * 2**20 // 20
    assert int(given) == 2


def exact_loss(loss, queries, catalogue, positives, known, weights, temperature, cosine):
    """The loss over the whole catalogue, computed from scores by the readable functions."""
    if cosine:
        queries = tf.math.l2_normalize(queries, axis=1)
        catalogue = tf.math.l2_normalize(catalogue, axis=1)
    scores = queries @ tf.transpose(catalogue) / temperature
    num_items = catalogue.shape[0]
    labels = np.eye(num_items)[positives]
    mask = np.ones([len(positives), num_items], bool)
    for row, items in enumerate(known):
        mask[row, items] = False
    mask |= labels > 0
    losses = [
        # One row at a time with |I| as the whole catalogue, of which masked items are a part.
        loss.weighting.integral_at_log(
            tf.math.log(
                tfrs_croloss.soft_rank(
                    scores[i : i + 1], labels[i : i + 1], kernel=loss.kernel, mask=mask[i : i + 1]
                )
            ),
            tf.constant([float(num_items)], scores.dtype),
        )[0]
        for i in range(len(positives))
    ]
    return tf.reduce_sum(tf.stack(losses) * weights)


def check_the_whole_catalogue(loss, cosine):
    queries, catalogue = batch(5, 23)
    positives = np.array([3, 22, 0, 3, 7])
    known = tf.ragged.constant([[1, 2, 1], [], [0, 4], [3], [5, 6, 7, 8]], dtype=tf.int64)
    weights = np.array([1.0, 0.5, 0.0, 2.0, 1.0])
    task = CatalogueRetrieval(loss, temperature=0.5, normalize=cosine, memory_budget=2 * 8 * 23)
    fast = value_and_gradients(
        lambda q, c: task(q, c, positives, weights, known_positive_items=known), queries, catalogue
    )
    slow = value_and_gradients(
        lambda q, c: exact_loss(loss, q, c, positives, known.to_list(), weights, 0.5, cosine),
        queries,
        catalogue,
    )
    assert_same(fast, slow, 1e-9)


@pytest.mark.parametrize("kernel", oracle.DIFFERENTIABLE)
@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("chunk_bytes", [_blockwise._CHUNK_BYTES, 5 * 2 * 8])
def test_the_whole_catalogue(kernel, cosine, chunk_bytes, monkeypatch):
    """In one chunk, and in chunks of five or fewer items."""
    monkeypatch.setattr(_blockwise, "_CHUNK_BYTES", chunk_bytes)
    check_the_whole_catalogue(CROLoss(1.4, kernel), cosine)


@pytest.mark.parametrize("cosine", [False, True])
def test_a_kernel_of_ones_own_ranks_against_the_whole_catalogue(cosine):
    check_the_whole_catalogue(CROLoss(1.4, lambda gaps: tf.square(tf.nn.relu(gaps + 1.0))), cosine)


@pytest.mark.parametrize(
    "loss",
    [
        LambdaCROLoss(1.0, "unit_step", tf.exp),
        BinaryCrossEntropy(calibration=0.5),
        BilateralSoftmax(1.2),
        SoftmaxAtK(5),
        CROLoss(1.2, lambda gaps: tf.square(tf.nn.relu(gaps + 1.0)), pull=Pull(easing=0.1)),
        *PULLED[1:2],
        *PULLED[3:],
        Talos(5),
        LowerLeftPartialAUC(),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_other_losses_rank_against_the_whole_catalogue(loss):
    queries, catalogue = batch(5, 23)
    positives, weights = np.array([3, 22, 0, 3, 7]), np.array([1.0, 0.5, 0.0, 2.0, 1.0])
    task = CatalogueRetrieval(loss, memory_budget=2 * 8 * 23)
    whole = value_and_gradients(
        tf.function(lambda q, c: task(q, c, positives, weights)), queries, catalogue
    )
    expected = value_and_gradients(
        lambda q, c: tf.reduce_sum(
            weights * loss.per_query(q @ tf.transpose(c), np.eye(23)[positives])
        ),
        queries,
        catalogue,
    )
    assert_same(whole, expected, 1e-9)


@pytest.mark.parametrize(
    "loss",
    [BilateralSoftmax(), BinaryCrossEntropy(calibration=0.9), SoftmaxAtK(5)],
    ids=lambda loss: type(loss).__name__,
)
def test_known_positives_are_no_negatives_of_losses_without_a_fast_form(loss):
    queries, catalogue = batch(4, 10)
    task = CatalogueRetrieval(loss)
    known = tf.ragged.constant([[8, 9], [9, 8], [1, 8, 9], [8, 3, 9]])
    value, (_, gradient) = value_and_gradients(
        lambda q, c: task(q, c, [0, 1, 1, 3], known_positive_items=known), queries, catalogue
    )
    without, (_, expected) = value_and_gradients(
        lambda q, c: task(q, c, [0, 1, 1, 3]), queries, catalogue[:8]
    )
    assert float(value) == pytest.approx(float(without), rel=1e-12)
    np.testing.assert_allclose(gradient[:8], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(gradient[8:], 0.0)


def test_whole_rows_take_masks_and_weights_as_chunks_do():
    queries, candidates = batch(5, 11)
    generator = np.random.default_rng(2)
    mask = tf.constant(generator.random([5, 11]) < 0.7)
    weights = tf.constant(generator.uniform(0.5, 2.0, [5, 11]))
    competition = Competition(
        lambda count: rank_estimator(count, num_items=100, candidate_weights=weights[:1]),
        mask=lambda start, size: tf.slice(mask, [start, 0], [size, 11]),
        candidate_weights=lambda start, size: tf.slice(weights, [start, 0], [size, 11]),
    )
    outcomes = [
        value_and_gradients(
            lambda q, c: _blockwise.weighted_loss(
                q,
                c,
                tf.range(5),
                tf.range(5.0, dtype=tf.float64),
                CROLoss(1.2, kernel).objective,
                competition,
            ),
            queries,
            candidates,
        )
        for kernel in ("sigmoid", tf.sigmoid)
    ]
    assert_same(*outcomes, 1e-9)


def test_kernels_that_lose_their_shape_train_against_the_whole_catalogue():
    def kernel(gaps):
        return tf.py_function(lambda values: tf.exp(values), [gaps], gaps.dtype)

    queries, catalogue = batch(4, 10)
    losses = [
        tf.function(CatalogueRetrieval(CROLoss(kernel=of_gaps)))(queries, catalogue, [0, 1, 1, 3])
        for of_gaps in (kernel, "exponential")
    ]
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-9)


@pytest.mark.parametrize("broken", [0, 1])
def test_the_whole_catalogue_is_checked_on_request(broken):
    arguments = [tf.constant(rows) for rows in batch(4, 10)]
    arguments[broken] = tf.concat([arguments[broken][:2], arguments[broken][2:] * np.nan], axis=0)
    names = ("query_embeddings", "catalogue_embeddings")
    task = CatalogueRetrieval(CROLoss(check_scores=True))
    with pytest.raises(ValueError, match=f"`{names[broken]}` should be finite"):
        task(*arguments, [0, 1, 1, 3])


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: CatalogueRetrieval(tf.keras.losses.MeanSquaredError()),
            "`loss` should be a loss of",
        ),
        (lambda: CatalogueRetrieval(CROLoss(reduction="none")), "`loss` should be reduced"),
        (lambda: CatalogueRetrieval(CROLoss(), memory_budget=0), "`memory_budget`"),
        (lambda: CatalogueRetrieval(CROLoss())(*batch(2, 5), [0, 5]), "`positive_items` should be"),
        (lambda: CatalogueRetrieval(CROLoss())(*batch(2, 5), ["a", "b"]), "as integers"),
        (
            lambda: CatalogueRetrieval(CROLoss())(batch(2, 5)[0][:, :3], batch(2, 5)[1], [0, 1]),
            "embed",
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_trains_with_fit_against_the_whole_catalogue():
    import tensorflow_recommenders as tfrs

    class Model(tfrs.Model):
        def __init__(self):
            super().__init__()
            self.users = tf.keras.layers.Embedding(50, 8)
            self.items = tf.keras.layers.Embedding(40, 8)
            self.task = CatalogueRetrieval(LambdaCROLoss(), temperature=0.1, normalize=True)

        def compute_loss(self, inputs, training=False):
            users, item = inputs
            self.items(item)  # builds the table
            return self.task(self.users(users), self.items.embeddings, item)

    tf.keras.utils.set_random_seed(0)
    users = np.arange(50)
    data = tf.data.Dataset.from_tensor_slices((users, users % 40)).batch(16)
    model = Model()
    model.compile(optimizer=tf.keras.optimizers.Adam(0.05))
    model.fit(data, epochs=40, verbose=0)
    queries, items = (
        tf.math.l2_normalize(layer.embeddings, axis=1) for layer in (model.users, model.items)
    )
    best = np.argmax(queries @ tf.transpose(items), axis=1)
    assert np.mean(best == users % 40) > 0.9
