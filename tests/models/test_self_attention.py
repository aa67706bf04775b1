"""The self-attention encoder against plain NumPy, and training on all positions in one pass."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss import CROLoss
from tfrs_croloss.models import (
    CatalogueModel,
    Feature,
    HistoryTower,
    ItemEmbedding,
    ItemTower,
    SelfAttentionEncoder,
    TwoTowerModel,
)
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

NUM_ITEMS, DIM = 9, 6
PAD = NUM_ITEMS
# Padding at the end, in the middle, at the front, and everywhere.
HISTORIES = [[1, 2, 3, 4, PAD], [5, PAD, 6, 2, 7], [PAD, 8, 8, PAD, PAD], [PAD] * 5]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights are the same in every run."""
    tf.keras.utils.set_random_seed(0)


def sequences(batch: int = 3, length: int = 5, dim: int = DIM) -> tf.Tensor:
    return tf.random.stateless_normal([batch, length, dim], seed=[1, 2])


def randomize(layer: tf.keras.layers.Layer, seed: int = 0) -> None:
    """Weights that are all different, norms and biases too."""
    generator = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(weight + generator.normal(size=weight.shape) * 0.3)


def plain_states(encoder: SelfAttentionEncoder, inputs: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """One row and one position at a time, from the formulas and the layer's weights by name."""
    weights = {
        # Keras 3 has the path apart from the name.
        getattr(variable, "path", variable.name).split("/", 1)[1].removesuffix(":0"): (
            variable.numpy().astype(np.float64)
        )
        for variable in encoder.variables
    }

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled = (x - x.mean()) / math.sqrt(x.var() + 1e-6)
        return scaled * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return np.array([0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in x])

    dim = inputs.shape[-1]
    size = dim // encoder.heads
    result = np.zeros(inputs.shape)
    for row in range(len(inputs)):
        columns = np.flatnonzero(mask[row])
        states = []
        for place, column in enumerate(columns):
            back = min(len(columns) - 1 - place, encoder.max_length - 1)
            states.append(inputs[row, column] * math.sqrt(dim) + weights["positions"][back])
        for number in range(encoder.blocks):
            block = f"block_{number}"
            normed = [norm(state, f"{block}/attention_norm") for state in states]
            attended = []
            for place in range(len(states)):
                heads = []
                for head in range(encoder.heads):
                    part = slice(head * size, (head + 1) * size)
                    query = dense(normed[place], f"{block}/query")[part]
                    keys = [dense(x, f"{block}/key")[part] for x in normed[: place + 1]]
                    values = [dense(x, f"{block}/value")[part] for x in normed[: place + 1]]
                    scores = np.exp([query @ key / math.sqrt(size) for key in keys])
                    heads.append(sum(s * v for s, v in zip(scores / scores.sum(), values)))
                attended.append(dense(np.concatenate(heads), f"{block}/output"))
            states = [state + more for state, more in zip(states, attended)]
            hidden = [
                gelu(dense(norm(state, f"{block}/hidden_norm"), f"{block}/hidden"))
                for state in states
            ]
            states = [state + dense(x, f"{block}/result") for state, x in zip(states, hidden)]
        for column, state in zip(columns, states):
            result[row, column] = norm(state, "norm")
    return result


@pytest.mark.parametrize(("blocks", "heads", "max_length"), [(1, 1, 50), (2, 3, 2)])
def test_states_are_those_of_the_formulas(blocks: int, heads: int, max_length: int) -> None:
    encoder = SelfAttentionEncoder(max_length, blocks, heads, feed_forward=2)
    inputs = sequences(4)
    mask = np.array(HISTORIES) < NUM_ITEMS
    encoder(inputs)
    randomize(encoder)
    expected = plain_states(encoder, inputs.numpy(), mask)
    states = encoder.states(inputs, tf.constant(mask))
    np.testing.assert_allclose(states, expected, atol=2e-5)
    last = [expected[0, 3], expected[1, 4], expected[2, 2], np.zeros(DIM)]
    np.testing.assert_allclose(encoder(inputs, mask=tf.constant(mask)), last, atol=2e-5)
    everything = plain_states(encoder, inputs.numpy(), np.ones_like(mask))
    np.testing.assert_allclose(encoder(inputs), everything[:, -1], atol=2e-5)


def test_a_later_item_never_changes_an_earlier_state() -> None:
    encoder = SelfAttentionEncoder(blocks=2, heads=2)
    inputs = sequences().numpy()
    encoder(inputs)
    randomize(encoder)
    states = encoder.states(inputs).numpy()
    for place in range(1, 5):
        changed = inputs.copy()
        changed[:, place:] *= -3.0
        after = encoder.states(changed).numpy()
        np.testing.assert_array_equal(after[:, :place], states[:, :place])
        assert np.all(np.abs(after[:, place:] - states[:, place:]).max(axis=-1) > 1e-3)
    # And no gradient flows from an earlier state to a later item.
    variable = tf.Variable(inputs)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.square(encoder.states(variable)[:, 2]))
    slopes = np.abs(tape.gradient(value, variable).numpy()).max(axis=(0, 2))
    assert np.all(slopes[:3] > 0) and np.all(slopes[3:] == 0)


def test_rows_do_not_know_each_other() -> None:
    encoder = SelfAttentionEncoder(blocks=2, heads=2)
    inputs, mask = sequences(4), tf.constant(HISTORIES) < NUM_ITEMS
    states = encoder.states(inputs, mask).numpy()
    order = [2, 0, 3, 1]
    shuffled = encoder.states(tf.gather(inputs, order), tf.gather(mask, order))
    np.testing.assert_allclose(shuffled, states[order], atol=1e-6)


def test_padding_adds_nothing_wherever_it_is() -> None:
    encoder = SelfAttentionEncoder(blocks=2, heads=2)
    inputs = sequences(1, 3)
    expected = encoder.states(inputs).numpy()[0]
    for columns in ([0, 1, 2], [3, 4, 5], [0, 2, 5]):
        padded = np.full([1, 6, DIM], np.nan, np.float32)
        mask = np.zeros([1, 6], bool)
        padded[0, columns], mask[0, columns] = inputs[0], True
        found = encoder.states(padded, mask).numpy()[0]
        np.testing.assert_allclose(found[columns], expected, atol=1e-6)
        assert np.all(found[~mask[0]] == 0)


def test_it_takes_the_place_of_a_gru() -> None:
    """In a tower as TFRS' tutorials have it: Keras passes the mask of the embedding on."""
    tower = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(10, DIM, mask_zero=True),
            SelfAttentionEncoder(max_length=4, heads=2, dropout=0.1),
        ]
    )
    ids = tf.constant([[3, 4, 0, 0], [5, 6, 7, 8]])
    np.testing.assert_allclose(tower(ids)[0], tower(ids[:, :2])[0], atol=1e-6)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.square(tower(ids, training=True)[:, 0]))
    gradients = tape.gradient(value, tower.trainable_variables)
    assert all(gradient is not None for gradient in gradients)


def test_wrong_arguments_are_named() -> None:
    for options, message in (
        ({"blocks": 0}, "`blocks` should be a whole number of at least 1"),
        ({"heads": 1.5}, "`heads` should be a whole number of at least 1"),
        ({"max_length": -1}, "`max_length` should be"),
        ({"dropout": 1.0}, "`dropout` should be at least 0 and below 1. Received: 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            SelfAttentionEncoder(**options)
    with pytest.raises(ValueError, match="`heads` should divide the size of the vectors"):
        SelfAttentionEncoder(heads=4)(sequences())


# ----------------------------------------------------------------------------------------- dropout


def test_dropout_is_for_training_and_keeps_the_mean() -> None:
    encoder = SelfAttentionEncoder(blocks=1, dropout=0.5, seed=3)
    inputs = sequences()
    calm = encoder(inputs).numpy()
    np.testing.assert_array_equal(encoder(inputs, training=False), calm)
    passes = [encoder(inputs, training=True).numpy() for _ in range(3)]
    assert all(np.abs(one - calm).max() > 0.01 for one in passes)
    assert np.abs(passes[0] - passes[1]).max() > 0.01
    # The masks are those of the seed and the pass.
    again = SelfAttentionEncoder(blocks=1, dropout=0.5, seed=3)
    again(inputs)
    again.set_weights([*encoder.get_weights()[:-1], np.int64(1)])
    assert again.weights[-1].dtype == tf.int64
    np.testing.assert_array_equal(again(inputs, training=True), passes[1])


def test_a_run_from_a_checkpoint_drops_what_an_uninterrupted_one_drops(
    tmp_path: pathlib.Path,
) -> None:
    batch = position_batch()

    def make() -> TwoTowerModel:
        tf.keras.utils.set_random_seed(1)
        model = make_model(SelfAttentionEncoder(blocks=1, dropout=0.5, seed=0), CatalogueModel)
        model.compile(tf.keras.optimizers.Adam(0.05))
        model.compute_loss(batch)
        model.optimizer.build(model.trainable_variables)
        return model

    def steps(model: TwoTowerModel, count: int) -> None:
        for _ in range(count):
            model.train_step(batch)

    whole = make()
    steps(whole, 2)
    path = tf.train.Checkpoint(whole).write(str(tmp_path / "state"))
    steps(whole, 2)
    resumed = make()
    tf.train.Checkpoint(resumed).read(path).assert_existing_objects_matched()
    steps(resumed, 2)
    for one, other in zip(whole.variables, resumed.variables):
        np.testing.assert_array_equal(one, other)


# --------------------------------------------------------------------------------------- positions


def make_model(encoder: Any, kind: type = TwoTowerModel, **options: Any) -> TwoTowerModel:
    embedding = ItemEmbedding(NUM_ITEMS, DIM, stddev=1.0, seed=3)
    tower = HistoryTower(embedding, encoder=encoder, **options)
    loss = CROLoss.softmax_cross_entropy()
    if kind is CatalogueModel:
        return CatalogueModel(
            NUM_ITEMS, tower, ItemTower(embedding), CatalogueRetrieval(loss, temperature=0.5)
        )
    return TwoTowerModel(tower, ItemTower(embedding), Retrieval(loss, temperature=0.5))


def position_batch(**more: Any) -> dict[str, tf.Tensor]:
    """Two sequences, 1 2 3 4 -> 5 and 6 7 -> 0, without the first position of the first one."""
    return {
        "history": tf.constant([[1, 2, 3, 4], [6, 7, PAD, PAD]]),
        "query_positions": tf.constant([[0, 1], [0, 2], [0, 3], [1, 0], [1, 1]], tf.int64),
        "item_id": tf.constant([3, 4, 5, 7, 0]),
        **more,
    }


def one_by_one(**more: Any) -> dict[str, tf.Tensor]:
    """The same positions, each with a history of its own."""
    histories = [[1, 2], [1, 2, 3], [1, 2, 3, 4], [6], [6, 7]]
    return {
        "history": tf.constant([items + [PAD] * (4 - len(items)) for items in histories]),
        "item_id": tf.constant([3, 4, 5, 7, 0]),
        **more,
    }


@pytest.mark.parametrize("kind", [TwoTowerModel, CatalogueModel])
@pytest.mark.parametrize("encoder", ["mean", "gru", "transformer"])
def test_one_pass_has_the_loss_and_the_gradient_of_one_example_per_position(
    encoder: str, kind: type
) -> None:
    model = make_model(encoder, kind)
    known = tf.ragged.constant([[1, 2], [8], [], [7, 1], []], dtype=tf.int32)
    more = {"known_item_ids": known}
    if kind is TwoTowerModel:
        more["negative_item_id"] = tf.constant([0, 1, 2, 8, 8])
    model.compute_loss(one_by_one(**more))
    if encoder == "transformer":
        randomize(model.query_tower.self_attention)
        # Positions count back from the end of a history, where the two differ.
        positions = model.query_tower.self_attention.weights[0]
        positions.assign(tf.zeros_like(positions))
    found = []
    for batch in (position_batch(**more), one_by_one(**more)):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(batch, training=True)
        gradients = tape.gradient(loss, model.trainable_variables)
        found.append([loss, *map(tf.convert_to_tensor, gradients)])
    for variable, one, other in zip(["loss", *model.trainable_variables], *found):
        if encoder == "transformer" and variable is positions:
            continue
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", ["mean", "gru", "transformer"])
def test_the_last_position_is_what_is_served(encoder: str) -> None:
    tower = HistoryTower(
        ItemEmbedding(NUM_ITEMS, DIM, stddev=1.0),
        encoder=encoder,
        features=[Feature("age", (1, 2))],
    )
    history = tf.constant(HISTORIES[:3])
    inputs = {"history": history, "age": tf.constant([1, 2, 3])}
    served = tower(inputs)
    found = tower.at_positions(inputs, tf.constant([[0, 3], [1, 4], [2, 2]]))
    np.testing.assert_allclose(found, served, atol=1e-6)
    if encoder == "transformer":
        wide = {**inputs, "history": tf.pad(history, [[0, 0], [0, 7]], constant_values=PAD)}
        np.testing.assert_allclose(tower(wide), served, atol=1e-6)


def test_a_later_item_never_changes_an_earlier_query() -> None:
    for encoder in ("mean", "gru", "transformer"):
        model = make_model(encoder)
        batch = position_batch()
        before = model.embed_queries(batch).numpy()
        batch["history"] = tf.constant([[1, 2, 3, 8], [6, 0, PAD, PAD]])
        after = model.embed_queries(batch).numpy()
        changed = np.abs(after - before).max(axis=1) > 1e-4
        assert changed.tolist() == [False, False, True, False, True]


def test_a_tower_without_positions_is_named() -> None:
    embedding = ItemEmbedding(NUM_ITEMS, DIM)
    task = Retrieval(CROLoss.softmax_cross_entropy())
    model = TwoTowerModel(ItemTower(embedding), ItemTower(embedding), task)
    with pytest.raises(ValueError, match="should have a method `at_positions`"):
        model.embed_queries(position_batch())


@pytest.mark.slow
def test_training_on_positions_learns_a_cycle() -> None:
    """Item i is followed by item i + 1, which only the latest item tells."""
    model = make_model(SelfAttentionEncoder(blocks=1, dropout=0.1, seed=0), CatalogueModel)
    sequences = (np.arange(9)[:, np.newaxis] + np.arange(7)) % NUM_ITEMS
    rows, columns = np.divmod(np.arange(9 * 6), 6)
    batch = {
        "history": tf.constant(sequences[:, :-1], tf.int32),
        "query_positions": tf.constant(np.stack([rows, columns], axis=1)),
        "item_id": tf.constant(sequences[:, 1:].reshape(-1), tf.int32),
    }
    model.compile(tf.keras.optimizers.Adam(0.02))
    model.fit(tf.data.Dataset.from_tensors(batch).repeat(180), verbose=0)
    scores = tf.matmul(
        model.embed_queries({"history": batch["history"]}),
        model.embed_catalogue(NUM_ITEMS),
        transpose_b=True,
    )
    np.testing.assert_array_equal(np.argmax(scores, axis=1), sequences[:, -1])


# ------------------------------------------------------------------------------------ round trips


def test_configurations_come_back() -> None:
    encoder = SelfAttentionEncoder(7, 3, 2, 0.25, 4, True, 11, "mine")
    config = tf.keras.layers.serialize(encoder)
    again = tf.keras.layers.deserialize(config)
    assert again.get_config() == encoder.get_config()
    assert (again.max_length, again.blocks, again.heads, again.name) == (7, 3, 2, "mine")
    assert (again.dropout, again.feed_forward, again.return_sequences) == (0.25, 4, True)
    tower = HistoryTower(ItemEmbedding(NUM_ITEMS, DIM), encoder=encoder)
    twin = HistoryTower.from_config(tower.get_config())
    assert twin.get_config()["encoder"] == tower.get_config()["encoder"]
    histories = tf.constant(HISTORIES)
    tower(histories), twin(histories)
    twin.set_weights(tower.get_weights())
    np.testing.assert_array_equal(twin(histories), tower(histories))


@pytest.mark.slow
def test_a_saved_model_serves_histories_of_any_length(tmp_path: pathlib.Path) -> None:
    model = make_model(SelfAttentionEncoder(heads=2, dropout=0.5))
    histories = tf.constant(HISTORIES)
    expected = model.embed_queries({"history": histories}).numpy()

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def serve(history: tf.Tensor) -> tf.Tensor:
        return model.embed_queries({"history": history})

    module = tf.Module()
    module.tower, module.serve = model.query_tower, serve
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded.serve(histories), expected, atol=1e-6)
    np.testing.assert_allclose(loaded.serve(histories[:1, :4]), expected[:1], atol=1e-6)


def test_half_precision_is_close_to_single() -> None:
    inputs, mask = sequences(4, 5, 8), tf.constant(HISTORIES) < NUM_ITEMS
    encoder = SelfAttentionEncoder(heads=2, dropout=0.1)
    encoder(inputs)
    randomize(encoder)
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        half = SelfAttentionEncoder(heads=2, dropout=0.1)
        half(inputs)
        half.set_weights(encoder.get_weights())
        states = half.states(inputs, mask)
        assert states.dtype == tf.float16
        assert {weight.dtype for weight in half.trainable_variables} == {tf.float32}
        np.testing.assert_allclose(states, encoder.states(inputs, mask), atol=0.03)
        assert np.all(np.isfinite(half(inputs * 100.0, mask=mask, training=True)))
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
