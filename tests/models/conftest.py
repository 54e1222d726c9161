import pytest

from mxbench.models.base import Sampling


@pytest.fixture(scope="session")
def nano():
    from mxbench.models.nano.model import Nano

    return Nano()


@pytest.fixture(scope="session")
def tiny():
    """16 tokens a frame: a render takes a fraction of a second."""
    return Sampling(height=32, width=32, frames=5, fps=8, steps=3, guidance=(4.0, 3.0), max_sequence_length=16)
