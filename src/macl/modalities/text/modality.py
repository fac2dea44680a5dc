"""The text modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from macl.core.errors import UserError
from macl.modalities.base import Modality, Resolve, with_weights
from macl.modalities.embedding import embed
from macl.modalities.probing import probe_scores
from macl.modalities.protocols import Dataset, Embed, Monitor, Views
from macl.modalities.splits import has_classes, same_classes
from macl.modalities.text import folders
from macl.modalities.text.data import TextDataset, load_for_evaluation, load_text, open_text
from macl.modalities.text.encoders import TextEncoder, TextViews, tiny_encoder
from macl.modalities.text.evaluation import Encode, senteval_scores, sts_score, uses_senteval
from macl.modalities.text.sections import (
    PROBES,
    SECTIONS,
    TINY,
    TextDataConfig,
    TextEncoderConfig,
    TextEvaluationConfig,
    TextViewsConfig,
)
from macl.modalities.text.senteval import find_root, is_senteval, read_sts
from macl.probes.score import Score
from macl.recipes import Overrides, Sections

PLAN_FOLDER = "text_encoder"
"""Folder of a run with the configuration and the vocabulary of its text encoder."""


class Text(Modality):
    """Sentences, encoded by transformers; dropout makes the views."""

    name = "text"
    line_suffix = ".txt"
    sections = SECTIONS
    open_keys = frozenset({"column", "header", "limit", "encoding"})
    encoder_forms = "a folder of Hugging Face's or sentence-transformers', or package:NAME"
    library = "sentence-transformers"
    adapt_recipe = "adapt-text"
    monitor_needs = "SentEval's folder (evaluation.senteval) or classes (data.label)"

    load = staticmethod(load_text)
    open = staticmethod(open_text)
    recognizes_encoder = staticmethod(folders.is_text_encoder)

    def data_overrides(self, path: Path, protocols: Sequence[str] | None = None) -> Overrides:
        """SentEval's folder is not training data, and its tasks take nothing else."""
        if is_senteval(path) or (protocols is not None and not set(PROBES) & set(protocols)):
            return {"evaluation.senteval": path}
        return super().data_overrides(path, protocols)

    def build_encoder(self, config: TextEncoderConfig, dataset: Dataset) -> TextEncoder:
        """The named transformer, or "tiny" with a vocabulary learned from `dataset`."""
        if config.name != TINY:
            return folders.load_text_encoder(config)
        if not isinstance(dataset, TextDataset):
            raise UserError("The encoder 'tiny' learns its vocabulary from a text data set.")
        return tiny_encoder(config, dataset)

    def save_encoder(self, encoder: Any, folder: Path, metadata: Mapping[str, str]) -> None:
        """The vocabulary and configuration beside the weights, which are written last."""
        folders.save_plan(encoder, folder / PLAN_FOLDER)
        super().save_encoder(encoder, folder, metadata)

    def load_encoder(self, config: TextEncoderConfig, folder: Path) -> TextEncoder:
        """The encoder of a run, with the vocabulary it was trained with."""
        return with_weights(folders.build_from_plan(folder / PLAN_FOLDER), folder)

    def build_views(self, config: TextViewsConfig, encoder: nn.Module) -> TextViews:
        """Views that tokenize with the encoder's own tokenizer."""
        if not isinstance(encoder, TextEncoder):
            raise UserError(f"{type(encoder).__name__} is not a text encoder: it has no tokenizer.")
        return TextViews(config, encoder)

    def open_encoder(self, name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
        """What Hugging Face or sentence-transformers saved."""
        sections = resolve({"encoder": {"name": name}})
        return folders.load_text_encoder(sections.encoder), sections

    def export(
        self, encoder: Any, views: TextViewsConfig, folder: Path, metadata: Mapping[str, str]
    ) -> Path:
        """A folder of Hugging Face and sentence-transformers, which has no place for metadata."""
        return folders.save_text_encoder(encoder, folder, views.plain_max_length)

    def usage(self, encoder: nn.Module, views: TextViewsConfig) -> tuple[str, Sequence[str]]:
        """The folder is sentence-transformers'."""
        return self.library, ('vectors = SentenceTransformer("FOLDER").encode(sentences)',)

    def reads_back(
        self, config: TextEncoderConfig, encoder: nn.Module, views: Views, folder: Path
    ) -> bool:
        """Whether the folder, by its own settings, encodes a few sentences as the run does."""
        again = folders.load_text_encoder(TextEncoderConfig(name=str(folder)))
        data = TextDataset([folders.SENTENCES])
        found = embed(again, TextViews(TextViewsConfig(), again), data, quiet=True)
        expected = embed(encoder, views, data, quiet=True)
        near = 1e-5 * float(expected.abs().max())
        return bool(torch.allclose(found, expected, rtol=0, atol=near))

    def implied_protocols(self, path: Path, config: TextEvaluationConfig) -> Sequence[str] | None:
        """SentEval's folder asks for its tasks, unless some of them are named already."""
        if is_senteval(path) and not uses_senteval(config.protocols):
            return ("sts", "transfer")
        return None

    def monitor(self, config: TextEvaluationConfig, train: Dataset) -> Monitor | None:
        """Spearman on STS-B dev, by which SimCSE chooses, where SentEval is; else kNN."""
        if config.senteval is None:
            return super().monitor(config, train)
        pairs = read_sts(find_root(config.senteval), "STS-B", "dev")
        return lambda embed: sts_score("STS-B", pairs, _encode(embed), split="dev")

    def has_weights(self, name: str) -> bool | None:
        """Whether a Hugging Face folder of this name is here; "tiny" has no weights."""
        if name == TINY:
            return None
        try:
            return folders.find_folder(name, download=False).is_dir()
        except UserError:
            return False

    def runnable_protocols(self, config: TextEvaluationConfig, train: Dataset) -> tuple[str, ...]:
        """SentEval's tasks where its folder is named, probes where there are classes."""
        if config.senteval is not None and uses_senteval(config.protocols):
            return config.protocols
        return PROBES if has_classes(train) else ()

    def monitor_title(self, config: TextEvaluationConfig) -> str:
        """As `monitor` chooses."""
        if config.senteval is None:
            return super().monitor_title(config)
        return "Spearman correlation on STS-B dev"

    def evaluate(
        self,
        config: TextEvaluationConfig,
        data: TextDataConfig,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """SentEval's tasks, and probes by the labels of `data`."""
        scores: list[Score] = []
        if set(PROBES) & set(config.protocols):
            train, test, split = load_for_evaluation(data)
            scores = probe_scores(config, *same_classes(train, test), embed, seed, split)
        return scores + senteval_scores(config, _encode(embed))


def _encode(embed: Embed) -> Encode:
    """`embed` as a function of sentences."""
    return lambda sentences: embed(TextDataset([sentences]))


MODALITY = Text()
