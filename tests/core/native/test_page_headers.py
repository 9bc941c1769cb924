"""Page headers by the native core: what the reference finds, or nothing."""

from __future__ import annotations

import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import DamagedFileError
from paimon_features.core.native import CORE
from paimon_features.lake.storage.pages import KnownFooter, pages_by_python
from paimon_features.testing.sizes import cases

pytestmark = pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")


@given(seed=st.integers(0, 2**32 - 1))
@cases(40)
def test_pages_are_the_reference_s_where_they_are_found(seed: int) -> None:
    assert CORE is not None
    rng = random.Random(seed)
    rows = rng.choice((1, 100, 3_000))
    table = pa.table(
        {"n": np.arange(rows) * rng.randrange(9), "t": [f"{k % 7}" * 3 for k in range(rows)]}
    )
    out = io.BytesIO()
    pq.write_table(
        table,
        out,
        data_page_size=rng.choice((64, 1 << 20)),
        write_page_checksum=rng.random() < 0.7,
        use_dictionary=rng.random() < 0.5,
        data_page_version=rng.choice(("1.0", "2.0")),
    )
    content = bytearray(out.getvalue())
    metadata = pq.read_metadata(io.BytesIO(content))
    for chunk in KnownFooter(metadata).chunks(None, None):
        begin, end = chunk.begin, chunk.end
        whole = CORE.pages(content, begin, end)
        assert whole == pages_by_python(memoryview(content), begin, end)
        assert whole
        for _ in range(30):
            broken = bytearray(content)
            for _ in range(rng.choice((1, 2, 5))):
                broken[begin + rng.randrange(min(60, end - begin))] = rng.randrange(256)
            found = CORE.pages(broken, begin, end)
            if found is not None:
                assert found == pages_by_python(memoryview(broken), begin, end)


def test_what_is_not_within_the_content_is_refused() -> None:
    assert CORE is not None
    with pytest.raises(ValueError, match="not within"):
        CORE.pages(b"abc", 0, 4)
    with pytest.raises(DamagedFileError, match="cut off"):
        pages_by_python(memoryview(b"\x15"), 0, 1)
