"""The roofline: what it counts, and the fractions that it prints."""

from __future__ import annotations

import pytest

import integrodiff
import roofline
from integrodiff.engines import ENGINES


def test_work_of_a_step() -> None:
    work = roofline.step_work(integrodiff.load_model("iad").evolution(25.0))
    assert len(work["radii"]) == 8
    assert work["flops_of_blurs"] == sum(4 * (3 * radius + 1) for radius in work["radii"])
    assert work["flops"] > work["flops_of_blurs"]
    assert work["bytes_fused"] == 8
    scalar = roofline.step_work(integrodiff.load_model("iid").evolution(25.0))
    assert scalar["flops"] - scalar["flops_of_blurs"] < work["flops"] - work["flops_of_blurs"]


def test_work_of_a_step_with_shortcuts() -> None:
    evolution = integrodiff.load_model("iad").evolution(25.0)
    work, exact = roofline.fused_work(evolution), roofline.step_work(evolution)
    assert work is not None
    assert work["radii"] == [1, 2, 2, 3, 5, 7, 6, 12]
    fine, coarse = 2 * sum(2 * (3 * r + 1) for r in (1, 2, 2, 3, 5, 7)), 2 * (3 * 6 + 1) * 2
    coarse += 2 * (3 * 12 + 1)  # the last scale has no way back: its flow is negligible
    # 12 and 8 taps are half of the kernels to the coarse grid and back.
    between = 0.75 * 36 + 2 * 24 + 0.75 * 24 + 36
    assert work["flops_of_blurs"] == round(fine + coarse / 4 + between)
    assert work["flops_of_blurs"] < work["flops"] < exact["flops"]
    for name in ("iad-orders", "iad-fast", "iad-plus"):
        assert roofline.fused_work(integrodiff.load_model(name).evolution(25.0)) is None


def test_fractions_of_the_ceilings() -> None:
    work = {"flops": 1000, "bytes_fused": 8, "bytes_staged": 800}
    ceilings = {
        "flops_per_second": 1e11,
        "memory_bytes_per_second": 1e10,
        "cache_bytes_per_second": 1e11,
    }
    row = roofline.roofline(1, 1e-7, work, ceilings)
    assert row["flops_per_second"] == 1e10
    assert row["fractions"] == {
        "arithmetic": 0.1,
        "fused traffic, memory": 0.008,
        "staged traffic, memory": 0.8,
        "staged traffic, cache": 0.08,
    }


@pytest.mark.skipif(
    ENGINES["native"].unavailable() is not None, reason="the compiled engine is not built"
)
def test_roofline_runs() -> None:
    part = roofline.measure_roofline("iad", 16, [1, 2], 1, dram_floats=1024)
    found = [(row["threads"], row["evaluation"]) for row in part["rows"]]
    assert found == [(1, "default"), (1, "exact"), (2, "default"), (2, "exact")]
    assert "of arithmetic" in roofline.roofline_table(part)
