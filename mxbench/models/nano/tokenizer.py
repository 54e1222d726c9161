"""A tokenizer made on the spot: UMT5's layout (Unigram, metaspace, byte fallback, ``</s>``) with a small vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxbench.models.nano.words import WORDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["VOCABULARY", "build"]

_SPECIAL = ("<pad>", "</s>", "<unk>")
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
VOCABULARY: tuple[str, ...] = (*_SPECIAL, *_BYTES, "▁", *dict.fromkeys(f"▁{word}" for word in WORDS))


def build() -> PreTrainedTokenizerFast:
    """The tokenizer; the same on every machine, with no file read."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    scored = [
        (piece, 0.0 if piece in _SPECIAL else -1.0 if piece in VOCABULARY[260:] else -20.0) for piece in VOCABULARY
    ]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=2, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )
