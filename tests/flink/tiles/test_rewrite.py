"""Another number of buckets by copying tiles, after a backfill; a stream is in make chaos."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.errors import GenerationError
from paimon_features.project import Project
from paimon_features.tiles.jobs import rewrite as module
from paimon_features.tiles.jobs.restart import Start, decide_start
from paimon_features.tiles.jobs.rewrite import rewrite
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local.submission import backfill
from tests.flink.feed import Feed


def changed(project: Project, old: str, new: str) -> TileTarget:
    """The generation that a change of the definitions makes."""
    definitions = project.config.definitions
    definitions.write_text(definitions.read_text().replace(old, new))
    opened = Project.open(project.root)
    opened.apply()
    return TileTarget.of(opened, "spend")


def test_copied_tiles_are_exact_and_a_stream_continues_behind_the_backfill(
    project: Project, target: TileTarget, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.commit(200)
    backfill(target)
    new = changed(project, "where=", "buckets=3,\n    where=")
    assert (new.generation, new.view.buckets) == (2, 3)
    with pytest.raises(GenerationError, match="is the one to be filled"):
        rewrite(new, 2)
    with monkeypatch.context() as patched:
        patched.setattr(module.SortedFiles, "commit", lambda *_: exit("killed"))
        with pytest.raises(SystemExit):
            rewrite(new, 1)
    with pytest.raises(GenerationError, match=r"--from-generation 1' starts it again"):
        decide_start(new.ledger())  # whether or not anything of it was committed
    done = CliRunner().invoke(
        cli, ["backfill", "spend", "--from-generation", "1", "--project", str(project.root)]
    )
    assert done.exit_code == 0, done.output
    assert "'paimon-features submit spend' continues" in done.output
    feed.target = new
    feed.assert_exact()
    assert int(new.lake.table(new.tables[0]).options.bucket()) == 3
    handover = target.record().handover_snapshot
    assert handover is not None
    assert decide_start(new.ledger()) == Start(from_snapshot=handover + 1)
    with pytest.raises(GenerationError, match="is not empty"):
        rewrite(new, 1)
    rewrite(new, 1, rebuild=True)
    feed.assert_exact()


def test_tiles_are_copied_into_partitions_of_other_lengths(
    project: Project, target: TileTarget, feed: Feed
) -> None:
    feed.commit(200)
    backfill(target)
    definitions = project.config.definitions
    before = definitions.read_text()
    for generation, days in ((2, "64"), (3, "'none'"), (4, "8"), (5, "1")):
        definitions.write_text(before)
        new = changed(project, "where=", f"partition_days={days},\n    where=")
        assert new.generation == generation
        rewrite(new, generation - 1)
        feed.target = new
        feed.assert_exact()


def test_other_tiles_are_not_copied(project: Project, target: TileTarget, feed: Feed) -> None:
    feed.commit()
    backfill(target)
    new = changed(project, 'where="quantity > 0"', 'where="quantity > 1"')
    with pytest.raises(GenerationError, match="has other tiles than generation 2"):
        rewrite(new, 1)


def test_a_generation_without_a_known_position_is_not_copied(
    project: Project, target: TileTarget, feed: Feed
) -> None:
    feed.commit()
    backfill(target)
    target.update(job={**(target.record().job or {}), "state": "LOST"})
    new = changed(project, "where=", "buckets=3,\n    where=")
    with pytest.raises(GenerationError, match="its job is LOST"):
        rewrite(new, 1)
