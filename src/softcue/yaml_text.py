"""YAML of users: plain values within bounds, and one error for everything that is not that."""

from __future__ import annotations

from typing import Any

import yaml

TEXT_LIMIT = 16 << 20  # bytes of a file
MOST_VALUES = 1_000_000  # once every alias is replaced by what it stands for
MOST_LEVELS = 100  # of lists and mappings in each other
TOO_MANY_LEVELS = f"it has more than {MOST_LEVELS} levels"


class _LimitedLevels:
    """For a loader of PyYAML: ends at too many brackets, for its scanner looks at all open ones for each token."""

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        """Read an opening bracket."""
        if self.flow_level >= MOST_LEVELS:  # type: ignore[attr-defined]
            raise ValueError(TOO_MANY_LEVELS)
        super().fetch_flow_collection_start(token_class)  # type: ignore[misc]


class PlainLoader(_LimitedLevels, yaml.SafeLoader):
    """Numbers, truth values, dates and strings."""


class StringLoader(_LimitedLevels, yaml.BaseLoader):
    """Every value stays the string that it was written as."""


def parse_yaml(text: str | bytes, loader_class: type[PlainLoader | StringLoader] = PlainLoader) -> Any:
    """Parse YAML to plain values. Whatever is wrong with it is a ValueError with one line.

    A few lines with aliases can stand for more values than any memory holds, so they are counted before they are made.

    Example:
        >>> parse_yaml("epochs: 3")
        {'epochs': 3}
        >>> parse_yaml("day: 2001-99-99")
        Traceback (most recent call last):
        ValueError: month must be in 1..12
    """
    if len(text) > TEXT_LIMIT:
        raise ValueError(f"it is larger than {TEXT_LIMIT:,} bytes")
    try:
        loader = loader_class(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count_values(node, {}, 1)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise ValueError(TOO_MANY_LEVELS) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except Exception as error:  # `!!timestamp x` and `!!bool x` raise AttributeError and KeyError
        raise ValueError("a value does not fit its tag, such as !!bool or !!timestamp") from error


def _count_values(node: yaml.Node, counts: dict[int, int], level: int) -> int:
    """The number of values below a node, with aliases replaced. `counts` has those of nodes seen before."""
    if level > MOST_LEVELS:
        raise ValueError(TOO_MANY_LEVELS)
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if (count := counts.get(id(node))) is None:
        counts[id(node)] = MOST_VALUES  # until it is known: an alias inside of what it stands for has no end
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        count = counts[id(node)] = 1 + sum(_count_values(part, counts, level + 1) for part in parts)
    if count > MOST_VALUES:
        raise ValueError(f"it stands for more than {MOST_VALUES:,} values")
    return count
