"""Features with several values in a field: tags, and the words of a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.models.features.base import SideFeature
from tfrs_croloss.models.features.vocabulary import check_vocabulary, value_table

_BETWEEN_WORDS = r"[^\p{L}\p{N}]+"


@dataclasses.dataclass(frozen=True)
class TagsFeature(SideFeature):
    """Several categories in one text, such as ``"comedy|drama"``.

    Tags outside the vocabulary share one embedding; empty ones are dropped.

    >>> feature = TagsFeature.from_values("genres", ["b|a", "", "a|c"])
    >>> feature.vocabulary
    ('a', 'b', 'c')
    >>> feature.encode(tf.constant(["c|d||a", ""]), feature.table()).to_list()
    [[3, 0, 1], []]

    Attributes:
      name: name of the input column.
      vocabulary: the distinct tags.
      separator: what stands between two tags.
      dim: size of the embedding.
    """

    kind: ClassVar[str] = "tags"
    is_ragged: ClassVar[bool] = True

    vocabulary: tuple[str, ...]
    separator: str = "|"
    dim: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vocabulary(self.name, self.vocabulary, "TagsFeature")
        if not isinstance(self.vocabulary[0], str) or not self.separator:
            raise ValueError(
                f"`vocabulary` of feature {self.name!r} should be strings, and `separator` a text "
                f"between them. Received: {self.vocabulary[0]!r}… and {self.separator!r}."
            )

    @classmethod
    def from_values(
        cls, name: str, values: Iterable[str], separator: str = "|", dim: int = 8
    ) -> TagsFeature:
        """The feature whose vocabulary is the tags that occur in ``values``."""
        tags = {tag for value in values for tag in value.split(separator) if tag}
        return cls(name, tuple(sorted(tags)), separator, dim)

    @property
    def raw_dtype(self) -> tf.DType:
        return tf.string

    @property
    def num_rows(self) -> int:
        return len(self.vocabulary) + 1

    def table(self) -> tf.lookup.StaticHashTable:
        return value_table(self.vocabulary)

    def encode(self, column: tf.Tensor, table: Any) -> tf.RaggedTensor:
        is_blank = tf.strings.regex_full_match(column, " *")
        tags = tf.strings.split(tf.where(is_blank, "", column), self.separator)
        tags = tf.ragged.boolean_mask(tags, tags != "")
        return tags.with_values(table.lookup(tags.values))

    @property
    def _expectation(self) -> str:
        return f"tags with {self.separator!r} between them"


@dataclasses.dataclass(frozen=True)
class TextFeature(SideFeature):
    """The words of a text, hashed into buckets.

    Words are what stands between characters that are neither letters nor digits, in lower case.

    >>> feature = TextFeature("title", buckets=100)
    >>> words = feature.encode(tf.constant(["Toy Story", "story, TOY!", ""]), None)
    >>> bool(tf.reduce_all(words[0] == words[1][::-1])), words.row_lengths().numpy().tolist()
    (True, [2, 2, 0])

    Attributes:
      name: name of the input column.
      buckets: number of buckets; different words may share one.
      max_words: number of words that are used, the first ones.
      dim: size of the embedding.
    """

    kind: ClassVar[str] = "text"
    is_ragged: ClassVar[bool] = True

    buckets: int = 4096
    max_words: int = 32
    dim: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("buckets", "max_words"):
            _checks.whole_number(name, getattr(self, name), remedy="The default is usual.")

    @property
    def raw_dtype(self) -> tf.DType:
        return tf.string

    @property
    def num_rows(self) -> int:
        return self.buckets + 1

    def encode(self, column: tf.Tensor, table: Any) -> tf.RaggedTensor:
        lower = tf.strings.lower(column, encoding="utf-8")
        words = tf.strings.split(tf.strings.regex_replace(lower, _BETWEEN_WORDS, " "))
        words = words[:, : self.max_words]
        hashes = tf.strings.to_hash_bucket_fast(words.values, self.buckets)
        return words.with_values(tf.cast(hashes, tf.int32) + 1)

    @property
    def _expectation(self) -> str:
        return "texts"
