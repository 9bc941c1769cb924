"""Storage of a warehouse: a folder, S3, OSS, HDFS, or any file system of Arrow."""

from paimon_features.tables.storage.base import Storage
from paimon_features.tables.storage.local import LocalStorage
from paimon_features.tables.storage.remote import RemoteStorage
from paimon_features.tables.storage.verified import VerifiedParquetFile, damage_of, damaged

__all__ = [
    "LocalStorage",
    "RemoteStorage",
    "Storage",
    "VerifiedParquetFile",
    "damage_of",
    "damaged",
]
