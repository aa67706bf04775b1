"""Ids and vectors in the files of other search engines: Parquet, JSON lines and FAISS.

A format writes ``[num_items, dim]`` float32 rows in blocks, and reads its own file back with the
package that the engine's users have.
"""

from __future__ import annotations

import abc
import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tfrs_croloss._replicas import BLOCK_SIZE
from tfrs_croloss.indexes.vectors import VectorFiles, row_blocks

# Number of rows that are written at a time, and of lines of text.
_ROWS = BLOCK_SIZE
_LINES = 4096

Ids = Sequence[str] | Sequence[int]
Rows = np.ndarray | VectorFiles


class EngineUnavailable(ImportError):
    """The package that writes a format is not installed."""


class Format(abc.ABC):
    """A format of ids and vectors.

    Attributes:
      name: name of the format.
      file: name of the file with the vectors.
      package: package that writes and reads it, and its module; None if Python does.
    """

    name: ClassVar[str]
    file: ClassVar[str]
    package: ClassVar[tuple[str, str] | None] = None

    def module(self) -> Any:
        """The module of the package.

        Raises:
          EngineUnavailable: it is not installed; the error says what to install.
        """
        if self.package is None:
            return None
        package, module = self.package
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise EngineUnavailable(
                f"The format {self.name!r} needs the package {package}, which cannot be imported: "
                f"{error}. Install it: pip install 'tfrs-croloss[engines]'."
            ) from error

    def ids(self, ids: Ids) -> list[Any]:
        """The ids as the file has them."""
        return list(ids)

    @abc.abstractmethod
    def write(self, folder: Path, ids: Ids, rows: Rows) -> None:
        """Writes the files into an empty folder.

        Args:
          folder: the folder.
          ids: an id for each row, all strings or all integers.
          rows: ``[num_items, dim]`` finite float32.
        """

    @abc.abstractmethod
    def read(self, folder: Path) -> Iterator[tuple[list[Any], np.ndarray]]:
        """Yields blocks of ids and their vectors ``[num, dim]``, in the order of the file."""

    def search(self, folder: Path, queries: np.ndarray, num: int) -> np.ndarray:
        """The numbers ``[num_queries, num]`` of the rows with the largest inner products."""
        best = BestRows(queries, num)
        for _, vectors in self.read(folder):
            best.add(vectors)
        return best.numbers


class Parquet(Format):
    """One table with the columns ``id`` and ``embedding``, a list of fixed size of float32."""

    name = "parquet"
    file = "items.parquet"
    package = ("pyarrow", "pyarrow.parquet")

    def write(self, folder: Path, ids: Ids, rows: Rows) -> None:
        """Implements `Format.write`, with a row group for each block."""
        parquet = self.module()
        arrow = importlib.import_module("pyarrow")
        id_type = arrow.string() if isinstance(ids[0], str) else arrow.int64()
        schema = arrow.schema(
            [
                arrow.field("id", id_type, nullable=False),
                arrow.field(
                    "embedding", arrow.list_(arrow.float32(), rows.shape[1]), nullable=False
                ),
            ]
        )
        with parquet.ParquetWriter(folder / self.file, schema) as writer:
            for first, block in row_blocks(rows, _ROWS):
                values = arrow.array(np.ascontiguousarray(block, np.float32).reshape(-1))
                columns = [
                    arrow.array(ids[first : first + len(block)], id_type),
                    arrow.FixedSizeListArray.from_arrays(values, block.shape[1]),
                ]
                writer.write_batch(arrow.record_batch(columns, schema=schema))

    def read(self, folder: Path) -> Iterator[tuple[list[Any], np.ndarray]]:
        """Implements `Format.read`."""
        with self.module().ParquetFile(folder / self.file) as file:
            for batch in file.iter_batches():
                vectors = batch["embedding"].flatten().to_numpy()
                yield batch["id"].to_pylist(), vectors.reshape(len(batch), -1)


class JsonLines(Format):
    """A line ``{"id": "…", "embedding": […]}`` for each item, as Vertex AI Vector Search reads it.

    It wants ids that are strings, and file names that end in ``.json``.
    """

    name = "jsonl"
    file = "items.json"

    def ids(self, ids: Ids) -> list[Any]:
        """Implements `Format.ids`."""
        return [str(one) for one in ids]

    def write(self, folder: Path, ids: Ids, rows: Rows) -> None:
        """Implements `Format.write`."""
        with open(folder / self.file, "w", encoding="utf-8", newline="\n") as file:
            for first, block in row_blocks(rows, _LINES):
                # As text, NumPy's float32 have the fewest digits that tell them apart.
                texts = np.asarray(block, np.float32).astype(str).tolist()
                file.writelines(
                    f'{{"id": {json.dumps(str(one), ensure_ascii=False)}, '
                    f'"embedding": [{", ".join(text)}]}}\n'
                    for one, text in zip(ids[first : first + len(block)], texts)
                )

    def read(self, folder: Path) -> Iterator[tuple[list[Any], np.ndarray]]:
        """Implements `Format.read`."""
        ids: list[Any] = []
        vectors: list[list[float]] = []
        with open(folder / self.file, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                record = json.loads(line)
                ids.append(record["id"])
                vectors.append(record["embedding"])
                if len(ids) == _LINES:
                    yield ids, np.array(vectors, np.float32)
                    ids, vectors = [], []
        if ids:
            yield ids, np.array(vectors, np.float32)


class Faiss(Format):
    """An exact FAISS index of inner products, and a file whose lines are the ids of its rows.

    FAISS holds all vectors in memory. To build an index of another kind, read them from this one
    with ``reconstruct_n``.
    """

    name = "faiss"
    file = "items.faiss"
    package = ("faiss-cpu", "faiss")
    ids_file = "item_ids.txt"

    def ids(self, ids: Ids) -> list[Any]:
        """Implements `Format.ids`."""
        return [str(one) for one in ids]

    def write(self, folder: Path, ids: Ids, rows: Rows) -> None:
        """Implements `Format.write`."""
        faiss = self.module()
        index = faiss.IndexFlatIP(rows.shape[1])
        for _, block in row_blocks(rows, _ROWS):
            index.add(np.ascontiguousarray(block, np.float32))
        faiss.write_index(index, str(folder / self.file))
        with open(folder / self.ids_file, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{one}\n" for one in ids)

    def read(self, folder: Path) -> Iterator[tuple[list[Any], np.ndarray]]:
        """Implements `Format.read`."""
        index = self.module().read_index(str(folder / self.file))
        ids = (folder / self.ids_file).read_text(encoding="utf-8").split("\n")[:-1]
        for first in range(0, len(ids), _LINES):
            some = ids[first : first + _LINES]
            yield some, index.reconstruct_n(first, len(some))

    def search(self, folder: Path, queries: np.ndarray, num: int) -> np.ndarray:
        """Implements `Format.search`, by FAISS."""
        index = self.module().read_index(str(folder / self.file))
        return index.search(np.ascontiguousarray(queries, np.float32), num)[1]


FORMATS: dict[str, Format] = {one.name: one for one in (Parquet(), JsonLines(), Faiss())}


class BestRows:
    """The rows with the largest inner products, of rows that are added block by block.

    >>> best = BestRows(np.array([[1.0, 0.0]]), 2)
    >>> best.add(np.array([[1.0, 5.0], [3.0, 0.0]]))
    >>> best.add(np.array([[2.0, 9.0]]))
    >>> best.numbers.tolist(), best.scores.tolist()
    ([[1, 2]], [[3.0, 2.0]])

    Args:
      queries: ``[num_queries, dim]`` floats.
      num: number of rows to find; at most all of those that are added.

    Attributes:
      numbers: ``[num_queries, num]``, counted from the first row that was added, best first.
      scores: inner products of the same shape, in float64.
    """

    def __init__(self, queries: np.ndarray, num: int) -> None:
        self._queries = np.asarray(queries, np.float64)
        self._num = num
        self._added = 0
        self.numbers = np.zeros([len(queries), 0], np.int64)
        self.scores = np.zeros([len(queries), 0])

    def add(self, rows: np.ndarray) -> None:
        """Adds rows ``[num_rows, dim]``."""
        scores = np.concatenate([self.scores, self._queries @ rows.T.astype(np.float64)], axis=1)
        numbers = np.broadcast_to(
            np.arange(self._added, self._added + len(rows)), [len(scores), len(rows)]
        )
        numbers = np.concatenate([self.numbers, numbers], axis=1)
        if scores.shape[1] > self._num:
            kept = np.argpartition(-scores, self._num - 1, axis=1)[:, : self._num]
            numbers, scores = (np.take_along_axis(one, kept, axis=1) for one in (numbers, scores))
        order = np.argsort(-scores, axis=1, kind="stable")
        self.numbers = np.take_along_axis(numbers, order, axis=1)
        self.scores = np.take_along_axis(scores, order, axis=1)
        self._added += len(rows)
