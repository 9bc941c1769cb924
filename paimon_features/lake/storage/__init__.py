"""Storage of a warehouse: a folder, S3, OSS, HDFS, or any file system of Arrow."""

from paimon_features.lake.storage.base import Storage
from paimon_features.lake.storage.local import LocalStorage
from paimon_features.lake.storage.remote import RemoteStorage
from paimon_features.lake.storage.verified import VerifiedParquetFile, damage_of, damaged

__all__ = [
    "LocalStorage",
    "RemoteStorage",
    "Storage",
    "VerifiedParquetFile",
    "damage_of",
    "damaged",
]
