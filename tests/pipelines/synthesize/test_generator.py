"""The synthetic log has the structure of a real one."""

import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.__main__ import main
from pipelines.data.prepared import PreparedData
from pipelines.synthesize import generator


def all_events(config):
    chunks = list(generator.make_events(config))
    return [
        np.concatenate([getattr(chunk, name) for chunk in chunks])
        for name in ("users", "items", "times")
    ]


@pytest.fixture(scope="module")
def log():
    return all_events(generator.SyntheticConfig())


def test_sizes_and_speed():
    start = time.monotonic()
    users, items, times = all_events(generator.SyntheticConfig())
    assert time.monotonic() - start < 10  # About half a second on an idle machine.
    assert 80_000 < len(users) < 120_000
    assert len(np.unique(users)) == 4_000
    assert 2_900 < len(np.unique(items)) <= 3_000
    assert users.max() == 3_999 and items.max() < 3_000
    assert np.bincount(users).min() >= 5
    assert (np.diff(times) >= 0).all()


def test_same_seed_same_log_and_other_seed_another():
    config = generator.SyntheticConfig(num_users=200, num_items=300)
    first, second = all_events(config), all_events(config)
    assert all((one == other).all() for one, other in zip(first, second))
    other = all_events(generator.SyntheticConfig(num_users=200, num_items=300, seed=1))
    assert len(other[0]) != len(first[0]) or (other[1] != first[1]).any()


def test_chunks_bound_the_memory(monkeypatch):
    monkeypatch.setattr(generator, "CHUNK_USERS", 64)
    config = generator.SyntheticConfig(num_users=200, num_items=300)
    chunks = list(generator.make_events(config))
    assert [len(np.unique(chunk.users)) for chunk in chunks] == [64, 64, 64, 8]
    assert [chunk.users.min() // 64 for chunk in chunks] == [0, 1, 2, 3]


def test_popularity_has_a_long_tail_that_ids_do_not_show(log):
    counts = np.bincount(log[1], minlength=3_000)
    ordered = np.sort(counts)[::-1]
    assert ordered[:300].sum() > 0.3 * ordered.sum()  # A tenth of the items, a third of the rows.
    assert np.median(counts) < counts.mean() / 1.5
    assert abs(np.corrcoef(np.arange(3_000), counts)[0, 1]) < 0.1


def test_items_hardly_ever_come_again_at_once(log):
    users, items, _ = log
    order = np.argsort(users, kind="stable")
    same_user = users[order][1:] == users[order][:-1]
    again = same_user & (items[order][1:] == items[order][:-1])
    # Only where a cluster has no more than a few items; by popularity alone it would be 5 %.
    assert again.mean() < 0.005


def test_interests_drift():
    config = generator.SyntheticConfig(num_users=1_000, mean_length=60)
    catalogue = generator.make_catalogue(config)
    internal = np.argsort(catalogue.public_ids)
    users, items, _ = all_events(config)
    cluster = np.searchsorted(catalogue.starts, internal[items], side="right") - 1
    order = np.argsort(users, kind="stable")
    users, cluster = users[order], cluster[order]

    def share_known(distance):
        """How often a row's cluster was also that of the row so far before it."""
        pairs = users[distance:] == users[:-distance]
        return (cluster[distance:] == cluster[:-distance])[pairs].mean()

    near, middle, far = share_known(1), share_known(10), share_known(60)
    assert near > 0.6
    assert near > middle + 0.1 > far + 0.15
    assert far > 0.05


def recall(data, score, retrieval_size):
    """Recall over pairs; ``score`` gives every item a number, out of the history."""
    split = data.split("test")
    hits = pairs = 0
    for user in range(split.num_users):
        items = split.items[split.offsets[user] : split.offsets[user + 1]]
        length = split.history_lengths[user]
        best = np.argsort(-score(items[:length]), kind="stable")[:retrieval_size]
        hits += np.isin(items[length:], best).sum()
        pairs += len(items) - length
    return hits / pairs


def test_history_tells_more_than_popularity_and_more_than_the_cluster(tmp_path):
    path, out = tmp_path / "events.csv", tmp_path / "out"
    assert main(["synthesize", "--out", str(path)]) == 0
    assert main(["prepare", "--source", "csv", "--input", str(path), "--out", str(out)]) == 0
    data = PreparedData.load(out)
    train = data.split("train")
    users = np.repeat(np.arange(train.num_users), np.diff(train.offsets))
    together = np.zeros((data.num_items, data.num_items))
    for distance in range(1, 6):
        pairs = users[distance:] == users[:-distance]
        before, after = train.items[:-distance][pairs], train.items[distance:][pairs]
        np.add.at(together, (before, after), 1)
        np.add.at(together, (after, before), 1)

    catalogue = generator.make_catalogue(generator.SyntheticConfig())
    internal = np.argsort(catalogue.public_ids)
    public = np.array([int(name.removeprefix("item-")) for name in data.item_ids()])
    clusters = np.searchsorted(catalogue.starts, internal[public], side="right") - 1

    def by_cluster(history):
        """The best one can do who knows the true clusters, but nothing finer."""
        weights = np.bincount(clusters[history[-10:]], minlength=len(catalogue.cluster_shares))
        sizes = np.bincount(clusters, weights=data.item_counts, minlength=len(weights))
        return (weights / np.maximum(1, sizes))[clusters] * data.item_counts

    popularity = recall(data, lambda history: data.item_counts, 50)
    neighbours = recall(data, lambda history: together[history[-10:]].sum(0), 50)
    assert neighbours > 2.5 * popularity
    assert 0.05 < popularity
    # In a short list the finer structure shows.
    fine = recall(data, lambda history: together[history[-10:]].sum(0), 10)
    assert fine > 1.25 * recall(data, by_cluster, 10)


def test_step_writes_csv_and_parquet_alike(tmp_path, capsys):
    options = ["--users", "50", "--items", "40", "--seed", "1", "--mean-length", "10"]
    csv, parquet = tmp_path / "a" / "x.csv", tmp_path / "x.parquet"
    for path in (csv, parquet):
        assert main(["synthesize", "--out", str(path), *options]) == 0
    rows = [line.split(",") for line in csv.read_text().splitlines()]
    assert rows[0] == ["user", "item", "time"]
    table = pq.read_table(parquet).to_pydict()
    columns = zip(table["user"], table["item"], map(str, table["time"]))
    assert rows[1:] == [list(row) for row in columns]
    assert rows[1][1].startswith("item-000")
    capsys.readouterr()
    assert main(["synthesize", "--out", str(csv), *options]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["synthesize", "--out", str(tmp_path / "x.txt")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "x.parquet"]


def test_side_features_tell_something_of_what_users_choose(log):
    users, items, _ = log
    config = generator.SyntheticConfig()
    found = generator.make_item_features(config)
    [people] = generator.make_user_features(config)
    assert people.users.tolist() == list(range(4_000))
    genres = found.genres[items]
    own = (genres == people.segments[users]).mean()
    chance = (genres == np.random.default_rng(0).permutation(people.segments)[users]).mean()
    assert own > 3 * chance
    # The next item of a user often has the genre of the one before.
    order = np.argsort(users, kind="stable")
    same_user = np.diff(users[order]) == 0
    assert (np.diff(genres[order])[same_user] == 0).mean() > 0.4
    catalogue = generator.make_catalogue(config)
    vectors = catalogue.vectors[np.argsort(catalogue.public_ids)]
    assert np.corrcoef(np.log(found.prices), vectors[:, 0])[0, 1] > 0.9
    np.testing.assert_array_equal(found.tags, vectors > 0)
    assert found.released.max() < log[2].min()
    assert np.corrcoef(people.ages, people.segments)[0, 1] > 0.8


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_beside_the_log_are_what_prepare_reads(tmp_path, capsys, ending):
    log, items, users = (tmp_path / f"{name}.{ending}" for name in ("log", "items", "users"))
    command = ["synthesize", "--out", log, "--users", 90, "--items", 60, "--overwrite"]
    command += ["--item-table", items, "--user-table", users]
    for _ in range(2):
        assert main(list(map(str, command))) == 0
    command = ["prepare", "--source", ending, "--input", log, "--out", tmp_path / "out"]
    command += ["--items", items, "--item-features", "genre,price,tags,released:age"]
    command += ["--users", users, "--user-features", "segment,age"]
    assert main(list(map(str, command))) == 0
    data = PreparedData.load(tmp_path / "out")
    kinds = {name: spec.kind for name, spec in data.features("item").items()}
    assert kinds == {"genre": "category", "price": "number", "tags": "tags", "released": "age"}
    assert [spec.kind for spec in data.features("user").values()] == ["category", "category"]
    entries = data.manifest["statistics"]["side_tables"].values()
    assert not any(entry.get("items_without_a_row") for entry in entries)
    items.write_text("mine\n")
    command = ["synthesize", "--out", tmp_path / "new.csv", "--item-table", items, "--overwrite"]
    assert main(list(map(str, command))) == 2
    assert "was not written by synthesize" in capsys.readouterr().err
    assert items.read_text() == "mine\n" and not (tmp_path / "new.csv").exists()
