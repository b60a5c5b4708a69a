"""ogbg-molpcba: molecules as graphs, and 128 yes-or-no questions on each (Hu et al. 2020, arXiv 2005.00687).

437,929 molecules with 26 atoms and 28 bonds on average; a label may be missing. Split by scaffold into 350,343 to
train, 43,793 to validate, which are not used, and 43,793 to test.
"""

import gzip
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.plan import Frozen
from harness.work.datasets import Arrays, Dataset, DataSource, Original, ensure_originals, split
from harness.work.declared import Benchmark, Layer, Model
from harness.work.graphs import in_one_table, places, shared_arrays
from harness.work.molecules import molecules
from harness.work.tasks import GRAPH_CLASSIFICATION

TASKS = 128
ATOM_CODES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Of atomic number, chirality, degree, charge, hydrogens, radical electrons, hybridisation, aromatic, in a ring
(ogb/utils/features.py, get_atom_feature_dims)."""
BOND_CODES = (5, 6, 2)
"""Of type, stereo and conjugated (the same file)."""
EPSILON = 1e-6
"""Of LayerNorm, as flax.linen has it, which AlgoPerf's model uses."""

PCBA = Original(
    name="pcba.zip",
    sha256="0bb12da2f3ec8b0bb80564114a6174fad2df6a3a0d3c19470b3a27813a7d4e53",
    urls=("https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download/pcba.zip",),
)
"""The checksum is that of tensorflow_datasets (ogbg_molpcba/checksums.tsv)."""

SAMPLE_COUNT, SAMPLE_TRAIN_COUNT = 2048, 1536
LABELS = {b"": -1, b"nan": -1, b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
LINES_AT_ONCE = 2**14


class Sizes(Frozen):
    """Of the models."""

    width: int = Field(default=256, ge=1)
    """Of nodes, edges and graphs."""
    layers: int = Field(default=5, ge=1)
    """How often nodes hear of their neighbours."""


def _read(originals: Path) -> Dataset:
    return read_zip(ensure_originals([PCBA], originals)[PCBA.name])


def read_zip(path: Path) -> Dataset:
    """OGB's format: gzipped CSVs without headers inside a zip. A bond is one line; here it becomes an edge in each
    direction."""
    with zipfile.ZipFile(path) as archive:
        node_count = _whole_numbers(archive, "raw/num-node-list", np.int32)[:, 0]
        bond_count = _whole_numbers(archive, "raw/num-edge-list", np.int32)[:, 0]
        atoms = _whole_numbers(archive, "raw/node-feat", np.uint8)
        bonds = _whole_numbers(archive, "raw/edge-feat", np.uint8)
        ends = _whole_numbers(archive, "raw/edge", np.int16)
        labels = _labels(archive)
        split = {part: _whole_numbers(archive, f"split/scaffold/{part}", np.int32)[:, 0] for part in ("train", "test")}
    shared = _both_directions(ends, bonds, bond_count) | {"atoms": atoms}
    of_all = places(node_count, 2 * bond_count) | {"labels": labels}
    return Dataset(
        train={name: array[split["train"]] for name, array in of_all.items()},
        test={name: array[split["test"]] for name, array in of_all.items()},
        shared=_in_tables(shared),
    )


def _in_tables(shared: Arrays) -> dict[str, NDArray[Any]]:
    codes = {"atoms": ATOM_CODES, "bonds": BOND_CODES}
    return {name: in_one_table(array, codes[name]) if name in codes else array for name, array in shared.items()}


def _whole_numbers(archive: zipfile.ZipFile, name: str, dtype: Any) -> NDArray[Any]:
    """[lines, columns]"""
    with archive.open(f"pcba/{name}.csv.gz") as packed, gzip.open(packed) as lines:
        found: NDArray[Any] = np.loadtxt(lines, dtype, delimiter=",", ndmin=2)
    return found


def _labels(archive: zipfile.ZipFile) -> NDArray[np.int8]:
    """[graphs, TASKS]; nothing between two commas is a missing label."""

    def blocks() -> Iterator[NDArray[np.int8]]:
        with archive.open("pcba/raw/graph-label.csv.gz") as packed, gzip.open(packed) as lines:
            while block := list(_first(lines, LINES_AT_ONCE)):
                rows = [line.rstrip(b"\r\n").split(b",") for line in block]
                yield np.array([[LABELS[label] for label in row] for row in rows], np.int8)

    return np.concatenate(list(blocks()))


def _first(lines: io.BufferedIOBase, count: int) -> Iterator[bytes]:
    for _, line in zip(range(count), lines, strict=False):
        yield line


def _both_directions(
    ends: NDArray[np.int16], bonds: NDArray[np.uint8], bond_count: NDArray[np.int32]
) -> dict[str, NDArray[Any]]:
    """Senders, receivers and codes of the edges, in the order of graph, receiver and sender."""
    graph = np.repeat(np.arange(len(bond_count)), bond_count)
    both, codes = np.concatenate([ends, ends[:, ::-1]]), np.concatenate([bonds, bonds])
    order = np.lexsort((both[:, 0], both[:, 1], np.concatenate([graph, graph])))
    return {
        "bonds": codes[order],
        "senders": np.ascontiguousarray(both[order, 0]),
        "receivers": np.ascontiguousarray(both[order, 1]),
    }


@cache
def _sample() -> Dataset:
    graphs, labels = molecules(SAMPLE_COUNT, TASKS)
    shared, of_all = shared_arrays(graphs)
    return split(of_all | {"labels": labels}, SAMPLE_TRAIN_COUNT, shared=_in_tables(shared))


LAYERS = frozenset({Layer.GRAPH, Layer.TABLE, Layer.DENSE, Layer.SCALE})

BENCHMARK = Benchmark(
    name="molpcba",
    task=GRAPH_CLASSIFICATION,
    sizes=Sizes,
    models=(
        Model(name="gcn", words="a graph convolutional network", layers=LAYERS, parameter_count=426_880),
        Model(name="graphnet", words="a graph network", layers=LAYERS, parameter_count=3_598_464),
    ),
    data=DataSource(
        benchmark="molpcba",
        read=_read,
        source="ogbg-molpcba (Hu et al. 2020, Open Graph Benchmark), split by scaffold",
        sample=_sample,
        sample_source="2,048 generated molecules, 1,536 to train",
    ),
)
