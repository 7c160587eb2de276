"""All kinds of networks beside their peers are the same networks."""

import pytest

from benchmarks.peers import task_sizes, tasks

# Trained weights. Keras's LSTM has one bias for each gate and PyTorch two, 4 * UNITS of them more;
# fastnet has a whitening, and PyTorch's one bias of it.
WEIGHTS = {
    "cifarnet": 1_068_298, "resnet": 272_474, "resnet50": 23_528_522, "mobilenet": 408_938,
    "transformer": 1_446_666, "lstm": 1_181_450,
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_each_network_has_its_weights(name):
    model = tasks.build(name, "float32")
    assert sum(weight.shape.num_elements() for weight in model.trainable_weights) == WEIGHTS[name]
    assert model.output_shape == (None, task_sizes.CLASSES)
    assert tasks.inputs(name).shape == (len(tasks.labels(name)), *task_sizes.SHAPES[name])
