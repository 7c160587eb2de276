"""What a Trainer would leave out or misread is refused, in one sentence without values."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import trainer
from towers.support import checks

IMAGES, LABELS = toys.batch(4, [3])


def refused(error, message, call, *arguments, **named):
    """Checks that the call fails with one short line."""
    with pytest.raises(error, match=message) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def classifier_with(*layers, **arguments):
    made = [keras.Input([3]), *layers, keras.layers.Dense(toys.CLASSES)]
    return toys.on_cpu(lambda: keras.Sequential(made, **arguments))


def compiled():
    model = toys.classifier()
    model.compile("sgd", "mse")
    return model


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return {}


class OwnLoss(keras.Sequential):
    def compute_loss(self, **_):
        return 0.0

    def test_step(self, data):
        return {}


def with_step_of_its_own():
    model = toys.classifier()
    model.train_step = lambda data: {}
    return model


class Counting(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        self.seen.update_state(x)
        return x


class TestModels:
    @pytest.mark.parametrize(
        "build, error, message",
        [
            (lambda: "resnet", TypeError, "model is 'resnet': must be a keras.Model"),
            (lambda: keras.Sequential, TypeError, "model is the class Sequential: must be"),
            (lambda: keras.layers.Dense(2), TypeError, "model is of type Dense: must be a ke"),
            (compiled, ValueError, r"the model is compiled.*without compile\(\), or load it with"),
            (
                lambda: OwnStep([keras.Input([3]), toys.classifier()]),
                ValueError,
                "the model has train_step of its",
            ),
            (
                lambda: OwnLoss([keras.Input([3]), toys.classifier()]),
                ValueError,
                "has test_step and compute_loss of",
            ),
            (with_step_of_its_own, ValueError, "the model has train_step of its own"),
            (lambda: classifier_with(Counting()), ValueError, r"layers have metrics \('seen'\)"),
            (
                lambda: classifier_with(keras.Sequential([keras.Input([3]), Counting()])),
                ValueError,
                r"layers have metrics \('seen'\), whose state a Trainer does not keep",
            ),
        ],
    )
    def test_with_more_than_a_trainer_does_are_refused(self, build, error, message):
        refused(error, message, toys.trainer, build(), global_batch_size=4)

    @pytest.mark.parametrize("dtype", ["mixed_float16", "float16"])
    def test_of_float16_need_a_loss_scale(self, dtype):
        def model():
            inner = [keras.Input([3]), keras.layers.Dense(3, dtype=dtype, name="narrow")]
            return classifier_with(keras.Sequential(inner, name="inner"))

        message = "layer 'narrow' computes in float16.*: wrap the optimizer in .*LossScaleOptimizer"
        refused(ValueError, message, toys.trainer, model(), global_batch_size=4)
        for scaled in (
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
            keras.optimizers.SGD(0.1, loss_scale_factor=128.0),
        ):
            (loss,) = toys.trainer(model(), scaled, global_batch_size=4).fit([(IMAGES, LABELS)])
            assert np.isfinite(loss)


def freeze(model):
    model.get_layer("hidden").trainable = False


def unfreeze(model):
    model.get_layer("hidden").trainable = True


def freeze_the_model(model):
    model.trainable = False  # of which its layers do not hear


def freeze_a_variable(model):
    model.get_layer("logits").bias.trainable = False


def sorted_by_size(model):
    """The model's weights in an order that does not depend on what is frozen."""
    return sorted(model.get_weights(), key=lambda weight: weight.shape)


class TestWhatIsTrained:
    def made(self, change):
        model = toys.classifier()
        model.get_layer("hidden").trainable = change is not unfreeze
        return toys.trainer(model, global_batch_size=4, moving_average_decay=0.5)

    @pytest.mark.parametrize("steps_before", [0, 2])
    @pytest.mark.parametrize(
        "change, message",
        [
            (freeze, "hidden.*: frozen after the Trainer was made"),
            (unfreeze, "hidden.*: unfrozen after the Trainer was made.*; make a new Trainer"),
            (freeze_the_model, "sequential.*: frozen after the Trainer was made"),
            (freeze_a_variable, "logits/bias: frozen after the Trainer was made"),
        ],
    )
    def test_may_not_change(self, change, message, steps_before):
        run = self.made(change)
        run.fit([(IMAGES, LABELS)] * steps_before)
        before = sorted_by_size(run.state.model)
        change(run.state.model)
        batches = [(IMAGES, LABELS)]
        refused(ValueError, message, run.train_step, IMAGES, LABELS)
        refused(ValueError, message, run.fit, batches)
        refused(ValueError, message, run.evaluate, batches)
        refused(ValueError, message, run.evaluated_model)
        for weight, then in zip(sorted_by_size(run.state.model), before, strict=True):
            np.testing.assert_array_equal(weight, then)

    def test_may_change_before(self):
        model = toys.classifier()
        toys.trainer(model, global_batch_size=4).fit([(IMAGES, LABELS)])
        freeze(model)
        then = model.get_weights()
        toys.trainer(model, global_batch_size=4).fit([(IMAGES, LABELS)])
        changed = [
            not np.array_equal(*pair) for pair in zip(model.get_weights(), then, strict=True)
        ]
        assert changed == [False, False, True, True]


class TestArguments:
    @pytest.mark.parametrize(
        "optimizer, message",
        [
            ("sgd", "optimizer is 'sgd': must be a Keras optimizer, such as keras.opt"),
            (keras.optimizers.SGD, "optimizer is the class SGD: must be a Keras optimizer"),
            ({"rate": 0.1}, "optimizer is a dict with the keys 'rate': must be a Keras"),
        ],
    )
    def test_no_optimizer(self, optimizer, message):
        refused(TypeError, message, toys.trainer, toys.classifier(), optimizer, global_batch_size=4)

    def test_none_is_no_optimizer(self):
        arguments = {"towers": toys.cpus(1), "global_batch_size": 4}
        refused(
            TypeError, "optimizer is None", trainer.Trainer, toys.classifier(), None, **arguments
        )

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda one: one,
            keras.optimizers.LossScaleOptimizer,
            lambda one: keras.optimizers.MultiOptimizer({"": one}),
        ],
    )
    def test_averages_that_keras_s_fit_would_take(self, wrap):
        model, sgd = toys.classifier(), keras.optimizers.SGD
        message = "the optimizer has use_ema.*: give moving_average_decay instead"
        refused(ValueError, message, toys.trainer, model, wrap(sgd(use_ema=True)),
                global_batch_size=4)  # fmt: skip

    def test_averages_that_the_optimizer_takes_itself(self):
        optimizer = keras.optimizers.SGD(
            0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=1
        )
        run = toys.trainer(
            toys.linear(1.0), optimizer, global_batch_size=1, loss=toys.output_itself
        )
        run.fit([(toys.column(1.0), [0])] * 2)
        # 1, 0.5 and 0, which is averaged with the 0.5 before it.
        assert run.state.model.get_weights()[0] == 0.25

    @pytest.mark.parametrize("name", ["loss", "evaluation_loss"])
    @pytest.mark.parametrize(
        "loss, shown",
        [
            (0.5, "0.5"),
            (keras.losses.MeanSquaredError, "the class MeanSquaredError"),
        ],
    )
    def test_no_loss(self, name, loss, shown):
        message = rf"{name} is {shown}: must be a function \(labels, outputs\) to one loss per exam"
        arguments = {"global_batch_size": 4, name: loss}
        refused(TypeError, message, toys.trainer, toys.classifier(), **arguments)

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ({"loss": None}, "loss is None: must be a function"),
            ({"learning_rate": 0.1}, "learning_rate is 0.1: must be a function from the examples"),
            ({"global_batch_size": 4.0}, "global_batch_size is 4.0: must be an integer"),
            ({"num_microbatches": "2"}, "num_microbatches is '2': must be an integer"),
            ({"towers": "/CPU:0"}, "towers is '/CPU:0': must be their number, or a list of the"),
            ({"towers": ()}, "towers is a tuple of 0: must be their number"),
            ({"towers": 2.0}, "towers is 2.0: must be their number"),
        ],
    )
    def test_others(self, arguments, message):
        given = {"towers": toys.cpus(1), "global_batch_size": 4} | arguments
        refused(
            TypeError, message, trainer.Trainer, toys.classifier(), keras.optimizers.SGD(), **given
        )


class TestBatches:
    """`fit` and `evaluate` say what a batch is, and not what was in it."""

    @pytest.fixture
    def run(self):
        return toys.trainer(toys.classifier(), global_batch_size=4)

    @pytest.mark.parametrize("method", ["fit", "evaluate"])
    @pytest.mark.parametrize(
        "batches, message",
        [
            (IMAGES, r"batches is float32 \[4, 3\]: must be a list, a generator or a tf.data.Da"),
            (lambda: tf.constant(IMAGES), r"batches is float32 \[4, 3\]: must be"),
            ({"x": IMAGES}, "batches is a dict with the keys 'x': must be"),
            ("batches", "batches is 'batches': must be"),
            (5, "batches is 5: must be"),
            (None, "batches is None: must be"),
            (object(), "batches is of type object: must be"),
            ((IMAGES, LABELS), r"a batch is float32 \[4, 3\]: must be \(inputs, labels\) or"),
            ([{"x": IMAGES, "y": LABELS}], "a batch is a dict with the keys 'x', 'y': must be"),
            ([(IMAGES,)], "a batch is a tuple of 1: must be"),
            ([(IMAGES, LABELS, LABELS, LABELS)], "a batch is a tuple of 4: must be"),
            ([(IMAGES, ({"y": 1},) * 4)], r"labels\[0\]\['y'\]: 1; must be an array or a tensor"),
            ([({}, LABELS)], "inputs: a dict with the keys ; must be an array"),
            ([(IMAGES, None)], "labels: None; must be an array or a tensor"),
            ([(IMAGES, "four")], "labels: 'four'; must be an array or a tensor"),
            ([(IMAGES, 3)], "labels: 3; must be an array or a tensor"),
            (
                lambda: [(tf.ragged.constant([[1.0], [2.0, 3.0]]), LABELS)],
                r"inputs: float32 \[2, None\]; must be an array",
            ),
        ],
    )
    def test_that_are_none(self, run, method, batches, message):
        batches = batches() if callable(batches) else batches
        refused(TypeError, message, getattr(run, method), batches)

    @pytest.mark.parametrize("method", ["fit", "evaluate"])
    @pytest.mark.parametrize(
        "batch, message",
        [
            (({"x": IMAGES}, LABELS), "inputs: a dict with the keys 'x'; the model takes one arr"),
            (([IMAGES, IMAGES], LABELS), "inputs: a list of 2; the model takes one array"),
            (
                (IMAGES, {"y": LABELS}),
                "labels: a dict with the keys 'y'; there are none for",
            ),
        ],
    )
    def test_of_another_structure(self, run, method, batch, message):
        refused(ValueError, message, getattr(run, method), [batch])

    @pytest.mark.parametrize("method", ["fit", "evaluate"])
    def test_with_fewer_labels_than_images(self, run, method):
        refused(ValueError, "4 inputs, but 1 labels", getattr(run, method), [(IMAGES, LABELS[:1])])

    @pytest.mark.parametrize(
        "steps, shown", [(LABELS, r"int64 \[4\]"), (1.5, "1.5"), (True, "True"), (-1, "-1")]
    )
    def test_labels_are_no_steps(self, run, steps, shown):
        message = rf"steps is {shown}: must be a number .*together, as fit\(\[\(inputs, labels\)\]"
        refused(TypeError, message, run.fit, IMAGES, steps)

    def test_of_a_step_are_looked_at_too(self, run):
        message = "inputs: a dict with the keys 'x'"
        refused(ValueError, message, run.train_step, {"x": IMAGES}, LABELS)

    def test_may_be_lists_of_numbers(self, run):
        plain = toys.trainer(toys.classifier(), global_batch_size=4)
        batch = (IMAGES.tolist(), LABELS.tolist(), [1, True, 0.5, 0])
        assert run.fit([batch]) == plain.fit([(IMAGES, LABELS, np.array([1, 1, 0.5, 0]))])

    def test_of_no_weight_have_none(self, run):
        plain = toys.trainer(toys.classifier(), global_batch_size=4)
        assert run.fit([[IMAGES, LABELS, None]]) == plain.fit([(IMAGES, LABELS)])
        assert run.evaluate([[IMAGES, LABELS, None]]).count == 4


def test_long_things_are_described_shortly():
    assert len(checks.described("x" * 1000)) == 60
    assert len(checks.described({str(key): 0 for key in range(1000)})) < 120


@pytest.mark.parametrize("name", ["/CPU:0", "cpu:0", "/device:CPU:0"])
def test_a_device_that_is_there_may_have_any_of_its_names(name):
    assert checks.device_names([name]) == (name,)


@pytest.mark.parametrize("name", ["/GPU:9", "/CPU:99", "nonsense"])
def test_a_device_that_is_not_there_is_refused(name):
    """TensorFlow would take another one without a word."""
    with pytest.raises(ValueError, match=f"towers has {name!r}"):
        trainer.Trainer(
            toys.classifier(),
            keras.optimizers.SGD(0.1),
            loss="mse",
            global_batch_size=4,
            towers=["/CPU:0", name],
        )


@pytest.mark.parametrize("shape", [(4, 5), (4, 3, 1, 1), (4,)])
def test_inputs_of_another_shape_are_named(shape):
    run = toys.trainer(toys.classifier(), global_batch_size=4)
    with pytest.raises(ValueError, match=r"inputs: float32 .*; the model takes \[n, 3\]"):
        run.train_step(np.zeros(shape, np.float32), np.zeros(4, int))


@pytest.mark.parametrize("extra", [0, 1])
def test_an_axis_of_length_1_may_be_missing_or_too_many_as_in_keras(extra):
    model = toys.on_cpu(lambda: keras.Sequential([keras.Input((3, 1)), keras.layers.Flatten()]))
    inputs = np.zeros([4, 3] + [1, 1] * extra, np.float32)
    checks.inputs_fit(model, tf.constant(inputs))


def test_labels_of_another_kind_are_not_evaluated_by_what_was_built_for_the_first():
    run = toys.trainer(toys.classifier(), global_batch_size=4, loss=toys.output_itself)
    images, labels = toys.batch(4, [3])
    run.evaluate([(images, labels)])
    with pytest.raises(ValueError, match="and they were int64 .4. before: a Trainer evaluates lab"):
        run.evaluate([(images, np.eye(toys.CLASSES, dtype=np.float32)[labels])])
