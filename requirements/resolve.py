"""Resolves the pins of every Python version, with the hashes of their files: ``make pins``.

::

    pyXYZ.txt         what `make install` installs
    pyXYZ-EXTRA.txt   what an extra adds to it: `make docs` and `make test-spark` install them

Versions that are pinned already stay as they are; ``make pins UPGRADE=--upgrade`` takes the newest.
"""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
INSTALLED = ("pipelines", "tune", "dev")
ADDED = ("spark", "docs")


def resolve(source: str, out: Path, version: str, *options: str, text: str = "") -> None:
    """Writes the pins of one file of requirements.

    Args:
      source: file with requirements, or ``-`` for ``text``.
      out: file of pins to write; the versions in it are preferred.
      version: version of Python.
      options: further options of uv.
      text: requirements, one per line.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", source, "--output-file", str(out)]
    command += ["--quiet", "--no-header", "--no-annotate", "--no-python-downloads"]
    command += ["--generate-hashes", "--python-platform", "linux", "--python-version", version]
    subprocess.run([*command, *options], cwd=HERE.parent, input=text, text=True, check=True)
    about = (
        f"# The versions that the tests pass with, for Python {version}; `make pins` writes this."
    )
    out.write_text(f"{about}\n{out.read_text(encoding='utf-8')}", encoding="utf-8")


def main() -> None:
    """Resolves everything; the arguments of the process are passed to uv."""
    config = configparser.ConfigParser()
    config.read(HERE.parent / "setup.cfg", encoding="utf-8")
    for version in VERSIONS:
        name = f"py{version.replace('.', '')}"
        pins = HERE / f"{name}.txt"
        extras = [word for extra in INSTALLED for word in ("--extra", extra)]
        resolve("setup.cfg", pins, version, *extras, *sys.argv[1:])
        for extra in ADDED:
            text = config["options.extras_require"][extra]
            constraint = ("--constraint", str(pins))
            resolve(
                "-", HERE / f"{name}-{extra}.txt", version, *constraint, *sys.argv[1:], text=text
            )


if __name__ == "__main__":
    main()
