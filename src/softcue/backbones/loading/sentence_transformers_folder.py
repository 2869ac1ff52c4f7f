"""What a folder of sentence-transformers says about its sentence vectors: pooling, normalisation and prompts.

`modules.json` lists the modules of such a model in order: a Transformer, a Pooling and often a Normalize. Folders
without it are read as far as their other files go.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from softcue.backbones.passes.forward_pass import Pooling
from softcue.errors import BackboneError
from softcue.files import write_atomically

MODULES, PROMPTS, LENGTHS = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING_FOLDER = "1_Pooling"  # where the pooling's config.json is unless modules.json says otherwise
# The flags of config files before sentence-transformers 5.4, in the order in which they are joined there.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLINGS: dict[str, Pooling] = {"lasttoken": "last", "cls": "cls", "mean": "mean"}  # the first one found counts
_WITHOUT_EFFECT = ("Transformer", "Pooling", "Normalize", "Dropout")  # read here, or at work in training only


@dataclass(frozen=True)
class SentenceTransformersFolder:
    """How a model's sentence vectors are computed, as far as its folder says it."""

    pooling: Pooling | None = None  # None: the folder does not say
    is_normalized: bool = False  # vectors are scaled to length 1
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_length: int | None = None  # tokens of a text
    transformer: str = ""  # the model's subfolder
    left_out: tuple[str, ...] = ()  # what softcue does not compute

    @property
    def default_prompt(self) -> str:
        """The text in front of every text; empty if the folder names none."""
        return self.prompts.get(self.default_prompt_name or "", "")


def read_sentence_transformers_folder(folder: Path) -> SentenceTransformersFolder:
    """Read the files of sentence-transformers in a model folder; a folder without them says nothing.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "1_Pooling").mkdir()
        >>> (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
        29
        >>> read_sentence_transformers_folder(folder).pooling
        'last'
    """
    modules = _read_modules(folder)
    transformers = [path for kind, path in modules if kind == "Transformer"]
    left_out = [kind for kind, _ in modules if kind not in _WITHOUT_EFFECT]
    pooling: Pooling | None = None
    if (pooling_file := find_pooling_file(folder)) is not None:
        config = _read_object(pooling_file)
        pooling, other_modes = _choose_pooling(config, pooling_file)
        left_out += other_modes
    settings = _read_object(folder / PROMPTS)
    prompts = settings.get("prompts") or {}
    default_name = settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise _broken(folder / PROMPTS, prompts, "a text for each name in prompts")
    if default_name is not None and default_name not in prompts:
        raise _broken(folder / PROMPTS, default_name, "default_prompt_name to be one of prompts")
    if prompts.get(default_name or "") and pooling_file and config.get("include_prompt") is False:
        left_out.append("pooling without the prompt's tokens")
    model_folder = transformers[0] if transformers else ""
    max_length = _read_object(folder / model_folder / LENGTHS).get("max_seq_length")
    return SentenceTransformersFolder(
        pooling=pooling,
        is_normalized=any(kind == "Normalize" for kind, _ in modules),
        prompts=prompts,
        default_prompt_name=default_name,
        max_length=max_length if isinstance(max_length, int) else None,
        transformer=model_folder,
        left_out=tuple(left_out),
    )


def find_pooling_file(folder: Path) -> Path | None:
    """Find the config.json of a folder's pooling; None if it has none."""
    modules = _read_modules(folder)
    paths = [path for kind, path in modules if kind == "Pooling"] if modules else [POOLING_FOLDER]
    files = [folder / path / "config.json" for path in paths]
    return next((file for file in files if file.is_file()), None)


def warn_of_left_out_modules(name: str, folder: Path | None) -> None:
    """Warn once, by name, of the modules of a model that softcue does not compute."""
    said = SentenceTransformersFolder() if folder is None else read_sentence_transformers_folder(folder)
    if said.left_out:
        warnings.warn(
            f"backbone {name}: softcue leaves out {', '.join(said.left_out)} of its sentence-transformers modules; "
            f"sentence vectors are those of its transformer, pooling {said.pooling or 'not known'}",
            stacklevel=3,
        )


def copy_sentence_transformers_files(source: Path, target: Path) -> None:
    """Copy what a model folder says about pooling and prompts to another model folder, which has the model itself."""
    if (pooling_file := find_pooling_file(source)) is not None:
        (target / POOLING_FOLDER).mkdir()
        write_atomically(target / POOLING_FOLDER / "config.json", pooling_file.read_bytes())
    if (source / PROMPTS).is_file():
        write_atomically(target / PROMPTS, (source / PROMPTS).read_bytes())


def fetch_sentence_transformers_files(hub_id: str, **options: Any) -> Path | None:
    """Download these files of a hub id and return their folder; None if it has none, or if the hub does not answer.

    `options` are those of transformers, such as `revision`.

    Example:
        fetch_sentence_transformers_files("sentence-transformers/all-mpnet-base-v2", revision="main")
    """
    from transformers.utils import cached_file

    folder: Path | None = None

    def fetch(path: str) -> None:
        nonlocal folder
        file = cached_file(
            hub_id,
            path,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **options,
        )
        if file is not None:
            folder = Path(file).parents[path.count("/")]

    fetch(MODULES)
    modules = [] if folder is None else _read_modules(folder)
    for path in [path for kind, path in modules if kind == "Pooling"] if modules else [POOLING_FOLDER]:
        fetch(f"{path}/config.json")
    fetch(PROMPTS)
    return folder


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """Return the class name and the subfolder of each module, in order."""
    file = folder / MODULES
    modules = _read_json(file, [])
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise _broken(file, modules, "a JSON list of objects")
    read: list[tuple[str, str]] = []
    for module in modules:
        kind, path = module.get("type"), module.get("path", "")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise _broken(file, module, "`type` and `path` of each module")
        inner = PurePosixPath(path)
        if inner.is_absolute() or ".." in inner.parts:
            raise _broken(file, path, "paths inside the folder")
        read.append((kind.rpartition(".")[2], path))
    return read


def _choose_pooling(config: Mapping[str, Any], file: Path) -> tuple[Pooling, list[str]]:
    """Return the pooling of a config and the names of its modes that softcue does not have."""
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if config.get(flag) is True]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not all(mode in _FLAGS.values() for mode in modes):
        raise _broken(file, modes, f"pooling_mode to be of {', '.join(_FLAGS.values())}")
    chosen = next((mode for mode in _POOLINGS if mode in modes), "mean")
    # The mean divided by the square root of the length has the direction of the mean.
    others = [mode for mode in modes if mode not in (chosen, "mean_sqrt_len_tokens")]
    return _POOLINGS[chosen], [f"pooling {mode}" for mode in others]


def _read_object(file: Path) -> dict[str, Any]:
    value = _read_json(file, {})
    if not isinstance(value, dict):
        raise _broken(file, value, "a JSON object")
    return value


def _read_json(file: Path, default: Any) -> Any:
    """Return the content of a JSON file, or the default if there is no such file."""
    if not file.is_file():
        return default
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(file, f"a file that cannot be read ({error})", "JSON") from error


def _broken(file: Path, got: object, expected: str) -> BackboneError:
    return BackboneError(
        setting=str(file),
        got=str(got)[:80],
        expected=f"{expected}, as sentence-transformers writes it",
        fix="fetch the model again, or remove the file and set the pooling yourself (readout.pooling, method.pooling)",
    )
