"""The paper's tables and figures as data, and the commands that reproduce them."""
