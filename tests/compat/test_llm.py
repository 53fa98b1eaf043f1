"""The llm command with a model of its extra-openai-models.yaml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def llm(url, model, tmp_path):
    """Runs the command with a home of its own."""
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: quire\n  model_name: {model}\n  api_base: {url}/v1\n  api_key_name: quire\n"
    )
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    program = Path(sys.executable).parent / "llm"

    def run(*arguments):
        return subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            timeout=120,
            stdin=subprocess.DEVNULL,
        ).stdout

    return run


@pytest.mark.shows("/v1/chat/completions", "answer")
def test_answer(llm):
    """A prompt is answered at once."""
    assert "Paris" in llm(
        "-m",
        "quire",
        "--key",
        "none",
        "--no-stream",
        "-o",
        "temperature",
        "0",
        "What is the capital of France?",
    )


@pytest.mark.shows("/v1/chat/completions", "stream")
def test_stream(llm):
    """A prompt is answered as a stream."""
    assert "Paris" in llm(
        "-m", "quire", "--key", "none", "-o", "temperature", "0", "What is the capital of France?"
    )
