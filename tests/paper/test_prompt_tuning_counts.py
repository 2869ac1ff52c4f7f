"""Table 4 of Lester et al. 2021, its three misprinted cells corrected (docs/results.md names them)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from softcue.methods import METHODS

WIDTHS = {"small": 512, "base": 768, "large": 1024, "XL": 2048, "XXL": 4096}
PRINTED = {
    ("small", 1): 512,
    ("small", 5): 2_560,
    ("small", 20): 10_240,
    ("small", 50): 25_600,
    ("small", 100): 51_200,
    ("small", 150): 76_800,
    ("base", 1): 768,
    ("base", 5): 3_840,
    ("base", 20): 15_360,
    ("base", 50): 38_400,
    ("base", 100): 76_800,
    ("base", 150): 115_200,
    ("large", 1): 1_024,
    ("large", 5): 5_120,
    ("large", 20): 20_480,
    ("large", 50): 51_200,
    ("large", 100): 102_400,
    ("large", 150): 153_600,
    ("XL", 1): 2_048,
    ("XL", 5): 10_240,
    ("XL", 20): 40_960,
    ("XL", 50): 102_400,
    ("XL", 100): 204_800,
    ("XL", 150): 307_200,
    ("XXL", 1): 4_096,
    ("XXL", 5): 20_480,
    ("XXL", 20): 81_920,
    ("XXL", 50): 204_800,
    ("XXL", 100): 409_600,
    ("XXL", 150): 614_400,
}


@pytest.mark.parametrize(("size", "length"), PRINTED)
def test_a_prompt_has_as_many_numbers_as_the_paper_says(size: str, length: int) -> None:
    method = METHODS["prompt-tuning"]
    config = method.Config.model_validate({"name": "prompt-tuning", "prompt_length": length})
    with torch.device("meta"):
        built = method.build(config, SimpleNamespace(width=WIDTHS[size]), None, None)  # type: ignore[arg-type]
    assert sum(parameter.numel() for parameter in built.parameters()) == PRINTED[size, length]
