"""YAML without aliases, custom tags or raw parser errors."""

from __future__ import annotations

from typing import Any

import yaml


class _Tree(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for more values than memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node of the document, unless it is a reference to another one."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("write values out instead of referring to them with *")
        return super().compose_node(parent, index)


def load_yaml(text: str) -> Any:
    """The value of a YAML document; `ValueError` where it cannot be read."""
    try:
        return yaml.load(text, _Tree)
    # Besides its own errors PyYAML lets those of int(), date() and the like through.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error
