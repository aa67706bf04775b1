"""Logs in the formats in which they were published."""

from __future__ import annotations

from pathlib import Path

from ...errors import UserError
from ..rows import text_files
from ..rows.readers import JsonReader, SequenceReader
from .base import Source, SourceOptions, input_files
from .columns import HEAD_LINES, delimited, first_record, split_or_empty


def open_sequences(options: SourceOptions) -> Source:
    """Opens a file with one user per line and spaces between the items.

    The line number is the user's id; with the user column 1, a line begins with the id.
    """
    files = input_files(options)
    for path in files:
        text_files.head(path, 1)
    if options.user_column not in (None, "1"):
        raise UserError(
            "--user-column should be 1 for --source sequences, if its lines begin with the user's "
            f"id, and left out otherwise. Received: {options.user_column!r}."
        )
    has_user = options.user_column is not None
    if len(files) > 1 and not has_user:
        raise UserError(
            "--source sequences takes exactly one --input, since the line number is the user's id. "
            f"Received: {len(files)}. Concatenate the files."
        )
    return Source([SequenceReader(path, has_user) for path in files])


def open_amazon_reviews(options: SourceOptions) -> Source:
    """Opens Amazon reviews: JSON lines with reviewerID, asin and unixReviewTime."""
    files = input_files(options)
    for path in files:
        text_files.head(path, 1)
    return Source([JsonReader(path, "reviewerID", "asin", "unixReviewTime") for path in files])


def open_amazon_ratings(options: SourceOptions) -> Source:
    """Opens Amazon ratings without reviews, as CSV.

    The files have the header of 2023 (``user_id,parent_asin,rating,timestamp``), or four columns
    without a header: ``user,item,rating,time`` or ``item,user,rating,time``, which the ids decide.
    """
    readers = []
    for path in input_files(options):
        names = first_record(path, ",")
        if "user_id" in names:
            columns = ("user_id", "parent_asin", "timestamp")
            missing = [name for name in columns if name not in names]
            if missing:
                raise UserError(
                    f"{path}: the header should have {', '.join(columns)}. Missing: "
                    f"{', '.join(missing)}. Use --source csv with --user-column, --item-column and "
                    "--time-column."
                )
            user, item, time = (names.index(name) for name in columns)
            readers.append(delimited(path, ",", True, len(names), user, item, time))
        else:
            user, item = _amazon_columns(path)
            readers.append(delimited(path, ",", False, 4, user, item, 3))
    return Source(readers)


def _amazon_columns(path: Path) -> tuple[int, int]:
    """The columns of user and item in a file without a header.

    The 2014 files start with the user, those of 2018 with the item. All product numbers have ten
    characters; user ids do not, if enough rows are compared.
    """
    records = [split_or_empty(line, ",") for line in text_files.head(path, HEAD_LINES)]
    is_item = [
        all(len(record) == 4 and len(record[column]) == 10 for record in records)
        for column in (0, 1)
    ]
    if is_item[0] == is_item[1]:
        raise UserError(
            f"{path}: a ratings file should have the header user_id,parent_asin,rating,timestamp, "
            "or four columns without a header, with product numbers of ten characters in either "
            "the first or the second column, but not in both. Use --source csv --no-header with "
            "--user-column, --item-column and --time-column."
        )
    return (1, 0) if is_item[0] else (0, 1)


def open_taobao(options: SourceOptions) -> Source:
    """Opens the page views of Taobao's UserBehavior.csv (user, item, category, behavior, time)."""
    return Source(
        [delimited(path, ",", False, 5, 0, 1, 4, wanted=(3, "pv")) for path in input_files(options)]
    )
