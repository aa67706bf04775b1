"""Text files: plain or gzipped, with any line ending, and with quoted fields."""

from __future__ import annotations

import collections
import contextlib
import csv
import gzip
import itertools
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

from ...errors import UserError
from . import bad_rows
from .values import BadValue

# A quoted field may span several lines; a quote still open after this many is a mistake.
MAX_RECORD_LINES = 100

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# For zlib: the header and the checksum of gzip, and the largest window.
_GZIP = 16 + zlib.MAX_WBITS
_UTF8_MARK = b"\xef\xbb\xbf"

csv.field_size_limit(1 << 24)


def is_gzip(path: Path) -> bool:
    """Whether the file is gzipped, judged by its content, not its name."""
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def check(path: Path) -> bool:
    """Reads a file to its end: a gzip file with all of its checks.

    Returns:
      Whether every carriage return is part of a line ending. Others are characters like any other
      here, and ends of lines elsewhere.

    Raises:
      UserError: the file is damaged or cut off.
    """
    is_usual, ended = True, True
    for block in _blocks(path):
        is_usual = is_usual and (ended or block.startswith(b"\n"))
        ended = not block.endswith(b"\r")
        if count := block.count(b"\r"):
            is_usual = is_usual and count == block.count(b"\r\n") + (not ended)
    return is_usual and ended


def _blocks(path: Path) -> Iterator[bytes]:
    """The content of a plain or gzipped file, without empty blocks."""
    with open(path, "rb") as file:
        blocks = iter(lambda: file.read(1 << 20), b"")
        yield from filter(None, _unzipped(path, blocks)) if is_gzip(path) else blocks


def _unzipped(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    stream = zlib.decompressobj(_GZIP)
    try:
        for block in blocks:
            while block:
                if stream.eof:  # Another file may follow, or zeros up to the end of a tape.
                    block = block.lstrip(b"\0")
                    if not block:
                        break
                    stream = zlib.decompressobj(_GZIP)
                yield stream.decompress(block)
                block = stream.unused_data
    except zlib.error as error:
        raise _damaged(path, error) from error
    if not stream.eof:
        raise _damaged(path, "it is cut off")


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(f"{path} is a damaged gzip file ({reason}). Download or compress it again.")


def read_lines(path: Path) -> Generator[bytes, None, None]:
    """Yields the lines of a plain or gzipped file, without line endings and byte-order mark.

    Raises:
      UserError: the file is UTF-16, or a truncated or damaged gzip file.
    """
    try:
        with gzip.open(path, "rb") if is_gzip(path) else open(path, "rb") as file:
            for number, line in enumerate(file):
                if number == 0:
                    if line.startswith(_UTF16_MARKS):
                        raise UserError(
                            f"{path} should be UTF-8 text. It is UTF-16. Convert it: "
                            "iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE"
                        )
                    line = line.removeprefix(_UTF8_MARK)
                yield line.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, error) from error


def head(path: Path, count: int) -> list[bytes]:
    """The first ``count`` lines that are not blank.

    Raises:
      UserError: there is no such line, or the file cannot be read as text.
    """
    with contextlib.closing(read_lines(path)) as lines:
        found = list(itertools.islice((line for line in lines if line.strip()), count))
    if not found:
        raise UserError(f"{path} is empty. Check that it is the right file.")
    return found


class _OpenQuote(BadValue):
    """The record ends inside quotes, so it may continue on the next line."""


def split_record(line: bytes, separator: str) -> list[bytes]:
    r"""Splits one record into its fields, without their quotes.

    >>> split_record(b'u1,"a, b",7', ",")
    [b'u1', b'a, b', b'7']

    Raises:
      BadValue: a quote is not closed, or something follows the closing quote.
    """
    if b'"' not in line:
        return line.split(separator.encode())
    is_open = False

    def lines() -> Iterator[str]:
        # Latin-1 maps every byte to a character and back; UTF-8 is checked field by field later.
        yield line.decode("latin-1")
        # The parser asks for another line only if this one ends inside quotes.
        nonlocal is_open
        is_open = True

    try:
        fields = next(csv.reader(lines(), delimiter=separator, strict=True))
    except csv.Error as error:
        raise (_OpenQuote if is_open else BadValue)(bad_rows.UNCLOSED_QUOTE) from error
    return [field.encode("latin-1") for field in fields]


def read_records(
    lines: Iterator[tuple[int, bytes]], separator: str, num_columns: int
) -> Iterator[tuple[int, list[bytes] | str]]:
    """Yields every record of a delimited file, good or bad, and skips blank lines.

    Args:
      lines: consecutive lines with their numbers.
      separator: one character.
      num_columns: required number of fields.

    Yields:
      The number of the record's first line, with its fields or, for a bad row, with its kind.
      After a quote that is never closed, reading resumes with the next line.
    """
    ahead = _LinesAhead(lines)
    while (numbered := ahead.take()) is not None:
        number, line = numbered
        if not line:
            continue
        try:
            fields, extra_lines = _split_with_following(line, ahead, separator)
        except BadValue as error:
            yield number, error.kind
            continue
        if len(fields) == num_columns + 1 and not fields[-1]:
            fields.pop()  # A separator at the end of a line begins no further column.
        if len(fields) == num_columns:
            yield number, fields
            ahead.drop(extra_lines)
        else:
            # A stray quote can swallow lines; only the first of them is bad.
            yield number, bad_rows.UNCLOSED_QUOTE if extra_lines else bad_rows.WRONG_COLUMN_COUNT


class _LinesAhead:
    """An iterator over lines that can look ahead."""

    def __init__(self, lines: Iterator[tuple[int, bytes]]):
        self._lines = lines
        self._waiting: collections.deque[tuple[int, bytes]] = collections.deque()

    def take(self) -> tuple[int, bytes] | None:
        return self._waiting.popleft() if self._waiting else next(self._lines, None)

    def drop(self, count: int) -> None:
        for _ in range(count):
            self.take()

    def peek(self, index: int) -> bytes | None:
        while len(self._waiting) <= index:
            numbered = next(self._lines, None)
            if numbered is None:
                return None
            self._waiting.append(numbered)
        return self._waiting[index][1]


def _split_with_following(
    line: bytes, ahead: _LinesAhead, separator: str
) -> tuple[list[bytes], int]:
    """The fields of the record that starts with ``line``, and the number of further lines."""
    try:
        return split_record(line, separator), 0
    except _OpenQuote as error:
        still_open = error
    record = [line]
    for extra_lines in range(1, MAX_RECORD_LINES + 1):
        following = ahead.peek(extra_lines - 1)
        if following is None:
            break
        record.append(following)
        if b'"' in following:
            with contextlib.suppress(_OpenQuote):
                return split_record(b"\n".join(record), separator), extra_lines
    raise still_open
