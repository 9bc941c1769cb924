"""Ownership: one owner commits to a table at a time, and a fencing token tells owners apart.

A *lease* names the owner: a process or a Flink job. Its state is a numbered claim (``claims``);
each change creates the next claim by compare-and-swap. The number of the claim is the *fencing
token*: a process that commits checks immediately before its snapshot that no higher number exists
(``fence.Fence.check``, called by ``commit_lock``), and raises LeaseLostError otherwise.

Who owns what:

- a table: a lease (``lease``), of a process or of a job that runs on a cluster;
- one change of a table or record: a lock (``locks``), which is a file lock of the operating system,
  or a short lease in an object store;
- one snapshot number in an object store or REST catalog: the commit that began after its
  predecessor (``lake/storage/commit_guard.py``), so a lost lock or lease cannot add a snapshot;
- a database: a project, by a record without expiry and token (``lake/database_owner.py``);
- a bucket of the online store: a materializer, by a lease with an expiry
  (``online/materialize/leases.py``); there compare-and-set of the records is the fence.

What happens to the owner:

- *It dies.* The operating system, Flink's REST interface or a silent heartbeat shows it
  (``lease.acquire``), and the next process takes over. A file lock is free at once.
- *It pauses*, on another machine for more than 30 s. Another process may take over; the paused one
  finds the higher number before its next commit. A job's commits are not fenced, so it is watched
  for longer, and ended (``docs/internals/decisions/leases.md``).
- *Its storage fails.* The check raises, so nothing is committed. Heartbeats are logged as missing
  and continue; a lock that could not be released is released once the store replies.
- *Its claim is damaged.* Nobody follows it, and it commits nothing, until an operator releases the
  lease (``paimon-features jobs --release TABLE``).
"""
