"""Between lines of progress, what diffusers would say anew of every render is said once."""

from __future__ import annotations

import logging

__all__ = ["say_once"]

_LOGGERS = ("diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video", "diffusers.guiders.guider_utils")
_UNTRUE = (
    "Guiders are currently an experimental feature",  # which versions of diffusers were tested is our own affair
    "Token indices sequence length is longer than",  # the pipeline cuts these, and says so itself
)


class _Once(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message in self._said or message.startswith(_UNTRUE):
            return False
        self._said.add(message)
        return True


def say_once() -> None:
    """See to it, for this process; calling it again changes nothing."""
    for name in (*_LOGGERS, "transformers.tokenization_utils_base"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _Once) for each in logger.filters):
            logger.addFilter(_Once())
