"""How much of a model is on its device at once: the choices, which of them fits, and putting a pipeline there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from mxbench.errors import UserError, unknown_name

if TYPE_CHECKING:
    import torch

__all__ = [
    "MARGIN",
    "MEMORY",
    "Need",
    "bytes_of",
    "check",
    "choose",
    "gib",
    "out_of_memory",
    "parts",
    "place",
    "smaller",
]

MEMORY: dict[str, str] = {
    "whole": "all parts on the device",
    "whole-tiled": "all parts on the device; the VAE decodes in tiles",
    "model": "one part at a time on the device; the VAE decodes in tiles",
    "group": "a transformer's blocks one after the other, streamed to a CUDA device; the VAE decodes in tiles",
}
"""What ``--memory`` takes, largest first. Tiles change pixels, so the name is part of a cell's identity."""

MARGIN = 0.06
"""The share of a device's free bytes that is left alone: fragments, and workspaces of cuBLAS and cuDNN."""

# "group" holds two blocks of a transformer, one computing and one on its way, and what lies outside its blocks; or the
# token embedding of a text encoder. Of the largest part that is 8.1 % in HunyuanVideo, and less in Wan2.2,
# HunyuanVideo-1.5 and MiniMax-H3.
_STREAMED = 8

_OFFLOADS = ("model", "group")

# Where each pipeline is: name and device.
_placed: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Need:
    """What a model takes, in bytes.

    Attributes:
        weights: all parts.
        largest: the largest part that must be on the device at once.
        activations: a forward beside its weights; decoding in tiles is taken to need no more.
        decode: decoding without tiles, beside the weights.
    """

    weights: int
    largest: int
    activations: int
    decode: int


def check(name: str, device: str | None = None) -> None:
    """See that there is such a choice, and on a device, if one is named.

    Raises:
        UserError: there is none; the nearest names are offered. Or nothing to offload that device to.
    """
    if name not in MEMORY:
        raise unknown_name("--memory", name, MEMORY)
    if device is not None and name in _OFFLOADS and _on_cpu(device):
        raise UserError(f"--memory {name} on {device}: there is nothing to offload to", "use --memory whole")


def smaller(name: str) -> str | None:
    """The choice that needs the next less memory; None for the last.

    Raises:
        UserError: no such choice.
    """
    check(name)
    return dict(pairwise(MEMORY)).get(name)


def choose(need: Need, free: int, *, device: str) -> str:
    """The first name in MEMORY that fits, with MARGIN to spare; a CPU takes the model whole.

    Args:
        need: of the model and the clip.
        free: bytes on the device.
        device: ``cpu`` or ``cuda:N``.

    Raises:
        UserError: not even ``group`` fits.
    """
    if _on_cpu(device):
        return "whole"
    for name in MEMORY:
        if _bytes(name, need) <= free * (1 - MARGIN):
            return name
    least = round(_bytes("group", need) / (1 - MARGIN))
    raise UserError(
        f"even --memory group needs {gib(least)} on {device}, which has {gib(free)}",
        "use a larger GPU, fewer frames or a smaller size",
    )


def _bytes(name: str, need: Need) -> int:
    """What a choice takes of the device."""
    takes = {
        "whole": need.weights + max(need.activations, need.decode),
        "whole-tiled": need.weights + need.activations,
        "model": need.largest + need.activations,
        "group": need.largest // _STREAMED + need.activations,
    }
    return takes[name]


def out_of_memory(name: str, device: str, *, loading: bool = False) -> UserError:
    """The error for a model that was placed on a device and ran out of memory there: it names what to use next.

    Args:
        name: how it was placed.
        device: where.
        loading: its weights alone did not fit, so that the next choice must hold fewer of them.

    Raises:
        UserError: no such choice.
    """
    after = smaller(name)
    if loading and after is not None and after not in _OFFLOADS:
        after = _OFFLOADS[0]
    if after is None or (_on_cpu(device) and after in _OFFLOADS):
        fix = "use a smaller clip or another device"
    else:
        fix = f"use --memory {after}"
    return UserError(f"out of memory on {device} with --memory {name}", fix)


def gib(n: int) -> str:
    """Bytes as people read them, such as ``63.8 GiB``."""
    return f"{n / 2**30:.1f} GiB"


def parts(pipe: Any) -> dict[str, torch.nn.Module]:
    """The networks of a diffusers pipeline, by their names in it."""
    import torch

    return {name: part for name, part in pipe.components.items() if isinstance(part, torch.nn.Module)}


def bytes_of(module: torch.nn.Module) -> int:
    """Bytes of a network's parameters and buffers; those that it shares with itself count once."""
    return sum(t.numel() * t.element_size() for held in (module.parameters(), module.buffers()) for t in held)


def place(pipe: Any, device: str, name: str) -> None:
    """Put a pipeline on a device.

    Forward hooks may be registered on its networks before and after. A pipeline may be placed again further down in
    MEMORY, as after running out of memory, but not further up.

    Args:
        pipe: a diffusers pipeline, as loaded; it is changed.
        device: ``cpu`` or ``cuda:N``.
        name: in MEMORY.

    Raises:
        UserError: no such choice, one that this device or this pipeline does not know, or one that comes too late.
    """
    check(name, device)
    if name != "whole":
        _check_tiles(pipe)
    before = _placed.get(pipe)
    if before == (name, device):
        return
    if before is not None and (before[0] == "group" or list(MEMORY).index(before[0]) > list(MEMORY).index(name)):
        raise UserError(
            f"the pipeline is placed as {before[0]} on {before[1]}, which cannot be undone",
            f"load it again to place it as {name} on {device}",
        )
    if name == "model":
        _model(pipe, device)
    elif name == "group":
        _group(pipe, device)
    else:
        pipe.to(device)
    # Last: a placement that failed must not leave tiles behind.
    if name != "whole" and getattr(pipe, "vae", None) is not None:
        pipe.vae.enable_tiling()
    _placed[pipe] = name, device


def _on_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"


def _check_tiles(pipe: Any) -> None:
    # A VAE without tiles may have the method none the less, and lack the attribute.
    vae = getattr(pipe, "vae", None)
    if vae is not None and not (hasattr(vae, "enable_tiling") and hasattr(vae, "use_tiling")):
        raise UserError(f"{type(vae).__name__} cannot decode in tiles", "use --memory whole")


def _model(pipe: Any, device: str) -> None:
    """As diffusers does, and one part at a time in truth.

    diffusers chains the parts in the order of a call, so that a part outside the chain, or one that a failed call or a
    call of a transformer by itself left behind, would stay beside the others.
    """
    found = list(parts(pipe).values())
    if hasattr(pipe, "enable_model_cpu_offload"):
        pipe.enable_model_cpu_offload(device=device)
    else:  # a modular pipeline
        import torch
        from accelerate import cpu_offload_with_hook  # type: ignore[import-untyped]

        for part in found:
            part.to("cpu")
            cpu_offload_with_hook(part, torch.device(device))

    def alone(mine: Any) -> Callable[[Any, Any], None]:
        def before(_module: Any, _args: Any) -> None:
            for other in found:
                if other is not mine and next(other.parameters()).device.type != "cpu":
                    other.to("cpu")

        return before

    for part in found:
        part.register_forward_pre_hook(alone(part))
        for inner in _entrances(part):
            inner.register_forward_pre_hook(alone(part))


def _entrances(part: Any) -> Iterator[Any]:
    """Networks inside of one that a pipeline calls past it: a text encoder's, and a VAE's decoder."""
    yield from (inner for name, inner in part.named_children() if name in ("model", "decoder"))


def _group(pipe: Any, device: str) -> None:
    """Transformers by blocks, text encoders by their leaves, and a VAE from decoding to the next transformer call.

    A transformer by its leaves would hook its attention modules, whose arguments the seam's own hooks change; and a VAE
    by its leaves would be copied once a tile and a frame.
    """
    import torch
    from accelerate import cpu_offload_with_hook
    from diffusers.hooks import apply_group_offloading

    if hasattr(pipe, "remove_all_hooks"):
        pipe.remove_all_hooks()  # of "model"
    onload = torch.device(device)
    found: Mapping[str, Any] = parts(pipe)
    transformers, vaes = [], []
    for name, part in found.items():
        part.to("cpu")
        if name.startswith("transformer"):
            part.enable_group_offload(
                onload_device=onload,
                offload_type="block_level",
                num_blocks_per_group=1,
                use_stream=onload.type == "cuda",
            )
            transformers.append(part)
        elif name.endswith("vae"):
            vaes.append(cpu_offload_with_hook(part, onload)[1])
        else:
            apply_group_offloading(part, onload_device=onload, offload_type="leaf_level")

    def leave(_module: Any, _args: Any) -> None:
        for vae in vaes:
            vae.offload()

    for transformer in transformers:
        transformer.register_forward_pre_hook(leave)
