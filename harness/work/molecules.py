"""Generated molecules: skeletons that valences allow, with OGB's codes, and labels that follow from their structure.

Deterministic: numpy promises RandomState's stream for ever.
"""

from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from harness.work.graphs import Graph

VALENCES = {6: 4, 7: 3, 8: 2, 9: 1, 16: 2}
"""By atomic number: C, N, O, F, S."""
DRAWN_FROM = (6, 6, 6, 6, 6, 6, 7, 8, 8, 9, 16)
MEAN_ATOMS, STD_ATOMS, LARGEST = 26.0, 7.0, 60
MEAN_RINGS = 3.0
MISSING = 0.1
"""The share of labels that are left out."""
FARTHEST = 3
"""Bonds between the two atoms of a pair that a label asks for."""
RARE = 0.02
"""The share of molecules that must be on either side of a label."""

SINGLE_BOND, SP2, SP3, NEUTRAL = 0, 1, 2, 5
"""OGB's codes (ogb/utils/features.py)."""


class Molecule:
    """Atoms and bonds; a tree, and then bonds that close rings."""

    def __init__(self, draw: np.random.RandomState, atoms: int) -> None:
        self.elements = draw.choice(DRAWN_FROM, atoms)
        self.elements[0] = 6
        self.free = np.array([VALENCES[int(element)] for element in self.elements])
        self.bonds: list[tuple[int, int]] = []
        self.in_ring = np.zeros(atoms, bool)
        self.parents = np.zeros(atoms, int)
        for atom in range(1, atoms):
            self._grow(draw, atom)
        for _ in range(draw.poisson(MEAN_RINGS)):
            self._close_ring(draw)

    def _grow(self, draw: np.random.RandomState, atom: int) -> None:
        """Bond an atom to one of the last three that have a bond left. The last one of all that has is kept so, or the
        next atom would find none."""
        open_atoms = np.flatnonzero(self.free[:atom] > 0)
        if self.free[:atom].sum() == 1 and self.free[atom] == 1:
            self.elements[atom], self.free[atom] = 6, VALENCES[6]
        parent = int(open_atoms[-1 - draw.randint(min(3, len(open_atoms)))])
        self.parents[atom] = parent
        self._bond(parent, atom)

    def _close_ring(self, draw: np.random.RandomState) -> None:
        open_atoms = np.flatnonzero(self.free > 0)
        if not len(open_atoms):
            return
        atom = int(draw.choice(open_atoms))
        near = [int(other) for other in open_atoms if 4 <= len(self._way(atom, int(other))) <= 7]
        far = [other for other in near if (min(atom, other), max(atom, other)) not in self.bonds]
        if far:
            other = far[draw.randint(len(far))]
            self.in_ring[self._way(atom, other)] = True
            self._bond(min(atom, other), max(atom, other))

    def _way(self, one: int, other: int) -> list[int]:
        """The atoms from one to the other, both included, along the tree."""
        above, below = [one], [other]
        while above[-1] != below[-1]:
            # A parent's number is always smaller.
            longer = above if above[-1] > below[-1] else below
            longer.append(int(self.parents[longer[-1]]))
        return above + below[-2::-1]

    def _bond(self, one: int, other: int) -> None:
        self.bonds.append((one, other))
        self.free[[one, other]] -= 1

    @property
    def adjacent(self) -> NDArray[np.bool_]:
        """[atoms, atoms]"""
        found = np.zeros((len(self.elements), len(self.elements)), bool)
        for one, other in self.bonds:
            found[one, other] = found[other, one] = True
        return found

    def graph(self) -> Graph:
        """As OGB has it: nine codes for an atom, three for a bond, an edge in each direction."""
        degrees = self.adjacent.sum(1)
        atoms = np.zeros((len(self.elements), 9), np.uint8)
        atoms[:, 0] = self.elements - 1
        atoms[:, 2] = degrees + self.free
        atoms[:, 3] = NEUTRAL
        atoms[:, 4] = self.free
        atoms[:, 6] = np.where(self.in_ring & (self.elements == 6) & (degrees == 3), SP2, SP3)
        atoms[:, 8] = self.in_ring
        one_way = np.array(self.bonds, np.int16).reshape(-1, 2)
        ends = np.concatenate([one_way, one_way[:, ::-1]])
        bonds = np.zeros((len(ends), 3), np.uint8)
        bonds[:, 0] = SINGLE_BOND
        bonds[:, 2] = self.in_ring[ends].all(1)
        return Graph(atoms, ends, bonds)

    def counts(self) -> list[int]:
        """Of what labels ask for: pairs of elements so many bonds apart, elements of each degree, rings' atoms."""
        adjacent = self.adjacent
        apart, reached = [adjacent], adjacent | np.eye(len(adjacent), dtype=bool)
        for _ in range(FARTHEST - 1):
            farther = (apart[-1].astype(np.float32) @ adjacent > 0) & ~reached
            apart.append(farther)
            reached |= farther
        found = []
        is_element = {element: self.elements == element for element in VALENCES}
        for one, other in combinations_with_replacement(VALENCES, 2):
            found += [int(pairs[is_element[one]][:, is_element[other]].sum()) for pairs in apart]
        degrees = adjacent.sum(1)
        for element, valence in VALENCES.items():
            found += [int((degrees[is_element[element]] == degree).sum()) for degree in range(1, valence + 1)]
            found.append(int(self.in_ring[is_element[element]].sum()))
        return found


def molecules(count: int, tasks: int, seed: int = 20261122) -> tuple[list[Graph], NDArray[np.int8]]:
    """Graphs, and labels [count, tasks]: whether something is there at least so often; -1 for the missing ones.

    The first graph is one atom without a bond, the second has LARGEST atoms.
    """
    draw = np.random.RandomState(seed)
    sizes = np.clip(np.round(draw.normal(MEAN_ATOMS, STD_ATOMS, count)), 2, LARGEST).astype(int)
    sizes[:2] = 1, LARGEST
    drawn = [Molecule(draw, atoms) for atoms in sizes]
    labels = _labels(np.array([molecule.counts() for molecule in drawn]), tasks)
    labels[draw.uniform(size=labels.shape) < MISSING] = -1
    return [molecule.graph() for molecule in drawn], labels


def _labels(counts: NDArray[np.int64], tasks: int) -> NDArray[np.int8]:
    """The first `tasks` questions `at least k times?` whose answer is not nearly always the same; all questions with
    one k before those with the next.

    Args:
        counts: [molecules, things]
    """
    found: list[NDArray[np.bool_]] = []
    for least in range(1, int(counts.max()) + 1):
        for of_thing in counts.T:
            answers = of_thing >= least
            if RARE <= answers.mean() <= 1 - RARE:
                found.append(answers)
    return np.stack(found[:tasks], 1).astype(np.int8)
