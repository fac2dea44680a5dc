"""Probes that every modality shares: they judge matrices of frozen features, nothing else."""
