"""Whole models on which DeepSpeed's AutoSP failed or was wrong, one named test for each case.

The cases are runs of DeepSpeed 0.19.8 with two ranks: Hugging Face Llama and GPT-2 and a
hand-written GPT. Each must be right here, or refused with one clear line.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from autosp.oracle import check_module
from tests.support.gloo_cases import sample

VOCABULARY = 37
BATCH, LENGTH = 2, 12


def llama(*, num_heads: int = 4, num_kv_heads: int = 2, attention: str = "sdpa", **options):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=num_heads * 4,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=64,
        use_cache=False,
        attn_implementation=attention,
        **options,
    )
    return LlamaForCausalLM(config).double().train()


def gpt2(**options):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=64,
        use_cache=False,
        attn_implementation="sdpa",
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **options},
    )
    return GPT2LMHeadModel(config).double().train()


def tokens(length: int = LENGTH, *, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (BATCH, length), generator=generator)


def is_right(model, *, num_ranks=2, max_fallbacks: int | None = 0, **inputs) -> None:
    """Values, cotangents and gradients of the model are those of the ranks together."""
    report = check_module(model, (), inputs, num_ranks=num_ranks)
    assert report.ok, report.first_wrong
    assert report.num_cotangents_checked > 60
    if max_fallbacks is not None:
        assert report.num_fallbacks <= max_fallbacks, report


def positions(length: int = LENGTH) -> torch.Tensor:
    return torch.arange(length).expand(BATCH, -1)


def padded(side: str) -> dict[str, torch.Tensor]:
    """One full sequence and one with four tokens of padding."""
    ids, mask = tokens(), torch.ones(BATCH, LENGTH, dtype=torch.long)
    rows = slice(None, 4) if side == "left" else slice(LENGTH - 4, None)
    mask[1, rows] = 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
    }


# ---------------------------------------------------------------- Llama: positions and masks


def test_llama_with_positions_and_no_mask():
    is_right(llama(), input_ids=tokens(), labels=tokens(), position_ids=positions())


def test_llama_without_positions_and_mask():
    is_right(llama(), input_ids=tokens(), labels=tokens())


def test_llama_with_positions_and_a_mask_of_ones():
    """DeepSpeed's gradient is 12 % off here: each rank shifts its own labels."""
    ones = torch.ones(BATCH, LENGTH, dtype=torch.long)
    ids = tokens()
    is_right(llama(), input_ids=ids, labels=ids, position_ids=positions(), attention_mask=ones)


@pytest.mark.parametrize("side", ["right", "left"])
def test_llama_with_padding(side):
    is_right(llama(), **padded(side))


def test_llama_with_packed_documents():
    restarted = torch.cat([torch.arange(5), torch.arange(4), torch.arange(3)]).expand(BATCH, -1)
    is_right(llama(), input_ids=tokens(), labels=tokens(), position_ids=restarted)


@pytest.mark.parametrize("num_kv_heads", [2, 1])
def test_llama_with_few_kv_heads(num_kv_heads):
    is_right(llama(num_kv_heads=num_kv_heads), num_ranks=4, input_ids=tokens(), labels=tokens())


def test_llama_with_one_head_runs_in_a_ring():
    is_right(llama(num_heads=1, num_kv_heads=1), input_ids=tokens(), labels=tokens())


def test_llama_with_one_head_and_padding_takes_a_ring():
    is_right(llama(num_heads=1, num_kv_heads=1), **padded("left"))


def test_llama_with_a_length_that_the_ranks_do_not_divide():
    ids = tokens(11)
    is_right(llama(), input_ids=ids, labels=ids)
    is_right(llama(), num_ranks=4, input_ids=ids, labels=ids)


def test_llama_with_eager_attention():
    is_right(llama(attention="eager"), input_ids=tokens(), labels=tokens(), max_fallbacks=None)


def test_llama_with_gradient_checkpointing():
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    is_right(model, input_ids=tokens(), labels=tokens())


# ---------------------------------------------------------------- Llama: labels


def shifted(ids: torch.Tensor) -> torch.Tensor:
    return F.pad(ids, (0, 1), value=-100)[:, 1:].contiguous()


def test_llama_with_labels_shifted_by_the_script():
    """Contiguous as transformers wants them; a rank's block of them is not."""
    ids = tokens()
    labels = shifted(ids)
    assert not labels.chunk(2, 1)[0].is_contiguous()
    is_right(llama(), input_ids=ids, labels=labels, shift_labels=labels)


def test_llama_with_a_prompt_that_is_not_learned():
    """Unbalanced: the first rank has few valid labels; 115 % off with a mean of means."""
    ids = tokens()
    labels = shifted(ids)
    labels[:, :5] = -100
    is_right(llama(), input_ids=ids, labels=labels, shift_labels=labels)


def test_llama_with_a_number_of_items_from_the_trainer():
    """Gradient accumulation in transformers: the sum over a count of the whole step."""
    ids = tokens()
    is_right(llama(), input_ids=ids, labels=ids, num_items_in_batch=torch.tensor(61))


# ---------------------------------------------------------------- GPT-2 and hand-written GPT


def test_gpt2_without_mask_and_positions():
    """Its loss warns once (no graph break), its Conv1D asks for the size of the sharded input."""
    is_right(gpt2(), input_ids=tokens(), labels=tokens())


def test_gpt2_with_padding():
    inputs = padded("right")
    is_right(gpt2(), **inputs)


def test_gpt2_with_dropout():
    dropped = {"resid_pdrop": 0.1, "embd_pdrop": 0.1}
    is_right(gpt2(**dropped), input_ids=tokens(), labels=tokens(), max_fallbacks=None)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_gpt_with_positions_counted_by_the_model(num_ranks):
    subject = sample("gpt", batch=2, length=12, dtype="float64")
    is_right(subject.module, num_ranks=num_ranks, **subject.kwargs)
