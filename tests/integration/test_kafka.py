"""A real broker: change events with keys and tombstones go from Kafka through Spark's connector into a table, each once."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from examples.debezium import class_path, free_port, missing_tools

import siltstone
from siltstone.errors import NotInstalledError
from siltstone.testing.oracle import same_rows
from tests.unit.cdc.messages import change
from tests.waiting import wait_for

pytestmark = pytest.mark.integration

POM = Path(__file__).parent / "java" / "kafka-pom.xml"
CONNECTOR = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
PROGRAM = """
import json, sys
from siltstone.spark import local_session

jars, broker, root, checkpoint, files = sys.argv[1:]
spark = local_session("kafka", conf={"spark.jars": jars})
for number, file in enumerate(json.loads(files)):
    with open(file) as lines:
        events = [tuple(json.loads(line)) for line in lines]
    sent = spark.createDataFrame(events, "key string, value string").coalesce(1).write.format("kafka")
    sent.option("kafka.bootstrap.servers", broker).option("topic", "shop.orders").save()
    received = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker)
    received = received.option("subscribe", "shop.orders").option("startingOffsets", "earliest").load()
    written = received.writeStream.format("siltstone").option("root", root).option("format", "debezium")
    written.option("checkpointLocation", checkpoint).trigger(availableNow=True).start("shop.orders").awaitTermination()
"""


class Broker(NamedTuple):
    address: str
    jars: str


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    problem = missing_tools()
    if problem is not None:
        pytest.skip(problem)
    try:
        path = class_path(POM)
    except NotInstalledError as error:
        pytest.skip(str(error))
    folder, port, other = tmp_path_factory.mktemp("kafka"), free_port(), free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{other}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{other}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "num.partitions": "3",
        "offsets.topic.replication.factor": "1",
    }
    file, log = folder / "server.properties", folder / "broker.log"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    format_ = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(file)]
    subprocess.run(["java", "-cp", path, *format_], check=True, capture_output=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["java", "-Xmx400m", "-XX:TieredStopAtLevel=1", "-cp", path, "kafka.Kafka", str(file)],
            stdout=output,
            stderr=output,
        )
    try:
        wait_for("the broker", lambda: process.poll() is not None or b"Kafka Server started" in log.read_bytes())
        assert process.poll() is None, log.read_text()[-4000:]
        jars = [jar for jar in path.split(":") if Path(jar).name.startswith(CONNECTOR)]
        yield Broker(f"127.0.0.1:{port}", ",".join(jars))
    finally:
        process.terminate()
        process.wait()


def test_events_of_a_topic_are_the_table_of_the_source_whatever_is_run_again(broker: Broker, tmp_path: Path) -> None:
    lake = siltstone.open(tmp_path / "lake")
    columns = {"id": "int64", "zone": "string", "_source_position": "binary"}
    table = lake.create_table("shop.orders", schema=columns, primary_keys=["id"], sort_keys=["_source_position"])
    first: list[tuple[int, dict[str, Any] | None]] = [
        (number, change("c", number, {"id": number, "zone": "new"})) for number in range(1, 50)
    ]
    gone = [(number, change("d", 100 + number, {"id": number, "zone": None})) for number in range(1, 50, 5)]
    then = [(number, change("u", 200 + number, {"id": number, "zone": "paid"})) for number in range(2, 50, 3)]
    late = [(number, change("u", 60 + number, {"id": number, "zone": "late"})) for number in range(1, 50, 2)]
    # After a delete comes a tombstone: the key without a value.
    tombstones: list[tuple[int, dict[str, Any] | None]] = [(number, None) for number, _ in gone]
    batches: list[list[tuple[int, dict[str, Any] | None]]] = [first, [*gone, *tombstones, *then], [*late, *first]]
    files = []
    for number, batch in enumerate(batches):
        file = tmp_path / f"{number}.jsonl"
        lines = ([json.dumps({"id": key}), json.dumps(event) if event else None] for key, event in batch)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        files.append(str(file))
    checkpoint = tmp_path / "checkpoint"

    def run(files: list[str]) -> None:
        arguments = [broker.jars, broker.address, lake.root, str(checkpoint), json.dumps(files)]
        done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-6000:]

    run(files[:2])
    newest = max(delta.stream_position for delta in table.deltas())
    # As a driver leaves it that dies between our commit and Spark's note of it.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    run([files[2]])
    expected: dict[int, str] = {}
    events = [(event["source"]["lsn"], key, event) for batch in batches for key, event in batch if event]
    for _, key, event in sorted(events, key=lambda each: each[0]):
        expected.pop(key, None)
        if event["after"]:
            expected[key] = event["after"]["zone"]
    rows = [{"id": key, "zone": zone} for key, zone in expected.items()]
    same_rows(table.scan(["id", "zone"], fresh=True).to_arrow(), rows)
    table.compact(engine="local")
    same_rows(table.scan(["id", "zone"]).to_arrow(), rows)
    assert max(delta.stream_position for delta in table.deltas()) > newest
