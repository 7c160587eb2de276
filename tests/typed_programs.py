"""Programs of users, for the type checker alone: what towers gives them has types."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

import keras
import numpy as np

import towers
from input_pipeline import arrays, batches, shapes


def compiled(units: int) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def rate_in_the_middle(examples: int) -> float:
    rate = towers.schedules.LearningRate("cosine", 0.1, examples, total_epochs=10)
    return rate(5 * examples)


def on_towers() -> None:
    model = towers.distribute(compiled(1), towers=["/CPU:0"], microbatch_size=16)
    towers.distribute(model, towers=2, joined_loss=False, accumulate_gradients=True)
    towers.distribute(model, microbatch_size="16")  # type: ignore[arg-type]
    model.fit(np.zeros((32, 4)), np.zeros((32, 1)))


def in_a_folder(x: np.ndarray, y: np.ndarray) -> str:
    source = arrays.batches(x, y, seed=1)
    assert_type(source, batches.Source)
    run = towers.Run("runs/typed", compiled(1), settings={"rate": 0.1})
    callbacks = [towers.callbacks.Log(10), keras.callbacks.EarlyStopping("loss")]
    done = run.fit(source, batch_size=8, epochs=2, callbacks=callbacks)
    assert_type(done, towers.Finished)
    assert_type(done.history, Mapping[str, Sequence[float]])
    return f"{done.step + 1} {done.weights_sha256.upper()}"


def stopped(error: towers.Stopped | towers.UserError) -> int:
    return error.code if isinstance(error, towers.Stopped) else 1


def with_workers() -> int:
    with towers.multi_worker.meet(wait_seconds=60) as workers:
        images, labels = shapes.make("train")
        assert_type(len(images), int)
        towers.distribute(compiled(10), workers=workers)
        assert_type(workers.exchange("losses", 0.5), list[Any])
        return arrays.batches(images, labels).num_examples * workers.count
