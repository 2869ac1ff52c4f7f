"""Shows the examples of docstrings as code on the site: what stands below `Example:` becomes a code block.

mkdocs.yml names this file as an extension of griffe, which reads the docstrings.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# "Example:" or "Example, ...:" and the indented lines below it
SECTION = re.compile(r"^(Example[^\n]*:)\n((?:    [^\n]*\n|[ \t]*\n)+)", re.MULTILINE)


def fence_examples(docstring: str) -> str:
    """Return a docstring whose examples stand between code marks.

    Example:
        >>> print(fence_examples("Add.\\n\\nExample:\\n    add(1, 2)"))
        Add.
        <BLANKLINE>
        Example:
            ```python
            add(1, 2)
            ```
    """
    return SECTION.sub(_fenced, docstring.rstrip("\n") + "\n").rstrip("\n")


def _fenced(section: re.Match[str]) -> str:
    code = section[2].rstrip()
    if "```" in code:
        return section[0]
    language = "pycon" if code.lstrip().startswith(">>>") else "python"
    return f"{section[1]}\n    ```{language}\n{code}\n    ```\n\n"


class FencedExamples(griffe.Extension):
    """Applies it to every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)
