"""Evaluation and diagnosis of a run."""
