"""rope_kv_write_gpu against plain torch in float64."""

import pytest
import torch

from quire_kernels.gpu.rope import Rope
from quire_kernels.rope_kv_write.gpu import rope_kv_write_gpu, rope_kv_write_gpu_reference


@pytest.mark.parametrize("head_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 2, 64), (9, 3, 64), (2, 2, 80), (4, 1, 128)])
def test_equals_reference(heads, kv_heads, head_dim, head_norm, place, assert_close):
    """Queries and keys are rotated in place; keys and values lie at their slots alone; a negative slot is skipped."""
    device, dtype = place
    generator = torch.Generator().manual_seed(heads)
    slots = torch.tensor([3, 17, 18, -1, 40, 63, 62, 0, 5], device=device)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    qkv = draw(len(slots), (heads + 2 * kv_heads) * head_dim)
    pool = torch.full((4, 2, kv_heads, 16, head_dim), float("nan"), dtype=dtype, device=device)
    angles = torch.outer(torch.arange(100.0), torch.linspace(1.0, 0.01, head_dim // 2)).to(device)
    norms = [draw(head_dim) if head_norm else None for _ in range(2)]
    rope = Rope(angles.cos(), angles.sin(), *norms, eps=1e-6)
    positions = torch.randint(100, (len(slots),), generator=generator, dtype=torch.int32).to(device)
    expected, expected_pool = qkv.clone(), pool.clone()
    rope_kv_write_gpu(qkv, positions, slots, rope, pool, num_heads=heads)
    rope_kv_write_gpu_reference(expected, positions, slots, rope, expected_pool, num_heads=heads)
    assert_close(qkv, expected)
    assert torch.equal(pool.isnan(), expected_pool.isnan())
    assert_close(pool.nan_to_num(), expected_pool.nan_to_num())


def test_an_fp8_pool(place):
    """Keys and values are divided by their scales and cut to what eight bits hold."""
    device, dtype = place
    generator = torch.Generator().manual_seed(1)
    qkv = (torch.randn(3, 4 * 32, generator=generator) * 4).to(dtype).to(device)
    rope = Rope(torch.ones(8, 16, device=device), torch.zeros(8, 16, device=device))
    slots, positions = (
        torch.tensor([3, -1, 17], device=device),
        torch.arange(3, dtype=torch.int32, device=device),
    )
    pool = torch.zeros(2, 2, 1, 16, 32, device=device).to(torch.float8_e4m3fn)
    expected, expected_pool = qkv.clone(), pool.clone()
    scales = {"num_heads": 2, "kv_scale": (0.01, 0.5)}
    rope_kv_write_gpu(qkv, positions, slots, rope, pool, **scales)
    rope_kv_write_gpu_reference(expected, positions, slots, rope, expected_pool, **scales)
    assert pool[:, 0].float().abs().max() == 448.0
    # A value halfway between two may be rounded to either.
    assert (pool.float() != expected_pool.float()).sum() <= 4


def test_what_cannot_run_is_refused(place):
    """Positions of another type, or too few of them, are a ValueError."""
    device, dtype = place
    rope = Rope(torch.ones(4, 8, device=device), torch.ones(4, 8, device=device))
    qkv, pool = (
        torch.ones(2, 48, device=device, dtype=dtype),
        torch.ones(1, 2, 1, 16, 16, device=device, dtype=dtype),
    )
    slots = torch.zeros(2, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="int32"):
        rope_kv_write_gpu(qkv, slots, slots, rope, pool, num_heads=1)
    with pytest.raises(ValueError, match="positions"):
        rope_kv_write_gpu(qkv, slots.int()[:1], slots, rope, pool, num_heads=1)
