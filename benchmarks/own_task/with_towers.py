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
model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
towers.distribute(model, devices)
done = towers.Run(folder, model).fit(
    arrays.batches(*task.TRAIN),
    batch_size=task.BATCH,
    epochs=task.EPOCHS,
    validation_data=task.TEST,
    verbose=2,
    callbacks=[
        keras.callbacks.ModelCheckpoint(
            f"{folder}/best.keras", monitor="val_accuracy", save_best_only=True
        ),
        keras.callbacks.EarlyStopping("val_accuracy", patience=task.PATIENCE),
    ],
)
task.report(model.get_weights(), done.history["val_accuracy"][-1])
