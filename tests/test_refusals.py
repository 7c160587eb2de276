"""What towers cannot do is refused before the first step, by name; what they can do is not."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import towers
from towers import gradients, networks
from towers.networks import fusing, optimizers
from towers.networks.layers import FusedBatchNormalization

X = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
Y = X[:, :3].argmax(axis=1)


def of(*between, head=None):
    return keras.Sequential([keras.Input((8,)), *between, head or layers.Dense(3)])


class Calls(keras.layers.Layer):
    """A layer that does something to its inputs, which a test says."""

    def __init__(self, call, make=lambda layer: None, **arguments):
        super().__init__(**arguments)
        make(self)
        self.function = call

    def call(self, x):
        return self.function(self, x)


def layer(call, make=lambda layer: None):
    return of(Calls(call, make, name="peculiar"))


def with_an_own(name):
    """A model of a class that overrides a method."""

    def own(self, *arguments):
        return getattr(keras.Sequential, name)(self, *arguments)

    return type("Peculiar", (keras.Sequential,), {name: own})([keras.Input((8,)), layers.Dense(3)])


def with_a_method():
    model = of()
    model.train_step = types.MethodType(lambda self, data: {}, model)
    return model


def quantized():
    model = of(layers.Dense(4, name="peculiar"))
    model.get_layer("peculiar").quantize("float8")
    return model


class WithAWeightAsOutput(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return {"logits": self.dense(x), "kernel": ops.sum(self.dense.kernel)}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(y_pred["logits"]) + y_pred["kernel"]


class Keeps(WithAWeightAsOutput):
    def call(self, x):
        self.kept = self.dense(x)
        return self.kept

    def compute_loss(self, *_, **__):
        return ops.mean(self.kept)


class Graph(keras.layers.Layer):
    @tf.function
    def call(self, x):
        return x * 2


def in_a_scope():
    with tf.distribute.MirroredStrategy(["/CPU:0"]).scope():
        return of()


def with_batch_size():
    return keras.Sequential([keras.Input((8,), batch_size=20), layers.Dense(3)])


def stateful():
    """With the fixed batch size that it wants, which is another reason to refuse it."""
    rnn = layers.SimpleRNN(3, stateful=True)
    return keras.Sequential([keras.Input((8,), batch_size=20), layers.Reshape((4, 2)), rnn])


def pictures(layer):
    return of(layers.Dense(12), layers.Reshape((2, 2, 3)), layer, layers.Flatten())


def weight(name, **arguments):
    def make(layer):
        layer.own = layer.add_weight(shape=(), initializer="zeros", trainable=False, name=name)

    return make


def tf_variable(layer):
    layer.hidden = tf.Variable(0.0, trainable=False)


def keras_variable(layer):
    layer._unseen = [lambda: None]
    object.__setattr__(layer, "hidden", keras.Variable(0.0, trainable=False))


def assigned(layer, x):
    layer.hidden.assign(tf.reduce_mean(x))
    return x


def totalled(layer, x):
    layer.own.assign_add(ops.sum(x**2))
    return x


def added(value):
    def call(layer, x):
        layer.add_loss(value(x))
        return x

    return call


class Counts(keras.Model):
    """Updates a metric when it is called."""

    def __init__(self, metric, value):
        super().__init__()
        self.last, self.value = layers.Dense(3), value
        self.peculiar = metric(name="peculiar")

    def call(self, x):
        outputs = self.last(x)
        self.peculiar.update_state(self.value(outputs))
        return outputs


class CountsTwice(Counts):
    """The second metric has the name of the first, and does not depend on the cut."""

    def __init__(self):
        super().__init__(keras.metrics.Sum, ops.mean)
        self.other = keras.metrics.Sum(name="peculiar")

    def call(self, x):
        self.other.update_state(ops.ones_like(x))
        return super().call(x)


def words_and_places():
    """Of one table."""
    call = lambda own, x: own.table(ops.cast(x > 0, "int32")) + own.table(ops.arange(8))  # noqa: E731
    make = lambda own: setattr(own, "table", layers.Embedding(8, 3))  # noqa: E731
    return of(Calls(call, make, name="peculiar"), layers.Flatten())


@tf.custom_gradient
def doubled(x):
    return 2 * x, lambda upstream: 2 * upstream


def with_own_gradient(is_last):
    """Of a weight that is no argument; one that is an argument, `doubled`'s, is right."""

    def call(layer, x):
        function = lambda x: x * doubled(layer.peculiar)  # noqa: E731
        back = lambda upstream, variables=(): (upstream, [ops.sum(upstream)] * len(variables))  # noqa: E731
        own = tf.custom_gradient(lambda x: (function(x), back))
        return own(x) if is_last else keras.remat(function)(x)

    def make(layer):
        layer.peculiar = layer.add_weight(shape=(), name="peculiar")

    last = Calls(call, make)
    return of(layers.Dense(3), head=last) if is_last else of(last)


def in_training_alone(noise, call):
    """Beside a layer for which the rest is looked at without training."""

    class InTraining(Calls):
        def call(self, x, training=False):
            return self.function(self, x) if training else x

    return of(noise, InTraining(call, weight("total"), name="peculiar"))


class Largest(keras.metrics.Sum):
    def update_state(self, values):
        self.total.assign(ops.maximum(self.total, ops.max(values)))


def noisy_loss(y_true, y_pred):
    return ops.mean(y_pred**2, axis=-1) + keras.random.uniform(())


REFUSED = {  # by what the message must name
    "train_step": (lambda: with_an_own("train_step"), "train_step"),
    "make_train_function": (lambda: with_an_own("make_train_function"), "make_train_function"),
    "a train_step set on the model": (with_a_method, "train_step"),
    "an output without examples": (WithAWeightAsOutput, "WithAWeightAsOutput"),
    "a loss of what the call has kept": (Keeps, "Keeps .* joined_loss=False"),
    "strategy": (in_a_scope, "tf.distribute"),
    "fixed batch size": (with_batch_size, "batch_size"),
    "tf.function": (lambda: of(Graph(name="peculiar")), "peculiar"),
    "stateful": (stateful, "is stateful"),
    "an assigned kernel": (lambda: of(layers.SpectralNormalization(layers.Dense(4))), "kernel"),
    "synchronized": (lambda: of(layers.BatchNormalization(synchronized=True)), "synchronized"),
    "float8": (quantized, "peculiar"),
    "AugMix": (lambda: pictures(layers.AugMix(name="peculiar")), "AugMix"),
    "tf.Variable": (lambda: layer(assigned, tf_variable), "tf.Variable"),
    "a variable that is no weight": (lambda: layer(assigned, keras_variable), "add_weight"),
    "tf.random": (lambda: layer(lambda own, x: x + tf.random.normal(tf.shape(x))), "SeedGenerator"),
    "keras.random": (lambda: layer(lambda own, x: x + keras.random.normal((8,))), "SeedGenerator"),
    "a sum": (lambda: layer(added(lambda x: ops.sum(x**2))), "add_loss"),
    "a metric of one number of a batch": (lambda: Counts(keras.metrics.Mean, ops.mean), "peculiar"),
    "the first of two metrics of one name": (CountsTwice, "peculiar"),
    "a metric that does not add": (lambda: Counts(Largest, lambda x: x), "peculiar"),
    "a running total": (lambda: layer(totalled, weight("total")), "total"),
    "two views": (lambda: of(head=Calls(lambda own, x: ops.concatenate([x, x], axis=0))), "output"),
    "words and places": (words_and_places, "peculiar"),
    "remat": (lambda: with_own_gradient(is_last=False), "peculiar"),
    "a gradient of ones own": (lambda: with_own_gradient(is_last=True), "peculiar"),
    "a sum in training beside dropout": (
        lambda: in_training_alone(layers.Dropout(0.5), added(lambda x: ops.sum(x**2))), "add_loss",
    ),
    "a total in training beside batch norm": (
        lambda: in_training_alone(layers.BatchNormalization(), totalled), "total",
    ),
}  # fmt: skip


def compiled(model, **arguments):
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(True), **arguments
    )
    return model


def state(model):
    return [np.array(variable) for variable in model.variables]


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_before_the_first_step(what):
    make, name = REFUSED[what]
    model = compiled(make())
    before = state(model) if model.built else None
    joined = True if "gradient" in what else None  # nothing of the graph reads the output then
    with pytest.raises((ValueError, TypeError), match=name):
        towers.distribute(model, 2, microbatch_size=8, joined_loss=joined)
        model.fit(X, Y, batch_size=20, verbose=0)
    assert not int(model.optimizer.iterations)
    if before is not None:
        np.testing.assert_equal(state(model), before)


@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_refuses_a_loss_that_would_draw_the_same_in_every_step(call):
    model = of()
    model.compile("sgd", noisy_loss)
    towers.distribute(model)
    with pytest.raises(ValueError, match="SeedGenerator"):
        getattr(model, call)(X, Y, verbose=0)
    assert not int(model.optimizer.iterations)


def test_refuses_variables_that_changed_without_compile():
    """Else a batch of another size would train other variables than those before it."""
    model = towers.distribute(compiled(of(layers.Dense(4))), 2, microbatch_size=8)
    assert model.evaluate(X, Y, verbose=0) and not model.optimizer.built  # as in Keras
    model.fit(X, Y, batch_size=20, verbose=0)
    model.layers[0].trainable = False
    model.fit(X, Y, batch_size=20, verbose=0)  # as Keras: what was compiled goes on
    with pytest.raises(ValueError, match="compile"):
        model.fit(X[:35], Y[:35], batch_size=20, verbose=0)


def test_refuses_run_eagerly_whenever_it_is_asked_for():
    with pytest.raises(ValueError, match="run_eagerly"):
        towers.distribute(compiled(of(), run_eagerly=True))
    model = towers.distribute(compiled(of()))
    compiled(model, run_eagerly=True)
    with pytest.raises(ValueError, match="run_eagerly"):
        model.fit(X, Y, verbose=0)


def test_refuses_draws_in_prediction():
    model = layer(lambda own, x: x + tf.random.normal(tf.shape(x)))
    towers.distribute(compiled(model))
    with pytest.raises(ValueError, match="SeedGenerator"):
        model.predict(X, verbose=0)


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"towers": 0}, "num_towers|towers"), ({"towers": []}, "towers"), ({"towers": 1.5}, "1.5"),
        ({"towers": ["/CPU:99"]}, "CPU:99"), ({"microbatch_size": 0}, "microbatch_size"),
        ({"microbatch_size": True}, "microbatch_size"), ({"joined_loss": 1}, "joined_loss"),
        ({"model": lambda x: x}, "keras.Model"),
    ],
)  # fmt: skip
def test_refuses_arguments_by_name(arguments, name):
    with pytest.raises((TypeError, ValueError), match=name):
        towers.distribute(**{"model": of()} | arguments)


@pytest.mark.parametrize(
    "name, call",
    [
        ("'lenet'", lambda: networks.build("lenet", (8, 8, 3), 2)),
        ("'int8'", lambda: networks.build("resnet", (8, 8, 3), 2, compute_dtype="int8")),
        (r"\[0, 8, 3\]", lambda: networks.build("resnet", (0, 8, 3), 2)),
        ("peculiar", lambda: fusing.fused(keras.Sequential([layers.Dense(2)], name="peculiar"))),
        ("mask", lambda: FusedBatchNormalization()(tf.ones((2, 2, 2, 2)), mask=tf.ones((2, 2)))),
        ("'sgdm'", lambda: optimizers.make("sgdm")),
        ("compile", lambda: towers.Run("runs/none", of())),
        (r"runs/a\*", lambda: towers.Run("runs/a*", of())),
        ("nothing", lambda: gradients.pairwise_tree([], tf.add)),
    ],
)
def test_refuses_values_by_name(name, call):
    with pytest.raises(ValueError, match=name):
        call()


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("SparseTensor", lambda: (tf.sparse.from_dense(X), Y)),
        ("RaggedTensor", lambda: (tf.ragged.constant([[1.0], [1.0, 2.0]]), Y[:2])),
        (r"\(39,\)", lambda: (X, Y[:-1])),
    ],
)
def test_refuses_batches_that_cannot_be_cut(name, batch):
    model = towers.distribute(compiled(of()))
    with pytest.raises((TypeError, ValueError), match=name):
        model.fit(tf.data.Dataset.from_tensors(batch()), shuffle=False, verbose=0)
    assert not int(model.optimizer.iterations)


def counted(layer, x):
    layer.own.assign_add(1.0)
    return x


def averaged(layer, x):
    layer.own.assign(0.9 * layer.own + 0.1 * ops.mean(x))
    return x - layer.own


def a_weight(layer):
    layer.own = layer.add_weight()


MEAN = added(lambda x: ops.mean(x**4))  # of a part it differs, after batch norm too
ACCEPTED = {
    "add_loss of a mean": lambda: layer(MEAN),
    "add_loss of a mean in training alone": lambda: in_training_alone(layers.Dropout(0.5), MEAN),
    "a weight as an argument": lambda: layer(lambda own, x: x + doubled(own.own), a_weight),
    "a running mean": lambda: layer(averaged, weight("mean")),
    "a tf.Variable that is read": lambda: layer(lambda own, x: x + own.hidden, tf_variable),
    "batch norm beside add_loss": lambda: of(layers.BatchNormalization(), Calls(MEAN)),
    "dropout beside add_loss": lambda: of(
        layers.Dropout(0.5), layers.BatchNormalization(), Calls(MEAN)
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_accepts(what):
    model = compiled(ACCEPTED[what]())
    towers.distribute(model, 2, microbatch_size=8)
    history = model.fit(X, Y, batch_size=20, verbose=0)
    assert np.isfinite(history.history["loss"]).all() and int(model.optimizer.iterations) == 2


def test_a_metric_that_a_model_updates_sees_every_example():
    result = []
    for is_distributed in (False, True):
        keras.utils.set_random_seed(1)
        model = compiled(Counts(keras.metrics.Mean, lambda x: ops.norm(x, axis=-1)))
        if is_distributed:
            towers.distribute(model, 2, microbatch_size=8)
        history = model.fit(X, Y, batch_size=20, shuffle=False, verbose=0).history
        result.append([history["peculiar"][0], *model.evaluate(X, Y, verbose=0)])
    assert result[1] == pytest.approx(result[0], rel=1e-5)


def test_a_counter_counts_steps_and_a_running_mean_runs_once():
    model = compiled(layer(counted, weight("count")))
    towers.distribute(model, 3, microbatch_size=8)
    model.fit(X, Y, batch_size=20, verbose=0)
    assert float(model.get_layer("peculiar").own) == 2
