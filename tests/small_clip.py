"""A CLIP and a SigLIP of transformers with a few thousand numbers, written to disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


def tiny_clip(folder: Path) -> Path:
    """A CLIP with a vocabulary of letters, for pictures of 16 px."""
    import transformers

    letters = write_tokenizer(folder)
    config = transformers.CLIPConfig(
        text_config={
            **SIZES, "vocab_size": letters, "max_position_embeddings": 24,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        },
        vision_config={**SIZES, "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )  # fmt: skip
    return write_model(transformers.CLIPModel, config, folder)


def tiny_siglip(folder: Path) -> Path:
    """A SigLIP, likewise."""
    import transformers

    letters = write_tokenizer(folder)
    config = transformers.SiglipConfig(
        text_config={
            **SIZES, "vocab_size": letters, "max_position_embeddings": 24, "projection_size": 16,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        },
        vision_config={**SIZES, "image_size": 16, "patch_size": 8},
    )  # fmt: skip
    return write_model(transformers.SiglipModel, config, folder)


def write_model(kind: Any, config: Any, folder: Path) -> Path:
    """Fresh weights, and how pictures are prepared."""
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"crop_size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3})
    )
    return folder


def write_tokenizer(folder: Path) -> int:
    """A tokenizer of letters; returns how many tokens it knows."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    for letter in "abcdefghijklmnopqrstuvwxyz0123456789.,'-":
        letters[letter] = len(letters)
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder)
    return len(letters)
