"""Text: sentences, dropout as the only augmentation, transformers, SentEval's tasks."""
