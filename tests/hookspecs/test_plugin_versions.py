"""Version ranges, against the ``packaging`` library."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from hookserve.hookspecs.versions import VersionRangeError, in_range

VERSIONS = ["0.9", "1", "1.0", "1.0.1", "1.2", "1.10", "2", "2.1", "10.0"]
RANGES = [
    "",
    ">=1,<2",
    ">= 1.0 , < 2.0",
    ">1",
    "<=1.2",
    "==1.2",
    "==1.*",
    "!=1.2",
    "!=1.*",
    "~=1.0",
    "~=1.0.1",
    ">=1.10",
]


@pytest.mark.parametrize("wanted", RANGES)
@pytest.mark.parametrize("version", VERSIONS)
def test_ranges_mean_what_they_mean_to_packaging(version: str, wanted: str) -> None:
    assert in_range(version, wanted) == (version in SpecifierSet(wanted)), (version, wanted)


@pytest.mark.parametrize("wanted", ["1", ">=", ">=one", "=>1", ">=1;<2"])
def test_a_range_that_cannot_be_read_is_refused(wanted: str) -> None:
    with pytest.raises(VersionRangeError, match="cannot be read"):
        in_range("1.0", wanted)
