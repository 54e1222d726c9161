"""The shipped weights draw what a prompt says: one render, read back by OpenCV."""

from __future__ import annotations

from mxbench.models.nano import heldout
from mxbench.models.nano.judge import judge
from mxbench.models.nano.model import Nano
from mxbench.models.nano.scene import caption
from mxbench.policy import as_schedule


def test_a_render_of_the_shipped_weights_shows_what_its_prompt_states():
    scene = heldout.scenes()[0]
    render = Nano().render(caption(scene), 0, Nano.FACTS.sampling, as_schedule("fp16"), "auto")
    tally = judge(render.frames, scene)
    assert set(tally) == {"count", "colour", "shape", "motion", "size", "background"}
    assert all(hits == stated for hits, stated in tally.values()), tally
