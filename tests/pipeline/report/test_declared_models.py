"""The table of models in README.md, from the declarations."""

from harness.paths import README
from pipeline.report.declared_models import PART_OF_README, models_table


def test_a_model_has_a_line_with_its_size() -> None:
    lines = models_table().splitlines()
    assert lines[0] == "| benchmark | model | kind | parameters | GMAC |"
    # torchvision's ResNet-50, less 900 of its 1,000 outputs with 2,048 weights and a bias each
    assert f"| imagenet100 | resnet50 | BatchNorm | {25_557_032 - 900 * 2_049:,} | 4.09 |" in lines
    assert any(line.startswith("| synthetic | linear |  | 131,584 |") for line in lines)
    assert not any("not recorded" in line for line in lines), "every model declares its parameters"


def test_the_table_in_the_readme_is_that_of_the_declarations() -> None:
    current = README.read_text(encoding="utf-8")
    assert PART_OF_README.replaced(current, models_table(), "README.md") == current, (
        "run: python -m pipeline.report.declared_models"
    )
