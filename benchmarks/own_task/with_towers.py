import sys

import keras
import task

import towers
from input_pipeline import arrays

folder, devices = sys.argv[1], int(sys.argv[2])
keras.utils.set_random_seed(1)
image, age = keras.Input((16, 16, 3)), keras.Input((1,))
x = keras.layers.Conv2D(16, 5, strides=2, activation="relu")(image)
x = keras.layers.Concatenate()([keras.layers.Flatten()(x), age])
x = keras.layers.Dense(32, activation="relu")(keras.layers.Dropout(0.2)(x))
model = keras.Model((image, age), keras.layers.Dense(6, activation="softmax")(x))
trainer = towers.Trainer(
    model,
    keras.optimizers.Adam(1e-3),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
    towers=devices,
    num_microbatches=2,
    global_batch_size=task.BATCH,
)
train = arrays.batches(*task.TRAIN)
run = towers.Run(folder, trainer, train=train, test=task.TEST, epochs=task.EPOCHS)
outcome = run.train(
    [
        towers.evaluate(epochs=1),
        towers.checkpoint(steps=40),
        towers.keep_best(metric="accuracy"),
        towers.stop_early(metric="accuracy", patience=task.PATIENCE),
    ]
)
task.report(model.get_weights(), outcome.final["accuracy"])
