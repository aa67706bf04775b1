"""Environments that lack some of the packages of this one."""

from __future__ import annotations

import os
import sysconfig
import venv
from pathlib import Path

TFRS = ("tensorflow_recommenders", "tf_keras")


def without(packages: tuple[str, ...], folder: Path) -> Path:
    """The interpreter of a new virtual environment with links to all packages but these.

    Args:
      packages: import names of what is left out.
      folder: folder of the environment.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    [target] = folder.glob("lib/python*/site-packages")
    for key in ("purelib", "platlib"):
        for entry in os.scandir(sysconfig.get_path(key)):
            # Folders of packages, and of their metadata.
            name = entry.name.split("-")[0]
            # Those of an editable install would lead back to a checkout.
            if name not in (*packages, "__pycache__") and not entry.name.endswith(".pth"):
                link = target / entry.name
                if not link.exists():
                    link.symlink_to(entry.path)
    return folder / "bin" / "python"
