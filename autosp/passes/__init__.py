"""The passes over the user's program, one a file; :data:`PROGRAM_PASSES` is their order."""

from __future__ import annotations

from autosp.passes.attention_layout import AttentionLayout
from autosp.passes.drop_causal_masks import DropCausalMasks
from autosp.passes.factor_masks import FactorMasks
from autosp.passes.keyed_randomness import KeyedRandomness
from autosp.passes.recognise_attention import RecogniseAttention
from autosp.passes.share_kv_heads import ShareKvHeads
from autosp.pipeline import Pass

PROGRAM_PASSES: tuple[Pass, ...] = (
    KeyedRandomness(),
    RecogniseAttention(),
    AttentionLayout(),
    DropCausalMasks(),
    FactorMasks(),
    ShareKvHeads(),
)
"""Rewrites with global shapes, before sharding."""
