"""Helpers that every other package may use: errors, files, processes, seeds, weights."""
