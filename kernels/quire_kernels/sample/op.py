"""sample_tokens: one token per row, appended to its slot's history on the device."""

from __future__ import annotations

from typing import Protocol

import torch

from quire_kernels.gpu.launch import check_device, pdl_options
from quire_kernels.sample import kernel, kernel_threshold, kernel_threshold_chunks
from quire_kernels.step_inputs.op import Tables

CHUNK = 4096
# More rows fill the device by themselves: measured on one H200, 32 rows take 232 us by chunks and 290 by rows, 256 rows
# 1700 and 913.
_MOST_ROWS_BY_CHUNKS = 32


class Parameters(Protocol):
    """By slot: temperature, top_p, min_p float32; top_k, sequence_index int32; seed int64, the bits of 64."""

    @property
    def temperature(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def top_p(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def min_p(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def top_k(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def seed(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def sequence_index(self) -> torch.Tensor: ...  # noqa: D102


class SampleWorkspace:
    """What chunks of a row leave for the one that picks the winner."""

    def __init__(self, device: torch.device | str, max_rows: int, vocab_size: int) -> None:
        chunks = 1 << (-(-vocab_size // CHUNK) - 1).bit_length()
        self.thresholds = torch.empty(max_rows, device=device, dtype=torch.float32)
        partial = max_rows * -(-vocab_size // CHUNK) * kernel_threshold_chunks.WIDTH
        self.search = (
            torch.empty(max_rows, 4, device=device, dtype=torch.int32),
            torch.empty(max_rows, 8, device=device, dtype=torch.float32),
            torch.empty(partial, device=device, dtype=torch.float32),
            torch.zeros(max_rows, device=device, dtype=torch.int32),
        )
        self.best = torch.empty(max_rows * chunks, device=device, dtype=torch.float32)
        self.where = torch.empty(max_rows * chunks, device=device, dtype=torch.int32)
        self.counters = torch.zeros(max_rows, device=device, dtype=torch.int32)
        self.max_rows = max_rows


def sample_tokens(
    logits: torch.Tensor,
    slots: torch.Tensor,
    table: Parameters,
    tables: Tables,
    out: torch.Tensor,
    workspace: SampleWorkspace,
    *,
    filtered: bool = True,
    pdl: bool = False,
) -> None:
    """out int32 [R]: a token id per row of logits [R, V], by the parameters of the row's slot.

    Temperature 0: the first of the largest logits. Else: a draw from softmax(logits / temperature) of the tokens that
    min_p, top_k (0: off) and top_p, in this order, leave; equals of the last one left are left too. filtered False: no
    row has any of the three. The draw depends on the slot's seed and sequence index and on num_tokens alone.
    Rows with slot -1, and rows whose slot has uncomputed tokens, get -1; the others' tokens are appended: token_ids
    [slot, num_tokens] = token, num_tokens += 1. No slot may be there twice.
    """
    if logits.dim() != 2 or logits.stride(1) != 1 or len(logits) != len(slots) or out.shape != slots.shape:
        raise ValueError(
            f"logits {list(logits.shape)}, slots {list(slots.shape)}, out {list(out.shape)} do not fit"
        )
    if slots.dtype != torch.int32 or out.dtype != torch.int32 or table.seed.dtype != torch.int64:
        raise ValueError("slots and out must be int32, seeds int64")
    if len(slots) > workspace.max_rows:
        raise ValueError(f"{len(slots)} rows, the workspace is for {workspace.max_rows}")
    check_device("sample_tokens", logits, slots, out, table.temperature, tables.token_ids)
    if len(slots) == 0:
        return
    options = pdl_options(pdl)
    if filtered:
        _find_thresholds(logits, slots, table, workspace, options)
    kernel.launch_draw(
        logits, slots, table, tables, out,
        (workspace.thresholds, workspace.best, workspace.where, workspace.counters), chunk=CHUNK, filtered=filtered,
        options=options,
    )  # fmt: skip


def _find_thresholds(
    logits: torch.Tensor,
    slots: torch.Tensor,
    table: Parameters,
    workspace: SampleWorkspace,
    options: dict[str, object],
) -> None:
    if len(slots) <= _MOST_ROWS_BY_CHUNKS:
        kernel_threshold_chunks.launch(
            logits, slots, table, workspace.thresholds, workspace.search, chunk=CHUNK, options=options
        )
    else:
        kernel_threshold.launch(logits, slots, table, workspace.thresholds, options)
