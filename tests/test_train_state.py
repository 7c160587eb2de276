"""The state of a run: what belongs to it, and the hash over all of it."""

import keras
import toys

from towers import train_state


def test_state_hash_sees_every_part_of_the_state():
    model = toys.dropout_classifier()
    run = toys.trainer(
        model,
        keras.optimizers.SGD(0.5, momentum=0.5),
        global_batch_size=2,
        moving_average_decay=0.5,
    )
    hashes = [run.state.sha256()]
    for variable in [
        model.trainable_variables[0],
        model.get_layer("norm").moving_mean,
        run.state.optimizer.variables[-1],
        run.state.averages[0],
    ]:
        variable.assign(variable + 1.0)
        hashes.append(run.state.sha256())
    assert len(set(hashes)) == 5


def test_the_hash_covers_the_statistics_of_each():
    model = toys.dropout_classifier()
    sizes = {"global_batch_size": 2, "num_microbatches": 2}
    run = toys.trainer(model, batch_norm_statistics="each", **sizes)
    before = run.state.sha256()
    kept = run.state.statistics_of_each[0]
    kept.assign(kept + [[0.0], [1e-6]])
    assert run.state.sha256() != before


def test_a_state_that_is_only_evaluated_has_the_parts_of_one_that_is_trained():
    model = toys.dropout_classifier()
    options = {"keep_averages": True, "statistics_of_each": 2}
    trained = train_state.new(model, keras.optimizers.SGD(0.1, momentum=0.9), **options).parts()
    evaluated = train_state.new(model, None, **options).parts()
    assert evaluated.pop("optimizer") == [] != trained.pop("optimizer")
    shapes = [
        {name: [variable.shape for variable in part] for name, part in parts.items()}
        for parts in (trained, evaluated)
    ]
    assert shapes[0] == shapes[1] and all(shapes[0].values())
