"""What a source is: where a log lies, and the readers of its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ..rows.readers import Reader

# How a log becomes train, valid and test: its users are split; or it comes with users already
# split over three files; or it comes with every user's pairs split over the files.
SPLIT_USERS = "users"
USERS_ARE_SPLIT = "users are split"
PAIRS_ARE_SPLIT = "pairs are split"

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class SourceOptions:
    """The options that say where a log is and how its columns are called.

    Attributes:
      inputs: Files, folders or prefixes, as the source wants them.
      user_column, item_column, time_column: Names, or numbers without a header; None for the
        default of the source. A time column ``none`` means that the order of the file counts.
      separator: One character, or None for the default of the source.
      header: Whether the first line names the columns, or None for the default of the source.
      tfds_name, tfds_data_dir: For tensorflow-datasets.
      scratch: A folder for temporary files.
    """

    inputs: tuple[str, ...] = ()
    user_column: str | None = None
    item_column: str | None = None
    time_column: str | None = None
    separator: str | None = None
    header: bool | None = None
    tfds_name: str = "movielens/100k-ratings"
    tfds_data_dir: str | None = None
    scratch: Path = Path()


@dataclass(frozen=True)
class Source:
    """A log that is ready to be read.

    Attributes:
      readers: Of its files, in order.
      split: How it becomes train, valid and test.
      lacks_valid: Whether valid pairs have to be held out of train.
    """

    readers: Sequence[Reader]
    split: str = SPLIT_USERS
    lacks_valid: bool = False


def input_files(options: SourceOptions) -> list[Path]:
    """The inputs, which must all be files.

    Raises:
      UserError: None is given, or one is missing or a folder.
    """
    if not options.inputs:
        raise UserError("--input is required: the file to read.")
    for path in map(Path, options.inputs):
        if path.is_dir():
            raise UserError(f"--input should be a file for this source. {path} is a folder.")
        if not path.exists():
            raise UserError(f"--input {path} does not exist. Check the path.")
    return list(map(Path, options.inputs))
