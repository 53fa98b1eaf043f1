"""How a model's folder says that embeddings are made: modules.json and the pooling module of sentence-transformers.

Reads those small files alone; what they leave open gets the caller's default.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from quire_worker.pooling.params import PoolingDefaults, PoolingMethod

_MODULES: Final = "modules.json"
_METHODS: Final = {
    "pooling_mode_mean_tokens": PoolingMethod.MEAN,
    "pooling_mode_cls_token": PoolingMethod.CLS,
    "pooling_mode_lasttoken": PoolingMethod.LAST,
}
#: Modules that change nothing of what is computed here.
_HARMLESS: Final = ("Transformer", "Pooling", "Normalize")


def pooling_defaults(path: str, otherwise: PoolingMethod) -> PoolingDefaults:
    """The folder's way of pooling; `otherwise`, scaled to length 1, where it says nothing.

    ValueError names a module or a pooling mode that is not supported: leaving it out would give other vectors.
    """
    folder = Path(path)
    if not (folder / _MODULES).is_file():
        return PoolingDefaults(otherwise)
    modules = json.loads((folder / _MODULES).read_text(encoding="utf-8"))
    kinds = {str(module["type"]).rpartition(".")[2]: module for module in modules}
    for kind in kinds:
        if kind not in _HARMLESS:
            raise ValueError(f"{folder / _MODULES}: the module {kind} is not supported")
    method = otherwise
    if "Pooling" in kinds:
        method = _method(folder / str(kinds["Pooling"]["path"]) / "config.json")
    return PoolingDefaults(method, normalize="Normalize" in kinds)


def longest_text(path: str) -> int | None:
    """Tokens of the longest text the model was made for, of sentence_bert_config.json; None if it does not say."""
    place = Path(path) / "sentence_bert_config.json"
    if not place.is_file():
        return None
    length = _read(place).get("max_seq_length")
    return None if length is None else int(length)


def _method(place: Path) -> PoolingMethod:
    config = _read(place)
    if "pooling_mode" in config:
        names = {"mean": PoolingMethod.MEAN, "cls": PoolingMethod.CLS, "lasttoken": PoolingMethod.LAST}
        if config["pooling_mode"] not in names:
            raise ValueError(f"{place}: pooling_mode {config['pooling_mode']!r} is not supported")
        return names[config["pooling_mode"]]
    modes = [name for name, is_on in config.items() if name.startswith("pooling_mode_") and is_on]
    if len(modes) != 1 or modes[0] not in _METHODS:
        raise ValueError(f"{place}: pooling modes {modes} are not supported, one of {sorted(_METHODS)} is")
    return _METHODS[modes[0]]


def _read(place: Path) -> dict[str, Any]:
    value = json.loads(place.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{place} holds {type(value).__name__}, not an object")
    return value
