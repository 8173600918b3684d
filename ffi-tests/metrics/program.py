"""A program that serves its metrics as docs/metrics.md shows: by prometheus_client, and by itself.

The tests write commands to its standard input, one a line. It answers each with a line of JSON.
"""

import dataclasses
import json
import pathlib
import sys
import threading

import bfc

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from pages import Page

PAGE = Page("metrics")
HOSTILE = 300
NAME = 'a "name" \\ of\ntwo lines, {device="7"} 1\r# EOF'


def work(pools):
    """What changes each statistic. Both allocators have free memory and live allocations in the end."""
    for pool in pools:
        for size in ("1MiB", "3KiB", "700KiB"):
            pool.alloc(size).free()
        try:
            pool.alloc("1GiB")
        except bfc.OutOfMemoryError:
            pass


def main():
    # Port 0 is any free one.
    client = 'server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1")'
    scope = PAGE.run("python-1", instead={"server, thread =": client})
    PAGE.run("python-2", scope, instead={"plain =": 'plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics)'})
    scope["Metrics"].log_message = lambda *_: None
    threading.Thread(target=scope["plain"].serve_forever, daemon=True).start()
    with bfc.Pool(HOSTILE, backend="host_vmm", limit="32MiB", name=NAME) as hostile:
        kept = hostile.alloc("2MiB")
        pools = [scope["pool"], hostile]
        ports = {"client": scope["server"].server_port, "plain": scope["plain"].server_port}
        print(json.dumps(ports), flush=True)
        for command in sys.stdin:
            if command.strip() == "work":
                work(pools)
            elif command.strip() == "reset":
                for pool in pools:
                    bfc.reset_stats(pool.device)
            found = {pool.device: dataclasses.asdict(pool.stats()) for pool in pools}
            print(json.dumps(found), flush=True)
        kept.free()


if __name__ == "__main__":
    main()
