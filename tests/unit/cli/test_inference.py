import pyarrow as pa
import pytest

from siltstone.ingest.data_file import TextColumn


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2", None], pa.int64()),
        (["0", "10"], pa.int64()),
        (["007", "1"], pa.string()),
        (["1", "1.5"], pa.float64()),
        (["1e5", "NaN"], pa.float64()),
        (["99999999999999999999"], pa.string()),
        (["0x10"], pa.string()),
        (["+5"], pa.string()),
        (["true", "False"], pa.bool_()),
        (["0", "true"], pa.string()),
        (["2024-02-29"], pa.date32()),
        (["2024-02-30"], pa.string()),
        (["2024-02-29", "2024-02-29 10:00:00"], pa.timestamp("us")),
        (["2024-02-29T10:00:00Z", "2024-02-29T10:00:00.123456+02:00"], pa.timestamp("us", "UTC")),
        (["2024-02-29T10:00:00Z", "2024-02-29T10:00:00"], pa.string()),
        (["1", "2024-02-29"], pa.string()),
        ([""], pa.string()),
        ([None, None], None),
        ([], None),
    ],
)
def test_a_type_holds_every_value_or_it_is_text(values: list[str | None], expected: pa.DataType | None) -> None:
    at_once = TextColumn()
    at_once.inspect(pa.array(values, pa.string()))
    one_by_one = TextColumn()
    for value in values:
        one_by_one.inspect(pa.array([value], pa.string()))
    assert at_once.type == one_by_one.type == expected


def test_text_in_json_can_be_a_time_but_never_a_number() -> None:
    column = TextColumn(times_only=True)
    column.inspect(pa.array(["1", "2"]))
    assert column.type == pa.string()
