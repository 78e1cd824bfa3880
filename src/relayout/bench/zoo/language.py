"""Networks of transformers: small ones of each kind, and BERT and GPT-2 in their usual sizes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from relayout.bench.zoo.building import called

__all__ = ["build"]

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}
WORDS = {**SIZES, "vocab_size": 1000}
PICTURE = {**SIZES, "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 384}
BOTH_SIDES: dict[str, Any] = {
    "vocab_size": 1000,
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
}
EAGER = {"attn_implementation": "eager"}

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", WORDS),
    "bert_eager": ("Bert", {**WORDS, **EAGER}),
    "bert_base": ("Bert", {}),
    "roberta": ("Roberta", {**WORDS, "max_position_embeddings": 160}),
    "electra": ("Electra", {**WORDS, "embedding_size": 64}),
    "albert": ("Albert", {**WORDS, "embedding_size": 64}),
    "deberta_v2": (
        "DebertaV2",
        {**WORDS, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16},
    ),
    "mobilebert": ("MobileBert", {"vocab_size": 1000, "num_hidden_layers": 2}),
    "distilbert": (
        "DistilBert",
        {"vocab_size": 1000, "dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256},
    ),
    "clip_text": ("CLIPText", {**WORDS, "eos_token_id": 999}),
}
"""Words and a mask in: the class without ``Model``, and its settings."""

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 1000, "n_embd": 128, "n_layer": 2, "n_head": 4}),
    "gpt2_eager": (
        "GPT2LMHeadModel",
        {"vocab_size": 1000, "n_embd": 128, "n_layer": 2, "n_head": 4, **EAGER},
    ),
    "gpt2_base": ("GPT2Model", {}),
    "llama": ("LlamaForCausalLM", {**WORDS, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForCausalLM", {**WORDS, "num_key_value_heads": 2}),
    "gemma2": ("Gemma2ForCausalLM", {**WORDS, "num_key_value_heads": 2, "head_dim": 32}),
    "phi": ("PhiForCausalLM", WORDS),
    "gpt_neox": ("GPTNeoXForCausalLM", WORDS),
    "opt": (
        "OPTForCausalLM",
        {
            "vocab_size": 1000,
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 256,
            "word_embed_proj_dim": 128,
        },
    ),
    "mamba": ("MambaForCausalLM", {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 1}),
}
"""Words in, one by one."""

PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_hf": ("ViTModel", PICTURE),
    "dinov2": (
        "Dinov2Model",
        {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 224},
    ),
    "yolos": (
        "YolosForObjectDetection",
        {**PICTURE, "image_size": [224, 224], "num_detection_tokens": 20},
    ),
    "segformer": ("SegformerForSemanticSegmentation", {}),
    "clip": ("CLIPVisionModel", PICTURE),
    "dpt": (
        "DPTForDepthEstimation",
        {
            **PICTURE,
            "num_hidden_layers": 4,
            "image_size": 224,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [48, 96, 192, 192],
            "fusion_hidden_size": 64,
        },
    ),
}
"""A picture in."""


def build(_: str, name: str, batch: int, size: int | None = None) -> tuple[Any, tuple[Any, ...]]:
    """A network and its inputs."""
    kit, torch = import_module("transformers"), import_module("torch")
    length = 128 if name.endswith("_base") else 32
    words = torch.randint(5, 100, (batch, length))
    mask = torch.ones_like(words)
    if batch > 1:
        mask[1:, length // 2 :] = 0
    image = torch.randn(batch, 3, 224, 224)
    if name in ENCODERS:
        kind, settings = ENCODERS[name]
        made = getattr(kit, f"{kind}Model")(getattr(kit, f"{kind}Config")(**settings))
        return called(made, ["input_ids", "attention_mask"]), (words, mask)
    if name in DECODERS:
        kind, settings = DECODERS[name]
        made = getattr(kit, kind)(getattr(kit, f"{_family(kind)}Config")(**settings))
        words = words[:, :8] if name == "mamba" else words
        return called(made, ["input_ids"], use_cache=False), (words,)
    if name in PICTURES:
        kind, settings = PICTURES[name]
        made = getattr(kit, kind)(getattr(kit, f"{_family(kind)}Config")(**settings))
        return called(made, ["pixel_values"]), (image,)
    if name == "upernet_convnext":
        trunk = kit.ConvNextConfig(
            hidden_sizes=[32, 64, 128, 256],
            depths=[1, 1, 1, 1],
            out_features=["stage1", "stage2", "stage3", "stage4"],
        )
        config = kit.UperNetConfig(backbone_config=trunk, hidden_size=64, use_auxiliary_head=False)
        return called(kit.UperNetForSemanticSegmentation(config), ["pixel_values"]), (image,)
    if name == "detr":
        trunk = kit.ResNetConfig(out_features=["stage4"], depths=[1, 1, 1, 1])
        sizes = {key: value for key, value in BOTH_SIDES.items() if key != "vocab_size"}
        config = kit.DetrConfig(use_timm_backbone=False, backbone_config=trunk, num_queries=20, **sizes)
        return called(kit.DetrForObjectDetection(config), ["pixel_values"]), (image,)
    both = ["input_ids", "decoder_input_ids"]
    if name == "t5":
        config = kit.T5Config(vocab_size=1000, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4)
        return called(kit.T5Model(config), both, use_cache=False), (words, words[:, :16])
    if name == "bart":
        return called(kit.BartModel(kit.BartConfig(**BOTH_SIDES)), both, use_cache=False), (
            words,
            words[:, :16],
        )
    if name == "whisper":
        tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
        config = kit.WhisperConfig(**BOTH_SIDES, **tokens, max_source_positions=200)
        sound = torch.randn(batch, 80, 400)
        names = ["input_features", "decoder_input_ids"]
        return called(kit.WhisperModel(config), names, use_cache=False), (sound, words[:, :8])
    if name == "wav2vec2":
        return called(kit.Wav2Vec2Model(kit.Wav2Vec2Config(**WORDS)), ["input_values"]), (
            torch.randn(batch, 8000),
        )
    raise KeyError(name)


def _family(kind: str) -> str:
    """``GPT2LMHeadModel`` belongs to ``GPT2``."""
    for ending in ("LMHeadModel", "VisionModel", "Model"):
        if kind.endswith(ending):
            return kind.removesuffix(ending) + ("Vision" if ending == "VisionModel" else "")
    return kind.partition("For")[0]
