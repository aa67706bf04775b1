"""LazyAdam: Adam where there is a gradient, nothing where there is none."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss.optimizers import LazyAdam

RATE, BETA_1, BETA_2, EPSILON = 0.1, 0.8, 0.95, 1e-3
SETTINGS = {"learning_rate": RATE, "beta_1": BETA_1, "beta_2": BETA_2, "epsilon": EPSILON}


def slices(rows, values, num_rows):
    values = tf.constant(values, tf.float32)
    shape = tf.constant([num_rows, values.shape[1]])
    return tf.IndexedSlices(values, tf.constant(rows, tf.int64), shape)


def slow_lazy_adam(table, steps, amsgrad=False, decay=0.0):
    """Row by row and number by number, in float64."""
    table = [[float(number) for number in row] for row in table]
    first, second, largest = ({} for _ in range(3))
    for time, (rows, values) in enumerate(steps, start=1):
        sums = {}
        for row, value in zip(rows, values):
            for column, number in enumerate(value):
                sums[row, column] = sums.get((row, column), 0.0) + float(number)
        for (row, column), gradient in sums.items():
            place = (row, column)
            first[place] = BETA_1 * first.get(place, 0.0) + (1 - BETA_1) * gradient
            second[place] = BETA_2 * second.get(place, 0.0) + (1 - BETA_2) * gradient**2
            largest[place] = max(largest.get(place, 0.0), second[place])
            rate = RATE * (1 - BETA_2**time) ** 0.5 / (1 - BETA_1**time)
            root = (largest if amsgrad else second)[place] ** 0.5
            table[row][column] -= RATE * decay * table[row][column]
            table[row][column] -= rate * first[place] / (root + EPSILON)
    return np.array(table)


def random_steps(num_steps=12, num_rows=10, dim=3, seed=0):
    random = np.random.default_rng(seed)
    return [
        (random.integers(0, num_rows - 2, 7), random.normal(size=(7, dim)))  # repeats some rows
        for _ in range(num_steps)
    ]


def run(optimizer, table, steps, in_graph=False):
    variable = tf.Variable(table, dtype=tf.float32)

    def apply(rows, values):
        gradient = tf.IndexedSlices(values, rows, tf.constant(TABLE.shape))
        optimizer.apply_gradients([(gradient, variable)])

    apply = tf.function(apply) if in_graph else apply
    for rows, values in steps:
        apply(tf.constant(rows), tf.constant(values, tf.float32))
    return variable.numpy()


TABLE = np.random.default_rng(9).normal(size=(10, 3)).astype(np.float32)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decay", [None, 0.0, 0.3])
@pytest.mark.parametrize("in_graph", [False, True])
def test_steps_are_those_of_the_formula(amsgrad, decay, in_graph):
    steps = random_steps()
    assert any(len(set(rows)) < len(rows) for rows, _ in steps)
    optimizer = LazyAdam(amsgrad=amsgrad, weight_decay=decay, **SETTINGS)
    result = run(optimizer, TABLE, steps, in_graph)
    expected = slow_lazy_adam(TABLE, steps, amsgrad, decay or 0.0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_rows_without_gradient_stay_bit_for_bit():
    table = tf.Variable(TABLE)
    optimizer = LazyAdam(weight_decay=0.1)
    optimizer.apply_gradients([(slices([1, 4], np.ones((2, 3)), 10), table)])
    before = [variable.numpy().copy() for variable in (table, *optimizer.variables[1:])]
    optimizer.apply_gradients([(slices([4, 7], np.ones((2, 3)), 10), table)])
    after = [variable.numpy() for variable in (table, *optimizer.variables[1:])]
    touched = np.isin(np.arange(10), [4, 7])
    assert len(after) == 3  # the table and its two moments
    for old, new in zip(before, after):
        assert old[~touched].tobytes() == new[~touched].tobytes()
        assert np.all(old[touched] != new[touched])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"amsgrad": True},
        {"weight_decay": 0.05},
        {"clipnorm": 0.5},
        {"clipvalue": 0.2},
        {"global_clipnorm": 0.5},
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
        {"learning_rate": tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_equals_adam_when_every_row_has_a_gradient(options):
    random = np.random.default_rng(4)
    options = {"learning_rate": 0.05, **options}
    steps = [(random.permutation(10), random.normal(size=(10, 3))) for _ in range(9)]
    adam = tf.keras.optimizers.Adam(**options)
    lazy = run(LazyAdam(**options), TABLE, steps)
    np.testing.assert_allclose(lazy, run(adam, TABLE, steps), rtol=1e-5, atol=1e-6)
    assert np.abs(lazy - TABLE).max() > 0.01


def test_dense_gradients_are_applied_as_adam_does():
    random = np.random.default_rng(5)
    gradients = random.normal(size=(6, 10, 3)).astype(np.float32)
    results = []
    for optimizer in (LazyAdam(weight_decay=0.1), tf.keras.optimizers.Adam(weight_decay=0.1)):
        kernel, bias = tf.Variable(TABLE), tf.Variable(TABLE[0])
        optimizer.exclude_from_weight_decay(var_list=[bias])
        for gradient in gradients:
            optimizer.apply_gradients([(tf.constant(gradient), kernel), (gradient[0], bias)])
        results.append((kernel.numpy(), bias.numpy()))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_decay_can_exclude_a_table():
    table = tf.Variable(TABLE)
    optimizer = LazyAdam(weight_decay=0.5, **SETTINGS)
    optimizer.exclude_from_weight_decay(var_list=[table])
    steps = random_steps(3)
    for rows, values in steps:
        optimizer.apply_gradients([(slices(rows, values, 10), table)])
    np.testing.assert_allclose(table.numpy(), slow_lazy_adam(TABLE, steps), rtol=1e-5, atol=1e-6)


def test_configuration_round_trip():
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.5, 0.1])
    original = LazyAdam(
        learning_rate=schedule,
        beta_1=0.7,
        beta_2=0.8,
        epsilon=0.01,
        amsgrad=True,
        weight_decay=0.02,
        clipvalue=3.0,
        ema_momentum=0.5,
        name="mine",
    )
    description = tf.keras.optimizers.serialize(original)
    assert description["registered_name"] == "tfrs_croloss>LazyAdam"
    restored = tf.keras.optimizers.deserialize(json.loads(json.dumps(description)))
    assert type(restored) is LazyAdam
    assert restored.get_config() == original.get_config()
    assert restored.jit_compile is False
    steps = random_steps(6)
    np.testing.assert_array_equal(run(restored, TABLE, steps), run(original, TABLE, steps))


def test_checkpoint_continues_to_the_same_result(tmp_path):
    steps = random_steps(10)

    def start():
        variable, optimizer = tf.Variable(TABLE), LazyAdam(amsgrad=True, **SETTINGS)
        optimizer.build([variable])
        return variable, optimizer, tf.train.Checkpoint(table=variable, optimizer=optimizer)

    def go_on(variable, optimizer, part):
        for rows, values in part:
            optimizer.apply_gradients([(slices(rows, values, 10), variable)])

    variable, optimizer, checkpoint = start()
    go_on(variable, optimizer, steps[:5])
    path = checkpoint.write(str(tmp_path / "half"))
    go_on(variable, optimizer, steps[5:])
    resumed, resumed_optimizer, checkpoint = start()
    checkpoint.read(path).assert_consumed()
    go_on(resumed, resumed_optimizer, steps[5:])
    assert int(resumed_optimizer.iterations) == 10
    assert resumed.numpy().tobytes() == variable.numpy().tobytes()


def embedding_model():
    tf.keras.utils.set_random_seed(3)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(50, 4, input_length=3),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(1, dtype="float32"),
        ]
    )


def training_data():
    random = np.random.default_rng(6)
    inputs = random.integers(0, 20, size=(64, 3))
    return inputs, (inputs.sum(axis=1, keepdims=True) > 30).astype(np.float32)


def test_fit_save_and_load(tmp_path):
    inputs, labels = training_data()
    model = embedding_model()
    model.compile(optimizer=LazyAdam(0.05), loss="mse")
    before = model.layers[0].embeddings.numpy()
    losses = model.fit(inputs, labels, epochs=15, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2
    assert model.layers[0].embeddings.numpy()[20:].tobytes() == before[20:].tobytes()
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is LazyAdam
    for again in (model, loaded):
        again.fit(inputs, labels, epochs=2, batch_size=16, shuffle=False, verbose=0)
    for ours, theirs in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def test_mixed_precision_skips_steps_that_overflow():
    inputs, labels = training_data()
    try:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        model = embedding_model()
        optimizer = LazyAdam(0.05)
        model.compile(optimizer=tf.keras.mixed_precision.LossScaleOptimizer(optimizer), loss="mse")
        before = model.layers[0].embeddings.numpy()
        losses = model.fit(inputs, labels, epochs=15, batch_size=16, verbose=0).history["loss"]
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    after = model.layers[0].embeddings.numpy()
    assert after.dtype == np.float32 and np.all(np.isfinite(after))
    assert losses[-1] < losses[0] / 2
    assert after[20:].tobytes() == before[20:].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["LazyAdam(0.05, weight_decay=0.1)", "LazyAdam(0.05)"])
def test_two_replicas_do_what_one_does(run_python, optimizer):
    program = f"""
import numpy as np
import tensorflow as tf

from tfrs_croloss.optimizers import LazyAdam

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
random = np.random.default_rng(0)
rows = random.integers(0, 20, size=(6, 8))
table = random.normal(size=(30, 3)).astype("float32")

def train(strategy):
    with strategy.scope():
        variable, optimizer = tf.Variable(table), {optimizer}
    data = tf.data.Dataset.from_tensor_slices(rows).unbatch().batch(8)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf.gather(variable, batch)))
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    run = tf.function(lambda batch: strategy.run(step, args=(batch,)))
    for batch in strategy.experimental_distribute_dataset(data):
        run(batch)
    return [v.numpy() for v in strategy.experimental_local_results(variable)]

alone, = train(tf.distribute.get_strategy())
first, second = train(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
np.testing.assert_array_equal(first, second)
np.testing.assert_allclose(first, alone, rtol=1e-5, atol=1e-6)
np.testing.assert_array_equal(first[20:], table[20:])
assert np.abs(first[:20] - table[:20]).max() > 0.01
print("same")
"""
    assert run_python(program).strip().endswith("same")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"beta_1": 1.0}, "`beta_1`.*1.0"),
        ({"beta_2": -0.1}, "`beta_2`.*-0.1"),
        ({"epsilon": 0.0}, "`epsilon`.*0.0"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LazyAdam(**options)
