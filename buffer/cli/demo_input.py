"""What the demo sends: the source code of the running Python, or the user's own files."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from buffer.cli.exits import CommandError, ExitCode
from buffer.cli.record_groups import Input

__all__ = ["DemoInput", "own_files", "standard_library"]

_OTHERS_CODE = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class DemoInput:
    """Files to send, in an order that depends on nothing but their names.

    Attributes:
        description: Where they come from.
        inputs: The files; the metadata of their records is the path below its root.
    """

    description: str
    inputs: tuple[Input, ...]


def standard_library() -> DemoInput:
    """Return every Python source file of the standard library, its tests included where they are installed.

    Raises:
        CommandError: This Python comes without source files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in _files_below(root) if path.suffix == ".py")
    if not paths:
        raise CommandError(
            f"there is no Python source below {root}; give a PATH to send instead", ExitCode.NOT_FOUND
        )
    version = ".".join(map(str, sys.version_info[:3]))
    return DemoInput(f"the standard library of Python {version}", tuple(_input(path, root) for path in paths))


def own_files(paths: Iterable[str]) -> DemoInput:
    """Return the files named, and those below the folders named.

    Raises:
        CommandError: There are none.
    """
    inputs: list[Input] = []
    for path in map(Path, paths):
        if path.is_dir():
            inputs += (_input(each, path) for each in sorted(_files_below(path)))
        else:
            inputs.append(_input(path, path.parent))
    description = " ".join(paths)
    if not inputs:
        raise CommandError(f"there are no files in {description}", ExitCode.NOT_FOUND)
    return DemoInput(description, tuple(inputs))


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        # In place, so that the walk does not go there; installed packages lie within the standard library's folder.
        folders[:] = [name for name in folders if name not in _OTHERS_CODE]
        for name in files:
            path = Path(folder, name)
            # Pipes and devices have no end.
            if path.is_file():
                yield path


def _input(path: Path, root: Path) -> Input:
    return Input(str(path), os.fsencode(path.relative_to(root)))
