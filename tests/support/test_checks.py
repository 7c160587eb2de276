"""What a Trainer would leave out or misread is refused, in one sentence without values."""

import keras
import pytest
import toys

from towers.support import checks


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


@pytest.mark.parametrize(
    "build, message",
    [
        (compiled, r"the model is compiled.*without compile\(\), or load it with"),
        (
            lambda: OwnStep([keras.Input([3]), toys.classifier()]),
            "the model has train_step of its",
        ),
        (
            lambda: OwnLoss([keras.Input([3]), toys.classifier()]),
            "has test_step and compute_loss of",
        ),
        (with_step_of_its_own, "the model has train_step of its own"),
        (lambda: classifier_with(Counting()), r"layers have metrics \('seen'\)"),
        (
            lambda: classifier_with(keras.Sequential([keras.Input([3]), Counting()])),
            r"layers have metrics \('seen'\), whose state a Trainer does not keep",
        ),
    ],
)
def test_models_with_more_than_a_trainer_does_are_refused(build, message):
    with pytest.raises(ValueError, match=message) as caught:
        toys.trainer(build(), global_batch_size=4)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


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
        checks.device_names(["/CPU:0", name])
