"""A source: the readers of a log's files, and how the log is split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...data.prepared import SPLITS
from ...errors import UserError
from ..rows.readers import Reader

# How a log becomes train, valid and test: its users are split here; or its users are already split
# over three files; or every user's pairs are already split over the files.
SPLIT_USERS = "users"
USERS_ARE_SPLIT = "users are split"
PAIRS_ARE_SPLIT = "pairs are split"
# Or every user's sequence is cut here, see ``splits``: the last interaction is left out, or a point
# in time divides the log.
LEAVE_ONE_OUT = "leave-one-out"
TIME = "time"

# The part of a row counts in this order.
PARTS = SPLITS


@dataclass(frozen=True)
class SourceOptions:
    """The options that locate a log and name its columns.

    Attributes:
      inputs: files, folders or path prefixes, as the source requires.
      user_column, item_column, time_column: names of the columns, or their numbers without a
        header; None for the default of the source. The time column ``none`` means that the rows are
        already in time order.
      separator: one character, or None for the default of the source.
      header: whether the first line names the columns, or None for the default of the source.
      context_columns: further columns of the log, by name or number.
      item_columns, user_columns: columns of tensorflow-datasets that describe items and users.
      tfds_name, tfds_data_dir: name and data folder of a data set of tensorflow-datasets.
      scratch: folder for temporary files.
    """

    inputs: tuple[str, ...] = ()
    user_column: str | None = None
    item_column: str | None = None
    time_column: str | None = None
    separator: str | None = None
    header: bool | None = None
    context_columns: tuple[str, ...] = ()
    item_columns: tuple[str, ...] = ()
    user_columns: tuple[str, ...] = ()
    tfds_name: str = "movielens/100k-ratings"
    tfds_data_dir: str | None = None
    scratch: Path = Path()


@dataclass(frozen=True)
class Source:
    """A log that is ready to be read.

    Attributes:
      readers: readers of its files, in order.
      split: how the log becomes train, valid and test.
      lacks_valid: whether valid pairs have to be held out from train.
      tables: readers of the side tables that are part of the log, by what they describe.
    """

    readers: Sequence[Reader]
    split: str = SPLIT_USERS
    lacks_valid: bool = False
    tables: Mapping[str, Reader] = field(default_factory=dict)


def input_files(options: SourceOptions) -> list[Path]:
    """The inputs, which must all be files.

    Raises:
      UserError: there is no input, or an input is missing or a folder.
    """
    if not options.inputs:
        raise UserError("--input is required. Pass the file to read.")
    for path in map(Path, options.inputs):
        if path.is_dir():
            raise UserError(
                f"--input should be a file for this source. {path} is a folder. Pass the files in "
                "it."
            )
        if not path.exists():
            raise UserError(f"--input {path} does not exist. Check the path.")
    return list(map(Path, options.inputs))
