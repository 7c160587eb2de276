"""A user's own model, loss and metrics: Keras's numbers, the same bits on any number of towers."""

import combinations
import keras
import models
import numpy as np
import pytest
import toys

STEPS, BATCH = 3, 8
NAMES = list(models.TASKS)


def trainer_of(task, num_towers, optimizer=None):
    return toys.trainer(
        task.model,
        optimizer or keras.optimizers.Adam(0.01),
        num_towers=num_towers,
        global_batch_size=BATCH,
        num_microbatches=4,
        loss=task.loss,
        loss_weights=task.loss_weights,
        metrics=task.metrics,
        weight_decay=0.0,
    )


def trained(task, *arguments):
    run = trainer_of(task, *arguments)
    cuts = [slice(step * BATCH, (step + 1) * BATCH) for step in range(STEPS)]
    history = run.fit(
        [(models.part(task.inputs, cut), models.part(task.labels, cut)) for cut in cuts]
    )
    return run, history


@pytest.mark.parametrize(
    ("name", "towers"),
    combinations.crossed(
        NAMES,
        [(1, 4), (1, 2, 3, 4)],
        often=[("two_by_two", (1, 4)), ("segmentation", (1, 4))],
    ),
)
def test_one_hash_and_one_evaluation_on_any_number_of_towers(name, towers):
    found = set()
    for num_towers in towers:
        task = models.made(name, STEPS * BATCH + 5)  # a last batch that is not full
        run, history = trained(task, num_towers)
        cuts = [slice(0, 16), slice(16, 29)]
        result = run.evaluate(
            [(models.part(task.inputs, cut), models.part(task.labels, cut)) for cut in cuts]
        )
        found.add((run.state.sha256(), tuple(history), str(result.as_metrics())))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("name",), combinations.crossed(NAMES, often=[("two_by_two",), ("next_token",)])
)
def test_evaluates_as_keras_does(name):
    task = models.made(name, 29)
    result = trainer_of(task, 2).evaluate([(task.inputs, task.labels)])
    task.model.compile(
        loss=task.loss, loss_weights=task.loss_weights, metrics=models.made(name, 1).metrics
    )
    expected = task.model.evaluate(
        task.inputs, task.labels, batch_size=29, verbose=0, return_dict=True
    )
    metrics = result.as_metrics()
    assert metrics.pop("count") == 29
    for output in result.loss_terms:
        assert metrics.pop(f"loss/{output}") == pytest.approx(
            expected.pop(f"{output}_loss"), rel=1e-5
        )
    assert set(metrics) == set(expected)
    for metric, value in expected.items():
        np.testing.assert_allclose(metrics[metric], value, rtol=2e-5, err_msg=metric)


@pytest.mark.parametrize(
    "name",
    combinations.crossed(
        [name for name in models.TASKS if name != "two_by_two"],
        often=[("regression",), ("multi_label",), ("segmentation",)],
    ),
)
def test_trains_as_keras_does(name):
    """But for batch norm and dropout, which Keras computes over the whole batch.

    By SGD: Keras's own Adam squares an embedding's gradient row by row, where a token comes twice.
    """
    task, other = models.made(name, STEPS * BATCH), models.made(name, STEPS * BATCH)
    other.model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), loss=other.loss, loss_weights=other.loss_weights
    )
    theirs = other.model.fit(
        other.inputs, other.labels, batch_size=BATCH, shuffle=False, verbose=0
    ).history["loss"]
    run, mine = trained(task, 2, keras.optimizers.SGD(0.1, momentum=0.9))
    np.testing.assert_allclose(np.mean(mine), theirs, rtol=1e-4)
    for own, expected in zip(run.state.model.weights, other.model.weights, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-3, atol=2e-5)
