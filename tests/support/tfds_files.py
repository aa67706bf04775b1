"""Small data sets in the format of tensorflow-datasets, with the features of MovieLens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np


def write_tfds(
    folder: Path, log: Iterable[tuple[str, str, int]], side_features: bool = False
) -> None:
    """Writes a log as a data set that tensorflow-datasets knows by the name ``tiny``.

    Args:
      folder: the ``data_dir`` of tensorflow-datasets.
      log: user, item and time of each row.
      side_features: whether rows have the other features of MovieLens. Users are then called
        ``u7``, and items ``i7x``: the features follow from the numbers.
    """
    import tensorflow_datasets as tfds

    # Registered, the name would be taken for the next test of this process.
    class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            text, number = tfds.features.Text(), tfds.features.Scalar(np.int64)
            features = {"user_id": text, "movie_id": text, "timestamp": number}
            if side_features:
                genre = tfds.features.ClassLabel(names=["Action", "Comedy", "Drama"])
                features |= {
                    "movie_genres": tfds.features.Sequence(genre),
                    "movie_title": text,
                    "user_gender": tfds.features.Scalar(np.bool_),
                    "bucketized_user_age": tfds.features.Scalar(np.float32),
                    "user_occupation_label": tfds.features.ClassLabel(names=["artist", "doctor"]),
                    "user_rating": tfds.features.Scalar(np.float32),
                }
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for place, (user, item, time) in enumerate(log):
                row = {"user_id": user, "movie_id": item, "timestamp": time}
                if side_features:
                    user_number, item_number = int(user[1:]), int(item[1:-1])
                    row |= {
                        "movie_genres": list(range(item_number % 3, 3)),
                        "movie_title": f"film {item}",
                        "user_gender": user_number % 2 == 1,
                        "bucketized_user_age": 18.0 + user_number % 3,
                        "user_occupation_label": user_number % 2,
                        "user_rating": 4.5,
                    }
                yield place, row

    Tiny(data_dir=str(folder)).download_and_prepare()
