"""What defines a program's run: what changes its weights is in it, and what does not is not."""

import functools

import keras
import numpy as np
import pytest
import toys

import towers
from towers.runs import definition


def defining(model=None, optimizer=None, **arguments) -> dict:
    made = toys.trainer(
        model or toys.classifier(), optimizer or keras.optimizers.SGD(0.1), global_batch_size=4,
        **arguments,
    )  # fmt: skip
    return definition.Definition(made, data={}, resolved={}).defining()


def of_all(**arguments) -> list:
    return list(defining(**arguments).values())


LOSSES = {
    "delta": [keras.losses.Huber(delta=1.0), keras.losses.Huber(delta=0.01)],
    "logits": [keras.losses.SparseCategoricalCrossentropy(from_logits=f) for f in (True, False)],
    "partial": [
        functools.partial(towers.losses.cross_entropy, label_smoothing=s) for s in (0.0, 0.4)
    ],
}


@pytest.mark.parametrize("kind", LOSSES)
def test_arguments_of_a_loss_are_in_it(kind):
    one, other = (of_all(loss=loss) for loss in LOSSES[kind])
    assert one != other
    assert one == of_all(loss=LOSSES[kind][0])


def test_a_rate_that_is_a_function_is_known_by_values():
    rates = [lambda seen: 0.1, lambda seen: 0.1, lambda seen: 0.1 / (1 + seen)]
    one, same, other = (of_all(learning_rate=rate) for rate in rates)
    assert one == same != other


def test_weights_that_an_optimizer_does_not_decay_are_in_it():
    def adam(**excluded):
        made = keras.optimizers.AdamW(0.1, weight_decay=0.1)
        if excluded:
            made.exclude_from_weight_decay(**excluded)
        return made

    plain, without_biases = (
        of_all(optimizer=adam(**given)) for given in ({}, {"var_names": ["bias"]})
    )
    assert plain != without_biases


def unnamed():
    return toys.on_cpu(
        lambda: keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.Dense(4)])
    )


def test_names_that_keras_makes_up_are_not():
    """A notebook that runs a cell again builds `dense_2` where it had `dense`."""
    assert of_all(model=unnamed(), weight_decay=0.1) == of_all(model=unnamed(), weight_decay=0.1)


def test_the_rate_that_a_trainer_sets_is_not_one_of_the_optimizer_s():
    rate = towers.schedules.LearningRate("linear", 0.1, 16, total_epochs=4)
    made = toys.trainer(
        toys.classifier(), keras.optimizers.SGD(0.1), global_batch_size=4, learning_rate=rate
    )
    before = definition.Definition(made, data={}, resolved={}).defining()
    made.train_step(*toys.batch(4, [3]))
    made.train_step(*toys.batch(4, [3]))
    assert definition.Definition(made, data={}, resolved={}).defining() == before


def test_one_worker_alone_writes_a_keras_log(tmp_path):
    from towers.runs import keras_callbacks

    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    made = toys.trainer(toys.classifier(), global_batch_size=4)
    for is_chief in (True, False):
        made.workers.is_chief = is_chief
        called = keras_callbacks.KerasCallbacks([log], made)._callbacks.callbacks
        assert (log in called) == is_chief


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize(
    "argument", ["kernel_regularizer", "kernel_initializer", "kernel_constraint", "activation"]
)
def test_a_lambda_may_be_any_part_of_a_layer(argument):
    functions = {
        "kernel_regularizer": lambda w: 0.0,
        "kernel_initializer": lambda shape, dtype=None: keras.ops.ones(shape, dtype),
        "kernel_constraint": lambda w: w,
        "activation": lambda x: x,
    }
    dense = keras.layers.Dense(toys.CLASSES, **{argument: functions[argument]})
    model = toys.on_cpu(lambda: keras.Sequential([keras.Input([3]), dense]))
    assert defining(model=model) is not None
    assert len(definition.layers(model)["sha256"]) == 64
    toys.trainer(model, global_batch_size=4).train_step(*toys.batch(4, [3]))


def test_a_function_for_a_rate_may_end_with_the_run():
    table = [0.1, 0.05]
    assert (
        "0.1, 0.05, none, none" in defining(learning_rate=lambda n: table[n // 4])["learning_rate"]
    )


def test_a_loss_is_described_alike_in_every_process():
    class Table:
        pass

    def loss(labels, outputs, table=None, weights=None):
        return keras.ops.mean(keras.ops.square(outputs), axis=-1)

    given = [
        functools.partial(loss, table=Table(), weights=np.full(2, value)) for value in (1, 1, 2)
    ]
    one, same, other = (defining(loss=each)["loss"] for each in given)
    assert one == same != other and "0x" not in one


def test_names_within_a_loss_scale_optimizer_are_not_in_it():
    def scaled(rate):
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(rate))

    assert of_all(optimizer=scaled(0.1)) == of_all(optimizer=scaled(0.1))
    assert of_all(optimizer=scaled(0.1)) != of_all(optimizer=scaled(0.2))
