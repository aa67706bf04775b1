"""Sources: the log formats that ``--source`` can name, each with a function that opens it.

A source looks at the first lines of the files and chooses their readers. Text files may be gzipped,
and column numbers start at 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .base import Source, SourceOptions
from .columns import open_csv, open_parquet, open_tsv
from .movielens import open_movielens
from .presplit import open_authors, open_presplit
from .published import (
    open_amazon_ratings,
    open_amazon_reviews,
    open_sequences,
    open_taobao,
)


@dataclass(frozen=True)
class SourceKind:
    """One value of ``--source``.

    Attributes:
      open: function that looks at the first lines of the files and chooses their readers.
      summary: description for ``--help``.
      min_count: default of --min-item-count and --min-user-count.
    """

    open: Callable[[SourceOptions], Source]
    summary: str
    min_count: int = 5


SOURCES: dict[str, SourceKind] = {
    "csv": SourceKind(open_csv, "comma-separated columns"),
    "tsv": SourceKind(open_tsv, "tab-separated columns"),
    "parquet": SourceKind(open_parquet, "Parquet columns"),
    "sequences": SourceKind(
        open_sequences,
        "one user per line, items in time order; --user-column 1 if the user comes first",
    ),
    "amazon-reviews": SourceKind(open_amazon_reviews, "JSON lines, like reviews_Books_5.json.gz"),
    "amazon-ratings": SourceKind(
        open_amazon_ratings,
        "CSV with the header user_id,parent_asin,rating,timestamp, or the four columns of 2014 or "
        "2018 without a header",
    ),
    "taobao": SourceKind(open_taobao, "UserBehavior.csv, page views only", min_count=20),
    "movielens": SourceKind(open_movielens, "ratings from tensorflow-datasets"),
    "authors": SourceKind(
        open_authors,
        "user,item,position in NAME_train.txt, NAME_valid.txt and NAME_test.txt",
        min_count=1,
    ),
    "presplit": SourceKind(
        open_presplit, "a folder with train, test and optionally valid files of pairs", min_count=1
    ),
}
