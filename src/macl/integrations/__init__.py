"""Bridges to other libraries, one module each, imported only when asked for."""
