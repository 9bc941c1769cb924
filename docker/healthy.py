"""Health of a container: exit code 0 if HEALTH_URL answers 200 within 4 seconds, else 1.

With HEALTH_EXPECT the answer has to hold that text too; ``{hostname}`` in it is this container's
name. So a task manager is well when the job manager lists it.
"""

import os
import socket
import sys
import urllib.request


def main() -> int:
    url = os.environ["HEALTH_URL"]
    expected = os.environ.get("HEALTH_EXPECT", "").replace("{hostname}", socket.gethostname())
    try:
        # straight to the container: a proxy of the environment knows nothing of it
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=4) as answer:
            body = answer.read().decode("utf-8", "replace")
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    if expected not in body:
        print(f"{url}: no {expected!r} in its answer", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
