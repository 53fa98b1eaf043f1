"""Architecture name -> how its Hugging Face config becomes an EncoderSpec.

More come from other packages through the entry-point group `quire.encoders`: each entry is named as the architecture
and loads a function from (config, architecture name) to an EncoderSpec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, Final

from quire_worker.encoders.spec import ClassifierSpec, EncoderSpec
from quire_worker.pooling.vectors import Activation

Config = Mapping[str, Any]
SpecFunction = Callable[[Config, str], EncoderSpec]

ENTRY_POINT_GROUP: Final = "quire.encoders"
_ACTIVATIONS: Final = ("gelu", "gelu_new", "relu", "silu")


def is_encoder(architecture: str) -> bool:
    """Whether the architecture is one of an encoder."""
    return architecture in _BUILT_IN or any(
        entry.name == architecture for entry in entry_points(group=ENTRY_POINT_GROUP)
    )


def encoder_spec(config: Config, architecture: str) -> EncoderSpec:
    """The spec of an encoder. ValueError names the setting that is not supported."""
    function = _BUILT_IN.get(architecture)
    if function is None:
        plugins = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
        function = plugins[architecture].load()
    spec: EncoderSpec = function(config, architecture)
    return spec


def _bert(config: Config, architecture: str) -> EncoderSpec:
    classifier = None
    if architecture.endswith("ForSequenceClassification"):
        classifier = _classifier(config, dense="bert.pooler.dense", output="classifier")
    return _encoder(config, architecture, prefix="bert.", classifier=classifier)


def _roberta(config: Config, architecture: str) -> EncoderSpec:
    # Positions begin behind the padding id's row.
    offset = int(config.get("pad_token_id", 1)) + 1
    classifier = None
    if architecture.endswith("ForSequenceClassification"):
        classifier = _classifier(config, dense="classifier.dense", output="classifier.out_proj")
    spec = _encoder(config, architecture, prefix="roberta.", classifier=classifier)
    return replace(spec, position_offset=offset, max_model_len=spec.max_positions - offset)


_BUILT_IN: Final[dict[str, SpecFunction]] = {
    "BertModel": _bert,
    "BertForMaskedLM": _bert,
    "BertForSequenceClassification": _bert,
    "RobertaModel": _roberta,
    "RobertaForMaskedLM": _roberta,
    "RobertaForSequenceClassification": _roberta,
    "XLMRobertaModel": _roberta,
    "XLMRobertaForMaskedLM": _roberta,
    "XLMRobertaForSequenceClassification": _roberta,
}


def _encoder(
    config: Config, architecture: str, *, prefix: str, classifier: ClassifierSpec | None
) -> EncoderSpec:
    """What these families share; anything in the config that would change the arithmetic is read or refused."""
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ValueError(f"{architecture}: position_embedding_type {kind!r} is not supported")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ValueError(f"{architecture}: is_decoder and add_cross_attention are not supported")
    activation = config.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise ValueError(f"{architecture}: hidden_act {activation!r} is not supported, {_ACTIVATIONS} are")
    return EncoderSpec(
        architecture=architecture,
        prefix=prefix,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        num_heads=int(config["num_attention_heads"]),
        max_positions=int(config["max_position_embeddings"]),
        position_offset=0,
        max_model_len=int(config["max_position_embeddings"]),
        num_token_types=int(config.get("type_vocab_size") or 0),
        norm_eps=float(config.get("layer_norm_eps", 1e-12)),
        activation=activation,
        classifier=classifier,
    )


def _classifier(config: Config, *, dense: str, output: str) -> ClassifierSpec:
    names = {int(index): str(name) for index, name in (config.get("id2label") or {}).items()}
    # transformers writes num_labels only where id2label does not say it; its own default is 2.
    count = len(names) or int(config.get("num_labels", 2))
    labels = tuple(names.get(index, f"LABEL_{index}") for index in range(count))
    return ClassifierSpec(dense=dense, output=output, labels=labels, activation=_activation(config, count))


def _activation(config: Config, num_labels: int) -> Activation:
    """What the files say, else the sigmoid for one class or independent ones, the softmax for several."""
    nested = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = str(config.get("sbert_ce_default_activation_function") or nested or "").rpartition(".")[2]
    if named == "Identity":
        return "none"
    if named == "Sigmoid" or config.get("problem_type") == "multi_label_classification":
        return "sigmoid"
    if named:
        raise ValueError(f"activation function {named!r} is not supported, Identity and Sigmoid are")
    return "softmax" if num_labels > 1 else "sigmoid"
