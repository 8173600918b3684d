"""Reads a memory map from standard input and checks that it is JSON and agrees with itself.

SPDX-License-Identifier: Apache-2.0 OR MIT
"""

import json
import sys


def expect(condition, what):
    if not condition:
        sys.exit("memory map: " + what)


memory = json.load(sys.stdin)
stats, regions, bins = memory["stats"], memory["regions"], memory["bins"]
chunks = []
for region in regions:
    address = int(region["address"], 16)
    end = address + region["size"]
    expect(region["chunks"], "a region has no chunks")
    for chunk in region["chunks"]:
        expect(int(chunk["address"], 16) == address, "chunks do not tile their region")
        expect(chunk["size"] % 256 == 0 and chunk["size"] > 0, "a chunk's size is no multiple of 256")
        expect(chunk["state"] in ("in_use", "free", "held"), "unknown state " + chunk["state"])
        address += chunk["size"]
        chunks.append(chunk)
    expect(address == end, "chunks do not end where their region ends")

in_use = [chunk for chunk in chunks if chunk["state"] == "in_use"]
expect(len(regions) == stats["num_regions"], "num_regions")
expect(len(chunks) == stats["num_chunks"], "num_chunks")
expect(len(chunks) - len(in_use) == stats["num_free_chunks"], "num_free_chunks")
expect(sum(chunk["size"] for chunk in in_use) == stats["bytes_in_use"], "bytes_in_use")
expect(sum(chunk["requested"] for chunk in in_use) == stats["bytes_requested"], "bytes_requested")
expect(sum(region["received"] for region in regions) == stats["pool_bytes"], "pool_bytes")
expect(len({chunk["allocation_id"] for chunk in in_use}) == len(in_use), "allocation ids are not unique")
expect(len(bins) == 21, "21 bins")
for number, one in enumerate(bins):
    here = [chunk for chunk in chunks if chunk["bin"] == number]
    expect(one["bin"] == number and one["from"] == 256 << number, "the bins' floors")
    expect(one["chunks"] == len(here), "the chunks of bin %d" % number)
    expect(one["bytes"] == sum(chunk["size"] for chunk in here), "the bytes of bin %d" % number)
expect(all("operation" in chunk and "step" in chunk for chunk in in_use), "operations are missing")
