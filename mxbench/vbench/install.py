"""The packages: beside ours by ``pip --no-deps``, or in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from mxbench.errors import UserError
from mxbench.vbench.dimensions import VERSION

__all__ = ["BARE", "LICENCES", "ORDINARY", "install"]

BARE = (f"vbench=={VERSION}", "decord==0.6.0", "openai-clip==1.0.1", "pyiqa==0.1.16")
"""Installed without what they ask for: their pins contradict diffusers', and one another's."""

LICENCES = (
    "vbench Apache 2.0", "decord Apache 2.0", "openai-clip MIT",
    "pyiqa PolyForm Noncommercial 1.0.0 and S-Lab 1.0: not for commercial use",
)  # fmt: skip
"""Theirs, as their distributions and repositories state them."""

ORDINARY = (
    "easydict>=1.13", "ftfy>=6.1", "huggingface-hub", "omegaconf>=2.3", "opencv-python-headless>=4.8", "packaging",
    "pillow", "pyyaml", "regex", "requests", "scikit-image>=0.22", "scipy", "tqdm",
)  # fmt: skip
"""What they really import, besides torch."""


def install(folder: Path | None, *, tell: Callable[[str], None] = lambda _words: None) -> Path:
    """Install VBench's packages.

    Args:
        folder: of a virtual environment, made if it is not there, with torch and torchvision of its own; None for our
            own environment, whose torchvision a stand-in replaces where it does not import.
        tell: told what comes next.

    Returns:
        The interpreter.

    Raises:
        UserError: pip failed; with its last line.
    """
    python = Path(sys.executable)
    if folder is not None:
        python = folder / "bin" / "python"
        if not python.is_file():
            tell(f"making the environment {folder}")
            try:
                venv.create(folder, with_pip=True)
            except (OSError, ValueError, subprocess.CalledProcessError) as error:
                raise UserError(f"{folder} cannot be made: {error}", "name another folder with --venv") from error
        tell("installing torch and torchvision")
        _pip(python, ["torch", "torchvision"])
    tell("installing what the packages import")
    _pip(python, [*ORDINARY, "setuptools"])
    tell(f"installing {', '.join(BARE)} without their dependencies")
    _pip(python, ["--no-deps", *BARE])
    return python


def _pip(python: Path, arguments: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise UserError(f"{python} cannot be started: {error.strerror}", "name another folder with --venv") from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")] or lines or ["pip said nothing"]
        raise UserError(
            f"pip could not install {' '.join(arguments)}: {errors[-1][:300]}", f"try it yourself: {' '.join(command)}"
        )
