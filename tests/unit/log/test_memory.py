import subprocess
import sys

WRITER = """
from pathlib import Path
from siltstone.log.commit import CommitLog

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

log = CommitLog("memory://lake", "log")
log.commit("warm up", lambda _: {"first": {}})
before = resident_bytes()
for batch in range(50):
    log.commit("test", lambda _: {f"key/{batch}/{number}": {"value": "x" * 80} for number in range(400)})
print((resident_bytes() - before) // 20_000)
"""


def test_an_entry_takes_little_more_memory_than_its_text_in_the_process_that_wrote_it() -> None:
    done = subprocess.run([sys.executable, "-c", WRITER], capture_output=True, text=True, check=True)
    # The store of this test, in the same memory, has the text once more. With a buffer of its own, an entry took 4 kB.
    assert int(done.stdout) < 2000
