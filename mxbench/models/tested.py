"""The versions of diffusers that the seam was tested with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from mxbench.errors import UserError

__all__ = ["DIFFUSERS", "check_diffusers", "is_tested"]

DIFFUSERS = "0.42"
"""The minor version; it stands in pyproject.toml too."""


def is_tested(installed: str) -> bool:
    """Whether a version of diffusers is in the tested range."""
    return installed.split(".")[:2] == DIFFUSERS.split(".")


def check_diffusers() -> None:
    """See that diffusers is one that the seam was tested with: it reaches into what has no stable interface.

    Raises:
        UserError: another version, or none.
    """
    fix = f'pip install "diffusers=={DIFFUSERS}.*"'
    try:
        installed = version("diffusers")
    except PackageNotFoundError:
        raise UserError("diffusers is not installed", fix) from None
    if not is_tested(installed):
        raise UserError(f"diffusers {installed} is outside the tested range, {DIFFUSERS}.*", fix)
