"""Counts the rows of a log that cannot be used, by kind, with the first line numbers."""

from __future__ import annotations

from ...errors import UserError

WRONG_COLUMN_COUNT = "wrong column count"
UNCLOSED_QUOTE = "unclosed or misplaced quote"
MISSING_USER = "missing user"
MISSING_ITEM = "missing item"
MISSING_TIME = "missing time"
BAD_TIME = "bad time"
NOT_UTF8 = "not UTF-8"
CONTROL_CHARACTER = "newline, tab or control character in an id"
BROKEN_JSON = "broken JSON"

SHOWN_LINES = 5


class BadRows:
    """Counts bad rows by file and kind.

    >>> bad_rows = BadRows()
    >>> bad_rows.add(MISSING_ITEM, "events.csv", 7)
    >>> bad_rows.add(MISSING_ITEM, "events.csv", 9)
    >>> print(bad_rows.report())
    events.csv: missing item: 2 (lines 7, 9)
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], tuple[int, list[int]]] = {}

    def add(self, kind: str, source: str, line: int, count: int = 1) -> None:
        """Counts rows of one kind.

        Args:
          kind: what is wrong, one of the constants of this module.
          source: name of the file.
          line: line number of the first of these rows, from 1.
          count: number of these rows.
        """
        known, lines = self._kinds.get((source, kind), (0, []))
        if len(lines) < SHOWN_LINES:
            lines.append(line)
        self._kinds[source, kind] = (known + count, lines)

    @property
    def total(self) -> int:
        """Number of bad rows of all kinds."""
        return sum(count for count, _ in self._kinds.values())

    def summary(self) -> list[dict[str, object]]:
        """One entry per file and kind, for the manifest."""
        return [
            {"file": source, "kind": kind, "rows": count, "first_lines": lines}
            for (source, kind), (count, lines) in sorted(self._kinds.items())
        ]

    def report(self) -> str:
        """One line per file and kind, for people."""
        texts = []
        for (source, kind), (count, lines) in sorted(self._kinds.items()):
            dots = ", ..." if count > len(lines) else ""
            word = "line" if count == 1 else "lines"
            numbers = ", ".join(map(str, lines))
            texts.append(f"{source}: {kind}: {count:,} ({word} {numbers}{dots})")
        return "\n".join(texts)

    def check(self, limit: int) -> None:
        """Checks that there are no more bad rows than the user allows.

        Raises:
          UserError: there are more; the error has the report and the option that leaves them out.
        """
        if self.total > limit:
            rows = "1 row" if self.total == 1 else f"{self.total:,} rows"
            raise UserError(
                f"{rows} of the input cannot be used, and --max-bad-rows is {limit}:\n"
                + self.report()
                + f"\nFix the input, or pass --max-bad-rows {self.total} to leave these rows out."
            )
