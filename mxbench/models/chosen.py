"""``ChosenModel``: a diffusers pipeline with weights of the user's choice: a folder, a hub id, or random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from mxbench.errors import UserError
from mxbench.models import memory as placing
from mxbench.models.base import Frames, ModelFacts, Sampling, Work
from mxbench.models.memory import Need
from mxbench.models.pipeline_folder import elements_of, fingerprint, pipeline_of, read_json
from mxbench.models.placement import cast, repeatable
from mxbench.models.pretrained import locate, parse_source
from mxbench.models.render import PipelineModel
from mxbench.models.source import Located, Source
from mxbench.models.whole import check_tensors

__all__ = ["SEED", "ChosenModel", "Make"]

SEED = 0

_known: dict[tuple[str, str], tuple[int, int, int]] = {}  # of random weights, by model and scale


class ChosenModel(PipelineModel):
    """What the models have in common whose weights do not come with mxbench.

    Attributes:
        NAME: in MODELS.
        HUB: the hub id of its own weights.
        PIPELINE: name of the diffusers class.
        SAMPLING: the papers' setting.
        TINY: what suits tiny random weights.
        EXPERTS: transformers.
        BRANCHES: forwards a step.
        IGNORES: fields of ``Sampling`` that it makes nothing of.
        TILES: whether its VAE decodes in tiles however it is placed.
        FRAMES: numbers of frames that it renders.
        MULTIPLE: what height and width are multiples of.
        TRANSFORMER: the part that is one, or the first of two.
        KINDS: of attention that a schedule may name.
        SPREADS: whether diffusers has a plan that spreads its transformers over GPUs.
        UNEVEN: whether the length of its sequences differs from prompt to prompt.
        COMPONENTS: the parts of its weights that it needs; None for all that the pipeline's index names.
        DTYPES: of the activations; the VAE computes in FP32.
        ARCHITECTURES: of random weights, by ``full`` and ``tiny``: part by part, as the classes take it.
        random_weights: whether this one has them.
    """

    NAME: ClassVar[str]
    HUB: ClassVar[str]
    PIPELINE: ClassVar[str]
    SAMPLING: ClassVar[Sampling]
    TINY: ClassVar[Sampling]
    EXPERTS: ClassVar[int] = 1
    BRANCHES: ClassVar[int] = 1
    IGNORES: ClassVar[tuple[str, ...]] = ()
    TILES: ClassVar[bool] = False
    FRAMES: ClassVar[Frames] = Frames()
    MULTIPLE: ClassVar[int] = 16
    TRANSFORMER: ClassVar[str] = "transformer"
    KINDS: ClassVar[tuple[str, ...]] = ("self",)
    SPREADS: ClassVar[bool] = False
    UNEVEN: ClassVar[bool] = False
    COMPONENTS: ClassVar[tuple[str, ...] | None] = None
    DTYPES: ClassVar[Mapping[str, str]] = {"cpu": "float32", "cuda": "bfloat16"}
    ARCHITECTURES: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]]
    random_weights: bool = False

    @classmethod
    def random(cls, architecture: Mapping[str, Mapping[str, Any]], make: Make) -> Any:
        """The pipeline with weights from a seed; ``make`` makes its networks."""
        raise NotImplementedError

    @classmethod
    def layers(cls, config: Mapping[str, Any]) -> int:
        """Layers of a transformer, from its config."""
        return int(config["num_layers"])

    @classmethod
    def heads(cls, config: Mapping[str, Any]) -> tuple[int, int]:
        """Attention heads of a transformer, and the channels of all."""
        heads = int(config["num_attention_heads"])
        return heads, heads * int(config["attention_head_dim"])

    @classmethod
    def tokens(cls, config: Mapping[str, Any], sampling: Sampling) -> int:
        """Tokens of a call of self-attention, text of joint attention among them; ``config`` is the transformer's."""
        raise NotImplementedError

    @classmethod
    def experts_at(
        cls, _scheduler: Mapping[str, Any], _index: Mapping[str, Any]
    ) -> Callable[[int], Sequence[int]] | None:
        """Which transformer computes each of so many steps, from the configs of scheduler and pipeline."""
        return None

    @classmethod
    def _need(cls, config: Mapping[str, Any], weights: int, largest: int, sampling: Sampling) -> Need:
        """Bytes that a render takes: a rough guess, of twenty residual streams and 250 bytes a decoded pixel."""
        _, width = cls.heads(config)
        pixels = sampling.frames * sampling.height * sampling.width
        return Need(weights, largest, cls.tokens(config, sampling) * 2 * width * 20, pixels * 250)

    @classmethod
    def _work(cls, config: Mapping[str, Any], parameters: float, sampling: Sampling) -> Work:
        """What a clip takes, from a transformer's parameters: of joint attention every token meets each of them."""
        n, (_, width) = cls.tokens(config, sampling), cls.heads(config)
        branches = cls.BRANCHES if sampling.guidance[0] > 1 else 1
        return Work(n, 4.0 * n * n * width * cls.layers(config), 2.0 * n * parameters, sampling.steps * branches)

    @classmethod
    def facts(cls, weights: str | None = None, revision: str | None = None) -> ModelFacts:
        """What is known of it with these weights; see ``mxbench.models.facts``."""
        source = parse_source(weights, revision, cls.HUB)
        if source.kind == "random":
            return cls._random_facts(source)
        located, digest = _found(source, cls.COMPONENTS)
        held = pipeline_of(located.path)
        if held not in (None, cls.PIPELINE):
            raise UserError(f"{source.name} holds a {held}, and {cls.NAME} is a {cls.PIPELINE}", "pass its own weights")
        config = read_json(located.path / cls.TRANSFORMER / "config.json")
        try:
            known = cls._known(config)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{located.path / cls.TRANSFORMER}/config.json is no config of {cls.NAME}'s: {error!r}",
                "bring it again",
            ) from error
        elements = elements_of(located.path, cls.COMPONENTS)
        sizes = {name: count * (4 if name.endswith("vae") else 2) for name, count in elements.items()} or {"": 0}
        scheduler, index = located.path / "scheduler/scheduler_config.json", located.path / "model_index.json"
        if scheduler.is_file() and index.is_file():
            known["experts_at"] = cls.experts_at(read_json(scheduler), read_json(index))
        named = f"{source.name}@{located.revision[:12]}" if located.revision else f"a folder, {digest[:12]}"
        return ModelFacts(
            weights=named,
            identity={"name": cls.NAME, "weights": digest},
            sampling=cls.SAMPLING,
            **known,
            need=lambda sampling: cls._need(config, sum(sizes.values()), max(sizes.values()), sampling),
            work=lambda sampling: cls._work(config, elements.get(cls.TRANSFORMER, 0), sampling),
        )

    @classmethod
    def _known(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of ``ModelFacts`` that no weights change."""
        return {
            "n_layers": cls.layers(config),
            "n_experts": cls.EXPERTS,
            "dtypes": cls.DTYPES,
            "ignores": cls.IGNORES,
            "tiles": cls.TILES,
            "frames": cls.FRAMES,
            "multiple": cls.MULTIPLE,
            "kinds": cls.KINDS,
            "spread": cls.heads(config)[0] if cls.SPREADS else 0,
            "uneven": cls.UNEVEN,
        }

    @classmethod
    def stored(cls, path: Path, dtype: torch.dtype) -> Any:
        """The pipeline of a folder, on the CPU, its VAE in FP32."""
        import diffusers

        return getattr(diffusers, cls.PIPELINE).from_pretrained(
            path, dtype={"default": dtype, "vae": torch.float32}, local_files_only=True
        )

    @classmethod
    def _stored(cls, path: Path, dtype: torch.dtype) -> Any:
        """``stored``, of files that fit one another; whatever a loader says of those that do not is one line."""
        check_tensors(path, cls.COMPONENTS)
        try:
            return cls.stored(path, dtype)
        except (UserError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {said}", "bring it again") from error

    @classmethod
    def _random_facts(cls, source: Source) -> ModelFacts:
        scale = source.name or "full"
        architecture = cls.ARCHITECTURES[scale]
        config = architecture[cls.TRANSFORMER]
        return ModelFacts(
            weights=f"random weights, seed {SEED}" + (f", {scale}" if scale != "full" else ""),
            identity={"name": cls.NAME, "weights": "random", "seed": SEED, "architecture": architecture},
            sampling=cls.TINY if scale == "tiny" else cls.SAMPLING,
            **cls._known(config),
            experts_at=cls.experts_at(architecture.get("scheduler", {}), architecture.get("pipeline", {})),
            need=lambda sampling: cls._need(config, *_bytes_of(cls, scale)[:2], sampling),
            work=lambda sampling: cls._work(config, _bytes_of(cls, scale)[2], sampling),
        )

    @classmethod
    def load(
        cls, device: str, weights: str | None = None, revision: str | None = None, memory: str | None = None
    ) -> Self:
        """Load it onto a device, see ``mxbench.models.load``.

        Raises:
            UserError: weights that are not to be had, or a full-size random model on a CPU.
        """
        source = parse_source(weights, revision, cls.HUB)
        repeatable(device)
        dtype = getattr(torch, cls.DTYPES[device.partition(":")[0]])
        if source.kind == "random":
            if not source.name and device == "cpu":
                raise UserError(
                    f"{cls.NAME} at full size is not built on a CPU", "run it on a GPU, or use --weights random:tiny"
                )
            home = "cpu" if memory in ("model", "group") else device
            pipe = cls.random(cls.ARCHITECTURES[source.name or "full"], Make(device, dtype, home))
        else:
            pipe = cls._stored(_found(source, cls.COMPONENTS)[0].path, dtype)
            if device == "cpu":  # memory-mapped weights are not aligned: products with them differ in the last bits
                for part in placing.parts(pipe).values():
                    for parameter in part.parameters():
                        parameter.data = parameter.data.clone()
        if hasattr(pipe, "set_progress_bar_config"):
            pipe.set_progress_bar_config(disable=True)
        placing.place(pipe, device, memory or "whole")
        model = cls(pipe)
        model.random_weights = source.kind == "random"
        return model


@dataclass(frozen=True, slots=True)
class Make:
    """Makes networks with random weights.

    Attributes:
        device: where they are made.
        dtype: of the parameters, but for what is kept in FP32.
        home: where they are put.
    """

    device: str
    dtype: torch.dtype
    home: str

    def __call__(self, make: Callable[[], torch.nn.Module], seed: int = SEED, dtype: torch.dtype | None = None) -> Any:
        """The network that ``make`` makes, its weights from a seed."""
        devices = [self.device] if self.device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices), torch.device(self.device):
            torch.manual_seed(seed)
            part = make().eval()
        cast(part, dtype or self.dtype)
        return part.to(self.home)


@cache
def _found(source: Source, components: tuple[str, ...] | None) -> tuple[Located, str]:
    """Where the weights are, and their fingerprint: once a process."""
    located = locate(source, components=components)
    return located, fingerprint(located.path)


def _bytes_of(cls: type[ChosenModel], scale: str) -> tuple[int, int, int]:
    """Bytes of all random weights and of the largest part in BF16, and parameters of a transformer; by shapes alone."""
    if (cls.NAME, scale) not in _known:
        pipe = cls.random(cls.ARCHITECTURES[scale], Make("meta", torch.bfloat16, "meta"))
        sizes = {name: placing.bytes_of(part) for name, part in placing.parts(pipe).items()}
        parameters = sum(p.numel() for p in placing.parts(pipe)[cls.TRANSFORMER].parameters())
        _known[cls.NAME, scale] = sum(sizes.values()), max(sizes.values()), parameters
    return _known[cls.NAME, scale]
