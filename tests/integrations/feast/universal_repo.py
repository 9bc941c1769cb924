"""The stores of ``paimon_features.integrations.feast`` as Feast's universal tests take them.

In a checkout of Feast, with an environment that has both (``make feast-test`` creates it)::

    FULL_REPO_CONFIGS_MODULE=universal_repo PAIMON_FEATURES_ONLINE_URL=redis://127.0.0.1:6379/0 \
    PYTHONPATH=<this folder> python -m pytest sdk/python/tests/integration --integration \
        -k "Universal or universal"

The tests themselves are Feast's and not part of this repository.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from tests.universal.feature_repos.universal.data_source_creator import DataSourceCreator

from paimon_features.integrations.feast import (
    PaimonLoggingDestination,
    PaimonOfflineStoreConfig,
    PaimonSource,
    SavedDatasetPaimonStorage,
)
from paimon_features.integrations.feast.plugin.offline_store import write_table
from paimon_features.project import Project

ROOT = Path(tempfile.mkdtemp(prefix="paimon-features-feast-"))
atexit.register(shutil.rmtree, ROOT, ignore_errors=True)
(ROOT / "paimon-features.toml").write_text('[project]\nname = "universal"\n')
(ROOT / "features.py").write_text("import paimon_features as pf\n")


class PaimonDataSourceCreator(DataSourceCreator):
    """Data frames of a test as tables of a lake."""

    def __init__(self, project_name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(project_name)
        self.project = Project.open(ROOT)

    def create_data_source(
        self,
        df: pd.DataFrame,
        destination_name: str,
        created_timestamp_column: str = "created_ts",
        field_mapping: dict[str, str] | None = None,
        timestamp_field: str | None = "ts",
    ) -> PaimonSource:
        name = f"{self.project_name}_{destination_name}_{uuid.uuid4().hex[:8]}".lower()
        write_table(self.project, name, pa.Table.from_pandas(df, preserve_index=False))
        return PaimonSource(
            table=name,
            timestamp_field=timestamp_field,
            created_timestamp_column=created_timestamp_column,
            field_mapping=field_mapping or {"ts_1": "ts"},
        )

    def create_saved_dataset_destination(self) -> SavedDatasetPaimonStorage:
        return SavedDatasetPaimonStorage(f"saved_{uuid.uuid4().hex[:8]}")

    def create_offline_store_config(self) -> PaimonOfflineStoreConfig:
        return PaimonOfflineStoreConfig(project_path=str(ROOT))

    def create_logged_features_destination(self) -> PaimonLoggingDestination:
        return PaimonLoggingDestination(table=f"logged_{uuid.uuid4().hex[:8]}")

    def teardown(self) -> None:
        """The folder is removed at the end."""


AVAILABLE_OFFLINE_STORES = [("local", PaimonDataSourceCreator)]
AVAILABLE_ONLINE_STORES = {
    # under the name of the store that it is closest to: some tests run on that one only
    "redis": (
        {
            "type": "paimon_features.integrations.feast.PaimonOnlineStore",
            "project_path": str(ROOT),
        },
        None,
    )
}
