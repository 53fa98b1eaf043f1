"""Sequences' side of the prefix index: their hashes, what of them is cached, and what becomes shareable.

It decides nothing about when: the callers register only what acknowledged steps have filled.
"""

from __future__ import annotations

from quire_scheduler.prefix_index import PrefixIndex, chain_hashes, root_hash
from quire_scheduler.request import Sequence


class PrefixCache:
    """Looks up and registers sequences' full blocks."""

    def __init__(self, index: PrefixIndex, block_size: int, is_enabled: bool) -> None:
        self.index = index
        self.block_size = block_size
        self.is_enabled = is_enabled

    def find(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's longest known prefix; never all of it: the last token is always computed,
        since its logits are needed. Nothing where the request doesn't want to read the cache."""
        if not self.is_enabled or sequence.request.skip_reading_prefix_cache:
            return []
        num_blocks = (sequence.num_tokens - 1) // self.block_size
        return self.index.find(self.hashes(sequence, num_blocks)[:num_blocks])

    def register(self, sequence: Sequence, block_table: list[int], start: int, num_tokens: int) -> int:
        """Makes blocks [start, full blocks of the first `num_tokens` tokens) shareable; answers the new start.

        `block_table` is the table the tokens were written through. Positions past the known tokens (a wasted token of a
        sequence that has ended) are left out.
        """
        end = min(num_tokens, sequence.num_tokens) // self.block_size
        if not self.is_enabled or end <= start:
            return max(start, end)
        hashes = self.hashes(sequence, end)
        insert = self.index.insert
        for i in range(start, end):
            insert(block_table[i], hashes[i], hashes[i - 1] if i else b"")
        return end

    def hashes(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """Hashes of at least the first `num_blocks` full blocks of the sequence's known tokens."""
        hashes = sequence.block_hashes
        if len(hashes) >= num_blocks:
            return hashes
        request = sequence.request
        prompt = request.prompt_token_ids
        size = self.block_size
        if not hashes:
            if request.prompt_hashes is None:
                root = root_hash(request.adapter, request.cache_salt, request.media_hashes)
                request.prompt_hashes = chain_hashes(root, prompt, size)
            hashes.extend(request.prompt_hashes)
        num_hashed = len(hashes) * size
        num_missing = num_blocks * size - num_hashed
        if num_missing > 0:
            # From the first unhashed token on; the prompt's last, partly filled block goes on with output.
            first_output = max(0, num_hashed - len(prompt))
            tokens = (
                prompt[num_hashed:] + sequence.output_token_ids[first_output : first_output + num_missing]
            )
            parent = (
                hashes[-1] if hashes else root_hash(request.adapter, request.cache_salt, request.media_hashes)
            )
            hashes.extend(chain_hashes(parent, tokens[:num_missing], size))
        return hashes
