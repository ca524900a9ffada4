"""Whether fast implementations of a whole model may be used instead of calls of its modules.

The decoding engines and CUDA graphs run a model without calling its modules. `find_override` looks
for what they would ignore: hooks, subclasses, replaced modules, parametrisations. Hooks can be
added at any time, so it runs before each search and each training step; it takes about a tenth of
a millisecond.
"""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from regard.errors import InputError
from regard.model.attention import MultiHeadAttention
from regard.model.block import AddAndNorm, Block, FeedForward
from regard.model.head import Head
from regard.model.linear import Linear
from regard.model.mixers import Convolution, Recurrence
from regard.model.positions import LearnedPositions
from regard.model.ssru import Ssru
from regard.model.stack import Stack
from regard.model.transformer import Transformer
from regard.ops.overrides import Classes, global_hook

log = logging.getLogger("regard")

CONTAINERS = nn.ModuleDict, nn.ModuleList
CLASSES = Classes(
    Transformer, Stack, Block, MultiHeadAttention, AddAndNorm, FeedForward, Head, Linear,
    LearnedPositions, Convolution, Recurrence, Ssru, nn.Embedding, nn.LayerNorm, nn.RMSNorm,
    nn.LSTM, nn.GRU, *CONTAINERS,
)  # fmt: skip
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
# The class of each module by its name; the items of a ModuleList are blocks.
PARTS: dict[str, type[nn.Module]] = {
    "embeddings": nn.ModuleDict, "shared": nn.Embedding, "source": nn.Embedding,
    "target": nn.Embedding, "encoder": Stack, "decoder": Stack, "head": Head,
    "positions": LearnedPositions, "layers": nn.ModuleList, "self_attention": MultiHeadAttention,
    "self_attention_norm": AddAndNorm, "mixer_norm": AddAndNorm,
    "cross_attention": MultiHeadAttention, "cross_attention_norm": AddAndNorm,
    "feed_forward": FeedForward, "feed_forward_norm": AddAndNorm, "query_key_value": Linear,
    "output": Linear, "inner": Linear, "outer": Linear, "transform": Linear, "classes": Linear,
    "neighbours": Linear,
}  # fmt: skip
ANY = {"mixer", "recurrence"}  # of any class, because no fast implementation supports them
SSRU_PARTS: dict[str, type[nn.Module]] = {"input": Linear, "forget": Linear}

_logged: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def find_override(model: Transformer, training: bool = False) -> str | None:
    """Why a fast implementation must not be used for this model: the first module that it would
    ignore, and the reason. None if it may be used.

    A change of the reason is logged once, at level DEBUG, to the logger "regard".

    Args:
        model: the model; all its modules are examined.
        training: whether gradients are computed. If so, backward hooks count too. Otherwise every
            module must be in evaluation mode.
    """
    reason = _find(model, training)
    if reason is None:
        _logged.pop(model, None)
    elif _logged.get(model) != reason:
        _logged[model] = reason
        log.debug("%s: modules are called one by one, without fast implementations", reason)
    return reason


def _find(model: Transformer, training: bool) -> str | None:
    if global_hook():
        return "a hook for all modules is registered"
    if type(model) is not Transformer:
        return f"the model is a {type(model).__name__}"
    if (reason := CLASSES.replaced()) is not None:
        return reason
    config = model.config
    norm, heads = NORMS[config.norm], (config.heads, config.key_value_heads, config.head_size)
    parts = PARTS | {"norm": norm, "embedding_norm": norm, "final_norm": norm}
    modules: list[nn.Module] = [model]
    for module in modules:  # which grows in the loop
        own = vars(module)
        if (
            own["_forward_hooks"] or own["_forward_pre_hooks"] or own["training"] is not training
            or "forward" in own or "weight" in own
        ):  # fmt: skip
            return _reason(model, module, training)
        if training and (own["_backward_hooks"] or own["_backward_pre_hooks"]):
            return _reason(model, module, training)
        blocks, kinds = type(module) is nn.ModuleList, parts
        if isinstance(module, Block) and module.recurrent:
            kinds = parts | {"mixer": Ssru}
        elif type(module) is Ssru:
            kinds = SSRU_PARTS
        for name, part in own["_modules"].items():
            if part is None:
                continue
            kind, expected = type(part), Block if blocks else kinds.get(name)
            if kind is not expected:
                if expected is None and name not in ANY:
                    continue  # a module that the user added, which no other module calls
                if expected is not None:
                    return f"{_name(model, part)} is a {kind.__name__}"
            elif kind is norm:
                if part.eps != config.norm_epsilon or part.weight is None:
                    return f"{_name(model, part)} has another eps or no weight"
            elif kind is MultiHeadAttention:
                if (part.heads, part.key_value_heads, part.head_size) != heads:
                    return f"{_name(model, part)} has another number of heads"
            elif kind is nn.Embedding and part.max_norm is not None:
                return f"{_name(model, part)} has max_norm"
            modules.append(part)
    return _parameter_hook(model) if training else None


def _parameter_hook(model: nn.Module) -> str | None:
    """A hook of a parameter's gradient, which a CUDA graph does not call."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return f"{name} has a gradient hook"
    return None


def _reason(model: nn.Module, module: nn.Module, training: bool) -> str:
    reason = CLASSES.override(module, backward=training)
    if reason is None:
        reason = f"is in {'evaluation' if training else 'training'} mode"
    return f"{_name(model, module)} {reason}"


def _name(model: nn.Module, module: nn.Module) -> str:
    names = (name for name, part in model.named_modules() if part is module)
    return next(names) or "the Transformer"


def is_overridden(model: Transformer) -> bool:
    """Whether inference must call the modules of a model, see `find_override`.

    Raises:
        InputError: there is a hook on the Transformer itself or on a module without `forward`, such
            as an nn.ModuleList. Inference calls the methods of the Transformer (`encode`, `decode`,
            `step`), not the module, so that such a hook would be ignored.
    """
    if find_override(model) is None:
        return False
    for name, module in model.named_modules():
        called = module is not model and type(module).forward is not nn.Module.forward
        if not called and (module._forward_hooks or module._forward_pre_hooks):
            raise InputError(
                f"{name or 'the Transformer itself'} has a hook, but predictions never call this "
                "module: register the hook on the encoder, the decoder, the head or a part of them"
            )
    return True


def calls_head(model: Transformer) -> bool:
    """Whether logits must be computed by a call of the model, because a call of the model, of its
    head or of the head's output matrix does more than a product with `output_matrix()`."""
    modules = [model, model.head, getattr(model.head, "output", None)]
    return global_hook() or any(m is not None and CLASSES.override(m) is not None for m in modules)


def weights_of(module: nn.Module) -> list[Tensor]:
    """All parameters. module.parameters() takes longer than a step of a small model."""
    weights: list[Tensor] = [w for w in module._parameters.values() if w is not None]
    for part in module._modules.values():
        if part is not None:
            weights += weights_of(part)
    return weights
