"""Which test modules take longest, from a run's JUnit report: the lines of ``tests/slowest.txt``.

::

    make test ARGS=--junitxml=build/tests.xml
    .venv/bin/python tools/slowest.py build/tests.xml > tests/slowest.txt

``make test`` starts with these modules. An old list costs some seconds, and changes no result.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST_S = 4.0
"""Shorter modules are not named: their order does not matter."""


def main(report: str) -> None:
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        # "tests.flink.test_jobs" or "tests.flink.test_jobs.TestClass"
        parts = case.get("classname", "").split(".")
        paths = ["/".join(parts[:end]) + ".py" for end in range(len(parts), 0, -1)]
        module = next((path for path in paths if (ROOT / path).is_file()), None)
        if module is not None:
            seconds[module] += float(case.get("time", "0"))
    print("# seconds and module; made by tools/slowest.py")
    for module, taken in seconds.most_common():
        if taken >= LEAST_S:
            print(f"{taken:.0f} {module}")


if __name__ == "__main__":
    main(sys.argv[1])
