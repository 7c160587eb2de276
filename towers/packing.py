"""Tensors that travel between devices as one, because each copy to a GPU takes its time."""

import collections
from typing import Any

import tensorflow as tf


class Packed:
    """The tensors of a structure, of which those of a floating type are one vector for each type.

    Made where the tensors are; `unpacked` is called where they are needed, in another device scope.
    Rows of embeddings, integers, and what has no fixed shape stay as they are.
    """

    def __init__(self, structure: object):
        self._structure = structure
        self._leaves = tf.nest.flatten(structure)
        self._places = collections.defaultdict(list)
        for place, leaf in enumerate(self._leaves):
            is_dense = isinstance(leaf, tf.Tensor) and leaf.shape.is_fully_defined()
            if is_dense and leaf.dtype.is_floating:
                self._places[leaf.dtype].append(place)
        self._vectors = {
            dtype: tf.concat([tf.reshape(self._leaves[place], [-1]) for place in places], axis=0)
            for dtype, places in self._places.items()
        }

    def unpacked(self) -> Any:
        """The structure with its tensors."""
        leaves = list(self._leaves)
        for dtype, places in self._places.items():
            shapes = [leaves[place].shape for place in places]
            pieces = tf.split(self._vectors[dtype], [shape.num_elements() for shape in shapes])
            for place, piece, shape in zip(places, pieces, shapes, strict=True):
                leaves[place] = tf.reshape(piece, shape)
        return tf.nest.pack_sequence_as(self._structure, leaves)
