"""Settings of a choice between methods."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from softcue.errors import near_matches
from softcue.methods import DEFAULT_METHODS, METHODS

AUTO = "auto"  # in place of a method's name: several are tried
# What is tried if nothing is named; the default method of the backbone's kind comes before the others.
DEFAULT_CANDIDATES = ("p-tuning-v2", "m-idpg-phm", "compacter", "prompt-tuning", "vip-c", "linear-probe")


class SelectionConfig(BaseModel):
    """Settings of `method.name=auto`: which methods are tried, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    methods: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="the methods to try; those that do not work on the backbone or the task are left out. Of methods "
        "within one standard error of the best score, the first named wins. Unset: the default method of the kind of "
        f"backbone, then the others of {', '.join(DEFAULT_CANDIDATES)}",
    )
    seconds: float = Field(
        0.0,
        ge=0,
        description="compare for this long, then train the best so far to its end; 0 sets no limit",
    )
    folds: int = Field(
        3,
        ge=1,
        description="with fewer than 200 validation rows: folds of training and validation rows on which methods are "
        "compared; 1 compares on the validation rows",
    )

    @field_validator("methods", mode="before")
    @classmethod
    def _split_names(cls, names: object) -> object:
        """Split `a,b` of the command line into two names, each of them once."""
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",") if name.strip()]
        return tuple(dict.fromkeys(names)) if isinstance(names, (list, tuple)) else names

    @field_validator("methods")
    @classmethod
    def _check_names(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in METHODS:
                raise ValueError(f"names of methods, not '{name}': {near_matches(name, METHODS)}")
        return names

    def methods_for(self, kind: str | None) -> tuple[str, ...]:
        """The methods to try on a kind of backbone; None: it is not known yet.

        Example:
            >>> SelectionConfig().methods_for("decoder")[:2]
            ('prompt-tuning', 'p-tuning-v2')
        """
        if self.methods is not None:
            return self.methods
        first = [DEFAULT_METHODS[kind]] if kind else []
        return tuple(dict.fromkeys([*first, *DEFAULT_CANDIDATES]))
