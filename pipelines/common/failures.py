"""One line about an error: the file, the cause and the remedy.

The command line prints nothing else. A traceback is for errors that no disk, no file and no user
has caused; it is written to a file.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import traceback

from ..errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SPACE = "Free some space on its disk, or choose another folder."
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "Raise the limit on the size of files, or choose another folder.",
    errno.EACCES: "Check the permissions.",
    errno.EPERM: "Check the permissions.",
    errno.EROFS: "Its disk is read-only: choose another folder.",
    errno.EIO: "Its disk may be failing: check it, and restore the file from a copy.",
    errno.ENOENT: "Check the path.",
    errno.ENOTDIR: "Check the path.",
    errno.EISDIR: "Check the path.",
    errno.ELOOP: "It is a link, which is not followed here: remove it, or choose another folder.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n).",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}

# What TensorFlow raises when a disk or a file fails; its other errors are mistakes in a program.
_TENSORFLOW = (
    "AbortedError",
    "DataLossError",
    "NotFoundError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnavailableError",
)
_OWN_PACKAGES = ("tfrs_croloss", "pipelines")


def explain(error: BaseException, folder: str | None = None) -> str | None:
    """One line about an error that a disk, a file or a user has caused; None for other errors.

    >>> explain(OSError(errno.ENOSPC, "No space left on device"), "work/run")
    'work/run: No space left on device. Free some space on its disk, or choose another folder.'
    >>> explain(KeyError("x")) is None
    True

    Args:
      error: what was raised.
      folder: where the step writes. The system does not name the file when a disk is full.
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return _of_the_system(error, folder)
    if isinstance(error, MemoryError):
        return "there is not enough memory. Close other programs, or choose smaller settings."
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Python's form of bytes that are not UTF-8, in the name of a file.
        return f"{error.object!r} should be UTF-8. Choose another name."
    text = _first_line(error)
    if code := _code_in(text):
        if folder is not None and code in _FULL and ".tmp-" in text:
            # A file that is temporary would be named, and is gone.
            return f"{folder}: {os.strerror(code)}. {_REMEDIES[code]}"
        return f"{text.rstrip('.')}. {_REMEDIES[code]}"
    if type(error).__module__.startswith("tensorflow") and type(error).__name__ in _TENSORFLOW:
        return f"{text.rstrip('.')}. Check the files that it names, and the disk."
    if isinstance(error, ValueError) and _is_ours(error):
        return str(error)
    return None


def report(error: BaseException) -> str:
    """One line about any other error, which says where its traceback is."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    about = f"unexpected {type(error).__name__}: {_first_line(error)}"
    try:
        descriptor, path = tempfile.mkstemp(prefix="croloss-error-", suffix=".txt", text=True)
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{sys.argv}\n{text}")
    except OSError:
        return f"{about}\n{text}"
    return f"{about}. Please report it with its traceback, which is in {path}."


def _of_the_system(error: OSError, folder: str | None) -> str:
    if error.filename is None and error.errno in _FULL:
        error.filename = folder
    remedy = _REMEDIES.get(error.errno or 0) or _REMEDIES.get(_code_in(str(error)), "")
    if error.filename is None or error.strerror is None:
        return f"{str(error).rstrip('.')}. {remedy}" if remedy else str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}. {remedy}".rstrip()


def _code_in(text: str) -> int:
    """The number of a full disk or of a missing permission that a text mentions, or 0.

    Libraries in C++ pass on the words of the operating system, and nothing else.
    """
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES):
        if os.strerror(code) in text:
            return code
    return 0


def _first_line(error: BaseException) -> str:
    """The first line of a message, without the places in a graph that TensorFlow puts before it."""
    text = re.sub(r"\{\{[^}]*\}\}\s*", "", str(getattr(error, "message", "") or error)).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _is_ours(error: BaseException) -> bool:
    """Whether a function of this project has raised the error, and has chosen its words."""
    place = error.__traceback__
    if place is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    return str(place.tb_frame.f_globals.get("__name__", "")).startswith(_OWN_PACKAGES)
