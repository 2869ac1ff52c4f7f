"""The identity of a backbone as three short digests. Loading a cue on a backbone with other digests is an error."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy
import numpy.typing
import torch
from torch import Tensor

from softcue.backbones.loading.weight_reading import release_pages


@dataclass(frozen=True)
class Fingerprint:
    """Digests of the parts of a backbone that a cue depends on."""

    config: str
    weights: str
    tokenizer: str

    def differences(self, other: Fingerprint) -> list[str]:
        """Return the names of the parts that differ."""
        return [part for part in ("config", "weights", "tokenizer") if getattr(self, part) != getattr(other, part)]


# Settings that do not change the output of a model.
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache")
_SAMPLES = 256  # values of each weight that are compared with their positions


def compute_fingerprint(model: Any, tokenizer: Any, weights: str) -> Fingerprint:
    """Compute short digests of configuration and tokenizer, beside the digest of the weights.

    Example:
        compute_fingerprint(model, tokenizer, digest_weights(model))
    """
    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in _VOLATILE}
    return Fingerprint(
        config=_digest(json.dumps(config, sort_keys=True, default=str).encode()),
        weights=weights,
        tokenizer=_digest(_tokenizer_text(tokenizer).encode()),
    )


def digest_weights(model: Any) -> str:
    """Compute a short digest of a model's weights.

    Word embeddings count to the last bit. Of every other tensor (output words included) an exact sum of all values and
    a sample of them count, which is fast also for large models. Weights are taken in bfloat16, so a model has the same
    digest in every number format that holds its numbers exactly or that is bfloat16. In float16 and in fewer bits small
    numbers are lost: such models get the digest of their files (digest_cache.py).

    Example:
        digest_weights(load_backbone("minilm").model)
    """
    weights = hashlib.sha256()
    table = model.get_input_embeddings().weight
    weights.update(_bfloat16_bits(table).data)
    for name, parameter in sorted(model.named_parameters()):
        if "pooler" in name.split("."):  # unused in softcue, and random if a folder has none
            continue
        bits = _bfloat16_bits(parameter.reshape(-1))
        sample = bits[:: max(1, bits.size // _SAMPLES)]
        weights.update(f"{name} {tuple(parameter.shape)} {int(bits.sum(dtype=numpy.int64))}".encode())
        weights.update(sample.tobytes())
        release_pages(parameter.data)
    return weights.hexdigest()[:16]


def _tokenizer_text(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        state["truncation"] = state["padding"] = None  # set by calls
        return json.dumps(state, sort_keys=True)
    return json.dumps(tokenizer.get_vocab(), sort_keys=True)


def _bfloat16_bits(values: Tensor) -> numpy.typing.NDArray[numpy.int16]:
    """Return the bits of bfloat16 values as 16-bit integers, whose sum does not depend on the order of adding.

    numpy adds them up faster than torch, which has no fast sum of short integers.
    """
    bits: numpy.typing.NDArray[numpy.int16] = (
        values.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy()
    )
    return bits


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
