"""From a data set's name to the global batch of a step: arrays, batches, distortions."""
