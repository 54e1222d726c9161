"""Frames in and out of video files: the lossless store, the preview, and what other engines wrote.

PyAV is imported inside the functions, so that the table of metrics stays cheap to import.
"""

from mxbench.video.clip import Clip, to_uint8
from mxbench.video.read import VIDEO_SUFFIXES, find_clips, read_clip, read_lossless
from mxbench.video.write import write_lossless, write_preview

__all__ = [
    "VIDEO_SUFFIXES",
    "Clip",
    "find_clips",
    "read_clip",
    "read_lossless",
    "to_uint8",
    "write_lossless",
    "write_preview",
]
