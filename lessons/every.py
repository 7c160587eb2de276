"""All lessons, in the recommended order."""

from lessons import (
    averaging,
    batch_norm,
    batch_size,
    elastic_averaging,
    final_model,
    graph,
    learning_rate,
    losses,
    memory,
    museum,
    scaling,
    synchronous_or_not,
    train_and_test_loss,
    where_time_goes,
)

LESSONS = (
    averaging.LESSON,
    learning_rate.LESSON,
    losses.LESSON,
    graph.LESSON,
    batch_size.LESSON,
    scaling.LESSON,
    batch_norm.LESSON,
    final_model.LESSON,
    train_and_test_loss.LESSON,
    memory.LESSON,
    where_time_goes.LESSON,
    synchronous_or_not.LESSON,
    elastic_averaging.LESSON,
    museum.LESSON,
)
