"""How far microbatches' batch-norm statistics are apart, by hand."""

import keras
import numpy as np
import pytest
import toys

from towers import model_state
from towers.runs import divergence


def of_features(count):
    """Batch norm alone."""
    return toys.on_cpu(
        lambda: keras.Sequential([keras.Input([count]), keras.layers.BatchNormalization()])
    )


def test_two_microbatches_by_hand():
    kept = [np.array([[7.5], [15.0]]), np.array([[1.0], [3.25]])]
    (figures,) = divergence.divergence(of_features(1), kept).values()
    # Means 7.5 and 15 differ from 11.25 by 3.75; the mean variance is 2.125, its spread 1.125.
    assert figures["moving_mean"] == pytest.approx(3.75 / np.sqrt(2.125))
    assert figures["moving_variance"] == pytest.approx(1.125 / 2.125)


def test_there_is_none_where_nothing_is_kept_apart():
    assert divergence.divergence(of_features(1), []) == {}


def test_divergence_is_over_all_features_and_0_where_all_agree():
    model = toys.small_resnet()
    places = model_state.kept_apart(model)
    same = [np.stack([model.non_trainable_variables[place].numpy()] * 3) for place in places]
    figures = divergence.divergence(model, same)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert len(figures) == len(norms) > 5
    assert {value for of_layer in figures.values() for value in of_layer.values()} == {0.0}

    paths = [model.non_trainable_variables[place].path for place in places]
    layer = next(iter(figures))
    # Every other feature has the means -3, 0, 3 at variance 4: 0 and sqrt(6) / 2 deviations.
    same[paths.index(f"{layer}/moving_mean")][:, ::2] = [[-3], [0], [3]]
    same[paths.index(f"{layer}/moving_variance")][:] = 4.0
    changed = divergence.divergence(model, same)
    assert changed[layer]["moving_mean"] == pytest.approx(np.sqrt(6) / 2 / np.sqrt(2))
    assert changed[layer]["moving_variance"] == 0.0
    assert changed | {layer: figures[layer]} == figures


@pytest.mark.filterwarnings("error")
def test_a_feature_that_does_not_vary_does_not_diverge():
    # The first feature is constant; the second has means 1 and 3 at variance 4.
    kept = [np.array([[7.0, 1.0], [7.0, 3.0]]), np.array([[0.0, 4.0], [0.0, 4.0]])]
    (figures,) = divergence.divergence(of_features(2), kept).values()
    assert figures == {"moving_mean": pytest.approx(0.5 / np.sqrt(2)), "moving_variance": 0.0}


def test_layers_of_one_name_in_two_submodels_are_both_shown():
    def submodel(name):
        x = keras.Input([1])
        return keras.Model(x, keras.layers.BatchNormalization(name="norm")(x), name=name)

    images = keras.Input([1])
    parts = [submodel(name)(images) for name in ("one", "two")]
    model = toys.on_cpu(lambda: keras.Model(images, keras.layers.Add()(parts)))
    means = [v.path for v in model.non_trainable_variables if v.name == "moving_mean"]
    assert means == ["norm/moving_mean"] * 2
    kept = [np.array([[0.0], [apart]]) if apart else np.ones([2, 1]) for apart in (2, 0, 4, 0)]
    figures = divergence.divergence(model, kept).values()
    assert [of_layer["moving_mean"] for of_layer in figures] == [1.0, 2.0]
