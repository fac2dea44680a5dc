"""Molecules: SMILES as graphs, GraphCL's views, Hu et al.'s encoder, MoleculeNet fine-tuning."""
