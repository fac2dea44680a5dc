"""Number sequences for macl: a modality, a loss, a method and a recipe, as plug-ins."""
