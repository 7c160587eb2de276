"""Sizes of the networks that `benchmarks.networks` compares. No library: every peer imports it."""

CLASSES = 10
TOKENS, VOCABULARY = 128, 8192
WIDTH, HEADS, BLOCKS = 128, 4, 2  # of the transformer
UNITS = 128  # of the LSTM and of its embedding

# Of an example: (height, width, channels), or (tokens,).
SHAPES = {
    "cifarnet": (24, 24, 3),
    "resnet": (32, 32, 3),
    "fastnet": (32, 32, 3),
    "resnet50": (224, 224, 3),
    "mobilenet": (96, 96, 3),
    "transformer": (TOKENS,),
    "lstm": (TOKENS,),
}
# Examples of a step.
BATCHES = dict.fromkeys(SHAPES, 128) | {"resnet50": 32, "transformer": 64}
