"""Attention plug-ins of the device path: found by entry point, refused with reasons, called with keys in the pool."""

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
import torch

from quire_worker.attention import device as plugins
from quire_worker.attention.device import AttentionNeeds, create_device_attention, triton_refusal
from quire_worker.cuda.kernel_choice import choose_kernels
from quire_worker.cuda.plain import PlainKernels

NEEDS = AttentionNeeds(
    torch.device("cuda"), num_heads=8, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, kv_dtype=torch.bfloat16,
    block_size=16, has_window=False,
)  # fmt: skip


class FakeAttention:
    """Notes its calls, and can't do heads of 80."""

    is_capturable = False

    def __init__(self):
        self.calls = []

    def refusal(self, needs):
        return "heads of 80 are not supported" if needs.head_dim == 80 else ""

    def decode(self, qkv, pool, seq_lens, table_rows, block_tables, out, **options):
        self.calls.append(("decode", qkv, options))

    def prefill(self, qkv, pool, query_start_loc, seq_lens, table_rows, block_tables, out, **options):
        self.calls.append(("prefill", qkv, options))


@pytest.fixture
def installed(monkeypatch):
    """A package that offers two backends, one of which lacks what it needs."""
    entries = [
        EntryPoint("fake", f"{__name__}:FakeAttention", plugins.DEVICE_GROUP),
        EntryPoint("broken", "a_package_that_is_not_there:Attention", plugins.DEVICE_GROUP),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)


def test_a_plug_in_is_found_by_its_name(installed):
    """Its class is made without arguments."""
    assert isinstance(create_device_attention("fake", NEEDS), FakeAttention)


@pytest.mark.parametrize(
    ("name", "needs", "reason"),
    [
        (
            "flashinfer",
            NEEDS,
            "'flashinfer' is not installed, there are .*'fake'.*no package that is installed",
        ),
        ("other", NEEDS, "'other' is not installed, there are"),
        ("broken", NEEDS, "'broken' can't be loaded: No module named"),
        ("fake", replace(NEEDS, head_dim=80), "'fake' can't be used: heads of 80 are not supported"),
        ("triton", replace(NEEDS, device=torch.device("cpu")), "'triton' can't be used: it can't run on cpu"),
        ("triton", replace(NEEDS, head_dim=512), "head_dim must be even and within 16..256, got 512"),
        ("auto", replace(NEEDS, num_heads=130), "at most 64 heads may share keys, got 65"),
    ],
)
def test_a_backend_that_cannot_be_used_is_refused_with_the_reason(installed, name, needs, reason):
    """Not installed, not loadable, or not able to."""
    with pytest.raises(ValueError, match=reason):
        choose_kernels(name, needs)


def test_fp8_keys_need_a_device_that_has_them(monkeypatch):
    """Older devices are refused by their compute capability."""
    needs = replace(NEEDS, kv_dtype=torch.float8_e4m3fn)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert "need compute capability 8.9, the device has 8.0" in triton_refusal(needs)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert triton_refusal(needs) == ""


def test_the_torch_backend_needs_nothing():
    """It is the reference on any device, and what a CPU gets."""
    for name in ("torch", "auto"):
        assert isinstance(choose_kernels(name, replace(NEEDS, device=torch.device("cpu"))), PlainKernels)


def test_keys_are_in_the_pool_before_a_plug_in_is_called(installed, monkeypatch):
    """Decoding with raw projections: they are rotated and written at each sequence's last place, pads are skipped."""
    pytest.importorskip("triton")
    kernels = choose_kernels("fake", NEEDS)
    assert not kernels.is_capturable
    assert kernels.tokens_of_tile(8, 2, 64, torch.bfloat16) == 0
    written = []
    monkeypatch.setattr(
        kernels,
        "rope_kv_write",
        lambda qkv, positions, slots, rope, pool, **_: written.append((positions, slots)),
    )
    qkv, out = torch.zeros(3, 12 * 64), torch.zeros(3, 8 * 64)
    pool = torch.zeros(9, 2, 2, 16, 64)
    lengths, rows = torch.tensor([18, 0, 16], dtype=torch.int32), torch.tensor([1, 0, 0], dtype=torch.int32)
    tables = torch.tensor([[5, 6], [7, 8]], dtype=torch.int32)
    common = {"num_heads": 8, "scale": 0.1, "window": 0, "kv_scale": (1.0, 1.0)}
    kernels.decode_attention(
        qkv, pool, lengths, rows, tables, out, None, rope=object(), prefix=None, **common
    )
    positions, slots = written[0]
    assert positions.tolist() == [17, 0, 15]
    assert slots.tolist() == [8 * 16 + 1, -1, 5 * 16 + 15]
    kernels.decode_attention(qkv, pool, lengths, rows, tables, out, None, rope=None, prefix=None, **common)
    kernels.prefill_attention(
        qkv, pool, torch.tensor([0, 3]), lengths[:1], rows[:1], tables, out, max_query_len=3, is_new=True, tiles=None,
        **common,
    )  # fmt: skip
    assert len(written) == 1
    assert [call[0] for call in kernels._attention.calls] == ["decode", "decode", "prefill"]
