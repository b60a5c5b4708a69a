"""The study of shard_map against NamedSharding: what its page shows is what its record gives."""

import json

from harness.paths import REPOSITORY


def test_the_numbers_of_shard_map_are_those_of_the_record() -> None:
    """Median over rounds, and its interval by order statistics: the 14th and the 27th of 40."""
    record = json.loads((REPOSITORY / "results/published/sharding/mnist-256-cpu.json").read_text())
    ratios = sorted(times["named_sharding_s"] / times["shard_map_s"] for times in record["rounds"])
    assert len(ratios) == 40
    middle, low, high = (ratios[19] + ratios[20]) / 2, ratios[13], ratios[26]
    text = (REPOSITORY / "docs" / "studies" / "sharding.md").read_text()
    assert f"| 2, on one CPU | mnist | 256 | {middle:.2f} | {low:.2f} to {high:.2f} |" in text
