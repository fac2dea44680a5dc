"""Pictures with captions: two towers trained to agree."""
