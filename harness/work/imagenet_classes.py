"""Which 100 classes of ImageNet (ILSVRC2012) ImageNet-100 has: the list of CMC (Tian, Krishnan, Isola, 2020).

`imagenet100.txt` of HobbitLong/CMC, which most papers use. Other data sets of the same name have other classes.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClassList:
    """Some of ImageNet's classes. A label is a place in the list."""

    title: str
    names: tuple[str, ...]
    """Of WordNet; the folders of ImageNet are called so."""
    indices: tuple[int, ...]
    """Of each among the 1,000 classes, which are in the order of their names."""
    train_count: int
    test_count: int
    """Images in ILSVRC2012, whose validation set is what is tested on."""

    @property
    def sha256(self) -> str:
        return names_sha256(self.names)


def names_sha256(names: Iterable[str]) -> str:
    """Of the names in their order, each with a line feed."""
    return hashlib.sha256("".join(f"{name}\n" for name in names).encode()).hexdigest()


_CMC_NAMES = """
n02869837 n01749939 n02488291 n02107142 n13037406 n02091831 n04517823 n04589890 n03062245 n01773797 n01735189
n07831146 n07753275 n03085013 n04485082 n02105505 n01983481 n02788148 n03530642 n04435653 n02086910 n02859443
n13040303 n03594734 n02085620 n02099849 n01558993 n04493381 n02109047 n04111531 n02877765 n04429376 n02009229
n01978455 n02106550 n01820546 n01692333 n07714571 n02974003 n02114855 n03785016 n03764736 n03775546 n02087046
n07836838 n04099969 n04592741 n03891251 n02701002 n03379051 n02259212 n07715103 n03947888 n04026417 n02326432
n03637318 n01980166 n02113799 n02086240 n03903868 n02483362 n04127249 n02089973 n03017168 n02093428 n02804414
n02396427 n04418357 n02172182 n01729322 n02113978 n03787032 n02089867 n02119022 n03777754 n04238763 n02231487
n03032252 n02138441 n02104029 n03837869 n03494278 n04136333 n03794056 n03492542 n02018207 n04067472 n03930630
n03584829 n02123045 n04229816 n02100583 n03642806 n04336792 n03259280 n02116738 n02108089 n03424325 n01855672
n02090622
"""
_CMC_INDICES = """
452 64 374 236 993 176 882 904 503 74 57 959 953 508 872 228 122 421 599 858 157 449 994 608 151 209 15 876
246 766 455 857 131 119 234 90 45 936 479 272 665 653 659 158 960 765 908 703 407 560 317 938 724 748 331 619
120 267 155 708 368 772 167 494 180 431 342 854 305 54 268 667 166 277 662 798 313 498 299 222 682 593 775 674
592 137 758 717 606 281 796 211 620 830 544 275 242 570 99 169
"""
CMC = ClassList(
    title="CMC's list",
    names=tuple(_CMC_NAMES.split()),
    indices=tuple(map(int, _CMC_INDICES.split())),
    train_count=126_689,
    test_count=5_000,
)
