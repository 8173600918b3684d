"""The result file: one JSON object on each line, written as soon as a row ends, so that what was done survives whatever comes."""

import json
import os
import threading

NAME = "results.jsonl"
LOG = "log.txt"
# At most 8 files of 16 MiB come back from the machine.
LOG_BYTES = 8 << 20
TAIL_BYTES = 32 << 10
# The statuses of a row that has run, as opposed to "not run".
DONE = ("passed", "differs", "failed", "crashed", "timed out", "skipped")
BAD = ("failed", "crashed", "timed out")


def read(path):
    """The records of a result file. A last line that was cut off is left out."""
    records = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return records


def done(records):
    """The rows that have run, by (part, row)."""
    return {(one["part"], one["row"]): one for one in records if one.get("status") in DONE}


def device_of(path):
    """The device of a result file, or None if there is no file."""
    machines = [one["machine"] for one in read(path) if "machine" in one] if path else []
    return machines[0]["device"] if machines else None


class Results:
    """Writes results and the log below a folder."""

    def __init__(self, folder):
        self.lock, self.records, self.logged = threading.Lock(), [], 0
        folder.mkdir(parents=True, exist_ok=True)
        self.file = open(folder / NAME, "w", encoding="utf-8")  # noqa: SIM115
        self.log_file = open(folder / LOG, "w", encoding="utf-8", errors="replace")  # noqa: SIM115

    def add(self, record):
        """Keeps a record on the disk, even if the machine ends now."""
        with self.lock:
            self.records.append(record)
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())

    def log(self, title, text):
        """Keeps the end of what a program printed, as long as the log is short enough."""
        entry = f"==== {title}\n{text[-TAIL_BYTES:]}\n"
        with self.lock:
            if self.logged + len(entry) <= LOG_BYTES:
                self.logged += len(entry)
                self.log_file.write(entry)
                self.log_file.flush()
