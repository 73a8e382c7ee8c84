"""Small models of real architectures, built offline from transformers configurations.

A row of :data:`ARCHITECTURES` names the fields of a configuration, the class that puts a
head with a loss on it, and how its inputs are made. Sizes are tiny; ratios that matter
(query heads to KV heads, experts to experts used) are kept. Dropout is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

VOCABULARY = 96
NUM_HEADS = 8
"""Fits 2 and 4 ranks."""
HEAD_SIZE = 8
WIDTH = NUM_HEADS * HEAD_SIZE
MAX_LENGTH = 256
WINDOW = 24

Verdict = Literal["pass", "correct but replicated", "refused", "wrong"]
"""See ``docs/models.md``."""

Inputs = dict[str, Tensor]
InputsBuilder = Callable[[int, int], Inputs]
"""``inputs(batch, length)``: the keyword arguments of the forward, labels among them."""

COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": NUM_HEADS,
    "max_position_embeddings": MAX_LENGTH,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "use_cache": False,
}
"""What most configurations call their sizes."""

NO_DROPOUT: Mapping[str, float] = dict.fromkeys(
    (
        "attention_dropout",
        "attn_pdrop",
        "attn_dropout",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "dropout",
        "dropout_rate",
        "embd_pdrop",
        "embed_dropout",
        "embedding_dropout",
        "emb_pdrop",
        "hidden_dropout",
        "hidden_dropout_prob",
        "activation_dropout",
        "residual_dropout",
        "resid_pdrop",
    ),
    0.0,
)


def causal_text(batch: int, length: int) -> Inputs:
    """Random tokens, which are also the labels; some labels are ignored."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
    labels = ids.clone()
    labels[torch.rand(batch, length, generator=generator) < 0.2] = -100
    return {"input_ids": ids, "labels": labels}


def masked_text(batch: int, length: int) -> Inputs:
    """For masked language models: labels where a token was hidden."""
    given = causal_text(batch, length)
    return {**given, "attention_mask": torch.ones(batch, length, dtype=torch.long)}


def sequence_to_sequence(batch: int, length: int) -> Inputs:
    """The source is longer than the target by a number no rank count divides."""
    source = causal_text(batch, length + 6)["input_ids"]
    return {"input_ids": source, "labels": causal_text(batch, length)["labels"]}


def audio_to_text(batch: int, length: int) -> Inputs:
    """Mel frames, of which the encoder's convolutions leave 51, and a text of ``length``."""
    generator = torch.Generator().manual_seed(2)
    frames = torch.randn(batch, 16, 102, generator=generator, dtype=torch.float64)
    return {"input_features": frames, "labels": causal_text(batch, length)["labels"]}


def waveform(batch: int, length: int) -> Inputs:
    """Samples that convolutions turn into about ``length`` frames; one class a row."""
    generator = torch.Generator().manual_seed(2)
    samples = torch.randn(batch, 8 * length + 9, generator=generator, dtype=torch.float64)
    return {"input_values": samples, "labels": torch.arange(batch)}


IMAGE_SIZE, PATCH_SIZE = 28, 4
NUM_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2
IMAGE_TOKEN = 90


def pixels(batch: int, length: int) -> Inputs:
    """Images of 49 patches, whatever the length."""
    del length
    generator = torch.Generator().manual_seed(3)
    size = (batch, 3, IMAGE_SIZE, IMAGE_SIZE)
    return {"pixel_values": torch.randn(size, generator=generator, dtype=torch.float64)}


def images(batch: int, length: int) -> Inputs:
    """Images with one class each."""
    return {**pixels(batch, length), "labels": torch.arange(batch)}


def text_with_image(batch: int, length: int) -> Inputs:
    """An image a row, whose patches stand after the second token."""
    text = causal_text(batch, length)["input_ids"] % IMAGE_TOKEN
    placeholders = torch.full((batch, NUM_PATCHES), IMAGE_TOKEN)
    ids = torch.cat([text[:, :2], placeholders, text[:, 2:]], 1)
    labels = ids.masked_fill(ids == IMAGE_TOKEN, -100)
    return {**pixels(batch, length), "input_ids": ids, "labels": labels}


def text_with_patches(batch: int, length: int) -> Inputs:
    """As Qwen2-VL wants it: patches flattened over all images, and their grids."""
    generator = torch.Generator().manual_seed(3)
    height, width = 8, 4
    text = causal_text(batch, length)["input_ids"] % IMAGE_TOKEN
    placeholders = torch.full((batch, height * width // 4), IMAGE_TOKEN)
    ids = torch.cat([text[:, :2], placeholders, text[:, 2:]], 1)
    rows = (batch * height * width, 3 * PATCH_SIZE * PATCH_SIZE)
    return {
        "input_ids": ids,
        "labels": ids.masked_fill(ids == IMAGE_TOKEN, -100),
        "pixel_values": torch.randn(rows, generator=generator, dtype=torch.float64),
        "image_grid_thw": torch.tensor([[1, height, width]] * batch),
    }


@dataclass(frozen=True)
class Architecture:
    """One architecture."""

    name: str
    model_type: str
    """Of ``transformers.AutoConfig``."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration that differ from :data:`COMMON`."""
    head: str = "AutoModelForCausalLM"
    """The class of transformers that makes the model."""
    inputs: InputsBuilder = causal_text
    attention: str = "sdpa"
    dtype: torch.dtype = torch.float64
    prepare: str = ""
    """A method of the model to call once it is built."""
    verdict: Verdict = "pass"
    """What is expected of it today."""
    because: str = ""
    """Part of the refusal, where it is refused."""
    common: Mapping[str, Any] = field(default_factory=lambda: COMMON)

    def build(self) -> nn.Module:
        """The model in training mode, with random weights that do not depend on others."""
        import transformers

        given = {**self.common, **NO_DROPOUT, **self.fields}
        config = transformers.AutoConfig.for_model(self.model_type, **given)
        torch.manual_seed(0)
        maker = getattr(transformers, self.head)
        make = maker.from_config if self.head.startswith("Auto") else maker._from_config
        model: nn.Module = make(config, attn_implementation=self.attention)
        model = model.to(self.dtype)
        if self.prepare:
            getattr(model, self.prepare)()
        return model.train()


LAYERS: Mapping[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": NUM_HEADS,
}
IMAGE: Mapping[str, Any] = {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE}
GQA: Mapping[str, Any] = {"num_key_value_heads": 2}
EXPERTS: Mapping[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": WIDTH,
}
GEMMA: Mapping[str, Any] = {**GQA, "head_dim": 16}
SLIDING: Mapping[str, Any] = {"sliding_window": WINDOW}
ALTERNATING: Mapping[str, Any] = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
MLA: Mapping[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
GPT_SIZES: Mapping[str, Any] = {
    "n_embd": WIDTH, "n_head": NUM_HEADS, "n_layer": 2, "n_positions": MAX_LENGTH,
}  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("Llama", "llama", GQA),
    Architecture("Qwen2", "qwen2", GQA),
    Architecture("Qwen3", "qwen3", {**GQA, "head_dim": 16}),
    Architecture("Mistral", "mistral", {**GQA, "sliding_window": None}),
    Architecture("Mistral, sliding window", "mistral", {**GQA, **SLIDING}),
    Architecture("Ministral", "ministral", {**GQA, **ALTERNATING, "head_dim": HEAD_SIZE}),
    Architecture("Gemma", "gemma", GEMMA),
    Architecture("Gemma 2", "gemma2", {**GEMMA, **ALTERNATING}, attention="eager"),
    Architecture("Gemma 3 text", "gemma3_text", {**GEMMA, **ALTERNATING}),
    Architecture("Phi", "phi"),
    Architecture("Phi-3", "phi3", GQA),
    Architecture("Phi-4", "phi3", {**GQA, "partial_rotary_factor": 0.5}),
    Architecture("GPT-2", "gpt2"),
    Architecture("GPT-2, eager", "gpt2", attention="eager"),
    Architecture(
        "GPT-Neo",
        "gpt_neo",
        {
            "num_layers": 2,
            "num_heads": NUM_HEADS,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
        },
        attention="eager",
    ),
    Architecture("GPT-NeoX", "gpt_neox"),
    Architecture("GPT-J", "gptj", {"rotary_dim": 4}),
    Architecture("CodeGen", "codegen", {"rotary_dim": 4}),
    Architecture("OPT", "opt", {"ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH}),
    Architecture("Falcon", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    Architecture("Falcon, multi-query", "falcon", {"multi_query": True}),
    Architecture("BLOOM", "bloom", attention="eager"),
    Architecture(
        "MPT", "mpt", {"d_model": WIDTH, "n_heads": NUM_HEADS, "n_layers": 2}, attention="eager"
    ),
    Architecture("StarCoder2", "starcoder2", GQA),
    Architecture("Cohere", "cohere", GQA),
    Architecture("Cohere2", "cohere2", {**GQA, **ALTERNATING}),
    Architecture("OLMo", "olmo", GQA),
    Architecture("OLMo 2", "olmo2", GQA),
    Architecture("OLMo 3", "olmo3", {**GQA, **ALTERNATING}),
    Architecture("SmolLM3", "smollm3", {**GQA, "no_rope_layers": [1, 0]}),
    Architecture("Granite", "granite", GQA),
    Architecture("GLM", "glm", {**GQA, "head_dim": HEAD_SIZE}),
    Architecture("GLM-4", "glm4", {**GQA, "head_dim": HEAD_SIZE}),
    Architecture("StableLM", "stablelm", GQA),
    Architecture("Nemotron", "nemotron", {**GQA, "head_dim": HEAD_SIZE}),
    Architecture("Persimmon", "persimmon"),
    Architecture("EXAONE 4", "exaone4", {**GQA, **ALTERNATING}),
    Architecture("Helium", "helium", {**GQA, "head_dim": HEAD_SIZE}),
    Architecture("Arcee", "arcee", GQA),
    Architecture("ERNIE 4.5", "ernie4_5", {**GQA, "head_dim": HEAD_SIZE}),
    Architecture("Seed-OSS", "seed_oss", {**GQA, "head_dim": HEAD_SIZE}),
    Architecture("Apertus", "apertus", GQA),
    Architecture("BioGPT", "biogpt"),
    Architecture(
        "XGLM",
        "xglm",
        {"d_model": WIDTH, "attention_heads": NUM_HEADS, "num_layers": 2, "ffn_dim": 2 * WIDTH},
        attention="eager",
        dtype=torch.float32,
    ),
    Architecture("DeepSeek V2", "deepseek_v2", {**EXPERTS, **MLA}),
    Architecture("DeepSeek V3", "deepseek_v3", {**EXPERTS, **MLA}),
    Architecture("Mixtral", "mixtral", {**GQA, **EXPERTS}),
    Architecture("Qwen3-MoE", "qwen3_moe", {**GQA, **EXPERTS, "head_dim": 16}),
    Architecture("OLMoE", "olmoe", {**GQA, **EXPERTS}),
    Architecture("BERT", "bert", head="AutoModelForMaskedLM", inputs=masked_text),
    Architecture(
        "RoBERTa",
        "roberta",
        {"max_position_embeddings": MAX_LENGTH + 2},
        head="AutoModelForMaskedLM",
        inputs=masked_text,
    ),
    Architecture(
        "DistilBERT",
        "distilbert",
        {"dim": WIDTH, "n_heads": NUM_HEADS, "n_layers": 2, "hidden_dim": 2 * WIDTH},
        head="AutoModelForMaskedLM",
        inputs=masked_text,
    ),
    Architecture(
        "ELECTRA",
        "electra",
        {"embedding_size": 32},
        head="AutoModelForMaskedLM",
        inputs=masked_text,
    ),
    Architecture(
        "ALBERT", "albert", {"embedding_size": 32}, head="AutoModelForMaskedLM", inputs=masked_text
    ),
    Architecture(
        "DeBERTa",
        "deberta-v2",
        {
            "relative_attention": True,
            "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        head="AutoModelForMaskedLM",
        inputs=masked_text,
        attention="eager",
        verdict="correct but replicated",
    ),
    Architecture(
        "ModernBERT",
        "modernbert",
        {
            "local_attention": WINDOW,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "embedding_dropout": 0.0,
            "mlp_dropout": 0.0,
        },
        head="AutoModelForMaskedLM",
        inputs=masked_text,
    ),
    Architecture(
        "T5",
        "t5",
        {
            "d_model": WIDTH,
            "d_kv": HEAD_SIZE,
            "d_ff": 2 * WIDTH,
            "num_layers": 2,
            "num_heads": NUM_HEADS,
            "decoder_start_token_id": 0,
        },
        head="AutoModelForSeq2SeqLM",
        inputs=sequence_to_sequence,
    ),
    Architecture(
        "BART",
        "bart",
        {
            "d_model": WIDTH,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": NUM_HEADS,
            "decoder_attention_heads": NUM_HEADS,
            "encoder_ffn_dim": WIDTH,
            "decoder_ffn_dim": WIDTH,
            "decoder_start_token_id": 2,
        },
        head="AutoModelForSeq2SeqLM",
        inputs=sequence_to_sequence,
    ),
    Architecture(
        "Whisper",
        "whisper",
        {
            "d_model": WIDTH,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": NUM_HEADS,
            "decoder_attention_heads": NUM_HEADS,
            "encoder_ffn_dim": WIDTH,
            "decoder_ffn_dim": WIDTH,
            "num_mel_bins": 16,
            "max_source_positions": 51,
            "max_target_positions": MAX_LENGTH,
            "decoder_start_token_id": 1,
            "apply_spec_augment": False,
        },
        head="AutoModelForSpeechSeq2Seq",
        inputs=audio_to_text,
        verdict="correct but replicated",
    ),
    Architecture(
        "Wav2Vec2",
        "wav2vec2",
        {
            "conv_dim": (16, 16),
            "conv_kernel": (5, 3),
            "conv_stride": (4, 2),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 4,
            "apply_spec_augment": False,
            "mask_time_prob": 0.0,
            "layerdrop": 0.0,
            "feat_proj_dropout": 0.0,
            "final_dropout": 0.0,
            "feat_quantizer_dropout": 0.0,
            "num_labels": 5,
        },
        head="AutoModelForAudioClassification",
        inputs=waveform,
        prepare="freeze_feature_encoder",
        verdict="correct but replicated",
    ),
    Architecture(
        "ViT",
        "vit",
        {**IMAGE, "num_labels": 5},
        head="AutoModelForImageClassification",
        inputs=images,
    ),
    Architecture(
        "DINOv2",
        "dinov2",
        {**IMAGE, "num_labels": 5, "mlp_ratio": 2, "drop_path_rate": 0.0},
        head="AutoModelForImageClassification",
        inputs=images,
    ),
    Architecture(
        "SigLIP vision",
        "siglip_vision_model",
        IMAGE,
        head="SiglipVisionModel",
        inputs=pixels,
        verdict="correct but replicated",
    ),
    Architecture("CLIP vision", "clip_vision_model", IMAGE, head="CLIPVisionModel", inputs=pixels),
    Architecture(
        "LLaVA",
        "llava",
        {
            "vision_config": {"model_type": "clip_vision_model", **LAYERS, **IMAGE},
            "text_config": {"model_type": "llama", **COMMON, **GQA, **NO_DROPOUT},
            "image_token_index": IMAGE_TOKEN,
            "vision_feature_layer": -1,
            "image_seq_length": 16,
        },
        head="AutoModelForImageTextToText",
        inputs=text_with_image,
        common={},
    ),
    Architecture(
        "Qwen2-VL",
        "qwen2_vl",
        {
            "text_config": {
                **COMMON,
                **GQA,
                **NO_DROPOUT,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [2, 1, 1],
                },
            },
            "vision_config": {
                "depth": 2,
                "embed_dim": WIDTH,
                "hidden_size": WIDTH,
                "num_heads": NUM_HEADS,
                "mlp_ratio": 2,
                "patch_size": 4,
                "spatial_merge_size": 2,
                "temporal_patch_size": 1,
            },
            "image_token_id": IMAGE_TOKEN,
            "vision_start_token_id": 91,
            "vision_end_token_id": 92,
            "video_token_id": 93,
        },
        head="AutoModelForImageTextToText",
        inputs=text_with_patches,
        common={},
        verdict="refused",
        because="depends on the values of a tensor",
    ),
    Architecture(
        "Mamba 2",
        "mamba2",
        {
            "num_heads": NUM_HEADS,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 1,
            "chunk_size": 16,
            "expand": 2,
        },
        attention="eager",
        verdict="refused",
        because="found no attention to shard around",
    ),
    Architecture(
        "Jamba",
        "jamba",
        {
            **GQA,
            **EXPERTS,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 4,
            "expert_layer_offset": 3,
            "use_mamba_kernels": False,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "num_experts": 1,
        },
        verdict="refused",
        because="the trace cannot follow",
    ),
    Architecture(
        "RecurrentGemma",
        "recurrent_gemma",
        {
            "num_key_value_heads": 2,
            "lru_width": WIDTH,
            "attention_window_size": WINDOW,
            "block_types": ["recurrent", "attention"],
            "head_dim": HEAD_SIZE,
        },
        verdict="correct but replicated",
    ),
    Architecture(
        "GPT-OSS",
        "gpt_oss",
        {**GQA, **EXPERTS, **ALTERNATING, "head_dim": HEAD_SIZE},
        attention="eager",
    ),
    Architecture(
        "LFM2",
        "lfm2",
        {**GQA, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
        verdict="correct but replicated",
    ),
    Architecture(
        "Bamba",
        "bamba",
        {
            **GQA,
            "attn_layer_indices": [1],
            "mamba_n_heads": NUM_HEADS,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
            "mamba_chunk_size": 16,
        },
        verdict="correct but replicated",
    ),
)
