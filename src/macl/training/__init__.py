"""The engine, on Lightning."""
