"""What `main.py compile` found: as tables for the terminal and for docs/compiled.md, and as warnings before a
submission."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from harness.errors import RecordError
from harness.files import write_atomically
from harness.paths import PUBLISHED, REPOSITORY, Results
from harness.plan import FRAMEWORKS, Pair
from harness.results.program_facts import ProgramFacts, program_key, read_program_facts
from harness.work.cards import CARDS, Card
from pipeline.markdown import GeneratedPart, markdown_table

if TYPE_CHECKING:
    import rich.console

DOCUMENT = REPOSITORY / "docs" / "compiled.md"
PUBLISHED_FACTS = PUBLISHED / "compiled.jsonl"
"""A line for each program of DOCUMENT."""
PART = GeneratedPart(begin="<!-- compiled:begin -->", end="<!-- compiled:end -->")
FULL = 0.9
"""Of a card's memory, from where on a program is said not to fit: its bytes are a lower bound."""
MAKERS = ("jax", "jaxlib", "torch", "triton")
WIDEST = 110
"""Characters of a row with the longest name of a mode; a narrower terminal breaks its lines."""
COLUMNS = ("mode", "kernels", "products", "copies", "graphs", "outside", "memory", "built in")
MEANING = (
    "No times: what one step is made of, by the frameworks' own compilers and the calls that they make to libraries. "
    "Kernels: all that a step starts on the GPU, JAX's loops round by round; a call to cuDNN or cuBLAS counts as one, "
    "however many kernels it answers with. Products: matrix products, convolutions and attention. Copies: those that "
    "only move data. Graphs: CUDA graphs that the host launches. Outside: what else the host starts. Memory: of one "
    "step, at the least."
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The modes of one variant on one card."""

    card: Card
    title: str
    facts: Sequence[ProgramFacts]

    def rows(self) -> Iterator[tuple[str, ...]]:
        """As COLUMNS."""
        return map(self._row, self.facts)

    def _row(self, one: ProgramFacts) -> tuple[str, ...]:
        name = f"{one.framework} {one.variant.execution_mode}"
        if one.outcome != "ok":
            return (f"{name}: {one.outcome.replace('_', ' ')}", *[""] * (len(COLUMNS) - 1))
        memory = ""
        if one.peak_bytes is not None:
            memory = f"{megabytes(one.peak_bytes)}{'' if fits(one, self.card) else ': does not fit'}"
        return (
            name,
            f"{one.kernels:,}",
            f"{one.classes.get('product', 0):,}",
            f"{one.classes.get('layout', 0):,}",
            f"{one.graphs:,}",
            f"{one.outside_of_graphs:,}",
            memory,
            f"{one.compile_s:.0f} s",
        )

    def remarks(self) -> Iterator[str]:
        """What else is to be said of these programs, a sentence each."""
        for one in self.facts:
            for words in (*([one.reason] if one.outcome != "ok" else []), *one.notes):
                yield f"{one.framework} {one.variant.execution_mode}: {words}"
        for same in same_programs(self.facts):
            names = [one.variant.execution_mode for one in same]
            yield f"{same[0].framework}: {', '.join(names[1:])} is the same program as {names[0]}"


def groups(facts: Iterable[ProgramFacts], cards: Sequence[Card]) -> list[Group]:
    """By card, benchmark, use case and variant, in the order of `facts`; of each JAX's modes first."""
    found: dict[tuple[str, str, int, str], list[ProgramFacts]] = {}
    for one in facts:
        found.setdefault((one.card, one.benchmark, one.use_case, one.variant.comparison_key), []).append(one)
    order = [card.name for card in cards]
    return [
        Group(
            card=CARDS[card],
            title=f"{benchmark}, use case {number}: {key}",
            facts=sorted(of_variant, key=lambda one: FRAMEWORKS.index(one.framework)),
        )
        for (card, benchmark, number, key), of_variant in sorted(
            found.items(), key=lambda item: order.index(item[0][0])
        )
    ]


def same_programs(facts: Iterable[ProgramFacts]) -> list[list[ProgramFacts]]:
    """Those of one framework that are one program under several names."""
    found: dict[tuple[str, str], list[ProgramFacts]] = {}
    for one in facts:
        if one.program is not None:
            found.setdefault((one.framework, one.program), []).append(one)
    return [same for same in found.values() if len(same) > 1]


def foreseen(pairs: Iterable[Pair], results: Results) -> list[str]:
    """What an earlier `main.py compile` lets one expect of these jobs: programs that do not fit or cannot be built, of
    cells whose GPU is called as a card that is known here."""
    lines = []
    for pair in pairs:
        card = CARDS.get(pair.cell.gpu)
        if card is None or not results.compiled(card.name).is_dir():
            continue
        for plan in pair.jobs:
            for measurement in islice(plan.replicates(), len(plan.variants)):
                path = results.compiled(card.name) / f"{program_key(measurement)}.json"
                try:
                    one = read_program_facts(path) if path.exists() else None
                except RecordError:
                    continue  # of another release of this project; a warning is not worth a submission
                if one is None or (fits(one, card) and one.outcome != "failed"):
                    continue
                what = f"needs at least {megabytes(one.peak_bytes)}" if one.peak_bytes else one.reason
                lines.append(f"{plan.name}: {measurement.variant.key}: by `main.py compile`: {what}")
    return lines


def fits(one: ProgramFacts, card: Card) -> bool:
    return one.outcome != "out_of_memory" and (one.peak_bytes or 0) <= FULL * card.memory_bytes


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def print_facts(facts: Sequence[ProgramFacts], cards: Sequence[Card], console: "rich.console.Console") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heading, wide = None, Console(file=console.file, width=max(console.width, WIDEST), highlight=False)
    for group in groups(facts, cards):
        if heading != group.card.name:
            heading = group.card.name
            console.print(f"\n{heading}: {group.card.device_name}, {megabytes(group.card.memory_bytes)}", style="bold")
        console.print(f"\n{group.title}", style="bold", markup=False)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "mode" else "right", no_wrap=True)
        for row in group.rows():
            table.add_row(*map(Text, row))
        wide.print(table)
        for remark in group.remarks():
            console.print(f"  {remark}", markup=False)
    console.print(f"\n{MEANING} Built in: on this machine's CPU.", markup=False)
    for line in conclusion(facts):
        console.print(line, markup=False)


def conclusion(facts: Sequence[ProgramFacts]) -> Iterator[str]:
    """The answer, in as many lines as it has parts."""
    broken = [one for one in facts if one.outcome == "failed"]
    too_large = [one for one in facts if not fits(one, CARDS[one.card])]
    refused = [one for one in facts if one.outcome == "refused"]
    built = sum(one.outcome == "ok" for one in facts)
    yield f"{built} of {len(facts)} programs are built; {len(refused)} are refused, {len(broken)} failed."
    if too_large:
        names = ", ".join(f"{one.card} {one.framework} {one.benchmark} {one.variant.key}" for one in too_large)
        yield f"Do not fit: {names}"


def publish_facts(facts: Sequence[ProgramFacts], cards: Sequence[Card]) -> None:
    """What docs/compiled.md shows, in its order and for everybody, and the page itself."""
    text = "\n".join(one.model_dump_json() for one in facts) + "\n"
    write_atomically(PUBLISHED_FACTS, text, replace=True)
    PART.write(DOCUMENT, in_markdown(facts, cards))


def published_facts() -> list[ProgramFacts]:
    return [ProgramFacts.model_validate_json(line) for line in PUBLISHED_FACTS.read_text().splitlines()]


def in_markdown(facts: Sequence[ProgramFacts], cards: Sequence[Card]) -> str:
    """One table. The cards for which a mode has the same numbers share a row."""
    cards_of: dict[tuple[str, ...], list[str]] = {}
    remarks = []
    for group in sorted(groups(facts, cards), key=lambda one: one.title):
        for row in group.rows():
            cards_of.setdefault((group.title, *row[:-1]), []).append(group.card.name)
        remarks += [f"- {group.card.name}, {group.title}: {remark}" for remark in group.remarks()]
    rows = sorted(((*of[:2], ", ".join(names), *of[2:]) for of, names in cards_of.items()), key=lambda row: row[:2])
    remarks += [f"- {line}" for line in conclusion(facts)]
    table = markdown_table(("work", "mode", "cards", *COLUMNS[1:-1]), rows)
    return "\n\n".join([MEANING, table, "\n".join(remarks), f"Made by {made_by(facts)}."])


def made_by(facts: Iterable[ProgramFacts]) -> str:
    """`jax 0.12.0, jaxlib 0.12.0, torch 2.14.1, triton 3.8.0`"""
    found = {(name, one.made_by[name]) for one in facts for name in MAKERS if name in one.made_by}
    return ", ".join(f"{name} {version}" for name, version in sorted(found))
