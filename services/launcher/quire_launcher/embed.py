"""`quire embed`: vectors of texts as JSON, through the OpenAI endpoint like any other client.

One job: texts in, JSON lines out. It knows the HTTP API alone, so it also talks to a suite elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

#: Texts of one request: small enough that the first lines come soon.
BATCH = 128


class EmbedError(Exception):
    """The server refused, or does not answer, or there is nothing to embed; the message is for the user."""


@dataclass(frozen=True)
class Embedder:
    """Where and how to embed. model: None is the first one that makes embeddings."""

    url: str
    model: str | None = None
    dimensions: int | None = None
    api_key: str | None = None
    truncate: bool = False

    def embed(self, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """One object per text, in order: index, text, embedding. Raises EmbedError."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        timeout = httpx.Timeout(10, read=None)
        with httpx.Client(base_url=self.url.rstrip("/") + "/", headers=headers, timeout=timeout) as client:
            model = self.model or self._first_model(client)
            for start in range(0, len(texts), BATCH):
                batch = list(texts[start : start + BATCH])
                body: dict[str, Any] = {"model": model, "input": batch}
                if self.dimensions is not None:
                    body["dimensions"] = self.dimensions
                if self.truncate:
                    body["truncate_prompt_tokens"] = -1
                data = self._call(client, "POST", "embeddings", body)["data"]
                for offset, (text, item) in enumerate(zip(batch, data, strict=True)):
                    yield {"index": start + offset, "text": text, "embedding": item["embedding"]}

    def _first_model(self, client: httpx.Client) -> str:
        models = self._call(client, "GET", "models")["data"]
        able = [str(model["id"]) for model in models if "embed" in model.get("tasks", ())]
        if not able:
            served = ", ".join(str(model["id"]) for model in models) or "none"
            raise EmbedError(
                f"no model there makes embeddings (served: {served}); start one with: "
                "quire up --embedding-model minilm"
            )
        return able[0]

    def _call(self, client: httpx.Client, method: str, path: str, body: Any = None) -> Any:
        try:
            answer = client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise EmbedError(
                f"nothing answers at {self.url} ({error}); start a suite with: quire up"
            ) from error
        if answer.status_code != 200:
            raise EmbedError(f"{answer.status_code}: {_message(answer)}")
        return answer.json()


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


def read_texts(texts: Sequence[str], file: Path | None) -> list[str]:
    """The texts of the command line, or the lines of a file ("-": standard input), empty ones left out.

    Raises EmbedError when there are none, both, or no such file.
    """
    if bool(texts) == (file is not None):
        raise EmbedError("give either texts or --file")
    if file is not None:
        try:
            content = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EmbedError(f"cannot read {file}: {error}") from error
        texts = content.splitlines()
    found = [text for text in texts if text.strip()]
    if not found:
        raise EmbedError("there is no text to embed")
    return found


def run_embed(embedder: Embedder, texts: Sequence[str], file: Path | None, output: Path | None) -> int:
    """Write one JSON object a line to `output` (None: standard output); the exit status."""
    try:
        found = read_texts(texts, file)
        lines = (json.dumps(item, ensure_ascii=False) + "\n" for item in embedder.embed(found))
        if output is None:
            for line in lines:
                sys.stdout.write(line)
            return 0
        _write(output, lines, len(found))
    except EmbedError as error:
        print(f"quire: {error}", file=sys.stderr)
        return 1
    return 0


def _write(output: Path, lines: Iterator[str], total: int) -> None:
    from rich.progress import track

    try:
        with output.open("w", encoding="utf-8") as target:
            for line in track(lines, description="embedding", total=total, transient=True):
                target.write(line)
    except OSError as error:
        raise EmbedError(f"cannot write {output}: {error}") from error
