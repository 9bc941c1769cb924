"""Random programs give what the naive interpreter says, however their deliveries interleave."""

from __future__ import annotations

import random
from collections import Counter

from paimon_features.iteration import ReferenceExecutor
from paimon_features.testing.sizes import every_seed
from tests.iteration.interpreter import Outcome, TooLongError, interpret
from tests.iteration.programs import Program, random_program
from tests.iteration.translation import builder


def some_program(rng: random.Random) -> tuple[Program, Outcome]:
    """A random program that ends soon, and what is right for it."""
    while True:
        program = random_program(rng)
        try:
            return program, interpret(program)
        except TooLongError:
            continue


def check(program: Program, right: Outcome, outputs: dict[str, list[tuple[int, int]]]) -> None:
    """Whether an engine's outputs are right for the program."""
    for number, expected in enumerate(right.outputs):
        found = Counter(outputs[str(number)])
        if right.exact:
            assert found == expected, f"output {number}"
            continue
        # records may run ahead of the decision that ends the iteration
        for some in (found, expected):
            for record in [*some]:
                if record[0] > right.last:
                    del some[record]
        assert found == expected, f"output {number} up to epoch {right.last}"


@every_seed(60)
def test_a_random_program_equals_the_naive_interpreter(seed: int) -> None:
    rng = random.Random(seed)
    program, right = some_program(rng)
    build = builder(program)
    check(program, right, ReferenceExecutor().run(build))
    for _ in range(3):
        check(program, right, ReferenceExecutor(seed=rng.randrange(2**32)).run(build))
