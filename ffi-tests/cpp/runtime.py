"""What examples/runtime prints: runtime.py PROGRAM "host memory" or "GPU 0"."""

import subprocess
import sys

EXPECTED = """running on {place}
two streams: 4 batches
captured graph: 3 launches
two threads: 100 steps
out of memory, as expected:
116 allocations, 116 frees, 1 failures
0 bytes in use, 20971520 at the peak
"""

program, place = sys.argv[1:]
done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
# The report is indented.
own = "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith(" "))
expected = EXPECTED.format(place=place)
for word in ["no memory for 60.00 MiB", "largest free chunk", "large tensors"]:
    if word not in done.stdout:
        sys.exit(f"the report has no {word!r}:\n{done.stdout}")
if done.returncode != 0 or own != expected:
    sys.exit(f"status {done.returncode}, and not what was expected:\n{done.stdout}")
