import pytest
import tensorflow as tf

from official_lite.data import file_reading

# The size of each record: its content and the framing around it.
BYTES = 10 + 16


@pytest.fixture
def write(tmp_path):
    def write(name, *, flipped=(), length=20 * BYTES):
        path = tmp_path / name
        with tf.io.TFRecordWriter(str(path)) as writer:
            for index in range(20):
                writer.write(f"{name}.{index:02}".encode().rjust(10))
        content = bytearray(path.read_bytes())
        for place in flipped:
            content[place] ^= 1
        path.write_bytes(content[:length])
        return str(path)

    return write


def read(dataset):
    return [int(record.decode().rpartition(".")[2]) for record in dataset.as_numpy_iterator()]


@pytest.mark.parametrize(
    ("bad", "bytes_per_part"),
    [((), 2**20), ((0,), 1), ((4, 5), 3 * BYTES), ((0, 7, 8, 19), 3 * BYTES), ((19,), 2**20)],
)
def test_reader_skips_only_the_damaged_records_of_a_tfrecord_file(
    write, bad, bytes_per_part, monkeypatch
):
    monkeypatch.setattr(file_reading, "_PART_BYTES", bytes_per_part)
    file = write("a", flipped=[index * BYTES + 15 for index in bad])
    kept = [index for index in range(20) if index not in bad]
    assert read(file_reading.SoundRecords(4)(file)) == kept


@pytest.mark.parametrize("length", [7 * BYTES + 20, 7 * BYTES + 12])
def test_truncated_record_is_skipped_and_counted(write, length, caplog):
    file = write("a", length=length, flipped=[2 * BYTES + 15])
    assert read(file_reading.SoundRecords(2)(file)) == [0, 1, 3, 4, 5, 6]
    assert (
        f"truncated record at byte {7 * BYTES}. Skipping the record (2 of at most 2)" in caplog.text
    )


def test_damaged_record_of_a_repeated_dataset_is_counted_once(write):
    dataset = file_reading.SoundRecords(1)(write("a", flipped=[15]))
    assert len(read(dataset.repeat(3))) == 3 * 19


def test_reading_raises_if_damaged_records_of_all_files_together_exceed_the_limit(write):
    files = [write("a", flipped=[15]), write("b", flipped=[15])]
    dataset = file_reading.SoundRecords(1)
    with pytest.raises(tf.errors.OpError, match="allows only 1"):
        read(dataset(files))


def test_record_with_a_damaged_length_raises_an_error_with_its_position(write):
    file = write("a", flipped=[5 * BYTES + 1])
    with pytest.raises(tf.errors.OpError, match=f"unknown length at byte {5 * BYTES}"):
        read(file_reading.SoundRecords(99)(file))
