"""What is said once, and by the loggers that diffusers really has."""

import logging

from mxbench.cli.quiet import _LOGGERS, say_once


def test_a_prompt_s_truncation_is_said_once(caplog):
    say_once()
    say_once()
    said = [f"truncated: {n}" for n in (1, 1, 2, 1)] + ["Guiders are currently an experimental feature under"]
    for name in _LOGGERS:
        for message in said:
            logging.getLogger(name).warning(message)
    assert [record.message for record in caplog.records] == ["truncated: 1", "truncated: 2"] * len(_LOGGERS)


def test_diffusers_has_these_loggers():
    import diffusers.guiders.guider_utils as guider
    import diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video as pipeline

    assert (pipeline.logger.name, guider.logger.name) == _LOGGERS
