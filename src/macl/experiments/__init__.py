"""Recipes, comparisons, and the paper's tables as data."""
