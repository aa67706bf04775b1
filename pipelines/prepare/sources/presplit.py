"""Logs that are already split into train, valid and test files."""

from __future__ import annotations

from pathlib import Path

from ...errors import UserError
from ..rows import text_files
from .base import (
    PAIRS_ARE_SPLIT,
    PARTS,
    SPLIT_USERS,
    USERS_ARE_SPLIT,
    Source,
    SourceOptions,
)
from .columns import delimited, first_record, split_or_empty

_ENDINGS = tuple(ending + packed for ending in (".txt", ".tsv", ".csv") for packed in ("", ".gz"))


def open_authors(options: SourceOptions) -> Source:
    """Opens the format of the paper's authors: ``user,item,position`` in ``NAME_train.txt`` etc.

    ``--input`` is the folder, or the path up to ``NAME``. If there is only a train file, its users
    are split like those of any log.
    """
    place = _one_input(options)
    if place.is_dir():
        names = {name[: -len("_train")] for name in _stems(place) if name.endswith("_train")}
        if len(names) != 1:
            found = ", ".join(sorted(names)) or "none"
            raise UserError(
                f"--input {place} should contain one file NAME_train.txt. Found: {found}. "
                "Pass the path up to NAME, such as FOLDER/book."
            )
        place = place / names.pop()
    files = {part: _find(place.parent, f"{place.name}_{part}") for part in PARTS}
    if files["train"] is None:
        raise UserError(
            f"--input {place}: there is no {place.name}_train.txt or {place.name}_train.txt.gz. "
            "Check the path."
        )
    missing = [part for part in PARTS if files[part] is None]
    if len(missing) == 1:
        raise UserError(
            f"--input {place}: the {missing[0]} file is missing. Provide all three of "
            f"{place.name}_train, {place.name}_valid and {place.name}_test, or only the first."
        )
    readers = []
    for index, part in enumerate(PARTS):
        path = files[part]
        if path is not None:
            first_record(path, ",")
            readers.append(delimited(path, ",", False, 3, 0, 1, 2, part=index))
    return Source(readers, SPLIT_USERS if missing else USERS_ARE_SPLIT)


def open_presplit(options: SourceOptions) -> Source:
    """Opens a folder with train, test and optionally valid files of ``user item`` pairs.

    The pairs of every user are split over the files and have no time order. The separator (tab,
    comma or space) and the header are detected: the first line is a header if it is not a pair of
    numbers and the second line is.
    """
    folder = _one_input(options)
    if not folder.is_dir():
        raise UserError(
            f"--input should be a folder with train and test files. Received: {folder}."
        )
    readers = []
    for index, part in enumerate(PARTS):
        path = _find(folder, part)
        if path is None:
            if part == "valid":
                continue
            raise UserError(
                f"--input {folder}: there is no {part}.txt, {part}.tsv or {part}.csv, plain or "
                "gzipped. Check the folder."
            )
        lines = text_files.head(path, 2)
        separator = options.separator or next(
            (mark for mark in "\t," if mark.encode() in lines[0]), " "
        )
        names = first_record(path, separator)
        has_header = options.header
        if has_header is None:
            has_header = not _are_numbers(lines[0], separator) and (
                len(lines) > 1 and _are_numbers(lines[1], separator)
            )
        readers.append(delimited(path, separator, has_header, len(names), 0, 1, part=index))
    return Source(readers, PAIRS_ARE_SPLIT, lacks_valid=len(readers) < len(PARTS))


def _one_input(options: SourceOptions) -> Path:
    if len(options.inputs) != 1:
        raise UserError(f"this source takes exactly one --input. Received: {len(options.inputs)}.")
    return Path(options.inputs[0])


def _stems(folder: Path) -> set[str]:
    """File names in ``folder`` without their extensions."""
    return {
        path.name[: -len(ending)]
        for path in folder.iterdir()
        for ending in _ENDINGS
        if path.name.endswith(ending)
    }


def _find(folder: Path, stem: str) -> Path | None:
    found = [path for ending in _ENDINGS if (path := folder / (stem + ending)).is_file()]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{folder} has several files for {stem}: {names}. Keep only one of them.")
    return found[0] if found else None


def _are_numbers(line: bytes, separator: str) -> bool:
    record = split_or_empty(line, separator)
    return len(record) >= 2 and all(field.strip().isdigit() for field in record[:2])
