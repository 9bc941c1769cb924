"""The Lua scripts: each an atomic step on the server, over keys of one bucket.

A *run* is the server's process and its replication history: a promoted replica, and a former
primary that returns, start another one, because either may lack the newest writes.
"""

from __future__ import annotations

import hashlib


class Script:
    """A script and the digest that identifies it on a server."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_RUN = """
local function run_id()
  local process = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
  local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
  return process .. '-' .. history
end
"""

# KEYS: those to write, and the guard if there is one. ARGV: run or '', time to live in ms or '',
# '1' for a retry after a lost reply, the expected value of the guard or '', then the expected and
# the new value of each key. A retried write that finds its own value was applied before.
COMPARE_AND_SET = Script(
    _RUN
    + """
if ARGV[1] ~= '' and run_id() ~= ARGV[1] then return redis.error_reply('RESTARTED') end
local expire_ms, again, guard, done = ARGV[2], ARGV[3] == '1', ARGV[4], {}
local count = (#ARGV - 4) / 2
local open = guard == '' or redis.call('GETRANGE', KEYS[count + 1], 0, #guard - 1) == guard
for i = 1, count do
  local key, expected, value = KEYS[i], ARGV[2 * i + 3], ARGV[2 * i + 4]
  local fits
  if expected == '' then
    fits = redis.call('EXISTS', key) == 0
  else
    fits = redis.call('GETRANGE', key, 0, #expected - 1) == expected
  end
  if not fits and again then fits = redis.call('GET', key) == value end
  fits = fits and open
  if fits then
    if expire_ms == '' then
      redis.call('SET', key, value)
    else
      redis.call('SET', key, value, 'PX', expire_ms)
    end
  end
  done[i] = fits and 1 or 0
end
return done
"""
)

RUN_AND_VALUES = Script(_RUN + "return {run_id(), redis.call('MGET', unpack(KEYS))}")

# KEYS: the guard that must be absent, then the keys to delete
DELETE_ORPHANS = Script("""
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
return redis.call('UNLINK', unpack(KEYS, 2))
""")

# KEYS: the lease and its fence, a number that increases with every new owner, also after an expiry
# of the lease. Acquiring it twice renews it, so that a lost reply is harmless.
ACQUIRE = Script("""
local found = redis.call('GET', KEYS[1])
if not found then
  local fence = redis.call('INCR', KEYS[2])
  redis.call('SET', KEYS[1], fence .. ':' .. ARGV[1], 'PX', ARGV[2])
  return {ARGV[1], fence}
end
local colon = string.find(found, ':', 1, true)
local fence, owner = tonumber(string.sub(found, 1, colon - 1)), string.sub(found, colon + 1)
if owner == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {owner, fence}
""")

RELEASE = Script("""
local found = redis.call('GET', KEYS[1])
if found and string.sub(found, string.find(found, ':', 1, true) + 1) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
""")
