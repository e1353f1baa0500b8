"""Each pooling against its definition, written out by hand."""

from __future__ import annotations

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from sightline.errors import SightlineError
from sightline.pooling import check_pooling, pool

LAST = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [90.0, 90.0]], [[5.0, 6.0], [7.0, 8.0], [0.0, 1.0]]])
FIRST = torch.tensor([[[0.0, 0.0], [2.0, 2.0], [70.0, 70.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def output(**more) -> BaseModelOutputWithPooling:
    return BaseModelOutputWithPooling(last_hidden_state=LAST, **more)


def test_cls_is_the_raw_first_token():
    assert torch.equal(pool(output(), MASK, "cls"), torch.tensor([[1.0, 2.0], [5.0, 6.0]]))


def test_mean_excludes_padding():
    assert torch.allclose(pool(output(), MASK, "mean"), torch.tensor([[2.0, 3.0], [4.0, 5.0]]))


def test_first_last_mean_takes_the_embedding_output_and_the_last_layer():
    middle = torch.full_like(LAST, 1e6)
    pooled = pool(output(hidden_states=(FIRST, middle, LAST)), MASK, "first_last_mean")
    assert torch.allclose(pooled, torch.tensor([[1.5, 2.0], [2.5, 3.0]]))


def test_pooler_gives_the_models_own_output():
    own = torch.tensor([[0.5, 0.5], [0.1, 0.2]])
    assert torch.equal(pool(output(pooler_output=own), MASK, "pooler"), own)


def test_a_mean_of_a_low_precision_is_taken_in_float32():
    low = BaseModelOutputWithPooling(last_hidden_state=LAST.bfloat16())
    assert torch.equal(pool(low, MASK, "mean"), pool(output(), MASK, "mean"))


def test_an_unknown_pooling_lists_the_valid_ones():
    with pytest.raises(SightlineError, match="'max'; use one of cls, pooler, mean"):
        check_pooling("max")


def test_a_row_of_only_padding_gives_no_nan():
    assert torch.equal(pool(output(), torch.zeros_like(MASK), "mean"), torch.zeros(2, 2))
