"""Tensors that travel between devices as one, because each copy to a GPU takes its time."""

import collections
from collections.abc import Mapping
from typing import Any

import tensorflow as tf


class Packed:
    """The tensors of a structure, of which those of a floating type are one vector for each type.

    Made where the tensors are; `unpacked` is called where they are needed, in another device scope.
    Rows of embeddings, integers, and what has no fixed shape stay as they are.

    Attributes:
      vectors: one for each floating type, [n].
    """

    def __init__(self, structure: object):
        self._structure = structure
        self._leaves = tf.nest.flatten(structure)
        self._places = collections.defaultdict(list)
        for place, leaf in enumerate(self._leaves):
            is_dense = isinstance(leaf, tf.Tensor) and leaf.shape.is_fully_defined()
            if is_dense and leaf.dtype.is_floating:
                self._places[leaf.dtype].append(place)
        self.vectors = {
            dtype: tf.concat([tf.reshape(self._leaves[place], [-1]) for place in places], axis=0)
            for dtype, places in self._places.items()
        }

    def unpacked(self, vectors: Mapping[tf.DType, tf.Tensor] | None = None) -> Any:
        """The structure with its tensors, or with those of other vectors."""
        leaves = list(self._leaves)
        for dtype, places in self._places.items():
            shapes = [leaves[place].shape for place in places]
            vector = (vectors or self.vectors)[dtype]
            pieces = tf.split(vector, [shape.num_elements() for shape in shapes])
            for place, piece, shape in zip(places, pieces, shapes, strict=True):
                leaves[place] = tf.reshape(piece, shape)
        return tf.nest.pack_sequence_as(self._structure, leaves)
